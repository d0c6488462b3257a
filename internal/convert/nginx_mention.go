package convert

import (
	"fmt"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// mentions says of directives that bear on limits or refusals why they are not converted.
var mentions = map[string]struct {
	kind Kind
	text string
}{
	"limit_rate":           {Missing, "a shield limits requests, not bytes"},
	"limit_rate_after":     {Missing, "a shield limits requests, not bytes"},
	"proxy_limit_rate":     {Missing, "a shield limits requests, not bytes"},
	"fastcgi_limit_rate":   {Missing, "a shield limits requests, not bytes"},
	"scgi_limit_rate":      {Missing, "a shield limits requests, not bytes"},
	"uwsgi_limit_rate":     {Missing, "a shield limits requests, not bytes"},
	"limit_req_log_level":  {Missing, "a shield writes no line per refusal. `shield top`, `shield who` and the metrics show refusals"},
	"limit_conn_log_level": {Missing, "a shield writes no line per refusal. `shield top`, `shield who` and the metrics show refusals"},
	"auth_delay":           {Missing, "a shield does not delay failed logins; a zone that matches the path of the login limits them"},
	"access_by_lua_block":  {Missing, "code may limit requests, too, and is not read"},
	"access_by_lua_file":   {Missing, "code may limit requests, too, and is not read"},
	"rewrite_by_lua_block": {Missing, "code may limit requests, too, and is not read"},
	"rewrite_by_lua_file":  {Missing, "code may limit requests, too, and is not read"},
	"js_access":            {Missing, "code may limit requests, too, and is not read"},
	"queue":                {Missing, "`queue` in a shield, with `concurrency`, is the nearest"},
}

// mention notes all that bears on limits and was not converted.
func (n *nginx) mention(block crossplane.Directives, stream bool) {
	for _, d := range block {
		n.mentionOne(d, stream)
		n.mention(d.Block, stream || d.Directive == "stream" || d.Directive == "mail")
	}
}

func (n *nginx) mentionOne(d *crossplane.Directive, stream bool) {
	what := strings.TrimSpace(d.Directive + " " + strings.Join(d.Args, " "))
	m, known := mentions[d.Directive]
	switch {
	case n.used[d] || d.IsMapBlockParameter:
	case stream && strings.Contains(d.Directive, "limit_") || stream && strings.HasSuffix(d.Directive, "_rate"):
		n.add(Missing, n.at(d), "%s: it is for TCP or mail, and a shield for HTTP", what)
	case d.Directive == "return" && !stream: // in an if
		n.add(Missing, n.at(d), "%.60s: whether it answers depends on more than the location", what)
	case known:
		n.add(m.kind, n.at(d), "%s: %s", what, m.text)
	case d.Directive == "limit_req_zone" || d.Directive == "limit_conn_zone":
		n.mentionZone(d)
	case d.Directive == "limit_except": // is about methods
	case d.Directive == "limit_req_status" || d.Directive == "limit_conn_status" ||
		(d.Directive == "limit_req_dry_run" || d.Directive == "limit_conn_dry_run") && d.Args[0] == "off":
		n.add(Same, n.at(d), "%s: it has no effect here", what)
	case strings.HasPrefix(d.Directive, "limit_"):
		n.add(Missing, n.at(d), "%s: no server was found that it holds for, or it is not known", what)
	case d.Directive == "error_page" && len(d.Args) > 1 && n.answersRefusals(d.Args[:len(d.Args)-1]):
		n.add(Missing, n.at(d), "%s: `handle_errors` in the site answers refusals, or `body` in `pushback`", what)
	case d.Directive == "add_header" && strings.EqualFold(d.Args[0], "Retry-After"):
		n.add(Better, n.at(d), "%s: each refused client is told its own time", what)
	}
}

// answersRefusals reports whether a status is one that limits answer.
func (n *nginx) answersRefusals(statuses []string) bool {
	all := []string{"503", "429"}
	for d := range n.used {
		if strings.HasSuffix(d.Directive, "_status") {
			all = append(all, d.Args[0])
		}
	}
	return slices.ContainsFunc(statuses, func(s string) bool { return slices.Contains(all, s) })
}

// mentionZone notes a zone that no limit has.
func (n *nginx) mentionZone(d *crossplane.Directive) {
	for u := range n.used {
		if use, err := n.readUse(u); strings.HasPrefix(u.Directive, "limit_") && err == nil && use.zone.Directive == d {
			return
		}
	}
	n.add(Same, n.at(d), "%s: no server uses the zone", strings.Join(d.Args, " "))
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
				n.add(Same, n.at(d), "set_real_ip_from: trusted_proxies says from which proxies the address of a client is taken, for all sites")
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

// mentionRedirects notes what sends requests to other locations inside nginx.
func (n *nginx) mentionRedirects(block crossplane.Directives) {
	for _, d := range block {
		last := ""
		if len(d.Args) > 0 {
			last = d.Args[len(d.Args)-1]
		}
		switch d.Directive {
		case "rewrite":
			if last == "break" || last == "redirect" || last == "permanent" {
				continue
			}
		case "error_page":
			if !strings.HasPrefix(last, "/") && !strings.HasPrefix(last, "@") || n.answersRefusals(d.Args[:len(d.Args)-1]) {
				continue
			}
		case "try_files", "index":
		default:
			n.mentionRedirects(d.Block)
			continue
		}
		n.add(Missing, n.at(d), "%s: it may send a request to another location inside nginx, whose limits count if the first has none. Here those of the path count that the client asked for", d.Directive)
	}
}
