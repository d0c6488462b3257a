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

func (n *nginx) listens(s *nginxServer) (all []listen) {
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
		if !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	if !found {
		return []listen{{"http", "", "80"}}
	}
	return all
}

// writeAddresses writes the addresses of a site: its names, or every host if it has none. It writes bind
// where nginx listens at one address only.
func (n *nginx) writeAddresses(out *strings.Builder, s *nginxServer) {
	var bind, all []string
	hosts, listens := n.hosts(s), n.listens(s)
	if len(hosts) == 0 && strings.Trim(s.name(""), "_") == "" {
		hosts = []string{""}
	} else {
		n.add(Differs, "", "a site answers for the hosts that it names. nginx answers for all others, too, by the default server of a port: "+
			"write http:// or https:// and the port as one more address of that site")
	}
	for _, l := range listens {
		if l.host != "" && !slices.Contains(bind, l.host) {
			bind = append(bind, l.host)
		}
		for _, host := range hosts {
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
	fmt.Fprintf(out, "# %s: server %s\n%s {\n", n.at(s.Directive), s.name("_"), strings.Join(all, ", "))
	if len(bind) > 0 {
		fmt.Fprintf(out, "bind %s\n", strings.Join(bind, " "))
	}
}
