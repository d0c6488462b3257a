package convert

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// name returns the first name of a server, or what it is without one.
func (s *nginxServer) name(without string) string {
	for _, d := range s.Block {
		if d.Directive == "server_name" && len(d.Args) > 0 {
			return d.Args[0]
		}
	}
	return without
}

func (n *nginx) hosts(s *nginxServer) (hosts []string) {
	deep := func(d *crossplane.Directive, name string) {
		n.add(Missing, n.at(d), "server_name %s: in nginx the wildcard stands for any number of labels, and for one in a site: a.b%s is not answered", name, strings.TrimPrefix(name, "*"))
	}
	for _, d := range s.Block {
		if d.Directive != "server_name" {
			continue
		}
		for _, name := range d.Args {
			switch {
			case name == "_" || name == "":
			case strings.HasPrefix(name, "."):
				hosts = append(hosts, name[1:], "*"+name)
				deep(d, name)
			case strings.ContainsAny(name, "~$") || strings.HasSuffix(name, "*"):
				n.add(Missing, n.at(d), "server_name %s: a site has no such name; want one or more in its place", name)
			default:
				hosts = append(hosts, name)
				if strings.HasPrefix(name, "*") {
					deep(d, name)
				}
			}
		}
	}
	return hosts
}

// A listen is where a server listens.
type listen struct{ scheme, host, port string }

// listens returns where a server listens, and whether it says to be the default server there.
func (n *nginx) listens(s *nginxServer) (all []listen, explicit []bool) {
	found := false
	for _, d := range s.Block {
		if d.Directive != "listen" {
			continue
		}
		found = true
		l := listen{scheme: "http", port: "80"}
		if slices.Contains(d.Args, "ssl") || slices.Contains(d.Args, "quic") {
			l.scheme = "https"
		}
		where := d.Args[0]
		if strings.HasPrefix(where, "unix:") {
			n.add(Missing, n.at(d), "listen %s: write `bind unix/%s` in a site of its own", where, strings.TrimPrefix(where, "unix:"))
			continue
		}
		if _, err := strconv.Atoi(where); err == nil {
			l.port = where
		} else if host, port, err := net.SplitHostPort(where); err == nil {
			l.host, l.port = host, port
		} else {
			l.host = strings.Trim(where, "[]")
		}
		if l.host == "*" || l.host == "0.0.0.0" || l.host == "::" {
			l.host = ""
		}
		i := slices.Index(all, l)
		if i < 0 {
			all, explicit, i = append(all, l), append(explicit, false), len(all)
		}
		explicit[i] = explicit[i] || slices.Contains(d.Args, "default_server") || slices.Contains(d.Args, "default")
	}
	if !found {
		return []listen{{"http", "", "80"}}, []bool{false}
	}
	return all, explicit
}

// readDefaults finds the server that answers for hosts that no server names: the one that
// says so, or the first one in the whole configuration.
func (n *nginx) readDefaults() {
	n.defaults = map[listen]*nginxServer{}
	for _, wanted := range []bool{true, false} {
		for _, s := range n.servers {
			all, explicit := n.listens(s)
			for i, l := range all {
				if explicit[i] == wanted && (wanted || !n.part) && n.defaults[l] == nil {
					n.defaults[l] = s
				}
			}
		}
	}
}

// writeAddresses writes the addresses of a site. It writes bind where nginx listens at one
// address only.
func (n *nginx) writeAddresses(out *strings.Builder, s *nginxServer) {
	var bind, all, everyHost []string
	hosts := n.hosts(s)
	listens, _ := n.listens(s)
	for _, l := range listens {
		if l.host != "" && !slices.Contains(bind, l.host) {
			bind = append(bind, l.host)
		}
		names, every := n.siteNames(s, l, hosts)
		if every {
			everyHost = append(everyHost, l.port)
		}
		for _, host := range names {
			address := l.scheme + "://" + host + ":" + l.port
			if host != "" && (l.scheme == "http" && l.port == "80" || l.scheme == "https" && l.port == "443") {
				address = l.scheme + "://" + host
			}
			if owner, taken := n.sites[address]; taken && owner != s {
				n.add(Missing, n.at(s.Directive), "%s is the address of a server above, too; nginx chooses by listen, and this site needs another name", address)
				continue
			}
			n.sites[address] = s
			if !slices.Contains(all, address) {
				all = append(all, address)
			}
		}
	}
	if len(bind) > 0 && slices.ContainsFunc(listens, func(l listen) bool { return l.host != bind[0] }) {
		n.add(Missing, n.at(s.Directive), "the server listens at other addresses at one port than at another; `bind` is for all ports of a site")
	}
	if len(all) == 0 {
		all = []string{fmt.Sprintf("http://server-of-line-%d.invalid", s.Line)}
	}
	text := ""
	if len(everyHost) > 0 {
		text = ", and hosts that no server names at port " + strings.Join(everyHost, ", ")
	}
	fmt.Fprintf(out, "# %s: server %s%s\n%s {\n", n.at(s.Directive), s.name("_"), text, strings.Join(all, ", "))
	if len(bind) > 0 {
		fmt.Fprintf(out, "bind %s\n", strings.Join(bind, " "))
	}
}

// siteNames returns the names that a server has as a site where it listens, and whether it
// answers for all hosts there. "" stands for them.
func (n *nginx) siteNames(s *nginxServer, l listen, hosts []string) (names []string, every bool) {
	switch first := n.defaults[l]; {
	case first == nil && len(hosts) == 0: // of a part of a configuration
		return []string{""}, true
	case first != s && len(hosts) == 0:
		n.add(Missing, n.at(s.Directive), "the server has no name that a site may have, and that of %s is the default one of port %s: this one answers for no host there", n.at(first.Directive), l.port)
		return nil, false
	case first != s:
		return hosts, false
	}
	if l.scheme == "https" && len(hosts) > 0 {
		n.add(Missing, n.at(s.Directive), "the server is the default one of port %s: nginx answers for all hosts there, with one certificate. The site answers for those that it names", l.port)
		return hosts, false
	}
	// A site for all hosts goes last only if it has no name and others have wildcards.
	wildcards := n.wildcards(s, l)
	switch {
	case len(wildcards) == 0:
		return append(slices.Clip(hosts), ""), true
	case slices.ContainsFunc(hosts, func(h string) bool {
		return slices.ContainsFunc(wildcards, func(w string) bool { return strings.HasSuffix(h, w[1:]) })
	}):
		n.add(Missing, n.at(s.Directive), "the server is the default one of port %s, and names a host that another server has in %s. The site answers for the hosts that it names only", l.port, strings.Join(wildcards, " "))
		return hosts, false
	}
	return []string{""}, true
}

func (n *nginx) wildcards(s *nginxServer, l listen) (all []string) {
	for _, o := range n.servers {
		if at, _ := n.listens(o); o == s || !slices.Contains(at, l) {
			continue
		}
		for _, host := range n.hosts(o) {
			if strings.HasPrefix(host, "*") {
				all = append(all, host)
			}
		}
	}
	return all
}
