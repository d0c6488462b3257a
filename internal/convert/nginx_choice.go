package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A locationCase is a location, and when it is chosen if no case before it is.
type locationCase struct {
	*location
	when   cond
	answer string // a directive that answers its requests before limits count; "": none does
}

// order returns the locations of a server in an order in which nginx chooses the first that
// fits, and at last the server itself. It follows ngx_http_core_find_location: of the
// locations in a block nginx takes the one with this very path, or the longest prefix, and
// looks at those in it. If none of them decides, the regular expressions in the block do,
// unless the prefix has ^~. If no expression fits, the innermost prefix is chosen.
func (s *location) order() (cases []locationCase) {
	var exact, prefixes []*location
	s.walk(func(l *location) {
		switch {
		case l.isRegexp(), l.isShadowed():
		case l.isPrefix():
			prefixes = append(prefixes, l)
		default:
			exact = append(exact, l)
		}
	})
	slices.SortStableFunc(exact, func(a, b *location) int { return a.depth() - b.depth() })
	slices.SortStableFunc(prefixes, func(a, b *location) int {
		return cmp.Or(len(b.path)-len(a.path), b.depth()-a.depth())
	})
	for _, l := range exact {
		cases = append(cases, locationCase{location: l, when: l.when()})
	}
	for _, l := range prefixes {
		if slices.ContainsFunc(l.inner, (*location).isRegexp) {
			when := and(l.when(), notUnder(l.shadows()))
			for _, in := range l.inner {
				if in.modifier == "^~" {
					when = and(when, cond{not: []cond{and(in.when(), notUnder(in.plainSiblings(in)))}})
				}
			}
			cases = append(cases, l.expressions(when)...)
		}
	}
	var last []locationCase
	for _, l := range prefixes {
		if top := l.top(); top.modifier == "^~" {
			cases = append(cases, locationCase{location: l, when: and(l.when(), notUnder(top.plainSiblings(l)))})
		} else {
			last = append(last, locationCase{location: l, when: l.when()})
		}
	}
	cases = append(cases, s.expressions(cond{})...)
	cases = append(cases, last...)
	if i := len(last) - 1; i >= 0 && last[i].path == "/" {
		cases[len(cases)-1].when = cond{} // nothing is left for the server itself
		return cases
	}
	return append(cases, locationCase{location: s})
}

// walk calls f for all locations in a location.
func (l *location) walk(f func(*location)) {
	for _, in := range l.inner {
		f(in)
		in.walk(f)
	}
}

// top returns the location around l that stands in no other.
func (l *location) top() *location {
	for l.parent.parent != nil {
		l = l.parent
	}
	return l
}

// expressions returns the regular expressions in a location, each after those in it.
func (l *location) expressions(when cond) (cases []locationCase) {
	for _, in := range l.inner {
		if in.isRegexp() {
			fits := and(when, in.when())
			cases = append(cases, in.expressions(fits)...)
			cases = append(cases, locationCase{location: in, when: fits})
		}
	}
	return cases
}

// under reports whether the path of a location begins with that of another one.
func (l *location) under(o *location) bool { return strings.HasPrefix(l.path, o.path) }

// longerSiblings returns the prefixes beside l that are longer.
func (l *location) longerSiblings() (all []*location) {
	for _, s := range l.parent.inner {
		if s.isPrefix() && len(s.path) > len(l.path) {
			all = append(all, s)
		}
	}
	return all
}

// isShadowed reports whether nginx never comes to l, as it prefers a longer prefix to one
// that l stands in.
func (l *location) isShadowed() bool {
	for a := l.parent; a.parent != nil; a = a.parent {
		if slices.ContainsFunc(a.longerSiblings(), l.under) {
			return true
		}
	}
	return false
}

// shadows returns the prefixes that nginx prefers to l, or to what l stands in, for some of
// the paths under l.
func (l *location) shadows() (all []*location) {
	for a := l; a.parent != nil; a = a.parent {
		for _, s := range a.longerSiblings() {
			if s.under(l) {
				all = append(all, s)
			}
		}
	}
	return all
}

// plainSiblings returns the longer prefixes beside l that let regular expressions decide,
// as far as they are under o.
func (l *location) plainSiblings(o *location) (all []*location) {
	for _, s := range l.longerSiblings() {
		if s.modifier == "" && s.under(o) {
			all = append(all, s)
		}
	}
	return all
}

// notUnder returns the requests whose path has none of the prefixes.
func notUnder(prefixes []*location) cond {
	var all []string
	for _, l := range prefixes {
		if !slices.ContainsFunc(prefixes, func(o *location) bool { return l.path != o.path && l.under(o) }) {
			all = append(all, regexp.QuoteMeta(l.path))
		}
	}
	switch len(all) {
	case 0:
		return cond{}
	case 1:
		return cond{not: []cond{pathMatches("^" + all[0])}}
	}
	return cond{not: []cond{pathMatches("^(?:" + strings.Join(all, "|") + ")")}}
}

// odd are paths that nginx and Caddy may read differently: they have a control character, or
// end with a segment that is a dot or two.
const odd = `[\x00-\x1f]|/\.\.?$`

// writeChoice writes what sets the variable location as nginx chooses a location.
func (n *nginx) writeChoice(out *strings.Builder, s *nginxServer) {
	n.add(Same, n.at(s.Directive), "the variable location is the location that nginx chooses for a path")
	n.add(Differs, n.at(s.Directive), "a path that has a control character, or ends with /. or /.., is answered 400: Caddy and nginx do not agree which location it has")
	fmt.Fprintf(out, "@odd vars_regexp {path} %s\nrespond @odd 400\n\n# The location that nginx chooses: the first that fits.\n", quote(odd))
	for i, c := range s.cases {
		fmt.Fprintf(out, "# %s: %s\n", n.at(c.Directive), c.title())
		matcher := ""
		if !c.when.all() {
			matcher = "@at" + s.names[i] // Caddy wants a letter
			c.when.writeNamed(out, matcher)
		}
		if c.answer != "" {
			fmt.Fprintf(out, "handle %s {\n%s\n}\n", matcher, c.answer)
			continue
		}
		fmt.Fprintf(out, "handle %s {\nvars location %s\n}\n", matcher, s.names[i])
	}
}

// in returns a condition that the requests of those cases fit that are wanted.
func (s *nginxServer) in(wanted func(i int) bool) cond {
	var in, out []string
	for i, c := range s.cases {
		switch {
		case c.answer != "": // they are answered already
		case wanted(i):
			in = append(in, s.names[i])
		default:
			out = append(out, s.names[i])
		}
	}
	location := func(names []string) cond {
		return cond{is: []matcher{{name: "vars", args: append([]string{"location"}, names...)}}}
	}
	switch {
	case len(out) == 0:
		return cond{}
	case len(out) < len(in):
		return cond{not: []cond{location(out)}}
	}
	return location(in)
}
