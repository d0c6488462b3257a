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

// Rate is a token bucket: how much may come, and how much at once.
type Rate struct {
	// How many requests are allowed per `per`: more than 0. Required.
	Rate float64 `json:"rate,omitempty"`

	// The period of the rate (default `1s`).
	Per *caddy.Duration `json:"per,omitempty"`

	// How many requests may come at once after a rest: at least 1. By default
	// what one second allows, and at least 1.
	Burst *int `json:"burst,omitempty"`
}

// Zone is a quota that every client has by itself. A client that is over it is
// answered 429.
//
// Zones with one name count together, in whichever handlers they stand, and
// their counts survive a reload. They must be defined alike.
type Zone struct {
	// The zone's name, in metrics and in what clients are told: up to 64
	// letters, digits and `_-./:`. One zone may go without: it is called after
	// the handler, with `/per_client`.
	Name string `json:"name,omitempty"`

	// Which requests the zone counts (default: all). Several matcher sets are
	// alternatives.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// What tells clients apart: text with placeholders (default
	// `{http.vars.client_ip}`). Requests for which it is empty share one bucket.
	// A placeholder that is not known is an error.
	Key string `json:"key,omitempty"`

	// How many bits of a client's address count, in `{http.vars.client_ip}` and
	// `{http.request.remote.host}`: 1 to 32 for IPv4 (default 32), 1 to 128 for
	// IPv6 (default 64).
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	Rate

	// How much of the burst one request takes: 1 (default) to the burst.
	Cost *int `json:"cost,omitempty"`

	// How many clients are remembered at most: 10000 to 67108864 (default
	// 200000), at 18 to 32 bytes each. Set it at twice the clients that you
	// expect within the time that a burst takes to be whole again. Clients that
	// are over their quota are never forgotten; new ones without room share.
	MaxKeys *int `json:"max_keys,omitempty"`
}

// Concurrency bounds how many requests may be in flight. One that finds no room
// waits in the queue, or is answered 503. One of `limit`, `adaptive` and `target` is
// required.
type Concurrency struct {
	// A bound that does not change: 1 to 1000000.
	Limit int `json:"limit,omitempty"`

	// Find the bound that the backend works best at, by how long its requests
	// take.
	Adaptive bool `json:"adaptive,omitempty"`

	// Find the highest bound at which 95 % of the requests are served within this
	// time.
	Target *caddy.Duration `json:"target,omitempty"`

	// Between what the bound is looked for, and where to begin: 1 to 100000
	// (defaults 2, 1000 and 20). Not with `limit`.
	Min     *int `json:"min,omitempty"`
	Max     *int `json:"max,omitempty"`
	Initial *int `json:"initial,omitempty"`

	// A backend whose requests take longer than this on the average is overloaded,
	// even if it has never been seen to be faster (default: what is measured is
	// believed). With `adaptive` only.
	MaxLatency *caddy.Duration `json:"max_latency,omitempty"`

	// Whether the bound is lowered for a moment now and then, while it is used up
	// for long, to see whether the backend gets faster (default true). With
	// `adaptive` only.
	Probe *bool `json:"probe,omitempty"`

	// How many of them one client may have. One that has more is answered 429.
	Per *PerClient `json:"per,omitempty"`
}

// PerClient bounds how many requests one client may have in flight.
type PerClient struct {
	// What tells clients apart, as a zone's key does (default
	// `{http.vars.client_ip}`): an IPv4 address, or an IPv6 network of 64 bits.
	Key string `json:"key,omitempty"`

	// The bound: 1 to 1000000. Required.
	Limit int `json:"limit"`
}

// Queue is where requests wait a moment that find no room in flight. It needs
// concurrency. Without this option there is a queue of 64 where the concurrency
// is adaptive or has a target, and none where it is fixed.
type Queue struct {
	// Have no queue.
	Off bool `json:"off,omitempty"`

	// How many may wait at once: 1 to 10000. Required, unless it is off.
	Size *int `json:"size,omitempty"`

	// How long one may wait: up to `1m` (default: seven tenths of what the backend takes for
	// a request, within `10ms` and `200ms`). While the queue has not been empty for
	// 100 ms, newcomers wait for 5 ms only.
	Timeout *caddy.Duration `json:"timeout,omitempty"`
}

// Class says which requests are let in first while there is not room in flight
// for all. It needs concurrency. Of the classes that fit a request the first counts.
type Class struct {
	// The class's name: up to 64 letters, digits and `_-./:`. `critical`, `default`
	// and `sheddable` have a share of their own. Requests that no class fits are
	// of the class `default`, whether it is there or not.
	Name string `json:"name"`

	// Which requests are of the class. Several matcher sets are alternatives. A
	// class with neither `match` nor `clients` has those only whose header
	// `X-Shield-Class` names it, and is believed.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// How much of the room in flight the class may take, while requests of classes
	// with more come: more than 0, to 1 (default: 1 for `critical`, 0.9 for
	// `default`, 0.7 for `sheddable`; others need one).
	Share *float64 `json:"share,omitempty"`

	// That share of the clients only, drawn by lot, the same ones for an hour: more
	// than 0, to 1 (default: all). Who is a client is what `retries` says.
	Clients *float64 `json:"clients,omitempty"`
}

// Pushback says how refusals are worded.
type Pushback struct {
	// The least and the most that Retry-After says: whole seconds, `1s` to
	// `59s` (defaults `1s` and `30s`).
	Min *caddy.Duration `json:"min,omitempty"`
	Max *caddy.Duration `json:"max,omitempty"`

	// The status for a client that is over its quota (default 429).
	Status *int `json:"status,omitempty"`

	// The status when the backend has no room (default 503).
	OverloadStatus *int `json:"overload_status,omitempty"`

	// What the body is: `problem` (default: problem+json, or a page for
	// browsers' navigations), `html`, `text` or `none`. gRPC clients get gRPC.
	Body string `json:"body,omitempty"`

	// Who writes the body: `direct` (the handler), `auto` (default: the error
	// routes of the server, or the handler where none of them does), or `error`
	// (return an error to Caddy, as other handlers do, also for gRPC).
	Respond string `json:"respond,omitempty"`

	// Whether a refusal may be sent up to a second late, so that its whole
	// seconds end at the client's own time (default true). Without, clients that
	// are refused together come back together, in the same moment of a second.
	Dither *bool `json:"dither,omitempty"`

	// Tell a client that would have to wait longer than this in all not to come
	// back: `1m` to `24h` (default: nobody is told so). Clients that do not know
	// how to read that may retry at once.
	GiveUp *caddy.Duration `json:"give_up,omitempty"`

	// Send `Backoff` besides `RateLimit` to those who are admitted while others
	// wait (default false).
	Backoff bool `json:"backoff,omitempty"`
}

// Retries says how clients are held to the times that they are told. Handlers
// with one name must define it alike.
type Retries struct {
	// Whether a client that comes before its time, while others wait, is refused
	// and told the same time again (default true).
	Enforce *bool `json:"enforce,omitempty"`

	// How many refused clients are remembered at most: 1024 to 4194304 (default
	// 524288), at 16 bytes each.
	MaxClients *int `json:"max_clients,omitempty"`

	// What tells clients apart, as a zone's key does (default
	// `{http.vars.client_ip}`).
	Key string `json:"key,omitempty"`

	// How many bits of a client's address count, as in a zone.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	// Whether clients are given their times signed, so that other replicas and a
	// restarted server honour them (default false).
	Tickets bool `json:"tickets,omitempty"`

	// What tickets are signed with: at least 16 bytes, the same for all replicas.
	// It may have placeholders that are known when the config is loaded:
	// `{env.NAME}`, `{file./path}`. By default it is one of this process's own,
	// whose tickets nobody else honours.
	Secret string `json:"secret,omitempty"`
}

// Herd says what is done about herds of clients.
type Herd struct {
	// Whether herds are looked for, and room is left for those that come
	// periodically (default true). Handlers with one name must define it alike.
	Detect *bool `json:"detect,omitempty"`
}

// The values of mode and respond.
const (
	modeEnforce = "enforce"
	modeObserve = "observe"

	respondAuto   = "auto"
	respondDirect = "direct"
	respondError  = "error"
)

func checkMode(mode string) error {
	switch mode {
	case "", modeEnforce, modeObserve:
		return nil
	}
	return fmt.Errorf("mode is %q; want %s or %s", mode, modeEnforce, modeObserve)
}

// explicit returns what was set, or 0, which the packages below take for their
// default. A 0 that was set is an error, like any other value out of range.
func explicit[T ~int | ~int64](errs *[]error, name string, v *T) T {
	if v == nil {
		return 0
	}
	if *v == 0 {
		*errs = append(*errs, fmt.Errorf("%s is 0; want more, or leave it out for the default", name))
	}
	return *v
}

func (r Rate) config(errs *[]error) limiter.Config {
	return limiter.Config{
		Rate:  r.Rate,
		Per:   time.Duration(explicit(errs, "per", r.Per)),
		Burst: explicit(errs, "burst", r.Burst),
	}
}

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
	for _, z := range h.Zones {
		if z.Name == "" { // a second one is an error, like any duplicate name
			z.Name = h.Name + "/per_client"
		}
	}
	c, err := h.config()
	if err != nil {
		return c, err
	}
	return c, h.checkKeys()
}

// checkKeys returns the errors of the templates that tell clients apart.
func (h *Handler) checkKeys() error {
	var errs []error
	check := func(what, template string, v4, v6 *int) {
		if _, err := newKeyer(template, v4, v6); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	for _, z := range h.Zones {
		check(fmt.Sprintf("zone %q", z.Name), z.Key, z.IPv4Prefix, z.IPv6Prefix)
	}
	if r := h.Retries; r != nil {
		check("retries", r.Key, r.IPv4Prefix, r.IPv6Prefix)
	}
	if n := h.Concurrency; n != nil && n.Per != nil {
		check("concurrency per client", n.Per.Key, nil, nil)
	}
	return errors.Join(errs...)
}

// defineZones returns an error if a zone of h is defined differently elsewhere.
func (a *App) defineZones(h *Handler) error {
	var errs []error
	for _, z := range h.Zones {
		errs = append(errs, a.define("zone", z.Name, fmt.Sprintf("in shield %q ", h.Name), z.explicit(), nil))
	}
	return errors.Join(errs...)
}

// defineBackend returns an error if another handler of the same name limits their
// backend differently.
func (a *App) defineBackend(h *Handler, secret []byte) error {
	limits := struct {
		Mode        string       `json:"mode,omitempty"`
		Capacity    *Rate        `json:"capacity,omitempty"`
		Concurrency *Concurrency `json:"concurrency,omitempty"`
		Queue       *Queue       `json:"queue,omitempty"`
		Classes     []*Class     `json:"classes,omitempty"`
	}{cmp.Or(h.Mode, modeEnforce), h.Capacity, h.Concurrency.explicit(), h.Queue, explicitClasses(h.Classes)}
	return errors.Join(
		a.define("shield", h.Name, "", limits, nil),
		a.define("retries of shield", h.Name, "", h.Retries.explicit(), secret),
		a.define("herd of shield", h.Name, "", h.Herd.explicit(), nil),
	)
}

// config returns what the handler means, in the terms of package shield, which
// checks it further. Both front doors, JSON and Caddyfile, come through here.
func (h *Handler) config() (shield.Config, error) {
	var c shield.Config
	var errs []error
	errs = append(errs, checkMode(h.Mode))
	for _, z := range h.Zones {
		zone, err := z.config()
		if err != nil {
			errs = append(errs, fmt.Errorf("zone %q: %w", z.Name, err))
		}
		c.Zones = append(c.Zones, zone)
	}
	if h.Capacity != nil {
		var bad []error
		if c.Capacity = h.Capacity.config(&bad); c.Capacity.Rate == 0 {
			bad = append(bad, errors.New("rate is 0; want more than 0"))
		}
		if err := errors.Join(bad...); err != nil {
			errs = append(errs, fmt.Errorf("capacity: %w", err))
		}
	}
	if h.Concurrency != nil {
		if err := h.Concurrency.config(&c); err != nil {
			errs = append(errs, err)
		}
	}
	if h.Queue != nil {
		var err error
		if c.Queue, err = h.Queue.config(); err != nil {
			errs = append(errs, fmt.Errorf("queue: %w", err))
		}
	}
	for _, class := range h.Classes {
		checked, err := class.config()
		if err != nil {
			errs = append(errs, fmt.Errorf("class %q: %w", class.Name, err))
			continue
		}
		c.Classes = append(c.Classes, checked)
	}
	if len(h.Zones) == 0 && h.Capacity == nil && h.Concurrency == nil {
		switch {
		case h.Queue != nil && !h.Queue.Off:
			errs = append(errs, errors.New("there is a queue, but nothing to wait for; want concurrency adaptive, or concurrency with a number, besides it"))
		case len(h.Classes) > 0:
			errs = append(errs, errors.New("there are classes, but nothing to share; want concurrency adaptive, or concurrency with a number, besides them"))
		default:
			errs = append(errs, errors.New("there is nothing to limit; want a zone, a capacity or a concurrency"))
		}
	}
	if p := h.Pushback; p != nil {
		var bad []error
		c.Pushback = pushback.AnswerConfig{
			Min:            time.Duration(explicit(&bad, "min", p.Min)),
			Max:            time.Duration(explicit(&bad, "max", p.Max)),
			Status:         explicit(&bad, "status", p.Status),
			OverloadStatus: explicit(&bad, "overload_status", p.OverloadStatus),
			Body:           pushback.Body(p.Body),
			GiveUp:         time.Duration(explicit(&bad, "give_up", p.GiveUp)),
			NoDither:       !yes(p.Dither),
			Backoff:        p.Backoff,
		}
		switch p.Respond {
		case "", respondAuto, respondDirect, respondError:
		default:
			bad = append(bad, fmt.Errorf("respond is %q; want %s, %s or %s", p.Respond, respondAuto, respondDirect, respondError))
		}
		if err := errors.Join(bad...); err != nil {
			errs = append(errs, fmt.Errorf("pushback: %w", err))
		}
	}
	if r := h.Retries; r != nil {
		var err error
		if c.Retries, err = r.config(); err != nil {
			errs = append(errs, fmt.Errorf("retries: %w", err))
		}
	}
	c.IgnoreHerds = h.Herd != nil && !yes(h.Herd.Detect)
	return c, errors.Join(errs...)
}

// config adds what the handler means to c.
func (n *Concurrency) config(c *shield.Config) error {
	var errs []error
	if n.Per != nil {
		if c.PerClient = n.Per.Limit; c.PerClient < 1 || c.PerClient > shield.MaxConcurrency {
			errs = append(errs, fmt.Errorf("concurrency per client is %d; want 1 to %d", c.PerClient, shield.MaxConcurrency))
			c.PerClient = 0
		}
	}
	ways := 0
	for _, is := range []bool{n.Limit != 0, n.Adaptive, n.Target != nil} {
		if is {
			ways++
		}
	}
	searches := loadshed.AdaptiveConfig{
		Min: explicit(&errs, "concurrency min", n.Min), Max: explicit(&errs, "concurrency max", n.Max),
		Initial:    explicit(&errs, "concurrency initial", n.Initial),
		MaxLatency: time.Duration(explicit(&errs, "concurrency max_latency", n.MaxLatency)),
		Target:     time.Duration(explicit(&errs, "concurrency target", n.Target)),
		NoProbe:    !yes(n.Probe),
	}
	switch {
	case ways > 1:
		errs = append(errs, errors.New("concurrency has several of limit, adaptive and target; want one"))
	case n.Adaptive || n.Target != nil:
		c.Adaptive = &searches
	case n.Limit < 1:
		errs = append(errs, fmt.Errorf("concurrency limit is %d; want 1 to %d, or adaptive, or a target", n.Limit, shield.MaxConcurrency))
	case n.Min != nil || n.Max != nil || n.Initial != nil || n.MaxLatency != nil || n.Probe != nil:
		errs = append(errs, fmt.Errorf("concurrency limit is %d, and there are options of adaptive; want one or the other", n.Limit))
	default:
		c.Concurrency = n.Limit
	}
	return errors.Join(errs...)
}

// explicit returns the options with their defaults written out, so that two
// definitions can be compared.
func (n *Concurrency) explicit() *Concurrency {
	if n == nil {
		return nil
	}
	e := *n
	if yes(e.Probe) {
		e.Probe = nil
	}
	if e.Per != nil {
		per := *e.Per
		if per.Key == "" {
			per.Key = defaultKey
		}
		e.Per = &per
	}
	return &e
}

func (q *Queue) config() (shield.Queue, error) {
	if q.Off {
		if q.Size != nil || q.Timeout != nil {
			return shield.Queue{}, errors.New("it is off, and has a size or a timeout; want one or the other")
		}
		return shield.Queue{Size: shield.NoQueue}, nil
	}
	var errs []error
	c := shield.Queue{Timeout: time.Duration(explicit(&errs, "timeout", q.Timeout))}
	switch {
	case q.Size == nil:
		errs = append(errs, fmt.Errorf("it has no size; want 1 to %d, or off", shield.MaxQueue))
	case *q.Size < 1 || *q.Size > shield.MaxQueue: // a negative one would be NoQueue
		errs = append(errs, fmt.Errorf("size is %d; want 1 to %d", *q.Size, shield.MaxQueue))
	default:
		c.Size = *q.Size
	}
	return c, errors.Join(errs...)
}

func (c *Class) config() (loadshed.Class, error) {
	errs := []error{shield.CheckName(c.Name)}
	for _, set := range c.MatcherSetsRaw {
		if len(set) == 0 {
			errs = append(errs, errors.New("match is empty; want a matcher, or leave it out"))
		}
	}
	checked := loadshed.Class{Name: c.Name}
	for _, share := range []struct {
		name string
		is   *float64
	}{{"share", c.Share}, {"clients", c.Clients}} {
		if share.is != nil && !(*share.is > 0 && *share.is <= 1) {
			errs = append(errs, fmt.Errorf("%s is %v; want more than 0, to 1", share.name, *share.is))
		}
	}
	if c.Share != nil {
		checked.Share = *c.Share
	}
	return checked, errors.Join(errs...)
}

// explicitClasses returns classes without what tells which requests are theirs,
// so that two definitions can be compared.
func explicitClasses(list []*Class) (e []*Class) {
	for _, c := range list {
		e = append(e, &Class{Name: c.Name, Share: c.Share, Clients: c.Clients})
	}
	return e
}

func (r *Retries) config() (shield.Retries, error) {
	var errs []error
	c := shield.Retries{
		Lenient:    !yes(r.Enforce),
		MaxClients: explicit(&errs, "max_clients", r.MaxClients),
		Tickets:    r.Tickets,
	}
	if r.Secret != "" {
		// What the replacer has to complain of may have a part of the secret in it.
		secret, err := caddy.NewReplacer().ReplaceOrErr(r.Secret, true, true)
		if err != nil || secret == "" {
			errs = append(errs, errors.New("secret has a placeholder that is empty or not known; want {env.NAME} or {file./path} with something in it"))
		}
		c.Secret = []byte(secret)
	}
	return c, errors.Join(errs...)
}

// explicit returns the options with their defaults written out, so that two
// definitions can be compared; but without the secret, which is not for errors
// to show.
func (r *Retries) explicit() *Retries {
	e := Retries{}
	if r != nil {
		e = *r
	}
	e.Enforce = new(yes(e.Enforce))
	if e.MaxClients == nil {
		e.MaxClients = new(pushback.DefaultMaxClients)
	}
	if e.Key == "" {
		e.Key = defaultKey
	}
	e.Secret = ""
	return &e
}

func (h *Herd) explicit() *Herd {
	return &Herd{Detect: new(h == nil || yes(h.Detect))}
}

// yes returns a setting that is on by default.
func yes(v *bool) bool { return v == nil || *v }

func (z *Zone) config() (shield.Zone, error) {
	var errs []error
	for _, set := range z.MatcherSetsRaw {
		if len(set) == 0 {
			errs = append(errs, errors.New("match is empty; want a matcher, or leave it out to match everything"))
		}
	}
	c := shield.Zone{
		Name:    z.Name,
		Limit:   z.Rate.config(&errs),
		Cost:    explicit(&errs, "cost", z.Cost),
		MaxKeys: explicit(&errs, "max_keys", z.MaxKeys),
	}
	return c, errors.Join(errs...)
}

// explicit returns the zone with its most common defaults written out, so that
// two definitions can be compared.
func (z *Zone) explicit() *Zone {
	e := *z
	e.Key = z.key()
	if e.Per == nil {
		e.Per = new(caddy.Duration(time.Second))
	}
	e.MaxKeys = new(z.maxKeys())
	return &e
}

// What a zone has where nothing is set.
func (z *Zone) maxKeys() int {
	if z.MaxKeys == nil {
		return shield.DefaultMaxKeys
	}
	return *z.MaxKeys
}

func (z *Zone) key() string {
	if z.Key == "" {
		return defaultKey
	}
	return z.Key
}
