package convert

import (
	"fmt"
	"maps"
	"net"
	"net/url"
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
	in    map[int]bool
}

// uses returns the limits of a server, in the order of their lines.
func (n *nginx) uses(s *nginxServer, of func(scope) []*crossplane.Directive) (all []*use) {
	for i, sc := range s.scopes {
		for _, d := range of(sc) {
			n.used[d] = true
			u, err := n.readUse(d)
			if err != nil {
				n.add(Missing, n.at(d), "%s %s: %v", d.Directive, strings.Join(d.Args, " "), err)
				continue
			}
			j := slices.IndexFunc(all, func(o *use) bool { return o.name == u.name && o.n == u.n })
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

// A shieldBlock is one shield directive.
type shieldBlock struct {
	name      string
	on        *cond // a named matcher; nil: all requests
	options   strings.Builder
	capacity  bool
	total     int    // of concurrency; 0: none
	per       string // the arguments of per; "": none
	quota     map[string]bool
	overload  map[string]bool // statuses that nginx answers; "": none is set
	connLines []string
}

func newShieldBlock() *shieldBlock {
	return &shieldBlock{quota: map[string]bool{}, overload: map[string]bool{}}
}

// writeServer writes the site of a server.
func (n *nginx) writeServer(out *strings.Builder, s *nginxServer) {
	if !s.limits() {
		n.add(Same, n.at(s.Directive), "the server has no limits, and is left out")
		return
	}
	n.server = s.name()
	main := newShieldBlock()
	requests := n.uses(s, func(o scope) []*crossplane.Directive { return o.requests })
	for _, u := range requests {
		n.writeRequests(main, s, u)
	}
	if len(requests) > 1 {
		n.add(Same, n.at(s.Directive), "all limits of a location count, and a request that one of them refuses is charged to none")
	}
	blocks := []*shieldBlock{main}
	for _, u := range n.uses(s, func(o scope) []*crossplane.Directive { return o.connections }) {
		blocks = n.writeConnections(blocks, s, u)
	}
	observe := n.dryRun(s)
	var body strings.Builder
	for _, b := range blocks {
		n.writeShield(&body, b, observe)
	}
	fmt.Fprintf(out, "# %s: server %s\n%s {\n", n.at(s.Directive), s.name(), n.addresses(s, &body))
	out.WriteString(body.String())
	n.writeBackend(out, s)
	out.WriteString("}\n\n")
}

// conditions returns when a limit counts a request: where its locations and its key say so.
func conditions(s *nginxServer, u *use, o []cond) (any []cond) {
	for _, where := range s.cases.of(func(i int) bool { return u.in[i] }) {
		for _, when := range o {
			if !disjoint(where, when) {
				any = append(any, and(where, when))
			}
		}
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
		if strings.Contains(k.key, "X-Forwarded-For") {
			n.add(Differs, at, "$http_x_forwarded_for is what a client writes; with trusted_proxies in the global options {client_ip} is what proxies say")
		}
	}
}

// writeRequests writes a limit_req: a zone for each of its keys.
func (n *nginx) writeRequests(b *shieldBlock, s *nginxServer, u *use) {
	keys, when, _ := n.byKey(u)
	for _, k := range keys {
		any := conditions(s, u, when[k.key])
		if len(any) == 0 {
			continue
		}
		fmt.Fprintf(&b.options, "\n# %s: %s %s, with %s of %s\n", strings.Join(u.at, ", "), u.Directive.Directive, strings.Join(u.Args, " "), quote(u.zone.key), n.at(u.zone.Directive))
		constant, everywhere := len(k.variable) == 0, len(any) == 1 && any[0].all()
		if constant && everywhere && !b.capacity && n.servers1(u.zone) {
			b.capacity = true
			fmt.Fprintf(&b.options, "capacity %s burst %d\n", u.zone.rate, u.n)
			n.statuses(b.overload, s, u)
			n.add(Better, n.at(u.Directive), "zone %s counts all clients together, so it is the capacity: each refused client is told a time of its own, and they come back at the rate", u.name)
		} else {
			n.writeZone(b, u, k, any)
			n.statuses(b.quota, s, u)
		}
		n.noteRate(u)
	}
}

func (n *nginx) writeZone(b *shieldBlock, u *use, k outcome, any []cond) {
	var match strings.Builder
	if len(any) > 1 || !any[0].all() {
		for _, c := range any {
			match.WriteString("match {\n")
			c.write(&match)
			match.WriteString("}\n")
		}
	}
	name := n.names.of(u.name, fmt.Sprint(u.name, u.n, u.zone.rate, k.key, match.String()))
	if name != u.name {
		n.add(Differs, n.at(u.Directive), "zone %s is called %s here. It counts its requests alone, as its burst, its key or its requests are others; nginx counts them together if the key is the same", u.name, name)
	}
	fmt.Fprintf(&b.options, "zone %s {\n%s", name, match.String())
	if len(k.variable) == 0 {
		fmt.Fprintf(&b.options, "key %s # is never set, so all clients share one bucket\n", everyone)
	} else {
		fmt.Fprintf(&b.options, "key %s\n", quote(k.key))
	}
	fmt.Fprintf(&b.options, "rate %s\nburst %d\n", u.zone.rate, u.n)
	if most := u.zone.size >> 20 * 8000; most > 200_000 { // nginx.org: 8 thousand states in a megabyte
		fmt.Fprintf(&b.options, "max_keys %d\n", min(most, 1<<26))
	}
	b.options.WriteString("}\n")
}

func (n *nginx) noteRate(u *use) {
	at := n.at(u.Directive)
	if u.delay == "" {
		n.add(Same, at, "zone %s: %d at once, and then %s", u.name, u.n, u.zone.rate)
		return
	}
	n.add(Differs, at, "zone %s: the same %d are admitted at once, and then %s. nginx holds %s of the burst back and sends them to the backend at the rate; "+
		"here they go there at once. `burst 1` refuses them and tells each when to come; `concurrency adaptive` with its queue bounds what is at the backend", u.name, u.n, u.zone.rate, u.delay)
}

// servers1 reports whether no second server uses the zone.
func (n *nginx) servers1(z *requestZone) bool {
	count := 0
	for _, s := range n.servers {
		if slices.ContainsFunc(s.scopes, func(o scope) bool {
			return slices.ContainsFunc(slices.Concat(o.requests, o.connections), func(d *crossplane.Directive) bool {
				u, err := n.readUse(d)
				return err == nil && u.zone == z
			})
		}) {
			count++
		}
	}
	return count == 1
}

// writeConnections puts a limit_conn into the server's shield, or, if it does not hold for
// all requests or there is one already, into one of its own.
func (n *nginx) writeConnections(blocks []*shieldBlock, s *nginxServer, u *use) []*shieldBlock {
	keys, when, _ := n.byKey(u)
	for _, k := range keys {
		any := conditions(s, u, when[k.key])
		if len(any) == 0 {
			continue
		}
		constant, everywhere := len(k.variable) == 0, len(any) == 1 && any[0].all()
		b := blocks[0]
		if !everywhere || constant && b.total > 0 || !constant && b.per != "" {
			b = newShieldBlock()
			b.name = n.names.of(u.name, n.at(u.Directive)+n.server+k.key)
			if !everywhere {
				on := either(any)
				b.on = &on
			}
			blocks = append(blocks, b)
		}
		b.connLines = append(b.connLines, fmt.Sprintf("%s: %s %s, with %s of %s", strings.Join(u.at, ", "), u.Directive.Directive, strings.Join(u.Args, " "), quote(u.zone.key), n.at(u.zone.Directive)))
		if constant {
			b.total = u.n
			n.statuses(b.overload, s, u)
		} else {
			b.per = fmt.Sprintf("%s %d", quote(k.key), u.n)
			n.statuses(b.quota, s, u)
		}
		n.add(Same, n.at(u.Directive), "zone %s: at most %d requests in flight%s", u.name, u.n, map[bool]string{true: "", false: " of one client"}[constant])
		if !n.servers1(u.zone) && n.server != k.key {
			n.add(Differs, n.at(u.Directive), "zone %s: each server counts its requests alone; nginx counts those of all servers together", u.name)
		}
	}
	return blocks
}

// noLimit is a concurrency that no request reaches: the most that a shield takes.
const noLimit = 1_000_000

func (n *nginx) writeShield(out *strings.Builder, b *shieldBlock, observe bool) {
	if b.options.Len() == 0 && b.total == 0 && b.per == "" {
		return
	}
	matcher := ""
	if b.on != nil {
		matcher = "@" + b.name
		fmt.Fprintf(out, "%s {\n", matcher)
		b.on.write(out)
		out.WriteString("}\n")
	}
	fmt.Fprintf(out, "shield %s {\n", matcher)
	if b.name != "" {
		fmt.Fprintf(out, "name %s\n", b.name)
	}
	if observe {
		out.WriteString("mode observe\n")
	}
	out.WriteString(strings.TrimPrefix(b.options.String(), "\n"))
	if b.options.Len() > 0 && len(b.connLines) > 0 {
		out.WriteString("\n")
	}
	for _, line := range b.connLines {
		fmt.Fprintf(out, "# %s\n", line)
	}
	total := strconv.Itoa(b.total)
	if b.total == 0 {
		total = strconv.Itoa(noLimit)
	}
	switch {
	case b.per != "":
		fmt.Fprintf(out, "concurrency %s {\nper %s\n}\n", total, b.per)
	case b.total > 0:
		fmt.Fprintf(out, "concurrency %s\n", total)
	}
	n.writeStatuses(out, b)
	out.WriteString("}\n")
}

// statuses collects what nginx answers to requests over a limit.
func (n *nginx) statuses(to map[string]bool, s *nginxServer, u *use) {
	for i := range u.in {
		d := s.scopes[i].status
		if u.Directive.Directive == "limit_conn" {
			d = s.scopes[i].connStatus
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
	look := func(limits, d []*crossplane.Directive) {
		switch {
		case len(limits) == 0:
		case d[0] != nil && d[0].Args[0] == "on":
			dry = append(dry, d[0])
		default:
			enforced++
		}
	}
	for _, o := range s.scopes {
		look(o.requests, []*crossplane.Directive{o.dryRequests})
		look(o.connections, []*crossplane.Directive{o.dryConnections})
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

// name returns the first name of a server.
func (s *nginxServer) name() string {
	for _, d := range s.Block {
		if d.Directive == "server_name" && len(d.Args) > 0 {
			return d.Args[0]
		}
	}
	return "_"
}

// addresses returns the addresses of a site. It writes bind where nginx listens at one
// address only.
func (n *nginx) addresses(s *nginxServer, body *strings.Builder) string {
	var hosts, bind, all []string
	for _, d := range s.Block {
		if d.Directive != "server_name" {
			continue
		}
		for _, name := range d.Args {
			switch {
			case name == "_" || name == "":
			case strings.HasPrefix(name, "."):
				hosts = append(hosts, name[1:], "*"+name)
			case strings.ContainsAny(name, "~$") || strings.HasSuffix(name, "*"):
				n.add(Missing, n.at(d), "server_name %s: a site has no such name; want one or more in its place", name)
			default:
				hosts = append(hosts, name)
			}
		}
	}
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for _, l := range n.listens(s) {
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
	if len(bind) > 0 {
		fmt.Fprintf(body, "bind %s\n", strings.Join(bind, " "))
	}
	if len(all) == 0 {
		return fmt.Sprintf("http://server-of-line-%d.invalid", s.Line)
	}
	return strings.Join(all, ", ")
}

type listen struct{ scheme, host, port string }

func (n *nginx) listens(s *nginxServer) (all []listen) {
	for _, d := range s.Block {
		if d.Directive != "listen" {
			continue
		}
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
	if !slices.ContainsFunc(s.Block, func(d *crossplane.Directive) bool { return d.Directive == "listen" }) {
		all = []listen{{"http", "", "80"}}
	}
	return all
}

// writeBackend writes reverse_proxy if there is one backend and it takes all paths as they
// are.
func (n *nginx) writeBackend(out *strings.Builder, s *nginxServer) {
	var to, at []string
	for _, d := range s.proxies {
		if target := d.Directive + " " + d.Args[0]; !slices.Contains(to, target) {
			to = append(to, target)
		}
		at = append(at, n.at(d))
	}
	if len(to) == 1 {
		u, err := url.Parse(strings.TrimPrefix(to[0], "proxy_pass "))
		if err == nil && u.Scheme == "http" && u.Path == "" && u.Host != "" && !strings.Contains(to[0], "$") {
			hosts := n.upstreams[u.Host]
			if hosts == nil {
				hosts = []string{u.Host}
			}
			if !slices.ContainsFunc(hosts, func(h string) bool { return strings.HasPrefix(h, "unix:") }) {
				n.compareProxied(s.Directive)
				fmt.Fprintf(out, "\nreverse_proxy %s\n", strings.Join(hosts, " "))
				return
			}
		}
	}
	out.WriteString("\n# Yours to write: what answers the requests")
	if len(at) > 0 {
		fmt.Fprintf(out, ". nginx has %s (%s)", strings.Join(to, ", "), strings.Join(at, ", "))
	}
	out.WriteString(".\n")
}

// compareProxied adds a note for each part of a server whose requests nginx does not pass on.
func (n *nginx) compareProxied(s *crossplane.Directive) {
	takesAll := false // a location takes what is left of the server
	var compare func(block crossplane.Directives)
	compare = func(block crossplane.Directives) {
		for _, d := range block {
			if d.Directive != "location" || len(d.Args) == 0 || strings.HasPrefix(d.Args[0], "@") {
				continue
			}
			takesAll = takesAll || len(d.Args) == 1 && d.Args[0] == "/"
			if !slices.ContainsFunc(d.Block, func(in *crossplane.Directive) bool { return in.Directive == "proxy_pass" }) {
				n.addUnproxied(d)
			}
			compare(d.Block)
		}
	}
	compare(s.Block)
	if !takesAll {
		n.addUnproxied(s)
	}
}

func (n *nginx) addUnproxied(d *crossplane.Directive) {
	n.add(Differs, n.at(d), "nginx passes requests on for some locations only, and not here; `reverse_proxy` passes all on. Put it into a `handle` with the paths that the backend may get")
}
