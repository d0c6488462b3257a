package caddymodule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/dialect"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// Check names h and its zones if they have no name, and returns the configuration of
// its Guard. server is the name of the server that h belongs to, or "".
//
// Check makes the same checks as Provision, except those of matchers and those of shield.New. It compares h with the handlers and zones that a has checked before: those
// of one name must be defined alike. The zero App is ready to check handlers without
// loading them.
func (a *App) Check(h *Handler, server string) (shield.Config, error) {
	if h.Name == "" {
		h.Name = a.nextName(server)
	} else if err := shield.CheckName(h.Name); err != nil {
		return shield.Config{}, err
	}
	if slices.Contains(h.Zones, nil) || slices.Contains(h.Classes, nil) {
		return shield.Config{}, fmt.Errorf("shield %q: a zone or a class is null; use an object", h.Name)
	}
	for _, z := range h.Zones { // a second one without a name is an error, like any duplicate name
		z.Name = cmp.Or(z.Name, h.Name+"/clients")
	}
	h.setDefaults()
	f := new(faults)
	c := h.config(f)
	written, err := json.Marshal(h)
	f.of("").add(err)
	h.readsJSON = bytes.Contains(written, []byte(clientkey.JSONPrefix)) // in whatever has placeholders
	if f.errs == nil {
		h.compileKeys(f, a.MaskCredentials != nil && !*a.MaskCredentials)
	}
	if f.errs == nil {
		a.defaultShared(f, h)
		for _, z := range h.Zones {
			f.of("").add(a.define("zone", z.Name, z))
		}
	}
	if err := errors.Join(f.errs...); err != nil {
		return c, fmt.Errorf("shield %q: %w", h.Name, err)
	}
	a.share(h, &c)
	c.Observe = h.Mode == modeObserve || a.Mode == modeObserve
	c.Retries.Issuer = h.Name
	return c, a.defineBackend(h, c.Retries.Secret)
}

// setDefaults writes the most common defaults out, so that definitions can be compared.
func (h *Handler) setDefaults() {
	h.Mode = cmp.Or(h.Mode, modeEnforce)
	for _, z := range h.Zones {
		z.Key = cmp.Or(z.Key, clientkey.Default)
		z.Per = cmp.Or(z.Per, new(caddy.Duration(time.Second)))
		z.MaxKeys = cmp.Or(z.MaxKeys, new(shield.DefaultMaxKeys))
	}
	if n := h.Concurrency; n != nil && n.Per != nil {
		n.Per.Key = cmp.Or(n.Per.Key, clientkey.Default)
	}
	h.Pushback = cmp.Or(h.Pushback, new(Pushback))
	h.Pushback.Dither = cmp.Or(h.Pushback.Dither, new(true))
	h.Retries = cmp.Or(h.Retries, new(Retries))
	h.Retries.Enforce = cmp.Or(h.Retries.Enforce, new(true))
	h.Retries.MaxClients = cmp.Or(h.Retries.MaxClients, new(pushback.DefaultMaxClients))
	h.Retries.Key = cmp.Or(h.Retries.Key, clientkey.Default)
}

// compileKeys compiles the templates that tell clients apart. What counts by address as appointments do has their keyer, so
// that a request is named once. Any other placeholder may have a value by a zone's own matchers, as {re.t.1} has.
func (h *Handler) compileKeys(f *faults, bare bool) {
	h.clients = nil
	compile := func(f *faults, template string, v4, v6 *int) *keyer {
		k, err := newKeyer(template, v4, v6)
		if f.add(err); k == nil {
			return nil
		}
		if h.clients != nil && h.clients.same(k) && k.isMadeOfAddresses() {
			return h.clients
		}
		k.hides = k.hides && !bare // credentials are shown
		return k
	}
	h.clients = compile(f.of("retries: "), h.Retries.Key, h.Retries.IPv4Prefix, h.Retries.IPv6Prefix)
	h.zones, h.asked = nil, false
	for _, z := range h.Zones {
		is := handlerZone{name: z.Name, keyer: compile(f.of("zone %q: ", z.Name), z.Key, z.IPv4Prefix, z.IPv6Prefix)}
		is.cost, is.rate = inBraces(string(z.Cost)), inBraces(z.From)
		h.zones, h.asked = append(h.zones, is), h.asked || is.cost != "" || is.rate != ""
	}
	if n := h.Concurrency; n != nil && n.Per != nil {
		h.perClient = compile(f.of("concurrency per client: "), n.Per.Key, nil, nil)
	}
}

// defineBackend returns an error if another handler of the same name limits their
// backend differently. It does not compare which requests belong to the classes and what they weigh, nor
// secrets in a Caddyfile, which may be placeholders.
func (a *App) defineBackend(h *Handler, secret []byte) error {
	limits := Handler{Mode: h.Mode, Capacity: h.Capacity, Concurrency: h.Concurrency, Queue: h.Queue, Shared: h.Shared}
	if h.Concurrency != nil {
		concurrency := *h.Concurrency
		concurrency.Weight, limits.Concurrency = "", &concurrency // they are about requests
	}
	for _, c := range h.Classes {
		limits.Classes = append(limits.Classes, &Class{Name: c.Name, Share: c.Share})
	}
	retries := *h.Retries
	if retries.Secret = ""; !a.adapts {
		retries.Secret = fingerprint(secret)
	}
	return errors.Join(a.define("shield", h.Name, &limits), a.define("retries of shield", h.Name, retries))
}

// nextName returns a name for a handler without one: that of its server, if that is valid
// in labels, with a number from the second handler on.
func (a *App) nextName(server string) string {
	if shield.CheckName(server) != nil {
		server = "shield"
	}
	if a.unnamed == nil {
		a.unnamed = map[string]int{}
	}
	a.unnamed[server]++
	if n := a.unnamed[server]; n > 1 {
		return fmt.Sprintf("%s-%d", server, n)
	}
	return server
}

// define returns an error if this config defines one name in two ways. The error says
// by which options.
func (a *App) define(kind, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	key := kind + " " + name
	if first, ok := a.definitions[key]; ok && !bytes.Equal(first, b) {
		return fmt.Errorf("%s %q is defined twice, with different %s; use one definition, or two names", kind, name, unlike(first, b))
	}
	if a.definitions == nil {
		a.definitions = map[string][]byte{}
	}
	a.definitions[key] = b
	return nil
}

// unlike returns the options in which two JSON objects differ.
func unlike(one, other []byte) string {
	var here, there map[string]json.RawMessage
	_, _ = json.Unmarshal(one, &here), json.Unmarshal(other, &there) // they come from Marshal
	options := maps.Clone(here)
	maps.Copy(options, there)
	maps.DeleteFunc(options, func(name string, _ json.RawMessage) bool { return bytes.Equal(here[name], there[name]) })
	return strings.Join(slices.Sorted(maps.Keys(options)), " and ")
}

func checkMode(mode string) error {
	switch mode {
	case "", modeEnforce, modeObserve:
		return nil
	}
	return fmt.Errorf("mode is %q; use %s or %s", mode, modeEnforce, modeObserve)
}

// config returns h as a configuration of package shield, which checks it further. JSON
// and Caddyfiles both come through here. f gets everything that is wrong.
func (h *Handler) config(f *faults) (c shield.Config) {
	f.add(checkMode(h.Mode))
	for _, z := range h.Zones {
		c.Zones = append(c.Zones, z.config(f.of("zone %q: ", z.Name)))
	}
	if h.Capacity != nil {
		c.Capacity = h.Capacity.config(f.of("capacity: "))
	}
	if h.Concurrency != nil {
		h.Concurrency.config(f.of("concurrency "), &c)
	}
	if h.Queue != nil {
		c.Queue = h.Queue.config(f.of("queue: "))
	}
	if d := time.Duration(explicit(f.of(""), "timeout", h.Timeout)); d != 0 && (d < time.Millisecond || d > 24*time.Hour) { // ours: longer ones are mistakes
		f.addf("timeout is %v; use 1ms to 24h", d)
	}
	for _, class := range h.Classes {
		c.Classes = append(c.Classes, class.config(f.of("class %q: ", class.Name)))
	}
	c.Pushback = h.Pushback.config(f.of("pushback: "))
	c.Retries = h.Retries.config(f.of("retries: "))
	// With a queue or classes alone, shield.New says that they need a concurrency.
	if len(h.Zones)+len(h.Classes) == 0 && h.Capacity == nil && h.Concurrency == nil && c.Queue.Size <= 0 {
		f.of("").addf("nothing is limited; add a zone, a capacity or a concurrency")
	}
	return c
}

// faults are what is wrong with a handler.
type faults struct {
	part string // that is being checked, as the errors begin
	errs []error
}

// of says what is being checked from here on.
func (f *faults) of(format string, args ...any) *faults {
	f.part = fmt.Sprintf(format, args...)
	return f
}

func (f *faults) add(err error) {
	if err != nil {
		f.errs = append(f.errs, fmt.Errorf("%s%w", f.part, err))
	}
}

func (f *faults) addf(format string, args ...any) { f.add(fmt.Errorf(format, args...)) }

// known returns a text with the values of its placeholders. If one has none the error shows the placeholders of the
// environment and of files, and nothing else of the text, which may be a secret: the replacer's error may show a part of it.
func (f *faults) known(name, text string) string {
	known, err := caddy.NewReplacer().ReplaceOrErr(text, true, true)
	if text != "" && (err != nil || known == "") {
		which := strings.Join(append([]string{""}, namedElsewhere.FindAllString(text, -1)...), ", ")
		f.addf("%s has an empty or unknown placeholder%s; use {env.NAME} or {file./path} with a value", name, which)
	}
	return known
}

var namedElsewhere = regexp.MustCompile(`\{(env|file)\.[^{}]*\}`)

// explicit returns a setting, or 0 for the default. A setting of 0 is an error.
func explicit[T ~int | ~int64 | ~float64](f *faults, name string, v *T) T {
	if v == nil {
		return 0
	}
	if *v == 0 {
		f.addf("%s is 0; use more than 0, or leave it out for the default", name)
	}
	return *v
}

// checkMatchers checks what Caddy lets pass and no request matches. what leads to the sets.
func (f *faults) checkMatchers(what string, sets []caddy.ModuleMap) {
	for _, set := range sets {
		if len(set) == 0 {
			f.addf("%s is empty; use a matcher, or leave it out to match everything", what)
		}
		for _, name := range slices.Sorted(maps.Keys(set)) {
			var inner []caddy.ModuleMap
			var values []string
			switch raw := set[name]; {
			case len(raw) == 0 || string(raw) == "null":
				f.addf("%s: %s has no value; add one", what, name)
			case name == "not" && json.Unmarshal(raw, &inner) == nil:
				f.checkMatchers(what+": not", inner)
			case json.Unmarshal(raw, &values) == nil:
				for i, value := range values {
					like, checked := possible[name]
					_, noMatcher := caddy.GetModule("http.matchers." + value)
					if checked && !like.MatchString(value) || name == "host" && noMatcher == nil && i > 0 && i < len(values)-1 {
						f.addf("%s: %s is %q, which no request has; use values like GET, example.com and /api/*, "+
							"and put each matcher on its own line, in a match block", what, name, value)
						break
					}
				}
			}
		}
	}
}

// possible are the values that requests have, of matchers that take a list of anything. Where one is not, it is most often a
// second matcher, in the same line.
var possible = map[string]*regexp.Regexp{
	"method": regexp.MustCompile(`^[^\p{Ll}/ ,]+$`),
	"host":   regexp.MustCompile(`^[^/]*$|\{`),
	"path":   regexp.MustCompile(`^[/*{%]`),
}

func (r Rate) config(f *faults) limiter.Config {
	if r.Rate == 0 {
		f.addf("rate is missing or 0; use more than 0, like 50/s")
		r.Rate = 1 // or shield.New would say so again
	}
	return limiter.Config{
		Rate:  r.Rate,
		Per:   time.Duration(explicit(f, "per", r.Per)),
		Burst: explicit(f, "burst", r.Burst),
	}
}

func (z *Zone) config(f *faults) shield.Zone {
	f.checkMatchers("match", z.MatcherSetsRaw)
	c := shield.Zone{
		Name:    z.Name,
		Limit:   z.Rate.config(f),
		Unit:    z.Unit,
		MinRate: z.Min,
		MaxKeys: explicit(f, "max_keys", z.MaxKeys),
	}
	z.budget(f, &c)
	return c
}

// config sets the limit in flight in c.
func (n *Concurrency) config(f *faults, c *shield.Config) {
	if n.Per != nil {
		if c.PerClient = n.Per.Limit; c.PerClient < 1 || c.PerClient > loadshed.MaxConcurrency {
			f.addf("per client is %d; use 1 to %d", c.PerClient, loadshed.MaxConcurrency)
			c.PerClient = 0
		}
	}
	n.weights(f, c)
	c.Disconnected, c.Streams = shield.Disconnected(n.Disconnected), shield.Streams(n.Streams)
	adaptive := loadshed.AdaptiveConfig{
		Min: explicit(f, "min", n.Min), Max: explicit(f, "max", n.Max),
		Initial: explicit(f, "initial", n.Initial),
		Target:  time.Duration(explicit(f, "target", n.Target)),
	}
	switch {
	case n.Limit != 0 && (n.Adaptive || n.Target != nil), n.Adaptive && n.Target != nil:
		f.addf("has several of limit, adaptive and target; use only one")
	case n.Adaptive || n.Target != nil:
		c.Adaptive = &adaptive
	case n.Limit < 1:
		f.addf("limit is %d; use 1 to %d, or adaptive, or a target", n.Limit, loadshed.MaxConcurrency)
	case adaptive != (loadshed.AdaptiveConfig{}):
		f.addf("limit is %d, with options of an adaptive limit; use one or the other", n.Limit)
	default:
		c.Concurrency = n.Limit
	}
}

func (q *Queue) config(f *faults) (c loadshed.QueueConfig) {
	c.Timeout = time.Duration(explicit(f, "timeout", q.Timeout))
	switch {
	case q.Off && (q.Size != nil || q.Timeout != nil):
		f.addf("off is set, with a size or a timeout; use one or the other")
	case q.Off:
		c.Size = loadshed.NoQueue
	case q.Size == nil:
		f.addf("size is missing; use 1 to %d, or off", loadshed.MaxQueue)
	case *q.Size < 1 || *q.Size > loadshed.MaxQueue: // a negative one would be NoQueue
		f.addf("size is %d; use 1 to %d", *q.Size, loadshed.MaxQueue)
	default:
		c.Size = *q.Size
	}
	return c
}

func (c *Class) config(f *faults) loadshed.Class {
	f.checkMatchers("match", c.MatcherSetsRaw)
	return loadshed.Class{Name: c.Name, Share: explicit(f, "share", c.Share)}
}

func (p *Pushback) config(f *faults) pushback.ResponseConfig {
	if p.WebSocket != "" && p.WebSocket != webSocketReject && p.WebSocket != webSocketClose {
		f.addf("websocket is %q; use %s or %s", p.WebSocket, webSocketReject, webSocketClose)
	}
	return pushback.ResponseConfig{
		Min:             time.Duration(explicit(f, "min", p.Min)),
		Max:             time.Duration(explicit(f, "max", p.Max)),
		Status:          explicit(f, "status", p.Status),
		OverloadStatus:  explicit(f, "overload_status", p.OverloadStatus),
		Body:            pushback.Body(p.Body),
		QuotaMax:        time.Duration(explicit(f, "quota_max", p.QuotaMax)),
		GiveUp:          time.Duration(explicit(f, "give_up", p.GiveUp)),
		NoDither:        !*p.Dither,
		CORS:            dialect.CORS(p.CORS),
		CloseWebSockets: p.WebSocket == webSocketClose,
	}
}

func (r *Retries) config(f *faults) shield.Retries {
	c := shield.Retries{
		Lenient:    !*r.Enforce,
		MaxClients: explicit(f, "max_clients", r.MaxClients),
		Tickets:    r.Tickets,
	}
	if r.Secret != "" {
		c.Secret = []byte(f.known("secret", r.Secret))
	}
	return c
}
