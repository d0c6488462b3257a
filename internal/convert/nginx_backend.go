package convert

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// passes reports whether a directive passes requests on to a backend.
func passes(d *crossplane.Directive) bool {
	return slices.Contains([]string{"proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"}, d.Directive)
}

// harmless are directives that keep no request from a backend. Those that end with _ stand
// for all that begin so.
var harmless = []string{
	"proxy_", "fastcgi_", "uwsgi_", "scgi_", "grpc_", "limit_", "client_", "keepalive_", "gzip", "gunzip", "brotli", "ssl_", "http2", "http3", "quic_",
	"access_log", "error_log", "log_", "add_header", "add_trailer", "expires", "etag", "send_", "sendfile", "tcp_", "charset", "default_type", "types", "root",
	"alias", "index", "server", "server_name", "server_name_in_redirect", "server_names_hash_", "server_tokens", "listen", "location", "include", "resolver",
	"resolver_timeout", "set_real_ip_from", "real_ip_", "set", "sub_filter", "sub_filter_", "reset_timedout_connection", "lingering_",
	"large_client_header_buffers", "underscores_in_headers", "ignore_invalid_headers", "merge_slashes", "absolute_redirect", "port_in_redirect", "aio",
	"directio", "open_file_cache", "open_file_cache_", "types_hash_", "variables_hash_", "map_hash_", "map", "geo", "upstream", "split_clients", "error_page",
	"recursive_error_pages", "mirror", "mirror_", "otel_", "status_zone", "output_buffers", "http", "events", "stream", "mail", "user", "pid", "worker_",
	"load_module", "daemon", "master_process", "thread_pool", "pcre_jit", "env", "timer_resolution",
}

// notInherited are directives that do not hold in the locations in a location.
var notInherited = []string{"return", "rewrite", "break", "if", "limit_except", "try_files"}

// mayRefuse reports whether a directive may keep requests from the backend. All that are not
// known to be harmless may.
func mayRefuse(d *crossplane.Directive) bool {
	if slices.Contains([]string{"limit_except", "ssl_verify_client", "ssl_client_certificate"}, d.Directive) {
		return true
	}
	return !slices.ContainsFunc(harmless, func(name string) bool {
		return d.Directive == name || strings.HasSuffix(name, "_") && strings.HasPrefix(d.Directive, name)
	})
}

// backends returns for each case of a server the arguments of reverse_proxy, or "" if nginx
// passes none of its requests on, or some only, or in a way that is not converted.
func (n *nginx) backends(s *nginxServer) []string {
	all := make([]string, len(s.cases))
	for i, c := range s.cases {
		if c.vague || c.answer != "" {
			continue
		}
		pass := slices.IndexFunc(c.Block, passes)
		if pass < 0 {
			continue
		}
		to := n.backend(c.location, c.Block[pass])
		if to != "" && !n.guarded(c.location) {
			all[i] = to
			n.used[c.Block[pass]] = true
		}
	}
	return all
}

// guarded reports whether something in a location, or around it, may keep requests from its
// backend, and notes that.
func (n *nginx) guarded(l *location) (guarded bool) {
	around := []crossplane.Directives{n.outer}
	for a := l; a != nil; a = a.parent {
		around = append(around, a.Block)
	}
	for i, block := range around {
		for _, d := range block {
			outside := i > 1 && i < len(around)-1 // in a location around it
			if mayRefuse(d) && !(outside && slices.Contains(notInherited, d.Directive)) {
				guarded = true
				n.add(Missing, n.at(d), "%s: it may keep requests from the backend, and is not converted. So nothing in its block is passed on: `reverse_proxy` for that is yours to write", d.Directive)
			}
		}
	}
	return guarded
}

// backend returns the arguments of reverse_proxy for a proxy_pass, or "".
func (n *nginx) backend(l *location, d *crossplane.Directive) string {
	u, err := url.Parse(d.Args[0])
	if d.Directive != "proxy_pass" || err != nil || u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || strings.Contains(d.Args[0], "$") {
		return ""
	}
	if u.Path != "" && !(u.Path == "/" && l.path == "/" && l.isPrefix()) { // it replaces the path of the location
		return ""
	}
	hosts := n.upstreams[u.Host]
	if hosts == nil {
		hosts = []string{u.Host}
	}
	if slices.ContainsFunc(hosts, func(h string) bool { return strings.HasPrefix(h, "unix:") }) {
		return ""
	}
	return strings.Join(hosts, " ")
}

// alike returns what all cases have, or false. Requests that are answered before do not count.
func (s *nginxServer) alike(backends []string) (to string, ok bool) {
	first := true
	for i, b := range backends {
		switch {
		case s.cases[i].answer != "":
		case first:
			to, first = b, false
		case b != to:
			return "", false
		}
	}
	return to, true
}

// writeBackends writes reverse_proxy for the cases that have one.
func (n *nginx) writeBackends(out *strings.Builder, s *nginxServer, backends []string) {
	if !slices.ContainsFunc(s.cases, func(c locationCase) bool { return c.answer == "" }) {
		return
	}
	out.WriteString("\n")
	if to, ok := s.alike(backends); ok && to != "" {
		fmt.Fprintf(out, "reverse_proxy %s\n", to)
		return
	}
	written := map[string]bool{"": true}
	for _, to := range backends {
		if written[to] {
			continue
		}
		written[to] = true
		name := fmt.Sprintf("@backend-%d", len(written)-1)
		s.in(func(i int) bool { return backends[i] == to }).writeNamed(out, name)
		fmt.Fprintf(out, "reverse_proxy %s %s\n", name, to)
	}
	out.WriteString("# Yours to write: what answers the ")
	if len(written) > 1 {
		out.WriteString("other ")
	}
	out.WriteString("requests")
	if to, at := n.unconverted(s.Block); len(at) > 0 {
		fmt.Fprintf(out, ". nginx has %s (%s)", strings.Join(to, ", "), strings.Join(at, ", "))
	}
	out.WriteString(".\n")
	if len(written) > 1 {
		out.WriteString("respond 404\n")
	} else {
		out.WriteString(unwritten + "\n")
	}
}

// unconverted returns the backends in a block that have no reverse_proxy, and where they
// stand.
func (n *nginx) unconverted(block crossplane.Directives) (to, at []string) {
	for _, d := range block {
		if passes(d) && !n.used[d] {
			to, at = append(to, d.Directive+" "+d.Args[0]), append(at, n.at(d))
		}
		inTo, inAt := n.unconverted(d.Block)
		to, at = append(to, inTo...), append(at, inAt...)
	}
	slices.Sort(to)
	return slices.Compact(to), at
}
