package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

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

func (n *nginx) writeServer(out *strings.Builder, s *nginxServer) {
	n.variables.of(s.name(""))
	requests := n.uses(s, "limit_req")
	connections := n.uses(s, "limit_conn")
	var shields strings.Builder
	n.writeShields(&shields, s, requests, connections)
	n.writeAddresses(out, s)
	local := slices.ContainsFunc(slices.Concat(requests, connections), func(u *use) bool { return !u.everywhere(s) })
	route := local || n.lines.Len() > 0 // in which the order counts
	if route {
		out.WriteString("route {\n" + n.lines.String())
	}
	if local {
		n.writeChoice(out, s)
		out.WriteString("\n")
	}
	fmt.Fprintf(out, "%s\n# Yours to write: what answers the requests", shields.String())
	if to := n.backends(s.Block); len(to) > 0 {
		fmt.Fprintf(out, ". nginx has %s", strings.Join(to, ", "))
	}
	out.WriteString(".\nrespond 503\n")
	if route {
		out.WriteString("}\n")
	}
	out.WriteString("}\n\n")
}

// backends returns the directives in a block that pass requests on, and where they stand.
func (n *nginx) backends(block crossplane.Directives) (to []string) {
	for _, d := range block {
		if strings.HasSuffix(d.Directive, "_pass") && len(d.Args) > 0 {
			to = append(to, fmt.Sprintf("%s %s (%s)", d.Directive, d.Args[0], n.at(d)))
		}
		to = append(to, n.backends(d.Block)...)
	}
	return to
}

// writeShields writes the limits of a server: those that reject, and those that only log.
func (n *nginx) writeShields(out *strings.Builder, s *nginxServer, requests, connections []*use) {
	for _, dry := range []bool{false, true} {
		blocks := []*shieldBlock{newShieldBlock()}
		for _, u := range requests {
			if u.dry == dry {
				n.writeRequests(blocks[0], s, u)
			}
		}
		for _, u := range connections {
			if u.dry == dry {
				blocks = n.writeConnections(blocks, s, u)
			}
		}
		for _, b := range blocks {
			n.writeShield(out, b, dry)
		}
	}
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
		b.on.writeNamed(out, matcher)
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

func (n *nginx) writeRequests(b *shieldBlock, s *nginxServer, u *use) {
	key, on, ok := n.key(s, u)
	if !ok {
		return
	}
	fmt.Fprintf(&b.options, "\n# %s\n", n.title(u))
	if len(key.variable) == 0 && on.all() && !b.capacity && len(u.zone.servers) == 1 {
		b.capacity = true
		n.add(Differs, n.at(u.Directive), earlyReturns)
		fmt.Fprintf(&b.options, "capacity %s burst %d\n", u.zone.rate, u.n)
		n.statuses(b.overload, s, u)
		n.add(Better, n.at(u.Directive), "zone %s counts all clients together, so it is the capacity: each rejected client is told a time of its own, and they come back at the rate", u.name)
	} else {
		n.writeZone(b, u, key, on)
		n.statuses(b.quota, s, u)
	}
	n.noteDelay(u)
}

func (n *nginx) writeZone(b *shieldBlock, u *use, key value, on cond) {
	var match strings.Builder
	if !on.all() {
		match.WriteString("match {\n")
		on.write(&match)
		match.WriteString("}\n")
	}
	name := n.names.of(u.name, fmt.Sprint(u.name, u.n, u.zone.rate, key.text, match.String()))
	if name != u.name {
		n.add(Differs, n.at(u.Directive), "zone %s is called %s here. It counts its requests alone, as its burst, its key or its requests are others; nginx counts them together if the key is the same", u.name, name)
	}
	fmt.Fprintf(&b.options, "zone %s {\n%s", name, match.String())
	if len(key.variable) == 0 {
		fmt.Fprintf(&b.options, "key %s # is never set, so all clients share one bucket\n", everyone)
	} else {
		fmt.Fprintf(&b.options, "key %s\n", quote(key.text))
	}
	fmt.Fprintf(&b.options, "rate %s\nburst %d\n", u.zone.rate, u.n)
	if most := u.zone.size >> 20 * 8000; most > 200_000 { // nginx.org: 8 thousand states in a megabyte
		fmt.Fprintf(&b.options, "max_keys %d\n", min(most, 1<<26))
	}
	b.options.WriteString("}\n")
}

func (n *nginx) noteDelay(u *use) {
	if u.delay == "" {
		return
	}
	n.add(Differs, n.at(u.Directive), "zone %s: the same %d are admitted at once, and then %s. nginx holds %s of the burst back and sends them to the backend at the rate; "+
		"here they go there at once. `burst 1` rejects them and tells each when to come; `concurrency adaptive` with its queue bounds what is at the backend", u.name, u.n, u.zone.rate, u.delay)
}

// writeConnections puts a limit_conn into the server's shield, or, if it does not hold for
// all requests or there is one already, into one of its own.
func (n *nginx) writeConnections(blocks []*shieldBlock, s *nginxServer, u *use) []*shieldBlock {
	key, on, ok := n.key(s, u)
	if !ok {
		return blocks
	}
	constant := len(key.variable) == 0
	b := blocks[0]
	if !on.all() || constant && b.total > 0 || !constant && b.per != "" {
		b = newShieldBlock()
		b.name = n.names.of(u.name, n.at(u.Directive)+n.server)
		if !on.all() {
			b.on = &on
		}
		blocks = append(blocks, b)
	}
	b.connLines = append(b.connLines, n.title(u))
	if constant {
		b.total = u.n
		n.add(Differs, n.at(u.Directive), earlyReturns)
		n.statuses(b.overload, s, u)
	} else {
		b.per = fmt.Sprintf("%s %d", quote(key.text), u.n)
		n.statuses(b.quota, s, u)
	}
	if len(u.zone.servers) > 1 && n.server != key.text {
		n.add(Differs, n.at(u.Directive), "zone %s: each server counts its requests alone; nginx counts those of all servers together", u.name)
	}
	return blocks
}

func (n *nginx) statuses(to map[string]bool, s *nginxServer, u *use) {
	for i := range u.in {
		d := s.cases[i].scope.last(u.Directive.Directive + "_status")
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
			n.add(Missing, "", "status %s closes the connection without a response in nginx; a shield answers %s with Retry-After", all[0], of.usual)
		default:
			text += of.option + " " + all[0] + "\n"
		}
	}
	if text != "" {
		fmt.Fprintf(out, "\npushback {\n%s}\n", text)
	}
}
