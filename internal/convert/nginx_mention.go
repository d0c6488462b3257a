package convert

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// mention notes all that bears on limits or rejections and was not converted.
func (n *nginx) mention(block crossplane.Directives) {
	for _, d := range block {
		n.mentionOne(d)
		n.mention(d.Block)
	}
}

// mentions are what there is to say of directives that are not converted: the first that fits, by the
// directive with its arguments.
var mentions = []struct {
	what *regexp.Regexp
	kind Kind
	text string // "": nothing
}{
	{regexp.MustCompile(`^\w*limit_rate(_after)? `), Missing, "a shield limits requests, not bytes"},
	{regexp.MustCompile(`^(access|rewrite)_by_lua|^js_access `), Missing, "code may limit requests, too, and is not read"},
	{regexp.MustCompile(`^\w+_log_level `), Missing, "a shield writes no line per rejection. `shield top`, `shield who` and the metrics show rejections"},
	{regexp.MustCompile(`^auth_delay `), Missing, "a shield does not delay failed logins; a zone that matches the path of the login limits them"},
	{regexp.MustCompile(`^queue `), Missing, "`queue` in a shield, with `concurrency`, is the nearest"},
	{regexp.MustCompile(`^limit_(except|\w+_zone|\w+_status|\w+_dry_run off) `), 0, ""}, // about methods, or without an effect
	{regexp.MustCompile(`^limit_`), Missing, "no server was found that it holds for, or it is not known"},
	{regexp.MustCompile(`^error_page (.* )?(503|429) `), Missing, "`handle_errors` in the site answers rejections, or `body` in `pushback`"},
	{regexp.MustCompile(`^add_header (?i:Retry-After) `), Better, "each rejected client is told its own time"},
}

func (n *nginx) mentionOne(d *crossplane.Directive) {
	what := strings.TrimSpace(d.Directive + " " + strings.Join(d.Args, " "))
	if n.used[d] || d.IsMapBlockParameter {
		return
	}
	for _, m := range mentions {
		if m.what.MatchString(what + " ") {
			if m.text != "" {
				n.add(m.kind, n.at(d), "%s: %s", what, m.text)
			}
			return
		}
	}
}

// writeOptions writes the proxies from which nginx takes the addresses of clients.
func (n *nginx) writeOptions(out *strings.Builder, all crossplane.Directives) {
	var from []string
	header, recursive := "X-Real-IP", false // nginx's default
	var walk func(crossplane.Directives)
	walk = func(block crossplane.Directives) {
		for _, d := range block {
			switch d.Directive {
			case "set_real_ip_from":
				if d.Args[0] == "unix:" {
					n.add(Missing, n.at(d), "set_real_ip_from unix:: `trusted_proxies_unix` in the global options is the nearest")
				} else if !slices.Contains(from, d.Args[0]) {
					from = append(from, d.Args[0])
				}
			case "real_ip_header":
				header = d.Args[0]
			case "real_ip_recursive":
				recursive = d.Args[0] == "on"
			}
			walk(d.Block)
		}
	}
	walk(all)
	if len(from) == 0 {
		return
	}
	fmt.Fprintf(out, "{\nservers {\ntrusted_proxies static %s\ntrusted_proxies_strict\n", strings.Join(from, " "))
	switch {
	case strings.EqualFold(header, "proxy_protocol"):
		n.add(Missing, "", "real_ip_header proxy_protocol: want the listener wrapper proxy_protocol in the global options")
	case !strings.EqualFold(header, "X-Forwarded-For"):
		fmt.Fprintf(out, "client_ip_headers %s\n", header)
	case !recursive:
		n.add(Better, "", "real_ip_recursive off takes the last address in X-Forwarded-For; Caddy the last one that is not a trusted proxy's")
	}
	out.WriteString("}\n}\n\n")
}
