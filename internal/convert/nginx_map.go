package convert

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// An entry is a line of a map or geo.
type entry struct {
	when  matcher
	value string
	order int // entries with less are looked at first
}

// define writes what sets the variable of a map or geo: the default, and then the entries, of which
// the first to be looked at comes last.
func (v *variables) define(name string, block *crossplane.Directive, depth int) error {
	if _, done := v.defined[name]; done {
		return nil
	}
	source := "$remote_addr" // of geo
	if len(block.Args) == 2 {
		source = block.Args[0]
	}
	from, err := v.value(source, depth)
	if err != nil {
		return err
	}
	var lines strings.Builder
	fmt.Fprintf(&lines, "# %s: %s %s\n", v.at(block), block.Directive, strings.Join(block.Args, " "))
	if len(from.variable) != 1 || from.variable[0] != from.text {
		fmt.Fprintf(&lines, "vars of-%s %s\n", name, quote(from.text))
		from.text = "{vars.of-" + name + "}"
	}
	entries, otherwise, err := entriesOf(block, from.text)
	if err != nil {
		return err
	}
	set := []value{}
	for i, e := range append([]entry{{value: otherwise}}, entries...) {
		to, err := v.value(e.value, depth)
		if err != nil {
			return err
		}
		if to.text != "" && !slices.ContainsFunc(set, func(o value) bool { return o.text == to.text }) {
			set = append(set, to)
		}
		matcher := ""
		if i > 0 {
			matcher = fmt.Sprintf("@%s-%d", name, i)
			fmt.Fprintf(&lines, "%s %s\n", matcher, e.when.text())
		}
		fmt.Fprintf(&lines, "vars %s %s %s\n", matcher, name, quote(to.text))
	}
	v.defined[name] = set
	v.lines.WriteString(lines.String() + "\n")
	return nil
}

// entriesOf returns the lines of a map or geo of a placeholder, the first to be looked at last, and the
// default.
func entriesOf(block *crossplane.Directive, placeholder string) (entries []entry, otherwise string, err error) {
	if block.Directive == "geo" && placeholder != "{client_ip}" {
		return nil, "", errors.New("it maps another address than the client's")
	}
	for _, d := range block.Block {
		switch key := d.Directive; {
		case key == "volatile" && len(d.Args) == 0:
			continue
		case len(d.Args) == 0:
			return nil, "", fmt.Errorf("%s in line %d is not read", key, d.Line)
		case key == "default":
			otherwise = d.Args[0]
			continue
		case key == "include", block.Directive == "geo" && (key == "delete" || key == "proxy"):
			return nil, "", fmt.Errorf("%s %s in line %d is not read; want its lines here", key, d.Args[0], d.Line)
		}
		e := entry{value: d.Args[0]}
		if block.Directive == "geo" {
			err = e.network(d.Directive)
		} else {
			err = e.pattern(strings.TrimPrefix(d.Directive, `\`), placeholder)
		}
		if err != nil {
			return nil, "", err
		}
		entries = append(entries, e)
	}
	if block.Directive == "map" { // of two that fit, the earlier one counts, and in geo the later one
		slices.Reverse(entries)
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(b.order, a.order) })
	return merged(entries), otherwise, nil
}

// merged makes one entry of addresses and networks that follow each other and have the same value: lists of
// them are long.
func merged(entries []entry) (all []entry) {
	for _, e := range entries {
		if n := len(all); n > 0 && all[n-1].value == e.value && e.when.name == "client_ip" && all[n-1].when.name == "client_ip" {
			all[n-1].when.args = append(all[n-1].when.args, e.when.args...)
			continue
		}
		all = append(all, e)
	}
	return all
}

// network reads a network of geo. The longest prefix is looked at first.
func (e *entry) network(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if address, ok := netip.ParseAddr(text); ok == nil {
		prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
	}
	if err != nil {
		return fmt.Errorf("%s is no network in CIDR notation", text)
	}
	e.order = -prefix.Bits()
	e.when = matcher{name: "client_ip", args: []string{text}}
	return nil
}

// pattern reads a text of map. Whole texts are looked at first, and then regular expressions.
func (e *entry) pattern(text, placeholder string) error {
	expression := "(?i)^" + regexp.QuoteMeta(text) + "$"
	if rest, ok := strings.CutPrefix(text, "~*"); ok {
		expression, e.order = "(?i)"+rest, 1
	} else if rest, ok := strings.CutPrefix(text, "~"); ok {
		expression, e.order = rest, 1
	}
	compiled, err := regexp.Compile(expression)
	if err != nil {
		return fmt.Errorf("%s is no regular expression in Go: %w", text, err)
	}
	if nginxVariable.MatchString(e.value) && regexp.MustCompile(`\$(\d|\{\d)`).MatchString(e.value) {
		return fmt.Errorf("%s has a part of what the regular expression found", e.value)
	}
	for _, name := range compiled.SubexpNames() {
		if name != "" && strings.Contains(e.value, "$"+name) {
			return fmt.Errorf("%s has a part of what the regular expression found", e.value)
		}
	}
	e.when = matcher{name: "vars_regexp", args: []string{placeholder, expression}}
	if placeholder == "{path}" { // without double slashes and dots, as $uri has none
		e.when = matcher{name: "path_regexp", args: []string{expression}}
	}
	if _, err := netip.ParseAddr(text); err == nil && placeholder == "{client_ip}" {
		e.when = matcher{name: "client_ip", args: []string{text}}
	}
	return nil
}
