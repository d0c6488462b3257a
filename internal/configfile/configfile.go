// Package configfile finds the shields in a Caddyfile or in Caddy's JSON without
// loading the configuration.
package configfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
)

// A Shield is one shield handler of a configuration.
type Shield struct {
	// Name is the handler's name, or the name that Caddy would give it: that of its
	// server, with a number from the second handler on.
	Name string

	Config shield.Config
}

// Read returns the shield handlers of a configuration, in the order in which Caddy
// provisions them within a server. The text is a Caddyfile, Caddy's JSON, or a `shield
// { ... }` directive alone, as it would stand in a site. file is its name, for errors
// and imports.
//
// Handlers and the shield app are checked as when Caddy loads them, except secrets,
// matchers with placeholders, and matchers that are not Caddy's, which are ignored. Nothing
// else in the configuration is checked. Read loads no module but the Caddyfile's directives, opens nothing and touches
// no state. Handlers and zones that share a name must be defined alike; of such handlers
// Read returns the first. The error names everything that is wrong, in a Caddyfile with its line.
func Read(file string, text []byte) ([]Shield, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // as Caddy's parser does
	config, err := toJSON(file, text)
	if err != nil {
		return nil, err
	}
	f := finder{file: file}
	config = caddy.RemoveMetaFields(config) // "@id", as Caddy does
	var all any
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := f.config(all); err != nil {
		return nil, err
	}
	if len(f.found) == 0 {
		return nil, fmt.Errorf("%s has no shield; add at least one", file)
	}
	return f.found, nil
}

func toJSON(file string, text []byte) ([]byte, error) {
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%s is empty; use a Caddyfile, Caddy's JSON, or a shield directive", file)
	case json.Valid(text):
		return text, nil
	case strings.HasSuffix(file, ".json"):
		err := json.Unmarshal(text, new(any))
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			file = fmt.Sprintf("%s:%d", file, 1+bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n")))
		}
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	tokens, err := caddyfile.Tokenize(text, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	bare := len(tokens) > 0 && tokens[0].Text == "shield"
	if bare {
		text = slices.Concat([]byte(":80\n"), text)
	}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": file})
	switch {
	case err == nil:
	case bare:
		err = lineBefore(file, err)
	case !strings.Contains(err.Error(), file):
		err = fmt.Errorf("%s: %w", file, err)
	}
	return config, err
}

// lineBefore returns err with line numbers less one: toJSON has put a line before the file.
func lineBefore(file string, err error) error {
	line := regexp.MustCompile(regexp.QuoteMeta(file) + `:(\d+)`)
	return errors.New(line.ReplaceAllStringFunc(err.Error(), func(at string) string {
		n, _ := strconv.Atoi(at[len(file)+1:])
		return fmt.Sprintf("%s:%d", file, max(1, n-1))
	}))
}

// A finder walks through a configuration.
type finder struct {
	file     string
	app      caddymodule.App // as it is configured, and what its handlers have defined
	server   string
	handlers int // so far
	found    []Shield
}

func (f *finder) config(all any) error {
	if app, ok := at(all, "apps", "shield"); ok {
		err := decode(app, &f.app)
		if err == nil {
			err = f.app.Validate()
		}
		if err != nil {
			return fmt.Errorf("%s: app shield: %w", f.file, err)
		}
	}
	servers, ok := at(all, "apps", "http", "servers")
	if !ok { // a handler, a route or a server alone
		return f.walk(all)
	}
	byName, _ := servers.(map[string]any)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		f.server = name
		errs = append(errs, f.walk(byName[name]))
	}
	return errors.Join(errs...)
}

// decode fills to with what v says in JSON. Unknown fields are errors.
func decode(v, to any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return caddy.StrictUnmarshalJSON(raw, to)
}

func at(v any, path ...string) (any, bool) {
	for _, key := range path {
		object, _ := v.(map[string]any)
		var ok bool
		if v, ok = object[key]; !ok {
			return nil, false
		}
	}
	return v, true
}

// walk finds the handlers within v. JSON is nested 10,000 deep at most.
func (f *finder) walk(v any) error {
	var errs []error
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			errs = append(errs, f.walk(e))
		}
	case map[string]any:
		if v["handler"] == "shield" {
			return f.add(v)
		}
		for _, key := range inOrder(v) {
			if key != "match" {
				errs = append(errs, f.walk(v[key]))
			}
		}
	}
	return errors.Join(errs...)
}

// inOrder returns an object's keys, those of a server as Caddy provisions them.
func inOrder(object map[string]any) []string {
	rank := map[string]int{"routes": -3, "errors": -2, "named_routes": -1}
	return slices.SortedFunc(maps.Keys(object), func(a, b string) int {
		return cmp.Or(rank[a]-rank[b], strings.Compare(a, b))
	})
}

// add checks a handler, and adds the first of its name.
func (f *finder) add(object map[string]any) error {
	delete(object, "handler")
	var h caddymodule.Handler
	f.handlers++
	if err := decode(object, &h); err != nil {
		return fmt.Errorf("%s: shield %d: %w", f.file, f.handlers, err)
	}
	if h.Retries != nil {
		h.Retries.Secret = "" // it may be known only where the server runs
	}
	config, err := f.app.Check(&h, f.server)
	if err == nil {
		if _, err = shield.New(config, nil); err != nil {
			err = fmt.Errorf("shield %q: %w", h.Name, err)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	if !slices.ContainsFunc(f.found, func(s Shield) bool { return s.Name == h.Name }) {
		f.found = append(f.found, Shield{h.Name, config})
	}
	return nil
}
