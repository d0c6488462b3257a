package caddymodule

import (
	"bytes"
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
)

// maxDepth bounds how deep handlers may be nested in what Shields reads. Ours: far
// beyond what anybody writes.
const maxDepth = 100

// A ShieldConfig is what one shield handler of a config does, in the terms of
// package shield.
type ShieldConfig struct {
	// Name is the handler's, or the one that Provision gives it: that of its server,
	// with a number from the second on.
	Name string

	// Named: it is the handler's own. Another may be that of another handler after
	// the next change of the config.
	Named bool

	// Server is the server that it stands in, "" if there is none.
	Server string

	// Hosts are those of the requests that come to it, as the routes around it have
	// them; of several handlers of that name those of all. None means that no
	// route asks.
	Hosts []string

	Config shield.Config

	// Notes say what of the handler, or of what is around it, does not follow from
	// Config: which requests come to it, and who is who. One line each.
	Notes []string
}

// Shields returns the shield handlers of a config in the order in which Caddy
// provisions them within a server. The text is a Caddyfile, Caddy's JSON, or the
// `shield { ... }` directive alone, as it would stand in a site. file is its name,
// for errors and imports.
//
// Handlers, and the app of that name, are checked as they are when Caddy loads
// them, but for their matchers and secrets with placeholders, which are left out;
// nothing else in the config is. No module but the Caddyfile's directives is
// loaded, nothing is opened and no state is touched. Handlers and zones that share a
// name must be defined alike, and of such handlers the first is returned. The error
// names everything that is wrong; it has the line where the text is a Caddyfile and
// its syntax is wrong.
func Shields(file string, text []byte) ([]ShieldConfig, error) {
	config, err := toJSON(file, bytes.TrimPrefix(text, []byte("\ufeff"))) // as Caddy's parser does
	if err != nil {
		return nil, err
	}
	config = caddy.RemoveMetaFields(config) // "@id", as Caddy does
	var all any
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	f := finder{unnamed: map[string]int{}, app: App{definitions: map[string]definition{}}, hidden: map[string]bool{}}
	if err := f.config(all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(f.found) == 0 {
		return nil, fmt.Errorf("%s: there is no shield in it; want at least one", file)
	}
	return f.found, nil
}

// toJSON returns a config as Caddy's JSON.
func toJSON(file string, text []byte) ([]byte, error) {
	trimmed := bytes.TrimSpace(text)
	if len(trimmed) == 0 {
		return nil, fmt.Errorf("%s: it is empty; want a Caddyfile, Caddy's JSON, or a shield directive", file)
	}
	// A Caddyfile may begin with a brace, too, but is no JSON then.
	if json.Valid(trimmed) {
		return trimmed, nil
	}
	if strings.HasSuffix(file, ".json") {
		var v any
		err := json.Unmarshal(trimmed, &v)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			line := 1 + bytes.Count(trimmed[:min(int(syntax.Offset), len(trimmed))], []byte("\n"))
			line += bytes.Count(text[:bytes.Index(text, trimmed)], []byte("\n"))
			return nil, fmt.Errorf("%s:%d: %w", file, line, err)
		}
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	tokens, err := caddyfile.Tokenize(text, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	bare := len(tokens) > 0 && tokens[0].Text == "shield"
	if bare {
		if err := closed(tokens); err != nil {
			return nil, err
		}
		text = slices.Concat([]byte(":80 {\n"), text, []byte("\n}\n"))
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

// closed returns an error unless every block is closed. Caddy's parser takes the end
// of the file for the last brace that is missing.
func closed(tokens []caddyfile.Token) error {
	var open []caddyfile.Token
	for _, t := range tokens {
		switch n := len(open); {
		case t.Text == "{" && !t.Quoted():
			open = append(open, t)
		case t.Text == "}" && !t.Quoted() && n == 0:
			return fmt.Errorf("%s:%d: there is a } that closes nothing", t.File, t.Line)
		case t.Text == "}" && !t.Quoted():
			open = open[:n-1]
		}
	}
	if n := len(open); n > 0 {
		return fmt.Errorf("%s:%d: the block that begins here is not closed; want a }", open[n-1].File, open[n-1].Line)
	}
	return nil
}

// lineBefore returns err with the lines of the file as they were before a line was
// put in front of it.
func lineBefore(file string, err error) error {
	line := regexp.MustCompile(regexp.QuoteMeta(file) + `:(\d+)`)
	return errors.New(line.ReplaceAllStringFunc(err.Error(), func(at string) string {
		n, _ := strconv.Atoi(at[len(file)+1:])
		return fmt.Sprintf("%s:%d", file, max(1, n-1))
	}))
}

// finder walks through a config as JSON.
type finder struct {
	app     App // as it is configured, and what is defined in it
	server  string
	unnamed map[string]int
	hidden  map[string]bool // names of handlers whose secret is not known here
	found   []ShieldConfig
}

// A place is what is known of the requests that come to a part of a config.
type place struct {
	matched bool     // matchers, but of hosts, decide which do
	hosts   []string // theirs, if any
}

// within returns the place of a route's handlers.
func (p place) within(route map[string]any) place {
	sets, _ := route["match"].([]any)
	var hosts []string
	asked := len(sets) > 0
	for _, set := range sets {
		set, _ := set.(map[string]any)
		names, _ := set["host"].([]any)
		asked = asked && len(names) > 0
		for _, name := range names {
			if name, ok := name.(string); ok && !slices.Contains(hosts, name) {
				hosts = append(hosts, name)
			}
		}
		for key := range set {
			p.matched = p.matched || key != "host"
		}
	}
	if asked {
		p.hosts = hosts
	}
	return p
}

// config finds the handlers of a config, in the order in which Caddy provisions
// each server.
func (f *finder) config(all any) error {
	if app, ok := at(all, "apps", "shield"); ok {
		raw, err := json.Marshal(app)
		if err == nil {
			err = caddy.StrictUnmarshalJSON(raw, &f.app)
		}
		if err == nil {
			err = checkMode(f.app.Mode)
		}
		if err != nil {
			return fmt.Errorf("app shield: %w", err)
		}
	}
	servers, ok := at(all, "apps", "http", "servers")
	if !ok { // a handler, a route or a server alone
		return f.walk(all, place{}, 0)
	}
	byName, _ := servers.(map[string]any)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		f.server = name
		errs = append(errs, f.walk(byName[name], place{}, 0))
	}
	return errors.Join(errs...)
}

// at returns the value at a path of keys.
func at(v any, path ...string) (any, bool) {
	for _, key := range path {
		object, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = object[key]; !ok {
			return nil, false
		}
	}
	return v, true
}

// walk finds the handlers within v, whose place is p.
func (f *finder) walk(v any, p place, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it is nested more than %d deep", maxDepth)
	}
	var errs []error
	switch v := v.(type) {
	case []any:
		groups := map[string]bool{} // of routes of which the first counts that matches
		for _, e := range v {
			own := p
			if route, ok := e.(map[string]any); ok {
				if group, _ := route["group"].(string); group != "" {
					own.matched = own.matched || groups[group]
					groups[group] = true
				}
			}
			errs = append(errs, f.walk(e, own, depth+1))
		}
	case map[string]any:
		if v["handler"] == "shield" {
			return f.add(v, p)
		}
		for _, key := range inOrder(v) {
			own := p
			switch key {
			case "match":
				continue
			case "handle":
				own = p.within(v)
			}
			errs = append(errs, f.walk(v[key], own, depth+1))
		}
	}
	return errors.Join(errs...)
}

// inOrder returns an object's keys, those of a server in the order in which it
// provisions what they hold.
func inOrder(object map[string]any) []string {
	order := []string{"routes", "errors", "named_routes"}
	return slices.SortedFunc(maps.Keys(object), func(a, b string) int {
		i, j := slices.Index(order, a), slices.Index(order, b)
		if i < 0 {
			i = len(order)
		}
		if j < 0 {
			j = len(order)
		}
		if i != j {
			return i - j
		}
		return strings.Compare(a, b)
	})
}

// add checks a handler as Provision does, and adds what it means.
func (f *finder) add(object map[string]any, p place) error {
	delete(object, "handler")
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var h Handler
	if err := caddy.StrictUnmarshalJSON(raw, &h); err != nil {
		return fmt.Errorf("shield %d: %w", len(f.found)+1, err)
	}
	named := h.Name != ""
	if !named {
		h.Name = f.name()
	} else if err := shield.CheckName(h.Name); err != nil {
		return err
	}
	secret := h.Retries != nil && strings.Contains(h.Retries.Secret, "{")
	config, err := h.check()
	if err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	if err := f.define(&h, config.Retries.Secret, secret); err != nil {
		return err
	}
	observes := f.app.Mode == modeObserve
	config.Observe = h.Mode == modeObserve || observes
	for i := range f.found {
		if first := &f.found[i]; first.Name == h.Name {
			first.Notes = append(first.Notes, fmt.Sprintf("another shield is called %s, too: it is the first that is meant here", h.Name))
			if len(p.hosts) == 0 {
				first.Hosts = nil
			} else if len(first.Hosts) > 0 {
				first.Hosts = slices.Compact(slices.Sorted(slices.Values(slices.Concat(first.Hosts, p.hosts))))
			}
			return nil
		}
	}
	f.found = append(f.found, ShieldConfig{
		Name: h.Name, Named: named, Server: f.server, Hosts: slices.Clone(p.hosts), Config: config, Notes: h.notes(observes, p.matched),
	})
	return nil
}

// define returns an error if a handler, or a zone of it, is defined otherwise than
// another of that name, as Provision does. hides: the secret is not known here, and
// so not compared.
func (f *finder) define(h *Handler, secret []byte, hides bool) error {
	var errs []error
	for _, z := range h.Zones {
		if err := f.app.define("zone", z.Name, fmt.Sprintf("in shield %q ", h.Name), z.explicit(), nil); err != nil {
			errs = append(errs, fmt.Errorf("shield %q: %w", h.Name, err))
		}
	}
	backend := &Handler{
		Mode: h.Mode, Capacity: h.Capacity, Concurrency: h.Concurrency.explicit(),
		Queue: h.Queue, Classes: explicitClasses(h.Classes),
	}
	if backend.Mode == "" {
		backend.Mode = modeEnforce
	}
	const retries = "retries of shield"
	if first, ok := f.app.definitions[retries+" "+h.Name]; ok && (hides || f.hidden[h.Name]) {
		secret = []byte(first.secret)
	}
	f.hidden[h.Name] = f.hidden[h.Name] || hides
	return errors.Join(append(errs,
		f.app.define("shield", h.Name, "", backend, nil),
		f.app.define(retries, h.Name, "", h.Retries.explicit(), secret),
		f.app.define("herd of shield", h.Name, "", h.Herd.explicit(), nil),
	)...)
}

// name is what App.nextName calls a handler without a name.
func (f *finder) name() string {
	server := "shield"
	if shield.CheckName(f.server) == nil {
		server = f.server
	}
	f.unnamed[server]++
	if n := f.unnamed[server]; n > 1 {
		return fmt.Sprintf("%s-%d", server, n)
	}
	return server
}

// check returns what Provision has a Guard made of, after the same checks, but for
// the matchers.
func (h *Handler) check() (shield.Config, error) {
	if i := slices.Index(h.Zones, nil); i >= 0 {
		return shield.Config{}, fmt.Errorf("zone %d is null; want an object", i)
	}
	if i := slices.Index(h.Classes, nil); i >= 0 {
		return shield.Config{}, fmt.Errorf("class %d is null; want an object", i)
	}
	for _, z := range h.Zones {
		if z.Name == "" {
			z.Name = h.Name + "/per_client"
		}
	}
	if r := h.Retries; r != nil && strings.Contains(r.Secret, "{") {
		// It is where the server runs, and decides nothing without tickets.
		r.Secret = ""
	}
	config, err := h.config()
	if err != nil {
		return shield.Config{}, err
	}
	var errs []error
	for _, z := range h.Zones {
		if _, err := newKeyer(z.Key, z.IPv4Prefix, z.IPv6Prefix); err != nil {
			errs = append(errs, fmt.Errorf("zone %q: %w", z.Name, err))
		}
	}
	retries := h.Retries.explicit()
	if _, err := newKeyer(retries.Key, retries.IPv4Prefix, retries.IPv6Prefix); err != nil {
		errs = append(errs, fmt.Errorf("retries: %w", err))
	}
	if h.Concurrency != nil && h.Concurrency.Per != nil {
		if _, err := newKeyer(h.Concurrency.Per.Key, nil, nil); err != nil {
			errs = append(errs, fmt.Errorf("concurrency per client: %w", err))
		}
	}
	_, err = shield.New(config, nil)
	return config, errors.Join(append(errs, err)...)
}

// notes say what does not follow from the handler's config. observes: the whole app
// does. matched: its route has matchers.
func (h *Handler) notes(observes, matched bool) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if matched {
		note("matchers decide which requests come to this shield")
	}
	switch {
	case h.Mode == modeObserve:
		note("mode is observe: it refuses nobody")
	case observes:
		note("the mode of all shields is observe: it refuses nobody")
	}
	for _, z := range h.Zones {
		if len(z.MatcherSetsRaw) > 0 {
			note("zone %s: matchers decide which requests it counts", z.Name)
		}
		if key := z.key(); key != defaultKey {
			note("zone %s: its key is %s", z.Name, key)
		}
		if z.IPv4Prefix != nil || z.IPv6Prefix != nil {
			note("zone %s: its clients are networks of addresses", z.Name)
		}
	}
	for _, c := range h.Classes {
		switch {
		case len(c.MatcherSetsRaw) > 0:
			note("class %s: matchers decide which requests are of it", c.Name)
		case c.Clients == nil:
			note("class %s: requests are of it that say so in X-Shield-Class", c.Name)
		}
		if c.Clients != nil {
			note("class %s: %g %% of the clients are of it, drawn by lot", c.Name, 100**c.Clients)
		}
	}
	if n := h.Concurrency; n != nil && n.Per != nil && n.Per.Key != "" && n.Per.Key != defaultKey {
		note("concurrency per client: its key is %s", n.Per.Key)
	}
	if r := h.Retries; r != nil {
		if r.Key != "" && r.Key != defaultKey {
			note("retries: its key is %s", r.Key)
		}
		if r.IPv4Prefix != nil || r.IPv6Prefix != nil {
			note("retries: its clients are networks of addresses")
		}
		if r.Tickets {
			note("retries: clients may bring tickets back")
		}
	}
	return notes
}
