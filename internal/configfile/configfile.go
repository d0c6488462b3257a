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
	"github.com/herdshield/shield/caddymodule/clientkey"
)

// A Shield is one shield handler of a configuration.
type Shield struct {
	// Name is the handler's name, or the name that Caddy would give it: that of its
	// server, with a number from the second handler on.
	Name string

	// Hosts are the hosts of the routes around the handler. None means that no route asks for a host.
	Hosts []string

	Config shield.Config

	// Notes say what does not follow from Config: which requests reach the handler, and
	// what tells clients apart. One line each.
	Notes []string

	handler caddymodule.Handler // as it stands in the configuration
	server  string
	matched bool // matchers other than hosts decide which requests reach it
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
	shields, err := f.shields()
	if err == nil && len(shields) == 0 {
		err = fmt.Errorf("%s has no shield; add at least one", file)
	}
	return shields, err
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
	file   string
	app    caddymodule.App // as it is configured, and what its handlers have defined
	server string
	found  []Shield
}

// A scope says which requests reach a part of the configuration.
type scope struct {
	matched bool     // matchers other than hosts decide
	hosts   []string // nil: any
}

func (s scope) within(route map[string]any) scope {
	sets, _ := route["match"].([]any)
	var hosts []string
	restricted := len(sets) > 0
	for _, set := range sets {
		set, _ := set.(map[string]any)
		names, _ := set["host"].([]any)
		restricted = restricted && len(names) > 0
		for _, name := range names {
			if name, ok := name.(string); ok && !slices.Contains(hosts, name) {
				hosts = append(hosts, name)
			}
		}
		for key := range set {
			s.matched = s.matched || key != "host"
		}
	}
	if restricted {
		s.hosts = hosts
	}
	return s
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
		return f.walk(all, scope{})
	}
	byName, _ := servers.(map[string]any)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		f.server = name
		errs = append(errs, f.walk(byName[name], scope{}))
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

// walk finds the handlers within v, whose scope is s. JSON is nested 10,000 deep at most.
func (f *finder) walk(v any, s scope) error {
	var errs []error
	switch v := v.(type) {
	case []any:
		groups := map[string]bool{} // only the first matching route of a group runs
		for _, e := range v {
			inner := s
			if route, ok := e.(map[string]any); ok {
				if group, _ := route["group"].(string); group != "" {
					inner.matched = inner.matched || groups[group]
					groups[group] = true
				}
			}
			errs = append(errs, f.walk(e, inner))
		}
	case map[string]any:
		if v["handler"] == "shield" {
			return f.add(v, s)
		}
		for _, key := range inOrder(v) {
			inner := s
			switch key {
			case "match":
				continue
			case "handle":
				inner = s.within(v)
			}
			errs = append(errs, f.walk(v[key], inner))
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

func (f *finder) add(object map[string]any, s scope) error {
	delete(object, "handler")
	h := Shield{server: f.server, Hosts: s.hosts, matched: s.matched}
	if err := decode(object, &h.handler); err != nil {
		return fmt.Errorf("%s: shield %d: %w", f.file, len(f.found)+1, err)
	}
	f.found = append(f.found, h)
	return nil
}

func (f *finder) shields() (list []Shield, _ error) {
	var errs []error
	for i := range f.found {
		h := &f.found[i]
		if r := h.handler.Retries; r != nil {
			r.Secret = "" // it may be known only where the server runs
		}
		var err error
		if h.Config, err = f.app.Check(&h.handler, h.server); err == nil {
			if _, err = shield.New(h.Config, nil); err != nil {
				err = fmt.Errorf("shield %q: %w", h.handler.Name, err)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.file, err))
			continue
		}
		h.Name = h.handler.Name
		if i := slices.IndexFunc(list, func(s Shield) bool { return s.Name == h.Name }); i >= 0 {
			list[i].Notes = append(list[i].Notes, fmt.Sprintf("another shield is also called %s: this is the first", h.Name))
			continue
		}
		h.Notes = notes(&h.handler, h.Config.Observe, h.matched)
		list = append(list, *h)
	}
	return list, errors.Join(errs...)
}

// notes returns what does not follow from the shield.Config of a handler that was checked.
func notes(h *caddymodule.Handler, observes, matched bool) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	clients := func(what, key string, v4, v6 *int) {
		if key != clientkey.Default {
			note("%s: its key is %s", what, key)
		}
		if v4 != nil || v6 != nil {
			note("%s: its clients are networks of addresses", what)
		}
	}
	if matched {
		note("matchers decide which requests reach this shield")
	}
	switch {
	case h.Mode == "observe":
		note("mode is observe: it rejects no request")
	case observes:
		note("the mode of all shields is observe: it rejects no request")
	}
	for _, z := range h.Zones {
		zone := "zone " + z.Name
		if len(z.MatcherSetsRaw) > 0 {
			note("%s: matchers decide which requests it counts", zone)
		}
		clients(zone, z.Key, z.IPv4Prefix, z.IPv6Prefix)
	}
	for _, c := range h.Classes {
		if len(c.MatcherSetsRaw) > 0 {
			note("class %s: matchers decide which requests belong to it", c.Name)
		} else {
			note("class %s: requests with its name in X-Shield-Class belong to it", c.Name)
		}
	}
	if n := h.Concurrency; n != nil && n.Per != nil {
		clients("concurrency per client", n.Per.Key, nil, nil)
	}
	clients("retries", h.Retries.Key, h.Retries.IPv4Prefix, h.Retries.IPv6Prefix)
	if h.Retries.Tickets {
		note("retries: clients may bring tickets back")
	}
	return notes
}
