package caddymodule

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

const matcherNamespace = "http.matchers"

func isMatcher(name string) bool {
	_, err := caddy.GetModule(matcherNamespace + "." + name)
	return err == nil
}

// parseMatchers parses one set of matchers.
func parseMatchers(d *caddyfile.Dispenser, to *caddyhttp.RawMatcherSets) error {
	d = d.NewFromNextSegment()
	d.Next()
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err != nil {
		return fmt.Errorf("%w; want match and Caddy's matchers written out, like match path /api/*", err)
	}
	*to = append(*to, set)
	return nil
}

// checkMatchers checks what Caddy lets pass and no request matches.
func (f *faults) checkMatchers(sets caddyhttp.RawMatcherSets) {
	for _, set := range sets {
		if len(set) == 0 {
			f.addf("match is empty; want a matcher, or leave it out to match everything")
		}
		for _, wrong := range wrongMatchers(set) {
			f.addf("match: %s", wrong)
		}
	}
}

// wrongMatchers says what is wrong with the matchers of a set.
func wrongMatchers(set caddy.ModuleMap) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		raw := set[name]
		var inner []caddy.ModuleMap
		var values []string
		var vars map[string][]string
		switch {
		case len(raw) == 0 || string(raw) == "null":
			wrong = append(wrong, name+" has no value; want one")
		case name == "not" && json.Unmarshal(raw, &inner) == nil:
			if len(inner) == 0 || len(inner[0]) == 0 {
				wrong = append(wrong, "not has no matcher; want one")
			}
			for _, set := range inner {
				for _, is := range wrongMatchers(set) {
					wrong = append(wrong, "not: "+is)
				}
			}
		case name == "vars" && json.Unmarshal(raw, &vars) == nil:
			for _, values := range vars {
				if i := slices.IndexFunc(values, isMatcher); i > 0 && i < len(values)-1 {
					wrong = append(wrong, fmt.Sprintf("vars has the value %q; want each matcher in a line of its own, in a block of match", values[i]))
				}
			}
		case json.Unmarshal(raw, &values) == nil:
			for i, value := range values {
				if matchesNone(name, value) || name == "host" && isMatcher(value) && i > 0 && i < len(values)-1 {
					wrong = append(wrong, fmt.Sprintf("%s is %q, which no request has; want values like GET, example.com and /api/*, "+
						"and each matcher in a line of its own, in a block of match", name, value))
					break
				}
			}
		}
	}
	return wrong
}

// matchesNone reports whether a matcher that takes a list of anything has something in it that no request has: most
// often a second matcher, in the same line.
func matchesNone(matcher, value string) bool {
	switch matcher {
	case "method":
		return value == "" || value != strings.ToUpper(value) || strings.ContainsAny(value, "/ ,")
	case "host":
		return strings.Contains(value, "/") && !strings.Contains(value, "{")
	case "path":
		return value == "" || !strings.ContainsAny(value[:1], "/*{%")
	}
	return false
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
