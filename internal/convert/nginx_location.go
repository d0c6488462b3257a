package convert

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// A location is a location block, or a server with those in it.
type location struct {
	*crossplane.Directive
	modifier, path string
	expression     string // of modifier ~ and ~*, as Go has it
	vague          bool   // the expression fits more than nginx's
	slashless      bool   // it is not in the file: the path of a location without the slash at its end
	scope          scope
	parent         *location
	inner          []*location
}

func (l *location) isRegexp() bool { return l.modifier == "~" || l.modifier == "~*" }
func (l *location) isPrefix() bool { return l.modifier == "" || l.modifier == "^~" }

// server returns the server in which a location is.
func (l *location) server() *location {
	for l.parent != nil {
		l = l.parent
	}
	return l
}

func (l *location) depth() (n int) {
	for ; l.parent != nil; l = l.parent {
		n++
	}
	return n
}

// title is how the file begins the block.
func (l *location) title() string {
	if l.parent == nil {
		return "no location"
	}
	title := strings.Join(append([]string{l.Directive.Directive}, l.Args...), " ")
	if l.slashless {
		title += ", without the slash"
	}
	return title
}

// name returns what the variable location is called for a location. It is alike in servers
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

// readLocations reads the locations of a block.
func (n *nginx) readLocations(l *location, block crossplane.Directives) {
	for _, d := range block {
		if d.Directive != "location" || len(d.Args) == 0 {
			continue
		}
		in := &location{Directive: d, path: d.Args[len(d.Args)-1], scope: l.scope.in(d.Block), parent: l, vague: l.vague}
		if len(d.Args) == 2 {
			in.modifier = d.Args[0]
		} else if modifier := leadingModifier.FindString(in.path); modifier != "" { // nginx needs no space after it
			in.modifier, in.path = modifier, in.path[len(modifier):]
		}
		if strings.HasPrefix(in.path, "@") {
			if len(in.scope.requests)+len(in.scope.connections) > 0 {
				n.add(Missing, n.at(d), "location %s: other locations send requests there inside nginx, so its limits have no path", in.path)
			}
			n.markUsed(d.Block)
			continue
		}
		if in.isRegexp() {
			n.readExpression(in)
		}
		l.inner = append(l.inner, in)
		n.readLocations(in, d.Block)
	}
	l.inner = append(l.inner, l.withoutSlash()...)
}

// isInternal reports whether nginx answers requests for a location with 404.
func (l *location) isInternal() bool {
	for ; l != nil; l = l.parent {
		if slices.ContainsFunc(l.Block, func(d *crossplane.Directive) bool { return d.Directive == "internal" }) {
			return true
		}
	}
	return false
}

var leadingModifier = regexp.MustCompile(`^(=|\^~|~\*|~)`)

// redirects reports whether nginx redirects from the path without a slash to that with it.
func (l *location) redirects() bool { return l.slashless && !l.isInternal() }

// withoutSlash returns the path of each location that is proxied and ends with a slash,
// without the slash: it belongs to that location, too.
func (l *location) withoutSlash() (all []*location) {
	for _, in := range l.inner {
		path, slash := strings.CutSuffix(in.path, "/")
		if !slash || path == "" || !strings.HasPrefix(path, l.path) || in.isRegexp() || !slices.ContainsFunc(in.Block, passes) {
			continue
		}
		if !slices.ContainsFunc(l.inner, func(o *location) bool { return o.path == path && !o.isRegexp() }) {
			all = append(all, &location{Directive: in.Directive, modifier: "=", path: path, slashless: true, parent: l})
		}
	}
	return all
}

// lookaround finds what an expression wants around a place, without what is nested in it.
var lookaround = regexp.MustCompile(`\(\?<?[=!][^()]*\)`)

// readExpression reads a regular expression. If Go has no such, the location takes all
// requests that it may take in nginx: more than in nginx if it says what has to follow, and
// else all.
func (n *nginx) readExpression(l *location) {
	prefix := map[string]string{"~*": "(?i)"}[l.modifier]
	l.expression = prefix + l.path
	_, err := regexp.Compile(l.expression)
	if err == nil {
		return
	}
	l.expression = prefix + lookaround.ReplaceAllString(l.path, "")
	if _, wrong := regexp.Compile(l.expression); wrong != nil || l.expression == prefix {
		l.expression = "^"
	}
	l.vague = true
	n.add(Missing, n.at(l.Directive), "location %s: it is no regular expression in Go: %v. Here it is %s, which fits more requests, so none of those is passed on", l.path, err, l.expression)
}
