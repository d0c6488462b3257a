package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// An applied override changes the configuration of a handler's Guard. It returns an error if
// the handler has no such setting. nil: it does not change the configuration.
type applied func(h *Handler, c *shield.Config) error

// read checks what was asked for, as far as no handler is needed for that.
func (o *override) read() (applied, error) {
	stray := func(name, is string) error {
		if is == "" {
			return nil
		}
		return fmt.Errorf("%s is %.100q; want none for kind %s", name, is, o.Kind)
	}
	switch o.Kind {
	case overrideBlock:
		if o.Client == "" {
			return nil, errors.New("client is missing; want an address, or what the shield tells clients apart by")
		}
		return nil, errors.Join(stray("setting", o.Setting), stray("value", o.Value))
	case overrideMode:
		if o.Value != modeEnforce && o.Value != modeObserve {
			return nil, fmt.Errorf("mode is %.40q; want %s or %s", o.Value, modeEnforce, modeObserve)
		}
		return func(_ *Handler, c *shield.Config) error {
			c.Observe = o.Value == modeObserve
			return nil
		}, errors.Join(stray("setting", o.Setting), stray("client", o.Client))
	case overrideSet:
		if o.Shield == "" {
			return nil, errors.New("shield is missing; want the name of one to set something of")
		}
		set, err := setting(o.Setting, o.Value)
		return set, errors.Join(err, stray("client", o.Client))
	}
	return nil, fmt.Errorf("kind is %.40q; want %s, %s or %s", o.Kind, overrideBlock, overrideSet, overrideMode)
}

// setting reads a value as the config's own parser does.
func setting(name, value string) (applied, error) {
	if zone, ok := strings.CutSuffix(name, " rate"); ok {
		limit, err := readRate(value)
		return func(h *Handler, c *shield.Config) error {
			i := slices.IndexFunc(c.Zones, func(z shield.Zone) bool { return z.Name == zone })
			switch {
			case i < 0:
				return fmt.Errorf("shield %q has no zone %q", h.Name, zone)
			case c.Zones[i].Shared:
				return fmt.Errorf("zone %q is shared with other replicas, which would have another rate; want the config of all of them changed", zone)
			}
			c.Zones[i].Limit = keepBurst(limit, c.Zones[i].Limit)
			return nil
		}, err
	}
	switch name {
	case "capacity":
		limit, err := readRate(value)
		return func(h *Handler, c *shield.Config) error {
			switch {
			case c.Capacity == limiter.Config{}:
				return fmt.Errorf("shield %q has no capacity", h.Name)
			case c.Shared:
				return sharedError(h, name)
			}
			c.Capacity = keepBurst(limit, c.Capacity)
			return nil
		}, err
	case "concurrency":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > loadshed.MaxConcurrency {
			return nil, fmt.Errorf("concurrency is %.40q; want 1 to %d", value, loadshed.MaxConcurrency)
		}
		return func(h *Handler, c *shield.Config) error {
			switch {
			case c.Concurrency == 0 && c.Adaptive == nil:
				return fmt.Errorf("shield %q has no concurrency", h.Name)
			case c.Shared && c.Adaptive == nil:
				return sharedError(h, name)
			case c.Adaptive != nil && c.Queue == loadshed.QueueConfig{}: // a fixed limit would have none
				c.Queue.Size = loadshed.DefaultQueue
			}
			c.Concurrency, c.Adaptive = n, nil
			return nil
		}, nil
	case "queue":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > loadshed.MaxQueue {
			return nil, fmt.Errorf("queue is %.40q; want 1 to %d", value, loadshed.MaxQueue)
		}
		return func(h *Handler, c *shield.Config) error {
			if h.guard().QueueSize() == 0 {
				return fmt.Errorf("shield %q has no queue", h.Name)
			}
			c.Queue.Size = n
			return nil
		}, nil
	}
	return nil, fmt.Errorf("setting is %.100q; want capacity, concurrency, queue, or the name of a zone and rate", name)
}

// settings returns what can be set of a shield of the config, and is not shared with other replicas.
func (a *App) settings(name string) (list []adminapi.Setting) {
	i := slices.IndexFunc(a.configured.handlers, func(h *Handler) bool { return h.Name == name })
	if i < 0 {
		return nil // it is a Live shield's
	}
	h := a.configured.handlers[i]
	c := h.force.Load().config
	if c.Capacity.Rate > 0 && !c.Shared {
		list = append(list, adminapi.Setting{Setting: "capacity", Value: rateText(c.Capacity)})
	}
	if c.Adaptive != nil || c.Concurrency > 0 && !c.Shared {
		list = append(list, adminapi.Setting{Setting: "concurrency", Value: strconv.Itoa(h.guard().Limit())})
	}
	if size := h.guard().QueueSize(); size > 0 {
		list = append(list, adminapi.Setting{Setting: "queue", Value: strconv.Itoa(size)})
	}
	for _, z := range c.Zones {
		if !z.Shared {
			list = append(list, adminapi.Setting{Setting: z.Name + " rate", Value: rateText(z.Limit)})
		}
	}
	return list
}

// rateText writes a rate as readRate reads it.
func rateText(c limiter.Config) string {
	rate, unit := c.Rate, map[time.Duration]string{0: "s", time.Second: "s", time.Minute: "m", time.Hour: "h"}[c.Per]
	if unit == "" {
		rate, unit = c.Rate/c.Per.Seconds(), "s"
	}
	text := strconv.FormatFloat(rate, 'f', -1, 64) + "/" + unit
	if c.Burst > 0 {
		text += fmt.Sprintf(" burst %d", c.Burst)
	}
	return text
}

func sharedError(h *Handler, setting string) error {
	return fmt.Errorf("%s of shield %q is shared with other replicas, which would have another one; want the config of all of them changed", setting, h.Name)
}

// readRate reads a rate as in a Caddyfile: 300/s, or 300/s burst 50.
func readRate(text string) (limiter.Config, error) {
	var r Rate
	d := caddyfile.NewTestDispenser("")
	if err := r.read(d, strings.Fields(text)); err != nil {
		words, _, _ := strings.Cut(err.Error(), ", at ")
		return limiter.Config{}, errors.New(words)
	}
	f := new(faults)
	c := r.config(f)
	return c, errors.Join(f.errs...)
}

// keepBurst returns a limit with the burst that is set for the one that it replaces, unless it
// has its own. A burst that was the default for the old rate is none for the new one.
func keepBurst(c, old limiter.Config) limiter.Config {
	c.Burst = cmp.Or(c.Burst, old.Burst)
	return c
}

// tryOverride returns an error if an override cannot be in force after others, which can.
func (a *App) tryOverride(others []*override, is *override) error {
	var errs []error
	for _, h := range a.configured.handlers {
		if is.concerns(h) {
			_, err := h.overridden(append(slices.Clone(others), is))
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, a.reaches(is))...)
}

// reaches returns an error if an override concerns no handler.
func (a *App) reaches(is *override) error {
	err := fmt.Errorf("shield is %q; want one of the config, not of the ingress controller, which has its own", is.Shield)
	handlers := a.configured.handlers
	if is.Kind == overrideBlock {
		which := "any shield"
		if is.Shield != "" {
			which = fmt.Sprintf("shield %q", is.Shield)
		}
		handlers, err = a.roster().handlers, fmt.Errorf("client is %q; want a name by which %s tells clients apart", is.Client, which)
	}
	for _, h := range handlers {
		if !is.covers(h.Name) {
			continue
		}
		if q, _ := h.asks(is.client); is.Kind != overrideBlock || q.Client != shield.NoKey {
			return nil
		}
	}
	return err
}

// concerns reports whether an override changes the configuration of h. A zone is the same in all
// handlers that have it.
func (o *override) concerns(h *Handler) bool {
	if o.apply == nil {
		return false
	}
	if zone, ok := strings.CutSuffix(o.Setting, " rate"); ok && o.Kind == overrideSet {
		return o.Shield == h.Name || slices.ContainsFunc(h.zones, func(z handlerZone) bool { return z.name == zone })
	}
	return o.covers(h.Name)
}

// overridden returns what h works with under a list of overrides.
func (h *Handler) overridden(list []*override) (*inForce, error) {
	c := h.base
	c.Zones = slices.Clone(c.Zones)
	for _, is := range list {
		if !is.concerns(h) {
			continue
		}
		if err := is.apply(h, &c); err != nil {
			return nil, err
		}
	}
	g, err := shield.New(c, &h.state)
	if err != nil {
		return nil, fmt.Errorf("shield %q: %w", h.Name, err)
	}
	return &inForce{g, c}, nil
}

// override has all handlers work as a list says that has been tried.
func (a *App) override(now time.Duration, list []*override) {
	for _, h := range a.configured.handlers {
		said := ""
		for _, is := range list {
			if is.concerns(h) {
				said += is.ID + " "
			}
		}
		if said == h.overriddenBy {
			continue
		}
		if force, err := h.overridden(list); err == nil {
			h.force.Store(force)
			h.overriddenBy = said
			if h.atDoor != nil {
				h.atDoor.forget(now) // what it has learned is said otherwise now
			}
		}
	}
	for _, is := range list {
		if is.Kind == overrideBlock {
			a.eachBlocked(is, func(h *Handler, q shield.Request) { _ = h.guard().Block(now, q.Client, is.until) })
		}
	}
}

// unblock ends a block, if the override is one.
func (a *App) unblock(now time.Duration, is *override) {
	if is.Kind == overrideBlock {
		a.eachBlocked(is, func(h *Handler, q shield.Request) { h.guard().Unblock(now, q.Client) })
	}
}

// blockedAt is a client of a backend.
type blockedAt struct {
	record *backendRecord
	client limiter.Key
}

// blocked returns what the blocks of a list are in the handlers of an app, which may be nil.
func (a *App) blocked(list []*override) map[blockedAt]*Handler {
	all := map[blockedAt]*Handler{}
	for _, is := range list {
		if a != nil && is.Kind == overrideBlock {
			a.eachBlocked(is, func(h *Handler, q shield.Request) { all[blockedAt{h.record, q.Client}] = h })
		}
	}
	return all
}

// eachBlocked calls f for the handlers that a block concerns.
func (a *App) eachBlocked(is *override, f func(*Handler, shield.Request)) {
	for _, h := range a.roster().handlers {
		if q, _ := h.asks(is.client); is.covers(h.Name) && q.Client != shield.NoKey {
			f(h, q)
		}
	}
}

// blocksBeside reports whether a block is in force in any shield other than one.
func (a *App) blocksBeside(is *override, name string) (any bool) {
	a.eachBlocked(is, func(h *Handler, _ shield.Request) { any = any || h.Name != name })
	return any
}
