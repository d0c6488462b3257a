package convert

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// setAnswers finds what answers the requests of each case before limits count. It returns the
// answer to all of them, if there is one.
func (n *nginx) setAnswers(s *nginxServer) (all string) {
	server := s.cases[0].server()
	if d := returned(server.Block); d != nil { // nginx chooses no location
		n.markUsed(server.Block)
		return n.answer(server, d)
	}
	for i := range s.cases {
		c := &s.cases[i]
		d := returned(c.Block)
		switch {
		case c.redirects():
			c.answer = "redir * " + (&url.URL{Path: c.path + "/"}).EscapedPath() + "{?query} 301"
		case d != nil:
			c.answer = n.answer(c.location, d)
		}
	}
	for _, c := range s.cases {
		if c.answer != s.cases[0].answer || c.redirects() {
			return ""
		}
	}
	return s.cases[0].answer
}

// returned returns the return of a block, or nil.
func returned(block crossplane.Directives) *crossplane.Directive {
	i := slices.IndexFunc(block, func(d *crossplane.Directive) bool { return d.Directive == "return" })
	if i < 0 {
		return nil
	}
	return block[i]
}

// unwritten answers the requests for which nothing is converted. No answer at all would be 200.
const unwritten = "respond 503"

// answer returns the directive for a return.
func (n *nginx) answer(l *location, d *crossplane.Directive) string {
	n.used[d] = true
	err := n.mayDiffer(l, d)
	if err == nil {
		var answer string
		if answer, err = n.directive(d.Args); err == nil {
			return answer
		}
	}
	n.add(Missing, n.at(d), "return %.60s: %v. What it answers is answered 503 here, until you write it", strings.Join(d.Args, " "), err)
	return "# Yours to write, in place of this: " + n.at(d) + "\n" + unwritten
}

// mayDiffer returns why a return may not be what answers all requests of its location, or not as it says.
func (n *nginx) mayDiffer(l *location, d *crossplane.Directive) error {
	switch {
	case l.vague:
		return errors.New("its location fits more requests here")
	case l.isInternal():
		return errors.New("its location is internal")
	}
	for _, block := range []crossplane.Directives{l.server().Block, l.Block} {
		for _, before := range block {
			if before == d {
				break
			}
			if slices.Contains([]string{"if", "rewrite", "break"}, before.Directive) {
				return fmt.Errorf("%s (%s) comes before it", before.Directive, n.at(before))
			}
		}
	}
	for block := range l.around(n.outer) {
		found := false
		for _, page := range block {
			if page.Directive == "error_page" {
				if found = true; slices.Contains(page.Args[:len(page.Args)-1], d.Args[0]) {
					return fmt.Errorf("error_page (%s) answers in its place", n.at(page))
				}
			}
		}
		if found { // those outside do not hold
			break
		}
	}
	return nil
}

// around goes through the blocks around a place in a location, the innermost first.
func (l *location) around(outer crossplane.Directives) func(func(crossplane.Directives) bool) {
	return func(yield func(crossplane.Directives) bool) {
		for ; l != nil; l = l.parent {
			if !yield(l.Block) {
				return
			}
		}
		yield(outer)
	}
}

var (
	status = regexp.MustCompile(`^[2-5]\d\d$`)
	moved  = regexp.MustCompile(`^30[12378]$`)

	// target is where a redirect may go: not to a path that a client chooses, as //host in it is a host.
	target = regexp.MustCompile(`^((https?|\$scheme)://.|/($|[^/\\$]))`)

	// braces are what Caddy may take for a placeholder.
	braces = regexp.MustCompile(`\{(\$|[^\s"{}]+\})`)
)

// directive returns what answers as return does with the arguments.
func (n *nginx) directive(args []string) (string, error) {
	if len(args) == 1 && target.MatchString(args[0]) && args[0][0] != '/' {
		args = []string{"302", args[0]}
	}
	code := args[0]
	switch {
	case len(args) == 1 && code == "444":
		return "abort", nil
	case len(args) == 1 && status.MatchString(code):
		return "respond " + code, nil
	case len(args) != 2 || !status.MatchString(code):
		return "", errors.New("it is not understood")
	case moved.MatchString(code) && !target.MatchString(args[1]):
		return "", errors.New("its target begins with neither https:// nor a path of its own")
	}
	text, err := n.text(args[1])
	if err != nil {
		return "", err
	}
	if moved.MatchString(code) {
		return "redir * " + quote(text) + " " + code, nil
	}
	return "respond * " + quoted(text) + " " + code, nil
}

// text returns a text with Caddy's placeholders for nginx's variables.
func (n *nginx) text(text string) (string, error) {
	text, query := strings.CutSuffix(text, "$is_args$args")
	outs, err := n.outcomes(text, 0)
	switch literal := nginxVariable.ReplaceAllString(text, ""); {
	case err != nil:
		return "", err
	case len(outs) != 1 || !outs[0].when.all():
		return "", errors.New("its text depends on a map or geo")
	case braces.MatchString(literal), (query || literal != text) && strings.ContainsAny(literal, "{}"):
		return "", errors.New("its braces would be a placeholder in Caddy")
	}
	if query {
		outs[0].key += "{?query}"
	}
	return outs[0].key, nil
}
