package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
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
			n.add(Missing, "", "requests over a limit are answered with %s by nginx, depending on the location; a shield has one %s, and here it is %s",
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

// dryRun reports whether a server only logs what it would refuse.
func (n *nginx) dryRun(s *nginxServer) bool {
	dry, enforced := []*crossplane.Directive{}, 0
	look := func(limits []*crossplane.Directive, d *crossplane.Directive) {
		switch {
		case len(limits) == 0:
		case d != nil && d.Args[0] == "on":
			dry = append(dry, d)
		default:
			enforced++
		}
	}
	for _, c := range s.cases {
		look(c.scope.requests, c.scope.dryRequests)
		look(c.scope.connections, c.scope.dryConnections)
	}
	for _, d := range dry {
		n.used[d] = true
		if enforced > 0 {
			n.add(Missing, n.at(d), "%s on: `mode observe` is for all limits of a shield, and others here are enforced. These are enforced, too", d.Directive)
		} else {
			n.add(Same, n.at(d), "%s on: `mode observe` counts what would be refused, and refuses nothing", d.Directive)
		}
	}
	return len(dry) > 0 && enforced == 0
}
