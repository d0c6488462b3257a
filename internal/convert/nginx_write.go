package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// writeServer writes the site of a server.
func (n *nginx) writeServer(out *strings.Builder, s *nginxServer) {
	n.server = s.name("")
	if all := n.setAnswers(s); all != "" {
		n.writeAddresses(out, s)
		out.WriteString(all + "\n}\n\n")
		return
	}
	requests := n.uses(s, scope.ofRequests)
	connections := n.uses(s, scope.ofConnections)
	backends := n.backends(s)
	var shields, choice strings.Builder
	n.writeShields(&shields, s, requests, connections)
	_, alike := s.alike(backends)
	local := slices.ContainsFunc(slices.Concat(requests, connections), func(u *use) bool { return !u.everywhere(s) })
	if local {
		n.mentionRedirects(s.Block)
	}
	returns := slices.ContainsFunc(s.cases, func(c locationCase) bool { return c.answer != "" && !c.redirects() })
	if local || !alike || returns {
		n.writeChoice(&choice, s)
	}
	n.writeAddresses(out, s)
	if choice.Len() > 0 {
		fmt.Fprintf(out, "route {\n%s\n", choice.String())
	}
	out.WriteString(shields.String())
	n.writeBackends(out, s, backends)
	if choice.Len() > 0 {
		out.WriteString("}\n")
	}
	out.WriteString("}\n\n")
}

// writeShields writes the limits of a server: those that refuse, and those that only log.
func (n *nginx) writeShields(out *strings.Builder, s *nginxServer, requests, connections []*use) {
	if len(requests) > 1 {
		n.add(Same, n.at(s.Directive), "all limits of a location count, and a request that one of them refuses is charged to none")
	}
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
