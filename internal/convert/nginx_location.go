package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// A location is a location block in a server, or a server with those in it.
type location struct {
	*crossplane.Directive
	modifier, path string
	expression     string // of modifier ~ and ~*, as Go has it
	scope          scope
	parent         *location
	inner          []*location
}

func (l *location) isRegexp() bool { return l.modifier == "~" || l.modifier == "~*" }

// title is how the file begins the block.
func (l *location) title() string {
	if l.parent == nil {
		return "no location"
	}
	return strings.Join(append([]string{l.Directive.Directive}, l.Args...), " ")
}

// name returns what the variable chosen-location has for a location. It is alike in servers
// that are alike, so that their zones are.
func (l *location) name() string {
	if l.parent == nil {
		return "none"
	}
	return cmp.Or(l.path, "any")
}

// when returns the requests whose path the location fits, whether or not nginx prefers
// another one.
func (l *location) when() cond {
	switch {
	case l.isRegexp():
		return pathMatches(l.expression)
	case l.modifier == "=":
		return pathMatches("^" + regexp.QuoteMeta(l.path) + "$")
	}
	return pathMatches("^" + regexp.QuoteMeta(l.path))
}

// pathMatches compares a path as nginx does, with its case.
func pathMatches(expression string) cond {
	return cond{is: []matcher{{name: "path_regexp", args: []string{expression}}}}
}

func (n *nginx) readLocations(l *location, block crossplane.Directives) {
	for _, d := range block {
		if d.Directive != "location" || len(d.Args) == 0 {
			continue
		}
		in := &location{Directive: d, path: d.Args[len(d.Args)-1], scope: l.scope.in(d.Block), parent: l}
		if len(d.Args) == 2 {
			in.modifier = d.Args[0]
		} else if modifier := leadingModifier.FindString(in.path); modifier != "" { // nginx needs no space after it
			in.modifier, in.path = modifier, in.path[len(modifier):]
		}
		if strings.HasPrefix(in.path, "@") {
			if len(in.scope.limits()) > 0 {
				n.add(Missing, n.at(d), "location %s: other locations send requests there inside nginx, so its limits have no path", in.path)
			}
			n.markUsed(d.Block)
			continue
		}
		if in.isRegexp() {
			in.expression = map[string]string{"~*": "(?i)"}[in.modifier] + in.path
			if _, err := regexp.Compile(in.expression); err != nil {
				n.add(Missing, n.at(d), "location %s: it is no regular expression in Go: %v. Requests for it are taken for those of another location", in.path, err)
				n.markUsed(d.Block)
				continue
			}
		}
		l.inner = append(l.inner, in)
		for _, nested := range d.Block {
			if nested.Directive == "location" {
				n.add(Missing, n.at(nested), "location %s stands in another one: its requests are taken for those of that one, with its limits", strings.Join(nested.Args, " "))
				n.markUsed(nested.Block)
			}
		}
	}
}

var leadingModifier = regexp.MustCompile(`^(=|\^~|~\*|~)`)

// A locationCase is a location, and when it is chosen if no case before it is.
type locationCase struct {
	*location
	when cond
}

// order returns the locations of a server in an order in which nginx chooses the first that
// fits, and at last the server itself. It follows ngx_http_core_find_location: nginx takes the
// location with this very path, or else the longest prefix if that has ^~, or else the first
// regular expression that fits, or else the longest prefix.
func (s *location) order() (cases []locationCase) {
	of := func(modifiers ...string) (all []*location) {
		for _, l := range s.inner {
			if slices.Contains(modifiers, l.modifier) {
				all = append(all, l)
			}
		}
		return all
	}
	prefixes := of("", "^~")
	slices.SortStableFunc(prefixes, func(a, b *location) int { return len(b.path) - len(a.path) })
	for _, l := range of("=") {
		cases = append(cases, locationCase{location: l, when: l.when()})
	}
	var plain []locationCase
	for i, l := range prefixes {
		if l.modifier == "" {
			plain = append(plain, locationCase{location: l, when: l.when()})
			continue
		}
		when := l.when()
		for _, longer := range prefixes[:i] { // which lets regular expressions decide
			if longer.modifier == "" && strings.HasPrefix(longer.path, l.path) {
				when.not = append(when.not, longer.when())
			}
		}
		cases = append(cases, locationCase{location: l, when: when})
	}
	for _, l := range of("~", "~*") {
		cases = append(cases, locationCase{location: l, when: l.when()})
	}
	cases = append(cases, plain...)
	if i := len(plain) - 1; i >= 0 && plain[i].path == "/" {
		cases[len(cases)-1].when = cond{} // nothing is left for the server itself
		return cases
	}
	return append(cases, locationCase{location: s})
}

// odd are paths that nginx and Caddy may read differently: they have a control character, or
// end with a segment that is a dot or two.
const odd = `[\x00-\x1f]|/\.\.?$`

func (n *nginx) writeChoice(out *strings.Builder, s *nginxServer) {
	n.add(Differs, "", "a request that rewrite, try_files, index or error_page send to another location inside nginx has its limits if the first has none. "+
		"Here those of the path count that the client asked for")
	n.add(Differs, n.at(s.Directive), "a path that has a control character, or ends with /. or /.., is answered 400: Caddy and nginx do not agree which location it has")
	fmt.Fprintf(out, "@odd vars_regexp {path} %s\nrespond @odd 400\n\n# The location that nginx chooses: the first that fits.\n", quote(odd))
	for i, c := range s.cases {
		fmt.Fprintf(out, "# %s: %s\n", n.at(c.Directive), c.title())
		matcher := ""
		if !c.when.all() {
			matcher = "@at" + s.names[i] // Caddy wants a letter
			c.when.writeNamed(out, matcher)
		}
		fmt.Fprintf(out, "handle %s {\nvars chosen-location %s\n}\n", matcher, s.names[i])
	}
}

// in returns a condition that the requests of those cases fit that are wanted.
func (s *nginxServer) in(wanted map[int]bool) cond {
	var in, out []string
	for i := range s.cases {
		if wanted[i] {
			in = append(in, s.names[i])
		} else {
			out = append(out, s.names[i])
		}
	}
	location := func(names []string) cond {
		return cond{is: []matcher{{name: "vars", args: append([]string{"chosen-location"}, names...)}}}
	}
	switch {
	case len(out) == 0:
		return cond{}
	case len(out) < len(in):
		return cond{not: []cond{location(out)}}
	}
	return location(in)
}
