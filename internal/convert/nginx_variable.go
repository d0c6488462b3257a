package convert

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// A value is a text with variables of nginx.
type value struct {
	text     string   // with Caddy's placeholders
	variable []string // the placeholders in it
	sure     bool     // it is never empty
}

// variables are nginx's, as far as requests of one server see them.
type variables struct {
	blocks map[string]*crossplane.Directive // map and geo, by the name of what they set
	set    map[string]string                // where set sets a variable that has no block
	at     func(*crossplane.Directive) string

	// Of one server:
	server  string             // $server_name
	defined map[string][]value // what map and geo may set, of those that its keys need
	lines   strings.Builder    // that set them
}

// of begins with another server.
func (v *variables) of(server string) {
	v.server, v.defined = server, map[string][]value{}
	v.lines.Reset()
}

// nginxVariable finds the variables in a value.
var nginxVariable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// value reads a text with variables, and sets those of map and geo.
func (v *variables) value(text string, depth int) (all value, err error) {
	if depth > 10 {
		return all, fmt.Errorf("%s depends on itself, or on too many others", text)
	}
	for text != "" {
		at := nginxVariable.FindStringIndex(text)
		if at == nil {
			at = []int{len(text), len(text)}
		}
		all.text += text[:at[0]]
		all.sure = all.sure || at[0] > 0
		if at[0] < at[1] {
			one, err := v.variable(strings.Trim(text[at[0]+1:at[1]], "{}"), depth)
			if err != nil {
				return all, err
			}
			all = value{all.text + one.text, append(all.variable, one.variable...), all.sure || one.sure}
		}
		text = text[at[1]:]
	}
	return all, nil
}

// placeholders are Caddy's for variables that are never empty.
var placeholders = map[string]string{
	"remote_addr": "{client_ip}", "binary_remote_addr": "{client_ip}",
	"host": "{host}", "http_host": "{hostport}",
	"request_uri": "{uri}", "uri": "{path}", "document_uri": "{path}",
	"request_method": "{method}", "scheme": "{scheme}",
	"server_port": "{http.request.local.port}", "server_addr": "{http.request.local.host}",
	"server_protocol": "{http.request.proto}", "hostname": "{system.hostname}",
}

// emptyable are those for variables that may be empty.
var emptyable = map[string]string{
	"args": "{query}", "query_string": "{query}",
	"ssl_client_fingerprint": "{tls_client_fingerprint}", "ssl_client_s_dn": "{tls_client_subject}",
	"ssl_client_serial": "{tls_client_serial}", "ssl_client_i_dn": "{tls_client_issuer}",
	"ssl_server_name": "{http.request.tls.server_name}",
}

func (v *variables) variable(name string, depth int) (value, error) {
	if block := v.blocks[name]; block != nil {
		p := "{vars." + name + "}"
		if err := v.define(name, block, depth+1); err != nil {
			return value{}, fmt.Errorf("$%s (%s): %w", name, v.at(block), err)
		}
		return value{text: p, variable: []string{p}}, nil
	}
	if at := v.set[name]; at != "" {
		return value{}, fmt.Errorf("$%s is set while a request is handled (%s); want a map or geo", name, at)
	}
	if name == "server_name" {
		return value{text: v.server, sure: v.server != ""}, nil
	}
	if p := placeholders[name]; p != "" {
		return value{p, []string{p}, true}, nil
	}
	p := emptyable[name]
	prefix, rest, _ := strings.Cut(name, "_")
	switch {
	case rest == "":
	case prefix == "http":
		p = "{header." + http.CanonicalHeaderKey(strings.ReplaceAll(rest, "_", "-")) + "}"
	case prefix == "cookie":
		p = "{cookie." + rest + "}"
	case prefix == "arg":
		p = "{query." + rest + "}"
	}
	if p == "" {
		return value{}, fmt.Errorf("$%s has no counterpart", name)
	}
	return value{text: p, variable: []string{p}}, nil
}

// key returns the key of a zone, and when a request has one: nginx does not limit requests whose
// key is empty.
func (v *variables) key(name, text string) (key value, when cond, err error) {
	key, err = v.value(text, 0)
	if err != nil || key.sure || len(key.variable) == 0 {
		return key, cond{}, err
	}
	nonempty := key.variable[0]
	if key.text != nonempty {
		nonempty = "{vars.key-of-" + clean(name) + "}"
		fmt.Fprintf(&v.lines, "vars key-of-%s %s\n", clean(name), quote(key.text))
	}
	when = cond{is: []matcher{{name: "vars_regexp", args: []string{nonempty, "."}}}}
	if set, ok := v.defined[strings.TrimSuffix(strings.TrimPrefix(key.text, "{vars."), "}")]; ok && len(set) < 2 {
		key = value{sure: true} // all that it may be is empty, or one text
		for _, only := range set {
			key = only
		}
	}
	return key, when, nil
}

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
