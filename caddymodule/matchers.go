package caddymodule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule/commands"
)

const matcherNamespace = "http.matchers"

// parseMatchers parses one set of matchers.
func parseMatchers(d *caddyfile.Dispenser, to *caddyhttp.RawMatcherSets) error {
	d = d.NewFromNextSegment()
	d.Next()
	if err := checkMatcherNames(d); err != nil {
		return err
	}
	d.Reset()
	d.Next()
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err == nil {
		*to = append(*to, set)
	}
	return err
}

// checkMatcherNames returns an error if a word after match, or after a not there, is no matcher.
func checkMatcherNames(d *caddyfile.Dispenser) error {
	of, found := d.Val(), false
	for nesting := d.Nesting(); d.NextArg() || d.NextBlock(nesting); found = true {
		if d.Token().Quoted() { // an expression
			continue
		}
		name := d.Val()
		switch _, err := caddy.GetModule(matcherNamespace + "." + name); {
		case strings.HasPrefix(name, "@"):
			return d.Errf("match is %s, a named matcher; want its matchers written out here", name)
		case strings.HasPrefix(name, "/"), strings.HasPrefix(name, "*"):
			return d.Errf("%s is %q, which is no matcher; want path before it, like path /api/*", of, name)
		case err != nil:
			var names []string
			for _, m := range caddy.GetModules(matcherNamespace) {
				names = append(names, m.ID.Name())
			}
			return d.Errf("%s is %q, which is no matcher%s; want one of Caddy's, like path, method, header or client_ip",
				of, name, commands.Meant("", commands.Near(name, names)))
		}
		inner := d.NewFromNextSegment()
		inner.Next()
		if name == "not" {
			if err := checkMatcherNames(inner); err != nil {
				return err
			}
			continue
		}
		line := append([]caddyfile.Token{inner.Token()}, inner.RemainingArgsAsTokens()...)
		if first, second := twoMatchers(line); second != "" {
			return inner.Errf("%s is \"%s %s\", two matchers of which %s takes all; want %q and %q, each in a line of its own in a block of %s",
				of, first, second, name, first, second, of)
		}
	}
	if !found && of == "not" {
		return d.Errf("not has no matcher; want one, like not path /api/*")
	}
	return nil
}

// twoMatchers splits a line where its matcher takes another one for arguments, which Caddy lets pass
// for matchers that take any number of them. It does so only if the first is right without the second,
// and the second has an argument: `header_regexp name host ^a` is one matcher.
func twoMatchers(line []caddyfile.Token) (first, second string) {
	for i := 2; i < len(line)-1; i++ {
		if _, err := caddy.GetModule(matcherNamespace + "." + line[i].Text); err != nil || line[i].Quoted() {
			continue
		}
		set, err := parseLine(line[:i])
		if err != nil || len(wrongMatchers(set)) > 0 {
			continue
		}
		if _, err := parseLine(line[i:]); err == nil {
			return lineText(line[:i]), lineText(line[i:])
		}
	}
	return "", ""
}

// parseLine parses a line with one matcher.
func parseLine(line []caddyfile.Token) (caddy.ModuleMap, error) {
	d := caddyfile.NewDispenser(append([]caddyfile.Token{line[0]}, line...))
	d.Next()
	return caddyhttp.ParseCaddyfileNestedMatcherSet(d)
}

func lineText(line []caddyfile.Token) string {
	var words []string
	for _, t := range line {
		words = append(words, t.Text)
	}
	return strings.Join(words, " ")
}

// checkMatchers checks what can be checked before the matchers are loaded. Every set of several
// is named by its number.
func (f *faults) checkMatchers(sets caddyhttp.RawMatcherSets) {
	for i, set := range sets {
		name := "match"
		if len(sets) > 1 {
			name = fmt.Sprintf("match %d", i+1)
		}
		if len(set) == 0 {
			f.addf("%s is empty; want a matcher, or leave it out to match everything", name)
		}
		for _, err := range wrongMatchers(set) {
			f.add(fmt.Errorf("%s: %w", name, err))
		}
	}
}

// wrongMatchers returns what is wrong with the matchers of a set.
func wrongMatchers(set caddy.ModuleMap) (wrong []error) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		raw := set[name]
		var inner []caddy.ModuleMap
		var values []string
		switch {
		case len(raw) == 0 || string(raw) == "null":
			wrong = append(wrong, fmt.Errorf("%s has no value; want one", name))
			continue
		case name == "not" && json.Unmarshal(raw, &inner) == nil:
			for _, set := range inner {
				for _, err := range wrongMatchers(set) {
					wrong = append(wrong, fmt.Errorf("not: %w", err))
				}
			}
			continue
		case json.Unmarshal(raw, &values) == nil && matchesNone[name].values != nil:
			if i := slices.IndexFunc(values, matchesNone[name].values); i >= 0 {
				wrong = append(wrong, fmt.Errorf("%s is %q, which no request has; want %s, and matchers that apply together in a block, a line each", name, values[i], matchesNone[name].want))
			}
		}
		if err := tryMatcher(name, raw); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w; want %s", name, err, cmp.Or(wantedByMatcher[name], "what Caddy's documentation says of it")))
		}
	}
	return wrong
}

// matchesNone has the matchers that take a list of anything, what in it no request has, and what is wanted.
var matchesNone = map[string]struct {
	values func(string) bool
	want   string
}{
	"method": {func(m string) bool { return m == "" || strings.Trim(m, "!#$%&'*+-.^_`|~0123456789"+upper) != "" }, "GET, POST or the like in upper case"},
	"host":   {func(h string) bool { return strings.Contains(h, "/") && !strings.Contains(h, "{") }, "a name like example.com"},
	"path": {func(p string) bool {
		return p == "" || strings.ContainsAny(p[:1], upper+strings.ToLower(upper)+"0123456789")
	}, "/ or * at its start"},
}

const upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// wantedByMatcher says what the matchers take that can be wrong.
var wantedByMatcher = map[string]string{
	"client_ip": "addresses or networks, like 10.0.0.0/8", "remote_ip": "addresses or networks, like 10.0.0.0/8",
	"path_regexp": "a regular expression of Go", "header_regexp": "a regular expression of Go", "vars_regexp": "a regular expression of Go",
	"expression": "an expression in CEL, in backticks or quotes", "protocol": "http, https, grpc, http/1.1, http/2 or the like",
}

// tryMatcher loads one of Caddy's own matchers of requests, which look at nothing else, and returns
// what is wrong. Those of others, and values of placeholders, depend on where the server runs.
func tryMatcher(name string, raw json.RawMessage) error {
	id := matcherNamespace + "." + name
	m, err := caddy.GetModule(id)
	if err != nil || reflect.TypeOf(m.New()).Elem().PkgPath() != reflect.TypeFor[caddyhttp.MatchNot]().PkgPath() {
		return nil
	}
	for _, later := range []string{"{env.", "{file.", "{system.", "{time."} {
		if strings.Contains(string(raw), later) && !adaptsToLoad {
			return nil
		}
	}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	if _, err = ctx.LoadModuleByID(id, raw); err == nil {
		return nil
	}
	text := strings.Join(strings.Fields(err.Error()), " ") // in one line
	for _, prefix := range []string{"provision " + id + ": ", "decoding module config: " + id + ": "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return errors.New(text)
}

// loadMatchers loads the field MatcherSetsRaw of a zone or a class.
func loadMatchers(ctx caddy.Context, of any, raw caddyhttp.RawMatcherSets) (loaded caddyhttp.MatcherSets, err error) {
	if len(raw) == 0 {
		return nil, nil
	}
	sets, err := ctx.LoadModule(of, "MatcherSetsRaw")
	if err == nil {
		err = loaded.FromInterface(sets)
	}
	return loaded, err
}
