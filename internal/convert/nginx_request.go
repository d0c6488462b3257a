package convert

import (
	"fmt"
	"strings"
)

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
			n.add(Differs, n.at(u.Directive), earlyReturns)
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
