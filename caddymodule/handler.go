package caddymodule

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler implements an HTTP handler that stands in front of a fragile backend.
// It refuses requests beyond the quotas of single clients, beyond the rate that
// the backend can take, and beyond what it can have in flight, and gives each
// refused client a time of its own to come back at, so that they return as fast as
// the backend can spare, and not all at once.
//
// All limits are checked before any is charged: a refused request uses up
// nothing. A client over its quota is answered 429, one for whom the backend has
// no room 503; both with a computed `Retry-After`. A client that comes before its
// time, while others wait, is told the same time again. gRPC clients get their own
// form of it. Requests whose client address is not verified yet (HTTP/3 early
// data) are answered 425 where a quota depends on the address.
//
// These placeholders are set for handlers, error routes and logs. On `admit` all
// but the first and the class are empty.
//
// Placeholder | Description
// ------------|-------------
// `{http.shield.decision}` | `admit`, `refuse`, or `observe`: admitted, but would have been refused
// `{http.shield.reason}` | the limit that refused: `quota`, `capacity`, `concurrency` or `per_client`; or `early`: the client was told a later time; `retry_budget`: it is one retry too many; `pause`: the backend has asked to be left alone
// `{http.shield.zone}` | the zone that refused for `quota`; empty for the other reasons
// `{http.shield.retry_after}` | what the client is told to wait, in seconds; empty if it is told not to come back
// `{http.shield.retry_after_ms}` | the same in milliseconds
// `{http.shield.class}` | the class that the request was treated as, where there are classes, on `admit` too
type Handler struct {
	// Names what the handler protects, in metrics, logs and status: up to 64
	// letters, digits and `_-./:`. Handlers with one name count together
	// against one capacity and one concurrency, and remember clients together;
	// they must define capacity, concurrency, queue, classes (but for what they
	// match), retries and herd alike.
	// By default the name of the server, with a number from the second handler
	// on. What is in use is remembered over reloads by this name.
	Name string `json:"name,omitempty"`

	// `enforce` (default), or `observe`: refuse nobody, and report what would
	// have been refused.
	Mode string `json:"mode,omitempty"`

	// The quotas of single clients. All that match are checked.
	Zones []*Zone `json:"zones,omitempty"`

	// What the backend can take in all.
	Capacity *Rate `json:"capacity,omitempty"`

	// How many requests the backend can work on at once.
	Concurrency *Concurrency `json:"concurrency,omitempty"`

	// Where requests wait a moment that find no room in flight.
	Queue *Queue `json:"queue,omitempty"`

	// Who is let in first while there is not room in flight for all.
	Classes []*Class `json:"classes,omitempty"`

	// How refusals are worded.
	Pushback *Pushback `json:"pushback,omitempty"`

	// How clients are held to the times that they are told.
	Retries *Retries `json:"retries,omitempty"`

	// What is done about herds of clients.
	Herd *Herd `json:"herd,omitempty"`

	guard     *shield.Guard
	zones     []handlerZone
	clients   *keyer // whose promises are whose
	perClient *keyer // whose requests in flight are counted; nil: nobody's
	classes   []handlerClass
	class     uint8                 // for shield.Request: of those that are of no other; 0: the default
	allow     func(netip.Addr) bool // clients that the quotas do not count; nil: none
	admitted  []caddy.ReplacerFunc  // by class; nil: there are none
	listens   bool                  // to what becomes of requests
	queues    bool
	observing bool
	respond   string
	errors    func() caddyhttp.Handler // the server's error routes, or nil
	logged    bool                     // the server has access logs
	lease     lease
}

// handlerZone is what a request needs of a zone before the decision.
type handlerZone struct {
	name     string
	keyer    *keyer
	matchers caddyhttp.MatcherSets
}

// CaddyModule implements caddy.Module.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.shield",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision implements caddy.Provisioner.
func (h *Handler) Provision(ctx caddy.Context) error {
	module, err := ctx.App("shield")
	if err != nil {
		return err
	}
	app := module.(*App)
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	serverName := ""
	if server != nil {
		serverName = server.Name()
	}
	cfg, err := app.Check(h, serverName)
	if err != nil {
		return err
	}
	h.observing = cfg.Observe
	if err := h.provisionZones(ctx); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}

	state := shield.State{Zones: map[string]*shield.ZoneState{}}
	pooled := h.lease.backend(h.Name)
	state.Backend = pooled.Backend
	var zones []*zoneRecord
	for _, z := range h.zones {
		zone := h.lease.zone(z.name)
		state.Zones[z.name] = zone.ZoneState
		zones = append(zones, zone)
	}
	if err := h.work(cfg, &state); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	if err := h.provisionClasses(ctx); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	app.configured.add(h, pooled, zones)

	h.errors = h.errorRoutes(server)
	h.logged = server != nil && server.Logs != nil
	return nil
}

// work makes of a checked config what requests need, but for zones and classes.
func (h *Handler) work(cfg shield.Config, state *shield.State) (err error) {
	retries := h.Retries.explicit()
	if h.clients, err = newKeyer(retries.Key, retries.IPv4Prefix, retries.IPv6Prefix); err != nil {
		return fmt.Errorf("retries: %w", err)
	}
	if h.Concurrency != nil && h.Concurrency.Per != nil {
		if h.perClient, err = newKeyer(h.Concurrency.Per.Key, nil, nil); err != nil {
			return fmt.Errorf("concurrency per client: %w", err)
		}
	}
	cfg.Observe = h.observing
	if h.guard, err = shield.New(cfg, state); err != nil {
		return err
	}
	h.listens = h.Capacity != nil || h.Concurrency != nil
	h.queues = h.guard.QueueSize() > 0
	if len(h.Classes) > 0 {
		for i := range h.guard.Classes().Len() {
			h.admitted = append(h.admitted, annotation{decision: "admit", class: h.guard.Classes().At(i).Name}.placeholder)
		}
	}
	h.respond = respondAuto
	if h.Pushback != nil && h.Pushback.Respond != "" {
		h.respond = h.Pushback.Respond
	}
	return nil
}

// provisionZones compiles keys and loads matchers.
func (h *Handler) provisionZones(ctx caddy.Context) error {
	var errs []error
	for _, z := range h.Zones {
		k, err := newKeyer(z.Key, z.IPv4Prefix, z.IPv6Prefix)
		if err != nil {
			errs = append(errs, fmt.Errorf("zone %q: %w", z.Name, err))
			continue
		}
		hz := handlerZone{name: z.Name, keyer: k}
		if len(z.MatcherSetsRaw) > 0 {
			sets, err := ctx.LoadModule(z, "MatcherSetsRaw")
			if err == nil {
				err = hz.matchers.FromInterface(sets)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("zone %q: match: %w", z.Name, err))
				continue
			}
		}
		h.zones = append(h.zones, hz)
	}
	return errors.Join(errs...)
}

// Cleanup implements caddy.CleanerUpper. Requests that the handler has admitted
// may still be in flight: they keep using the state that they hold.
func (h *Handler) Cleanup() error {
	h.lease.giveBack()
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var room [8]limiter.Key // on the stack, for as many zones as anybody has
	keys, err := h.keys(r, room[:0])
	if err != nil {
		return err
	}
	q := shield.Describe(r)
	q.Keys = keys
	h.identify(r, &q)
	now := shield.Now() // the only clock reading of a refusal that nobody waits for
	if err := h.classify(r, &q, now); err != nil {
		return err
	}
	if h.perClient != nil && !h.allowed(r) {
		if q.InFlightKey, err = h.tenant(r); err != nil {
			return err
		}
	}
	if h.queues || h.guard.Answers().Dither() {
		q.Deadline = shield.Deadline(r, now)
	}
	d := h.guard.Enter(r.Context(), now, q)
	if !d.Gone {
		h.annotate(r, &d)
	}
	if d.Backlog > 0 {
		h.guard.Answers().Warn(w.Header(), d.Backlog)
	}
	switch {
	case !d.Admit:
		return h.refuse(w, r, &d)
	case !h.listens:
		return next.ServeHTTP(w, r)
	default:
		return h.pass(w, r, d, next)
	}
}

// pass has next serve an admitted request, and takes note of what becomes of it.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, d shield.Decision, next caddyhttp.Handler) (err error) {
	var tracker *shield.Tracker
	if d.HoldsPlace() && shield.MayDetach(r) {
		tracker = h.guard.Track(w, r, d)
		w = tracker
	}
	tap, whole := newTap(r), false
	if h.guard.Adapts() {
		tap.body = shield.WatchBody(r)
	}
	defer func() { // also if next panics, as reverse_proxy does where a response breaks off
		end, now := tap.end(r, err, whole), shield.Now()
		if tracker != nil {
			tracker.DoneAs(end.outcome)
		} else {
			d.Done(now, end.outcome)
		}
		if end.pause > 0 {
			h.guard.Pause(now, end.pause)
		}
	}()
	err = next.ServeHTTP(w, r)
	whole = true
	return err
}

// identify names the client that promises are remembered by; not if that is an
// address that is not verified yet.
func (h *Handler) identify(r *http.Request, q *shield.Request) {
	if h.clients.verified && r.TLS != nil && !r.TLS.HandshakeComplete {
		return
	}
	var room [128]byte // on the stack, for most names
	name := h.clients.name(room[:0], r)
	q.Client = limiter.KeyOfBytes(name)
	if h.guard.Tickets() {
		q.ClientID = bytes.Clone(name)
	}
}

// tenant names whose request in flight r is.
func (h *Handler) tenant(r *http.Request) (limiter.Key, error) {
	if h.perClient.verified && r.TLS != nil && !r.TLS.HandshakeComplete {
		if h.observing {
			return shield.NoKey, nil
		}
		return shield.NoKey, caddyhttp.HandlerError{StatusCode: http.StatusTooEarly, Err: errTooEarly}
	}
	return h.perClient.key(r), nil
}

// keys appends the key of r in every zone.
func (h *Handler) keys(r *http.Request, keys []limiter.Key) ([]limiter.Key, error) {
	if h.allowed(r) {
		return keys, nil
	}
	for i := range h.zones {
		z := &h.zones[i]
		key := shield.NoKey
		matched := len(z.matchers) == 0
		if !matched {
			var err error
			if matched, err = z.matchers.AnyMatchWithError(r); err != nil {
				return nil, err
			}
		}
		switch {
		case !matched:
		case z.keyer.verified && r.TLS != nil && !r.TLS.HandshakeComplete:
			if !h.observing {
				// As Caddy's client_ip matcher does: the client comes again at
				// once, when the handshake has shown its address (RFC 8470).
				return nil, caddyhttp.HandlerError{StatusCode: http.StatusTooEarly, Err: errTooEarly}
			}
		default:
			key = z.keyer.key(r)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

var errTooEarly = errors.New("the client's address is not verified yet")

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
