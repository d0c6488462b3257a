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
	dry   bool   // nginx logs what it would refuse
	in    map[int]bool
}

func (o scope) ofRequests() (limits []*crossplane.Directive, dry *crossplane.Directive) {
	return o.requests, o.dryRequests
}

func (o scope) ofConnections() (limits []*crossplane.Directive, dry *crossplane.Directive) {
	return o.connections, o.dryConnections
}

// uses returns the limits of a server, in the order of their lines.
func (n *nginx) uses(s *nginxServer, of func(scope) ([]*crossplane.Directive, *crossplane.Directive)) (all []*use) {
	for i, c := range s.cases {
		limits, dry := of(c.scope)
		isDry := dry != nil && dry.Args[0] == "on"
		if dry != nil && len(limits) > 0 {
			n.used[dry] = true
		}
		if isDry && len(limits) > 0 {
			n.add(Same, n.at(dry), "%s on: `mode observe` counts what would be refused, and refuses nothing", dry.Directive)
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

// everywhere reports whether a limit holds for all requests of a server.
func (u *use) everywhere(s *nginxServer) bool { return s.in(u.holds).all() }

func (u *use) holds(i int) bool { return u.in[i] }

// conditions returns when a limit counts a request: where its locations and its key say so.
func conditions(s *nginxServer, u *use, o []cond) (any []cond) {
	for _, when := range o {
		any = append(any, and(s.in(u.holds), when))
	}
	return any
}

// byKey returns the keys of a zone, and when each is the key of a request.
func (n *nginx) byKey(u *use) (keys []outcome, when map[string][]cond, ok bool) {
	outs, err := n.limited(u.zone.key)
	if err != nil {
		n.add(Missing, n.at(u.Directive), "%s with zone %s (%s): its key is %s: %v", u.Directive.Directive, u.name, n.at(u.zone.Directive), u.zone.key, err)
		return nil, nil, false
	}
	when = map[string][]cond{}
	for _, o := range outs {
		if when[o.key] == nil {
			keys = append(keys, o)
		}
		when[o.key] = append(when[o.key], o.when)
	}
	if len(keys) == 0 {
		n.add(Same, n.at(u.Directive), "zone %s has an empty key for all requests, and limits none", u.name)
	}
	n.noteKeys(u, keys)
	return keys, when, true
}

func (n *nginx) noteKeys(u *use, keys []outcome) {
	at := n.at(u.zone.Directive)
	if len(n.blocks) > 0 && strings.Contains(u.zone.key, "$") && n.blocks[strings.Trim(u.zone.key, "${}")] != nil {
		n.add(Same, at, "requests for which map and geo leave the key empty are not limited: `match` says so")
	}
	for _, k := range keys {
		switch {
		case strings.Contains(k.key, "{client_ip}"):
			n.add(Better, at, "an IPv6 client is its /64, as it could change its address within that. `ipv6_prefix 128` in a zone counts single addresses")
		case !k.sure:
			n.add(Same, at, "requests without %s are not limited: `match` says so", strings.Join(k.variable, " and "))
		}
		if strings.Contains(k.key, "{path}") {
			n.add(Differs, at, "$uri has no double slashes and dots; {path} is as the client sends it, so it may spell one path in several ways")
		}
		if strings.Contains(k.key, "X-Forwarded-For") {
			n.add(Differs, at, "$http_x_forwarded_for is what a client writes; with trusted_proxies in the global options {client_ip} is what proxies say")
		}
	}
}

// servers1 reports whether no second server uses the zone.
func (n *nginx) servers1(z *requestZone) bool {
	count := 0
	for _, s := range n.servers {
		if slices.ContainsFunc(s.cases, func(c locationCase) bool {
			return slices.ContainsFunc(slices.Concat(c.scope.requests, c.scope.connections), func(d *crossplane.Directive) bool {
				u, err := n.readUse(d)
				return err == nil && u.zone == z
			})
		}) {
			count++
		}
	}
	return count == 1
}
