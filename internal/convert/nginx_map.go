package convert

import (
	"cmp"
	"encoding/binary"
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
	when  cond
	fits  func(text string) bool // whether it is the entry of a text that is known
	value string
	order int // entries with less are looked at first
	parts int // how many more lines are in it
}

// mapped returns what a map or geo may set.
func (v *variables) mapped(block *crossplane.Directive, depth int) (all []outcome, err error) {
	source := "$remote_addr" // of geo
	if len(block.Args) == 2 {
		source = block.Args[0]
	}
	from, err := v.outcomes(source, depth)
	if err != nil {
		return nil, err
	}
	for _, f := range from {
		isText := len(f.variable) == 0
		if !isText && (len(f.variable) != 1 || f.variable[0] != f.key) {
			return nil, fmt.Errorf("it maps %s, which is more than one variable", source)
		}
		entries, err := entriesOf(block, f.key)
		if err != nil {
			return nil, err
		}
		if isText {
			i := slices.IndexFunc(entries, func(e entry) bool { return e.fits(f.key) })
			entries = []entry{{value: entries[i].value}}
		}
		outs, err := v.chosen(entries, depth)
		if err != nil {
			return nil, err
		}
		for i := range outs {
			outs[i].when = and(f.when, outs[i].when)
		}
		all = append(all, outs...)
	}
	if len(all) > maxOutcomes {
		return nil, fmt.Errorf("it has more than %d values", maxOutcomes)
	}
	return all, nil
}

// chosen returns what the values of entries may be.
func (v *variables) chosen(entries []entry, depth int) (all []outcome, err error) {
	var cases choice
	var values []string
	for _, e := range entries {
		cases = append(cases, e.when)
		if !slices.Contains(values, e.value) {
			values = append(values, e.value)
		}
	}
	for _, value := range values {
		outs, err := v.outcomes(value, depth)
		if err != nil {
			return nil, err
		}
		for _, when := range cases.of(func(i int) bool { return entries[i].value == value }) {
			for _, o := range outs {
				o.when = and(when, o.when)
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// entriesOf returns the lines of a map or geo of a placeholder, the first to be looked at
// first, and the default last.
func entriesOf(block *crossplane.Directive, placeholder string) ([]entry, error) {
	entries := []entry{}
	last := entry{order: 1 << 20, fits: func(string) bool { return true }}
	hostnames := slices.ContainsFunc(block.Block, func(d *crossplane.Directive) bool { return d.Directive == "hostnames" && len(d.Args) == 0 })
	ranges := block.Directive == "geo" && slices.ContainsFunc(block.Block, func(d *crossplane.Directive) bool { return d.Directive == "ranges" && len(d.Args) == 0 })
	for _, d := range block.Block {
		if len(d.Args) == 0 {
			if d.Directive != "hostnames" && d.Directive != "volatile" && !ranges {
				return nil, fmt.Errorf("%s in line %d is not read", d.Directive, d.Line)
			}
			continue
		}
		e := entry{value: d.Args[0]}
		var err error
		switch key := d.Directive; {
		case key == "default":
			last.value = e.value
			continue
		case key == "include", block.Directive == "geo" && (key == "delete" || key == "proxy"):
			err = fmt.Errorf("%s %s in line %d is not read; want its lines here", key, e.value, d.Line)
		case ranges:
			err = e.addresses(key)
		case block.Directive == "geo":
			err = e.network(key)
		default:
			err = e.pattern(strings.TrimPrefix(key, `\`), placeholder, hostnames)
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	if block.Directive == "geo" && placeholder != "{client_ip}" {
		return nil, errors.New("it maps another address than the client's")
	}
	if block.Directive == "geo" {
		slices.Reverse(entries) // of two networks that are the same, the later one counts
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.order, b.order) })
	return append(merged(entries), last), nil
}

// merged makes one entry of those that follow each other and have the same value: lists of
// networks and programs are long.
func merged(entries []entry) (all []entry) {
	for _, e := range entries {
		if len(all) == 0 || all[len(all)-1].value != e.value {
			all = append(all, e)
			continue
		}
		l := &all[len(all)-1]
		a, b := l.when.is[0], e.when.is[0]
		switch {
		case a.name != b.name, a.name == "vars_regexp" && a.args[0] != b.args[0], strings.Contains(b.args[len(b.args)-1], "(?<"), strings.Contains(b.args[len(b.args)-1], "(?P<"):
			all = append(all, e) // names of groups may not come twice
			continue
		case a.name == "client_ip":
			a.args = slices.Concat(a.args, b.args)
		default:
			last := len(a.args) - 1
			group := "(?:" + b.args[last] + ")"
			if l.parts == 0 {
				a.args = append(slices.Clone(a.args[:last]), "(?:"+a.args[last]+")")
			}
			a.args = append(slices.Clone(a.args[:last]), a.args[last]+"|"+group)
		}
		before := l.fits
		l.parts++
		l.fits = func(text string) bool { return before(text) || e.fits(text) }
		l.when = cond{is: []matcher{{name: a.name, args: a.args}}}
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
	e.when = cond{is: []matcher{{name: "client_ip", args: []string{text}, network: prefix.Masked()}}}
	e.fits = func(string) bool { return false }
	return nil
}

// addresses reads a range of geo. Of two that overlap the later one counts.
func (e *entry) addresses(text string) error {
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	from, err := netip.ParseAddr(first)
	to, wrong := netip.ParseAddr(last)
	if err != nil || wrong != nil || !from.Is4() || !to.Is4() || to.Less(from) {
		return fmt.Errorf("%s is no range of IPv4 addresses", text)
	}
	var networks []string
	for from.IsValid() && !to.Less(from) { // the largest network that begins here and ends in time
		bits := 32
		for bits > 0 {
			larger := netip.PrefixFrom(from, bits-1)
			if larger.Masked().Addr() != from || to.Less(lastOf(larger)) {
				break
			}
			bits--
		}
		network := netip.PrefixFrom(from, bits)
		networks = append(networks, network.String())
		from = lastOf(network).Next()
	}
	e.when = cond{is: []matcher{{name: "client_ip", args: networks}}}
	e.fits = func(string) bool { return false }
	return nil
}

// lastOf returns the last address of an IPv4 network.
func lastOf(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	n := binary.BigEndian.Uint32(a[:]) | uint32(1<<(32-p.Bits())-1)
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

// pattern reads a text of map. Whole texts are looked at first, then names of hosts with a
// wildcard at their begin, those with one at their end, and regular expressions. Of names
// the longest is first.
func (e *entry) pattern(text, placeholder string, hostnames bool) error {
	expression, value := "(?i)^"+regexp.QuoteMeta(text)+"$", strings.ToLower(text)
	domain := func(s string) string { return regexp.QuoteMeta(strings.Trim(s, "*.")) }
	switch {
	case strings.HasPrefix(text, "~*"):
		expression, value, e.order = "(?i)"+text[2:], "", 3000
	case strings.HasPrefix(text, "~"):
		expression, value, e.order = text[1:], "", 3000
	case hostnames && strings.HasPrefix(text, "*."):
		expression, value, e.order = `(?i)^.+\.`+domain(text)+"$", "", 1000-len(text)
	case hostnames && strings.HasPrefix(text, "."):
		expression, value, e.order = `(?i)^(.+\.)?`+domain(text)+"$", "", 1000-len(text)
	case hostnames && strings.HasSuffix(text, ".*"):
		expression, value, e.order = "(?i)^"+domain(text)+`\..+$`, "", 2000-len(text)
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
	m := matcher{name: "vars_regexp", args: []string{placeholder, expression}, value: value}
	if placeholder == "{path}" { // without double slashes and dots, as $uri has none
		m = matcher{name: "path_regexp", args: []string{expression}}
	}
	if address, err := netip.ParseAddr(text); err == nil && placeholder == "{client_ip}" {
		m = matcher{name: "client_ip", args: []string{text}, network: netip.PrefixFrom(address, address.BitLen())}
	}
	e.when, e.fits = cond{is: []matcher{m}}, compiled.MatchString
	return nil
}
