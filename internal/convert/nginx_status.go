package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// statuses collects what nginx answers to requests over a limit.
func (n *nginx) statuses(to map[string]bool, s *nginxServer, u *use) {
	for i := range u.in {
		d := s.cases[i].scope.status
		if u.Directive.Directive == "limit_conn" {
			d = s.cases[i].scope.connStatus
		}
		if d == nil {
			to[""] = true
			continue
		}
		n.used[d] = true
		to[d.Args[0]] = true
	}
}

func (n *nginx) writeStatuses(out *strings.Builder, b *shieldBlock) {
	text := ""
	for _, of := range []struct {
		option, usual string
		statuses      map[string]bool
	}{{"status", "429", b.quota}, {"overload_status", "503", b.overload}} {
		all := slices.Sorted(maps.Keys(of.statuses))
		switch {
		case len(all) == 0 || len(all) == 1 && (all[0] == of.usual || all[0] == "" && of.usual == "503"):
		case len(all) > 1:
			if all[0] == "" {
				all[0] = "503 by default"
			}
			n.add(Missing, "", "requests over a limit are answered with %s by nginx, depending on the limit and the location; a shield has one %s, and here it is %s",
				strings.Join(all, " or "), of.option, of.usual)
		case all[0] == "":
			n.add(Better, "", "a client over its limit is answered 429, and 503 only where it is the backend that is full. nginx answers 503 to both; `status 503` in `pushback` does so, too")
		case all[0] == "444" || all[0] == "499":
			n.add(Missing, "", "status %s closes the connection without an answer in nginx; a shield answers %s with Retry-After", all[0], of.usual)
		default:
			text += of.option + " " + all[0] + "\n"
		}
	}
	if text != "" {
		fmt.Fprintf(out, "\npushback {\n%s}\n", text)
	}
}
