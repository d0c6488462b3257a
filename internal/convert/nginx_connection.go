package convert

import (
	"fmt"

	"strings"
)

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
			n.add(Differs, n.at(u.Directive), earlyReturns)
			n.statuses(b.overload, s, u)
		} else {
			b.per = fmt.Sprintf("%s %d", quote(k.key), u.n)
			n.statuses(b.quota, s, u)
		}
		of := ""
		switch {
		case strings.Contains(k.key, "{client_ip}"):
			of = " of one client"
		case !constant:
			of = " with the same " + strings.Join(k.variable, " and ")
		}
		n.add(Same, n.at(u.Directive), "zone %s: at most %d %s in flight%s", u.name, u.n, map[bool]string{true: "request", false: "requests"}[u.n == 1], of)
		if !n.servers1(u.zone) && n.server != k.key {
			n.add(Differs, n.at(u.Directive), "zone %s: each server counts its requests alone; nginx counts those of all servers together", u.name)
		}
	}
	return blocks
}
