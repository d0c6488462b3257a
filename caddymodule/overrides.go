package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/oncall"
)

// The kinds of overrides.
const (
	overrideBlock = "block"
	overrideSet   = "set"
	overrideMode  = "mode"
)

// An override is what an operator has changed for a while. It lasts until its time is over, an operator ends it, or
// the last config with a shield is stopped: a reload keeps it, and a restart does not.
type override struct {
	adminapi.Override               // Shields: those that it is for, and that have not forgiven it
	until             time.Duration // as shield.Now has it
	client            clientName    // of a block: the text in Override may be masked
}

// changes are the overrides of all configs: during a reload two of them run.
var changes = struct {
	mu   sync.Mutex
	apps map[*App]bool
	made int         // overrides so far, which numbers them
	list []*override // by when they were made
}{apps: map[*App]bool{}}

// zone returns the name of the zone of which an override sets the rate, false if it does something else.
func (o *override) zone() (string, bool) { return strings.CutSuffix(o.Setting, " rate") }

// key returns that of the client which is blocked.
func (o *override) key(h *Handler) limiter.Key {
	q, _ := h.asks(o.client)
	return q.Client
}

// suits reports whether h can have an override. The shields of the ingress controller take blocks only: they have annotations for
// the rest.
func (o *override) suits(h *Handler) bool {
	if o.Kind == overrideBlock {
		return o.key(h) != shield.NoKey
	}
	zone, isZone := o.zone()
	return !h.live && (!isZone || slices.ContainsFunc(h.zones, func(z handlerZone) bool { return z.name == zone }))
}

// concerns reports whether an override is for h. What is set of a zone is for all that have it: they share its buckets.
func (o *override) concerns(h *Handler) bool {
	_, isZone := o.zone()
	return (isZone || slices.Contains(o.Shields, h.Name)) && o.suits(h)
}

// replaces reports whether an override takes the place of an earlier one in h. Of a block, the client may be named in another way.
func (o *override) replaces(before *override, h *Handler) bool {
	return before.Kind == o.Kind && before.Setting == o.Setting && before.concerns(h) && o.concerns(h) && (o.Kind != overrideBlock || before.key(h) == o.key(h))
}

// leave takes an override out of some shields; one of a zone goes, as it was for all that have it.
func (o *override) leave(names ...string) {
	_, isZone := o.zone()
	o.Shields = slices.DeleteFunc(slices.Clone(o.Shields), func(name string) bool { return isZone || slices.Contains(names, name) })
}

// overridden returns what h works with under those of a list that are for it, without a guard where that is the configured one; those
// that it has a place for; and why it has none for the last.
func (h *Handler) overridden(list []*override) (force *inForce, applied []*override, wrong error) {
	force = &inForce{config: h.base}
	for _, is := range list {
		if !is.concerns(h) {
			continue
		}
		next := *force
		next.config.Zones = slices.Clone(next.config.Zones)
		if wrong = is.apply(h, &next.config); wrong == nil && is.Kind != overrideBlock { // which the backend knows, and no Guard
			next.guard, wrong = shield.New(next.config, &h.state)
		}
		if wrong == nil {
			force, applied = &next, append(applied, is)
		}
	}
	return force, applied, wrong
}

// Begin implements operate.Shields: it puts an override in force in all of the handlers for which that can be said, or
// changes nothing.
func (a *App) Begin(ask adminapi.OverrideRequest, by string) (none adminapi.Override, _ error) {
	handlers, err := a.named(ask.Shield)
	if err != nil {
		return none, err
	}
	d, err := caddy.ParseDuration(ask.For)
	if err != nil || d < time.Second || d > 24*time.Hour { // ours: the config is the place for what lasts for days
		return none, operate.BadRequest(http.StatusBadRequest, "for is %.40q; use 1s to 24h, like 10m", ask.For)
	}
	c, err := a.client(ask.Client)
	if err != nil {
		return none, err
	}
	now := shield.Now()
	is := &override{client: c, until: now + d, Override: adminapi.Override{
		Kind: ask.Kind, Client: c.shown, Setting: strings.TrimSpace(ask.Setting), Value: strings.TrimSpace(ask.Value),
		Since: shield.At(now), Until: shield.At(now + d), Left: d.Seconds(), By: by,
	}}
	if err := is.check(ask.Shield); err != nil {
		return none, operate.BadRequest(http.StatusBadRequest, "%w", err)
	}
	changes.mu.Lock()
	defer changes.mu.Unlock()
	for _, h := range handlers {
		if is.suits(h) && !slices.Contains(is.Shields, h.Name) {
			is.Shields = append(is.Shields, h.Name)
		}
	}
	switch zone, isZone := is.zone(); {
	case len(is.Shields) > 0:
	case is.Kind == overrideBlock:
		return none, operate.BadRequest(http.StatusBadRequest, "client is %q; use a key by which the shield identifies clients", is.Client)
	case isZone && !handlers[0].live:
		return none, operate.BadRequest(http.StatusBadRequest, "shield is %q; use one with a zone %q", handlers[0].Name, zone)
	default:
		return none, operate.BadRequest(http.StatusBadRequest, "shield is %q; use a shield of the config, because the ingress controller's have settings of their own", handlers[0].Name)
	}
	list := append(slices.Clone(changes.list), is)
	for _, h := range a.handlers() {
		if !is.concerns(h) {
			continue
		}
		_, applied, wrong := h.overridden(list)
		if wrong != nil {
			return none, operate.BadRequest(http.StatusBadRequest, "%w", wrong)
		}
		others := slices.DeleteFunc(applied, func(other *override) bool { return other.Kind != overrideBlock || is.replaces(other, h) })
		if is.Kind == overrideBlock && len(others) >= shield.MaxBlocks {
			return none, operate.BadRequest(http.StatusConflict, "%d clients are blocked in shield %q, which is the limit; end one first", len(others), h.Name)
		}
	}
	for _, h := range a.handlers() {
		for _, before := range changes.list {
			if is.replaces(before, h) {
				before.leave(h.Name)
			}
		}
	}
	changes.made++
	is.ID = strconv.Itoa(changes.made)
	changes.list = list
	refit(now)
	time.AfterFunc(d, func() {
		changes.mu.Lock()
		defer changes.mu.Unlock()
		for app := range changes.apps {
			app.end(shield.Now(), is, "its time is over", is.Shields...)
			break
		}
	})
	is.Shields = a.where(is)
	a.tellOverride("an override begins", is, is.Shields, "by "+is.By)
	return is.Override, nil
}

// refit has all handlers work as the list says, after a change of it. It must be called with the lock.
func refit(now time.Duration) {
	changes.list = slices.DeleteFunc(changes.list, func(is *override) bool { return len(is.Shields) == 0 })
	for app := range changes.apps {
		app.fit(now)
	}
}

// fit has the handlers of an app do so. Those for which the list says nothing else keep their Guards. It must be called
// with the lock.
func (a *App) fit(now time.Duration) {
	for _, h := range a.handlers() {
		if force, applied, _ := h.overridden(changes.list); !slices.Equal(applied, h.applied) {
			if force.guard == nil {
				force.guard, _ = shield.New(h.base, &h.state) // it was made before
			}
			h.force.Store(force)
			h.applied = applied
			h.atDoor.Forget(now) // what it has learned is said otherwise now
		}
		for _, is := range h.applied {
			if is.Kind == overrideBlock {
				_ = h.guard().Block(now, is.key(h), is.until) // there is room: see Begin
			}
		}
	}
}

// end ends an override in some shields, whichever config has them, and tells why. It must be called with the lock.
func (a *App) end(now time.Duration, is *override, why string, names ...string) {
	if !slices.Contains(changes.list, is) {
		return
	}
	for app := range changes.apps {
		for _, h := range app.handlers() {
			if is.Kind == overrideBlock && slices.Contains(h.applied, is) && slices.Contains(names, h.Name) {
				h.guard().Unblock(now, is.key(h))
			}
		}
	}
	a.tellOverride("an override has ended", is, names, why)
	is.leave(names...)
	refit(now)
}

// where returns the names of the shields in which an override is in force. It must be called with the lock.
func (a *App) where(is *override) (names []string) {
	for _, h := range a.handlers() {
		if slices.Contains(h.applied, is) && !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

// overrides returns what is in force. Without named, clients have no names.
func (a *App) overrides(now time.Duration, named bool) (list []adminapi.Override) {
	changes.mu.Lock()
	defer changes.mu.Unlock()
	for _, is := range changes.list {
		if is.until <= now {
			continue
		}
		one := is.Override
		one.Left, one.Until = max(0.1, tenths(is.until-now)), shield.At(is.until) // the clock may have been set since
		one.Shields = append([]string{}, a.where(is)...)                          // a list, if it is for none that is running, too
		if !named && one.Client != "" {
			one.Client = "not shown here"
		}
		list = append(list, one)
	}
	return list
}

// overrides returns how many are in force in h, by kind.
func (h *Handler) overrides() map[string]int {
	changes.mu.Lock()
	defer changes.mu.Unlock()
	n := map[string]int{overrideBlock: 0, overrideSet: 0, overrideMode: 0}
	for _, is := range h.applied {
		n[is.Kind]++
	}
	return n
}

// tellOverride logs what has become of an override, and why.
func (a *App) tellOverride(message string, is *override, shields []string, why string) {
	a.logger.Info(message,
		zap.String("id", is.ID), zap.String("kind", is.Kind), zap.Strings("shields", shields), zap.String("client", is.Client),
		zap.String("setting", is.Setting), zap.String("value", is.Value), zap.Time("until", is.Until), zap.String("by", is.By), zap.String("why", why),
	)
}

// End implements operate.Shields.
func (a *App) End(id, by string) error {
	changes.mu.Lock()
	defer changes.mu.Unlock()
	for _, is := range changes.list {
		if is.ID == id {
			a.end(shield.Now(), is, "ended by "+by, is.Shields...)
			return nil
		}
	}
	return operate.BadRequest(http.StatusNotFound, "override is %.40q; use the ID of an active override", id)
}

// Forgive implements operate.Shields. It makes a new client of a client, and ends its blocks.
func (a *App) Forgive(ask adminapi.ExplainRequest, by string) (adminapi.ForgivenStatus, error) {
	handlers, c, err := a.concerned(ask)
	if err != nil {
		return adminapi.ForgivenStatus{}, err
	}
	changes.mu.Lock()
	defer changes.mu.Unlock()
	now, status := shield.Now(), adminapi.ForgivenStatus{Client: c.shown}
	for _, h := range handlers {
		q, unknown := h.asks(c)
		f := h.guard().Forgive(now, q)
		for _, is := range slices.Clone(h.applied) {
			if is.Kind == overrideBlock && is.key(h) == q.Client {
				a.end(now, is, "the client is forgiven", h.Name)
			}
		}
		status.Shields = append(status.Shields, adminapi.ForgivenByOne{Name: h.Name, Forgiven: f, Unknown: unknown})
	}
	a.logger.Info("a client was forgiven", zap.String("shield", cmp.Or(ask.Shield, "all")), zap.String("client", c.shown), zap.String("by", by))
	return status, nil
}

// check returns an error for what no handler is needed to see.
func (o *override) check(name string) error {
	switch {
	case o.Kind != overrideBlock && o.Kind != overrideSet && o.Kind != overrideMode:
		return fmt.Errorf("kind is %.40q; use %s, %s or %s", o.Kind, overrideBlock, overrideSet, overrideMode)
	case o.Kind == overrideBlock && o.Client == "":
		return errors.New("client is missing; use an address, or the key by which the shield identifies clients")
	case o.Kind == overrideMode && o.Value != modeEnforce && o.Value != modeObserve:
		return fmt.Errorf("mode is %.40q; use %s or %s", o.Value, modeEnforce, modeObserve)
	case o.Kind == overrideSet && name == "":
		return errors.New("shield is missing; use the name of the shield to change")
	case o.Kind != overrideBlock && o.Client != "", o.Kind != overrideSet && o.Setting != "", o.Kind == overrideBlock && o.Value != "":
		return fmt.Errorf("kind is %s, with the fields of another kind; use a client for block, a value for mode, and a setting and a value for set", o.Kind)
	}
	return nil
}

// apply changes the configuration of h. It reads a value as the config's own parser does. The error says
// why that cannot be.
func (o *override) apply(h *Handler, c *shield.Config) error {
	if o.Kind == overrideMode {
		c.Observe = o.Value == modeObserve
	}
	if o.Kind != overrideSet { // the Guard is told of a block
		return nil
	}
	rate, shared, carried := &c.Capacity, c.Shared, false
	switch zone, isZone := o.zone(); {
	case isZone:
		z := &c.Zones[slices.IndexFunc(c.Zones, func(z shield.Zone) bool { return z.Name == zone })]
		rate, shared, carried = &z.Limit, z.Shared, z.MinRate > 0
	case o.Setting == "concurrency":
		n, err := strconv.Atoi(o.Value)
		switch {
		case err != nil || n < 1 || n > loadshed.MaxConcurrency:
			return fmt.Errorf("concurrency is %.40q; use 1 to %d", o.Value, loadshed.MaxConcurrency)
		case c.Concurrency == 0 && c.Adaptive == nil:
			return fmt.Errorf("shield %q has no concurrency", h.Name)
		}
		c.Concurrency, c.Adaptive, rate = n, nil, nil
	case o.Setting != "capacity":
		return fmt.Errorf("setting is %.100q; use capacity, concurrency, or the name of a zone and rate", o.Setting)
	}
	if rate != nil {
		var is Rate
		if err := is.read(caddyfile.NewTestDispenser(""), "rate", strings.Fields(o.Value)); err != nil {
			words, _, _ := strings.Cut(err.Error(), ", at ")
			return errors.New(words)
		}
		f := new(faults)
		limit := is.config(f)
		switch {
		case f.errs != nil:
			return errors.Join(f.errs...)
		case *rate == limiter.Config{}:
			return fmt.Errorf("shield %q has no capacity", h.Name)
		case carried && limit.Per != rate.Per:
			return fmt.Errorf("rate is %.40q, but requests carry theirs per %v; use the same unit of time", o.Value, rate.Per)
		}
		limit.Burst = cmp.Or(limit.Burst, rate.Burst) // one that was the default for the old rate is none for the new one
		*rate = limit
	}
	if shared { // a concurrency that was adaptive would share the rest with no other any more
		return fmt.Errorf("%s is shared with other replicas, which would keep the old one; change the config of all of them", o.Setting)
	}
	return nil
}

// rateText writes a rate as a Caddyfile has it: 300/s, or 300/s burst 50.
func rateText(c limiter.Config) string {
	rate, unit := c.Rate, map[time.Duration]string{0: "s", time.Second: "s", time.Minute: "m", time.Hour: "h", 24 * time.Hour: "day", shield.Month: "month"}[c.Per]
	if unit == "" {
		rate, unit = c.Rate/c.Per.Seconds(), "s"
	}
	text := strconv.FormatFloat(rate, 'f', -1, 64) + "/" + unit
	if c.Burst > 0 {
		text += fmt.Sprintf(" burst %d", c.Burst)
	}
	return text
}

// settings returns what can be set of a shield, and is not shared with other replicas.
func (s *shieldReading) settings() (list []oncall.Setting) {
	if s.live {
		return nil // the ingress controller sets it
	}
	c := &s.is.config
	if c.Capacity.Rate > 0 && !c.Shared {
		list = append(list, oncall.Setting{Setting: "capacity", Value: rateText(c.Capacity)})
	}
	if (c.Adaptive != nil || c.Concurrency > 0) && !c.Shared {
		list = append(list, oncall.Setting{Setting: "concurrency", Value: strconv.Itoa(s.Guard.Limit())})
	}
	for _, z := range c.Zones {
		if !z.Shared {
			list = append(list, oncall.Setting{Setting: z.Name + " rate", Value: rateText(z.Limit)})
		}
	}
	return list
}
