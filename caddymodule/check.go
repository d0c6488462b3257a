package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// Check names h and its zones if they have no name, and returns the configuration of
// its Guard. server is the name of the server that h belongs to, or "".
//
// Check makes the same checks as Provision, except those of matchers and of
// shield.New. It compares h with the handlers and zones that a has checked before: those
// of one name must be defined alike. The zero App is ready to check handlers without
// loading them.
func (a *App) Check(h *Handler, server string) (shield.Config, error) {
	if h.Name == "" {
		h.Name = a.nextName(server)
	} else if err := shield.CheckName(h.Name); err != nil {
		return shield.Config{}, err
	}
	c, err := h.check()
	if err == nil {
		err = a.defineZones(h)
	}
	if err != nil {
		return c, fmt.Errorf("shield %q: %w", h.Name, err)
	}
	c.Observe = h.Mode == modeObserve || a.Mode == modeObserve
	return c, a.defineBackend(h, c.Retries.Secret)
}

func (h *Handler) check() (shield.Config, error) {
	if i := slices.Index(h.Zones, nil); i >= 0 {
		return shield.Config{}, fmt.Errorf("zone %d is null; want an object", i)
	}
	if i := slices.Index(h.Classes, nil); i >= 0 {
		return shield.Config{}, fmt.Errorf("class %d is null; want an object", i)
	}
	for _, z := range h.Zones { // a second one without a name is an error, like any duplicate name
		z.Name = cmp.Or(z.Name, h.Name+"/per_client")
	}
	c, err := h.config()
	if err != nil {
		return c, err
	}
	h.setDefaults()
	return c, h.compileKeys()
}

// setDefaults writes the most common defaults out, so that definitions can be compared.
func (h *Handler) setDefaults() {
	h.Mode = cmp.Or(h.Mode, modeEnforce)
	for _, z := range h.Zones {
		z.Key = cmp.Or(z.Key, defaultKey)
		z.Per = cmp.Or(z.Per, new(caddy.Duration(time.Second)))
		z.MaxKeys = cmp.Or(z.MaxKeys, new(shield.DefaultMaxKeys))
	}
	if n := h.Concurrency; n != nil {
		if onByDefault(n.Probe) {
			n.Probe = nil
		}
		if n.Per != nil {
			n.Per.Key = cmp.Or(n.Per.Key, defaultKey)
		}
	}
	h.Retries = cmp.Or(h.Retries, new(Retries))
	h.Retries.Enforce = cmp.Or(h.Retries.Enforce, new(true))
	h.Retries.MaxClients = cmp.Or(h.Retries.MaxClients, new(pushback.DefaultMaxClients))
	h.Retries.Key = cmp.Or(h.Retries.Key, defaultKey)
	h.Herd = cmp.Or(h.Herd, new(Herd))
	h.Herd.Detect = cmp.Or(h.Herd.Detect, new(true))
}

// compileKeys compiles the templates that tell clients apart.
func (h *Handler) compileKeys() error {
	var errs []error
	compile := func(what, template string, v4, v6 *int) *keyer {
		k, err := newKeyer(template, v4, v6)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		return k
	}
	h.zones = nil
	for _, z := range h.Zones {
		h.zones = append(h.zones, handlerZone{name: z.Name, keyer: compile(fmt.Sprintf("zone %q", z.Name), z.Key, z.IPv4Prefix, z.IPv6Prefix)})
	}
	h.clients = compile("retries", h.Retries.Key, h.Retries.IPv4Prefix, h.Retries.IPv6Prefix)
	if n := h.Concurrency; n != nil && n.Per != nil {
		h.perClient = compile("concurrency per client", n.Per.Key, nil, nil)
	}
	return errors.Join(errs...)
}

// defineZones returns an error if a zone of h is defined differently elsewhere.
func (a *App) defineZones(h *Handler) error {
	var errs []error
	for _, z := range h.Zones {
		errs = append(errs, a.define("zone", z.Name, fmt.Sprintf("in shield %q ", h.Name), z, nil))
	}
	return errors.Join(errs...)
}

// defineBackend returns an error if another handler of the same name limits their
// backend differently. It does not compare which requests belong to the classes, and
// leaves out the secret, which errors must not show.
func (a *App) defineBackend(h *Handler, secret []byte) error {
	limits := Handler{Mode: h.Mode, Capacity: h.Capacity, Concurrency: h.Concurrency, Queue: h.Queue}
	for _, c := range h.Classes {
		limits.Classes = append(limits.Classes, &Class{Name: c.Name, Share: c.Share, Clients: c.Clients})
	}
	retries := *h.Retries
	retries.Secret = ""
	return errors.Join(
		a.define("shield", h.Name, "", limits, nil),
		a.define("retries of shield", h.Name, "", retries, secret),
		a.define("herd of shield", h.Name, "", h.Herd, nil),
	)
}

func checkMode(mode string) error {
	switch mode {
	case "", modeEnforce, modeObserve:
		return nil
	}
	return fmt.Errorf("mode is %q; want %s or %s", mode, modeEnforce, modeObserve)
}

// config returns h as a configuration of package shield, which checks it further. JSON
// and Caddyfiles both come through here. The error has everything that is wrong.
func (h *Handler) config() (c shield.Config, _ error) {
	errs := []error{checkMode(h.Mode)}
	add := func(part string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part, err))
		}
	}
	var err error
	for _, z := range h.Zones {
		zone, err := z.config()
		add(fmt.Sprintf("zone %q", z.Name), err)
		c.Zones = append(c.Zones, zone)
	}
	if h.Capacity != nil {
		c.Capacity, err = h.Capacity.config()
		if h.Capacity.Rate == 0 {
			err = errors.Join(err, errors.New("rate is 0; want more than 0"))
		}
		add("capacity", err)
	}
	if h.Concurrency != nil {
		errs = append(errs, h.Concurrency.config(&c))
	}
	if h.Queue != nil {
		c.Queue, err = h.Queue.config()
		add("queue", err)
	}
	for _, class := range h.Classes {
		one, err := class.config()
		add(fmt.Sprintf("class %q", class.Name), err)
		c.Classes = append(c.Classes, one)
	}
	if h.Pushback != nil {
		c.Pushback, err = h.Pushback.config()
		add("pushback", err)
	}
	if h.Retries != nil {
		c.Retries, err = h.Retries.config()
		add("retries", err)
	}
	c.IgnoreHerds = h.Herd != nil && !onByDefault(h.Herd.Detect)
	// With a queue or classes alone, shield.New says that they need a concurrency.
	if len(h.Zones)+len(h.Classes) == 0 && h.Capacity == nil && h.Concurrency == nil && c.Queue.Size <= 0 {
		errs = append(errs, errors.New("nothing to limit; want a zone, a capacity or a concurrency"))
	}
	return c, errors.Join(errs...)
}

// explicit returns a setting, or 0, for which the other packages use their default. A
// setting of 0 is an error.
func explicit[T ~int | ~int64](errs *[]error, name string, v *T) T {
	if v == nil {
		return 0
	}
	if *v == 0 {
		*errs = append(*errs, fmt.Errorf("%s is 0; want more, or leave it out for the default", name))
	}
	return *v
}

// onByDefault returns a setting that is on by default.
func onByDefault(v *bool) bool { return v == nil || *v }

func (r Rate) config() (limiter.Config, error) {
	var errs []error
	c := limiter.Config{
		Rate:  r.Rate,
		Per:   time.Duration(explicit(&errs, "per", r.Per)),
		Burst: explicit(&errs, "burst", r.Burst),
	}
	return c, errors.Join(errs...)
}

func (z *Zone) config() (shield.Zone, error) {
	errs := []error{checkMatchers(z.MatcherSetsRaw)}
	limit, err := z.Rate.config()
	c := shield.Zone{
		Name:    z.Name,
		Limit:   limit,
		Cost:    explicit(&errs, "cost", z.Cost),
		MaxKeys: explicit(&errs, "max_keys", z.MaxKeys),
	}
	return c, errors.Join(append(errs, err)...)
}

func checkMatchers(sets caddyhttp.RawMatcherSets) error {
	for _, set := range sets {
		if len(set) == 0 {
			return errors.New("match is empty; want a matcher, or leave it out to match everything")
		}
	}
	return nil
}

// config sets the limit in flight in c.
func (n *Concurrency) config(c *shield.Config) error {
	var errs []error
	if n.Per != nil {
		if c.PerClient = n.Per.Limit; c.PerClient < 1 || c.PerClient > shield.MaxConcurrency {
			errs = append(errs, fmt.Errorf("concurrency per client is %d; want 1 to %d", c.PerClient, shield.MaxConcurrency))
			c.PerClient = 0
		}
	}
	adaptive := loadshed.AdaptiveConfig{
		Min: explicit(&errs, "concurrency min", n.Min), Max: explicit(&errs, "concurrency max", n.Max),
		Initial:    explicit(&errs, "concurrency initial", n.Initial),
		MaxLatency: time.Duration(explicit(&errs, "concurrency max_latency", n.MaxLatency)),
		Target:     time.Duration(explicit(&errs, "concurrency target", n.Target)),
		NoProbe:    !onByDefault(n.Probe),
	}
	switch {
	case n.Limit != 0 && (n.Adaptive || n.Target != nil), n.Adaptive && n.Target != nil:
		errs = append(errs, errors.New("concurrency has several of limit, adaptive and target; want one"))
	case n.Adaptive || n.Target != nil:
		c.Adaptive = &adaptive
	case n.Limit < 1:
		errs = append(errs, fmt.Errorf("concurrency limit is %d; want 1 to %d, or adaptive, or a target", n.Limit, shield.MaxConcurrency))
	case adaptive != (loadshed.AdaptiveConfig{}) || n.Probe != nil:
		errs = append(errs, fmt.Errorf("concurrency limit is %d, with options of an adaptive limit; want one or the other", n.Limit))
	default:
		c.Concurrency = n.Limit
	}
	return errors.Join(errs...)
}

func (q *Queue) config() (c shield.Queue, _ error) {
	var errs []error
	c.Timeout = time.Duration(explicit(&errs, "timeout", q.Timeout))
	switch {
	case q.Off && (q.Size != nil || q.Timeout != nil):
		return c, errors.New("off is set, with a size or a timeout; want one or the other")
	case q.Off:
		c.Size = shield.NoQueue
	case q.Size == nil:
		errs = append(errs, fmt.Errorf("size is missing; want 1 to %d, or off", shield.MaxQueue))
	case *q.Size < 1 || *q.Size > shield.MaxQueue: // a negative one would be NoQueue
		errs = append(errs, fmt.Errorf("size is %d; want 1 to %d", *q.Size, shield.MaxQueue))
	default:
		c.Size = *q.Size
	}
	return c, errors.Join(errs...)
}

func (c *Class) config() (loadshed.Class, error) {
	errs := []error{shield.CheckName(c.Name), checkMatchers(c.MatcherSetsRaw)}
	part := func(name string, v *float64) float64 {
		if v == nil {
			return 0
		}
		if !(*v > 0 && *v <= 1) {
			errs = append(errs, fmt.Errorf("%s is %v; want more than 0, to 1", name, *v))
		}
		return *v
	}
	part("clients", c.Clients)
	class := loadshed.Class{Name: c.Name, Share: part("share", c.Share)}
	return class, errors.Join(errs...)
}

func (p *Pushback) config() (pushback.AnswerConfig, error) {
	var errs []error
	c := pushback.AnswerConfig{
		Min:            time.Duration(explicit(&errs, "min", p.Min)),
		Max:            time.Duration(explicit(&errs, "max", p.Max)),
		Status:         explicit(&errs, "status", p.Status),
		OverloadStatus: explicit(&errs, "overload_status", p.OverloadStatus),
		Body:           pushback.Body(p.Body),
		GiveUp:         time.Duration(explicit(&errs, "give_up", p.GiveUp)),
		NoDither:       !onByDefault(p.Dither),
		Backoff:        p.Backoff,
	}
	switch p.Respond {
	case "", respondAuto, respondDirect, respondError:
	default:
		errs = append(errs, fmt.Errorf("respond is %q; want %s, %s or %s", p.Respond, respondAuto, respondDirect, respondError))
	}
	return c, errors.Join(errs...)
}

func (r *Retries) config() (shield.Retries, error) {
	var errs []error
	c := shield.Retries{
		Lenient:    !onByDefault(r.Enforce),
		MaxClients: explicit(&errs, "max_clients", r.MaxClients),
		Tickets:    r.Tickets,
	}
	if r.Secret != "" {
		// The replacer's error is not used, because it may show a part of the secret.
		secret, err := caddy.NewReplacer().ReplaceOrErr(r.Secret, true, true)
		if err != nil || secret == "" {
			errs = append(errs, errors.New("secret has an empty or unknown placeholder; want {env.NAME} or {file./path} with a value"))
		}
		c.Secret = []byte(secret)
	}
	return c, errors.Join(errs...)
}
