package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// A use is a limit_req or limit_conn with its numbers, in all locations where it holds.
type use struct {
	*crossplane.Directive
	at    []string
	zone  *requestZone
	name  string // of the zone
	n     int    // how many requests at once, or in flight
	delay string // what of the burst nginx holds back: "", "all", or all but so many
	dry   bool   // nginx logs what it would reject
	in    map[int]bool
}

// uses returns the limits of a server by a directive, in the order of their lines.
func (n *nginx) uses(s *nginxServer, directive string) (all []*use) {
	for i, c := range s.cases {
		limits, dry := c.scope[directive], c.scope.last(directive+"_dry_run")
		isDry := dry != nil && dry.Args[0] == "on"
		if dry != nil && len(limits) > 0 {
			n.used[dry] = true
		}
		for _, d := range limits {
			n.used[d] = true
			u, err := n.readUse(d)
			if err != nil {
				n.add(Missing, n.at(d), "%s %s: %v", d.Directive, strings.Join(d.Args, " "), err)
				continue
			}
			j := slices.IndexFunc(all, func(o *use) bool { return o.name == u.name && o.n == u.n && o.dry == isDry })
			u.dry = isDry
			if j < 0 {
				all, j = append(all, u), len(all)
			}
			if old := all[j]; !slices.Contains(old.at, n.at(d)) {
				old.at = append(old.at, n.at(d))
			}
			all[j].in[i] = true
		}
	}
	slices.SortStableFunc(all, func(a, b *use) int { return a.Line - b.Line })
	return all
}

func (n *nginx) readUse(d *crossplane.Directive) (u *use, err error) {
	u = &use{Directive: d, n: 1, in: map[int]bool{}}
	number := func(text string, least int) int {
		i, wrong := strconv.Atoi(text)
		if wrong != nil || i < least {
			err = fmt.Errorf("%s is no number from %d on", text, least)
		}
		return i
	}
	delay := ""
	for i, arg := range d.Args {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case d.Directive == "limit_conn" && i == 0:
			u.name = arg
		case d.Directive == "limit_conn":
			u.n = number(arg, 1)
		case name == "zone":
			u.name = value
		case name == "burst":
			if u.n = 1 + number(value, 0); delay == "" && u.n > 1 {
				delay = "all"
			}
		case arg == "nodelay":
			delay = "none"
		case name == "delay":
			delay = "all but " + value
		default:
			err = fmt.Errorf("%s is not understood", arg)
		}
	}
	if u.zone = n.zones[u.name]; err == nil && (u.zone == nil || (u.zone.rate == "") != (d.Directive == "limit_conn")) {
		err = fmt.Errorf("zone %s is not defined here; convert the file that defines it and includes this one", u.name)
	}
	if delay != "none" {
		u.delay = delay
	}
	return u, err
}

func (u *use) everywhere(s *nginxServer) bool { return s.in(u.in).all() }

// key returns the key of a limit, and which requests it counts: those in its locations whose key is
// not empty.
func (n *nginx) key(s *nginxServer, u *use) (key value, on cond, ok bool) {
	key, when, err := n.variables.key(u.name, u.zone.key)
	switch {
	case err != nil:
		n.add(Missing, n.at(u.Directive), "%s with zone %s (%s): its key is %s: %v", u.Directive.Directive, u.name, n.at(u.zone.Directive), u.zone.key, err)
		return key, on, false
	case key.text == "": // for all requests: it limits none
		return key, on, false
	}
	n.noteKey(u, key)
	return key, and(s.in(u.in), when), true
}

func (n *nginx) noteKey(u *use, key value) {
	at := n.at(u.zone.Directive)
	if strings.Contains(key.text, "{client_ip}") {
		n.add(Better, at, "an IPv6 client is its /64, as it could change its address within that. `ipv6_prefix 128` in a zone counts single addresses")
	}
	if strings.Contains(key.text, "{path}") {
		n.add(Differs, at, "$uri has no double slashes and dots; {path} is as the client sends it, so it may spell one path in several ways")
	}
	if strings.Contains(key.text, "X-Forwarded-For") {
		n.add(Differs, at, "$http_x_forwarded_for is what a client writes; with trusted_proxies in the global options {client_ip} is what proxies say")
	}
}

func (n *nginx) title(u *use) string {
	return fmt.Sprintf("%s: %s %s, with %s of %s", strings.Join(u.at, ", "), u.Directive.Directive, strings.Join(u.Args, " "), quote(u.zone.key), n.at(u.zone.Directive))
}
