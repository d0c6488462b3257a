package convert

import (
	"net/netip"
	"slices"
	"strings"
)

// A cond says which requests are meant: those that all matchers fit, and none of the
// exceptions. The zero cond means all requests.
type cond struct {
	is  []matcher
	not []cond
}

// A matcher is one of Caddy's, with its arguments.
type matcher struct {
	name string
	args []string

	value   string       // what a placeholder is compared with, in lower case; "": it is no comparison
	network netip.Prefix // of a client_ip matcher
}

func (c cond) all() bool { return len(c.is) == 0 && len(c.not) == 0 }

// and returns the requests that both mean.
func and(a, b cond) cond {
	return cond{is: slices.Concat(a.is, b.is), not: slices.Concat(a.not, b.not)}
}

// disjoint reports whether it is certain that no request is meant by both.
func disjoint(a, b cond) bool {
	return slices.ContainsFunc(a.is, func(m matcher) bool { return slices.ContainsFunc(b.is, m.excludes) })
}

func (m matcher) excludes(o matcher) bool {
	switch {
	case m.network.IsValid() && o.network.IsValid():
		return !m.network.Overlaps(o.network)
	}
	return m.value != "" && o.value != "" && m.name == o.name && m.args[0] == o.args[0] && m.value != o.value
}

// A choice is a list of cases, of which the first that fits a request counts. The last one
// fits all requests.
type choice []cond

// of returns conditions, one of which fits a request if and only if its case is wanted. No
// conditions mean no request.
func (cases choice) of(wanted func(i int) bool) (any []cond) {
	if !slices.ContainsFunc(cases.indices(), func(i int) bool { return !wanted(i) }) {
		return []cond{{}}
	}
	for i, c := range cases {
		if !wanted(i) || cases.isCovered(i, wanted) {
			continue
		}
		for j, earlier := range cases[:i] {
			if !wanted(j) && !disjoint(earlier, c) {
				c = and(c, cond{not: []cond{earlier}})
			}
		}
		any = append(any, c)
	}
	return any
}

func (cases choice) indices() []int {
	all := make([]int, len(cases))
	for i := range all {
		all[i] = i
	}
	return all
}

// isCovered reports whether a later wanted case means the requests of case i, too, and no
// case between them takes some of those away.
func (cases choice) isCovered(i int, wanted func(i int) bool) bool {
	for k := i + 1; k < len(cases); k++ {
		if wanted(k) && cases[k].all() {
			return true
		}
		if !wanted(k) && !disjoint(cases[k], cases[i]) {
			return false
		}
	}
	return false
}

// write writes the matchers, a line each. Caddy takes several matchers of one name for
// alternatives, so a second one is written as what its absence excludes.
func (c cond) write(b *strings.Builder) {
	var seen []string
	for _, m := range c.is {
		line := m.text()
		if slices.Contains(seen, m.name) {
			line = "not {\nnot " + line + "\n}"
		}
		seen = append(seen, m.name)
		b.WriteString(line + "\n")
	}
	for _, n := range c.not {
		if len(n.is) == 1 && len(n.not) == 0 {
			b.WriteString("not " + n.is[0].text() + "\n")
			continue
		}
		b.WriteString("not {\n")
		n.write(b)
		b.WriteString("}\n")
	}
}

// writeNamed writes the definition of a named matcher.
func (c cond) writeNamed(b *strings.Builder, name string) {
	b.WriteString(name + " ")
	if len(c.is)+len(c.not) == 1 && (len(c.is) == 1 || len(c.not[0].is) == 1 && len(c.not[0].not) == 0) {
		c.write(b)
		return
	}
	b.WriteString("{\n")
	c.write(b)
	b.WriteString("}\n")
}

func (m matcher) text() string {
	text := m.name
	for _, arg := range m.args {
		text += " " + quote(arg)
	}
	return text
}

// either returns one condition that fits where one of them does.
func either(any []cond) cond {
	if len(any) == 1 {
		return any[0]
	}
	none := cond{not: any}
	return cond{not: []cond{none}}
}
