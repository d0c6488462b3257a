package caddymodule

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/upload"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler implements an HTTP handler that protects a fragile backend: a rate limiter, a load
// shedder, and a scheduler of retries. It refuses requests beyond the quota of each client,
// beyond the rate that the backend can serve, and beyond what it can have in flight. It
// gives each refused client its own appointment, so that clients return spread out, at
// the rate that the backend can spare.
//
// All limits are checked before any is charged: a refused request uses up nothing. A
// client over its quota is answered 429. A request over a limit of the backend is answered
// 503. Both have a computed `Retry-After`. A client that comes before its appointment,
// while others wait, is told the same time again. gRPC clients get their own form of it.
// Requests whose client address is not verified yet (HTTP/3 early data) are answered 425
// if a quota depends on the address.
//
// These placeholders are set for handlers, error routes and logs. On `admit` all
// but the first and the class are empty.
//
// Placeholder | Description
// ------------|-------------
// `{http.shield.decision}` | `admit`, `refuse`, or `observe`: admitted, but would have been refused
// `{http.shield.reason}` | the limit that refused: `quota`, `capacity`, `concurrency` or `per_client`; or `early`: the client was told a later time; `retry_budget`: too many retries; `pause`: the backend has asked for a pause; `blocked`: an operator has blocked the client
// `{http.shield.zone}` | the zone that refused for `quota`; empty for the other reasons
// `{http.shield.retry_after}` | what the client is told to wait, in seconds; empty if it is told not to come back
// `{http.shield.retry_after_ms}` | the same in milliseconds
// `{http.shield.class}` | the class that the request was treated as, if there are classes, also on `admit`
type Handler struct {
	// The backend's name in metrics, logs and status: up to 64 letters, digits and
	// `_-./:`. Handlers with one name share one capacity, one concurrency and the
	// memory of clients. They must define capacity, concurrency, queue, classes
	// (except what they match), retries, herd and shared alike.
	// The default is the name of the server, with a number from the second handler
	// on. State survives reloads under this name.
	Name string `json:"name,omitempty"`

	// `enforce` (default), or `observe`: refuse no request, and report those that
	// would have been refused.
	Mode string `json:"mode,omitempty"`

	// The quotas of each client. All that match are checked.
	Zones []*Zone `json:"zones,omitempty" caddyfile:"zone"`

	// The rate that the backend can serve.
	Capacity *Rate `json:"capacity,omitempty"`

	// How many requests the backend can have in flight.
	Concurrency *Concurrency `json:"concurrency,omitempty"`

	// Where requests over the limit in flight wait briefly.
	Queue *Queue `json:"queue,omitempty"`

	// How long the backend may be waited for: `1ms` to `24h`. Default: any time. A request
	// that is late is answered 504, or its response is broken off, which counts as a failure
	// of the backend. The time is that until the response begins, and then until each
	// further part of it; while the client has yet to send or to read, it does not run.
	// Streams of events and gRPC calls may pause for an hour once they have begun, upgraded
	// connections for ever. With `observe` there is no time-out.
	Timeout *caddy.Duration `json:"timeout,omitempty"`

	// The order in which requests are admitted at the limit in flight.
	Classes []*Class `json:"classes,omitempty" caddyfile:"class"`

	// How refusals are answered.
	Pushback *Pushback `json:"pushback,omitempty"`

	// How clients are held to their appointments.
	Retries *Retries `json:"retries,omitempty"`

	// Detection of herds of clients.
	Herd *Herd `json:"herd,omitempty"`

	// Whether requests that come again may be refused by the listener wrapper `shield`, if
	// the server has it (default true). With `off` access logs have a line for every request.
	Door *bool `json:"door,omitempty"`

	// Whether replicas share the capacity, the concurrency and the appointments (default
	// true with a store, see [App]). All of them must define those alike. An adaptive
	// limit in flight is not shared.
	Shared *bool `json:"shared,omitempty"`

	record       *backendRecord
	force        *atomic.Pointer[inForce] // nil: it is not provisioned
	base         shield.Config            // without overrides
	overriddenBy string                   // the IDs of those in force; guarded by changes.mu
	state        shield.State
	zones        []handlerZone
	clients      *keyer        // the key of appointments
	perClient    *keyer        // the key of requests in flight; nil: they are not counted by client
	bare         bool          // credentials in keys are shown
	readTimeout  time.Duration // of the server, for a whole request; 0: none
	receives     bool          // bodies come to it as clients send them, and not from another handler that has seen to that
	classes      []handlerClass
	class        uint8                 // for shield.Request, of requests that no class matches; 0: the default
	allow        func(netip.Addr) bool // addresses that the quotas do not count; nil: none
	admitted     []caddy.ReplacerFunc  // by class; nil: no classes
	tracks       bool                  // it needs to know how requests end
	respond      string
	errors       func() caddyhttp.Handler // the server's error routes, or nil
	logged       bool                     // the server has access logs
	inServer     *int                     // how many shields there are
	shown        roster                   // what metrics, logs and status show of it
	atDoor       *atDoor                  // nil: its refusals are not remembered
	lease        lease
}

// handlerZone is what requests need of a zone, and its state.
type handlerZone struct {
	name     string
	record   *zoneRecord
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
	h.receives = true
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	serverName := ""
	if server != nil {
		h.readTimeout = time.Duration(server.ReadTimeout)
		serverName = server.Name()
	}
	cfg, err := app.Check(h, serverName)
	if err != nil {
		return err
	}
	if err := h.provisionZones(ctx); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	if err := h.newGuard(cfg, h.lease.backend(h.Name)); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	if err := h.provisionClasses(ctx); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	app.configured.add(h.shown)
	app.warnOfAddresses(h, server)
	app.warnOfUnreached(server)
	h.respond = h.Pushback.Respond
	h.errors = h.errorRoutes(server)
	h.logged = server != nil && server.Logs != nil
	h.inServer = app.count(serverName)
	if h.Door == nil || *h.Door {
		h.atDoor = &atDoor{byAddress: h.isByAddress(server)}
	}
	return nil
}

// newGuard makes the Guard on the state of its backend and zones, and sets what requests,
// metrics, logs and status need to know of it.
func (h *Handler) newGuard(cfg shield.Config, backend *backendRecord) (err error) {
	h.base, h.state = cfg, shield.State{Backend: &backend.Backend, Zones: map[string]*shield.ZoneState{}}
	for i, z := range cfg.Zones {
		h.state.Zones[z.Name] = h.zones[i].record.ZoneState
	}
	g, err := shield.New(cfg, &h.state)
	if err != nil {
		return err
	}
	h.use(&inForce{g, cfg})
	for i := range cfg.Zones {
		h.shown.zones = append(h.shown.zones, &zoneEntry{key: h.zones[i].keyer.template, record: h.zones[i].record, of: h, index: i})
	}
	h.record = backend
	entry := &shieldEntry{name: h.Name, of: h, record: backend}
	h.shown.shields, h.shown.handlers = []*shieldEntry{entry}, []*Handler{h}
	h.tracks = entry.limited()
	if len(cfg.Classes) > 0 {
		for i := range h.guard().Plan().Classes().Len() {
			h.admitted = append(h.admitted, annotation{decision: "admit", class: h.guard().Plan().Classes().At(i).Name}.placeholder)
		}
	}
	return nil
}

// inForce is what a handler works with: as configured, but for overrides.
type inForce struct {
	guard  *shield.Guard
	config shield.Config
}

// use is for the first one, before requests come.
func (h *Handler) use(f *inForce) {
	h.force = new(atomic.Pointer[inForce])
	h.force.Store(f)
}

func (h *Handler) guard() *shield.Guard { return h.force.Load().guard }

// observing reports whether h refuses no request.
func (h *Handler) observing() bool { return h.force.Load().config.Observe }

// provisionZones loads the matchers of the zones, and their state.
func (h *Handler) provisionZones(ctx caddy.Context) error {
	var errs []error
	for i, z := range h.Zones {
		h.zones[i].record = h.lease.zone(z.Name)
		var err error
		if h.zones[i].matchers, err = loadMatchers(ctx, z, z.MatcherSetsRaw); err != nil {
			errs = append(errs, fmt.Errorf("zone %q: match: %w", z.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Cleanup implements caddy.CleanerUpper. Requests in flight keep using their state.
func (h *Handler) Cleanup() error {
	if h.atDoor != nil {
		h.atDoor.forget(math.MaxInt64)
	}
	h.lease.giveBack()
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.ContentLength != 0 && h.receives && h.limitsInFlight() && !talks(r) {
		return h.receive(w, r, next)
	}
	return h.decide(w, r, next)
}

// bodies are those that are read before their requests ask for a permit.
var bodies upload.Early

var errSlowBody = errors.New("the request body did not arrive in time")

// receive reads what a request brings before it is decided on, and bounds how slowly the rest may come: a
// client that sends a byte a minute would hold a permit for as long as it likes.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var by time.Duration
	if h.readTimeout > 0 {
		by = shield.Now() + h.readTimeout
	}
	whole, done, err := bodies.Read(w, r, 0, by)
	defer done()
	if err != nil {
		if r.ProtoMajor == 1 { // over HTTP/2 it would end the other requests of the connection, too
			w.Header().Set("Connection", "close")
		}
		return unreceived(err)
	}
	defer upload.NewPacer(w, r, whole, by).End()
	return h.decide(w, r, next)
}

// unreceived returns the answer to a request whose body could not be read: as the reader has it, which
// may bound the body's size, or by what went wrong.
func unreceived(err error) error {
	if is, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		return is
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return caddyhttp.HandlerError{StatusCode: http.StatusRequestTimeout, Err: errSlowBody}
	}
	return caddyhttp.HandlerError{StatusCode: http.StatusBadRequest, Err: fmt.Errorf("the request body cannot be read: %w", err)}
}

// talks reports whether a request's client may wait for an answer before it sends more: over HTTP/2
// gRPC's do, those of CONNECT, and others that do not say how much they send.
func talks(r *http.Request) bool {
	return r.ProtoMajor > 1 && (r.Method == http.MethodConnect || r.ContentLength < 0 || pushback.IsGRPC(r))
}

// limitsInFlight reports whether requests take permits, and may be refused.
func (h *Handler) limitsInFlight() bool {
	c := &h.force.Load().config
	return !c.Observe && (c.Concurrency > 0 || c.Adaptive != nil)
}

// decide has the Guard decide on a request, and does as it says.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var buf [8]limiter.Key // on the stack, for as many zones as are common
	keys, err := h.keys(r, buf[:0])
	if err != nil {
		return err
	}
	about := h.guard().Describe(r) // all of q but the keys, which stay on the stack when a door remembers the rest
	h.identify(r, &about)
	now := shield.Now() // the only clock reading of a refusal that is not held
	if err := h.classify(r, &about, now); err != nil {
		return err
	}
	if h.perClient != nil && !h.allowed(r) {
		if about.InFlightKey, err = h.key(h.perClient, r); err != nil {
			return err
		}
	}
	if h.guard().Plan().QueueSize() > 0 || h.guard().Answers().Dither() {
		about.Deadline = shield.Deadline(r, now)
	}
	q, door := about, doorOf(r)
	q.Keys = keys
	if h.Timeout != nil && !h.observing() {
		next = timed{next, time.Duration(*h.Timeout)}
	}
	d, decided := door.take(h)
	if !decided {
		d = h.guard().Admit(now, q)
	}
	h.guard().Await(r.Context(), q, &d)
	if !d.Gone {
		h.annotate(r, &d)
		if d.Reason != shield.None {
			h.noteRefused(r, &q, &d)
		} else if load := d.ClientLoad(); load.InFlight > 1 {
			h.noteBusy(r, &q, d.At(), load.Key)
		}
	}
	if d.Backlog > 0 {
		h.guard().Answers().Warn(w.Header(), d.Backlog)
	}
	switch {
	case !d.Admit:
		return h.refuse(w, r, &about, keys, &d, now)
	case !h.tracks:
		return h.serve(w, r, next, now)
	default:
		return h.pass(w, r, d, next, now)
	}
}

// pass has next serve an admitted request, and records how it ends, and how long it took.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, d shield.Decision, next caddyhttp.Handler, arrived time.Duration) (err error) {
	var tracker *shield.Tracker
	recorder := w
	if d.HoldsPlace() && shield.MayStream(r) {
		tracker = h.guard().Track(w, r, d)
		w = tracker
	}
	proxy, returned := newProxyResult(r), false
	proxy.timed = h.Timeout != nil
	if d.HoldsPlace() {
		proxy.body = shield.WatchBody(r)
	}
	ctx := r.Context()
	inner, shelter := h.guard().Shelter(r, proxy.body)
	if shelter != nil {
		*r = *inner // placeholders are about r, whatever the handlers behind make of it
	}
	defer func() { // also if next panics, as reverse_proxy does when a response breaks off
		outcome, pause := proxy.result(r, err, returned)
		if shelter != nil {
			shelter.End()
			*r = *r.WithContext(ctx)
		}
		now := shield.Now()
		h.record.durations.observe(outcomeAdmitted, cmp.Or(proxy.status, h.statusOf(recorder, err)), now-arrived)
		if tracker != nil {
			tracker.DoneAs(outcome)
		} else {
			if proxy.begun > 0 { // one that the request did not announce
				d.Streamed(proxy.begun)
			}
			d.Done(now, outcome)
		}
		if pause > 0 {
			d.Pause(now, pause)
		}
	}()
	err = next.ServeHTTP(w, r)
	returned = true
	return err
}

// identify sets whose appointments are remembered, unless that awaits a verified address.
func (h *Handler) identify(r *http.Request, q *shield.Request) {
	if h.clients.awaits(r) {
		return
	}
	var buf [128]byte // on the stack, for most names
	name := h.clients.name(buf[:0], r)
	q.Client = h.guard().Hasher().KeyOfBytes(name)
	if h.guard().Tickets() {
		q.ClientID = bytes.Clone(name)
	}
}

// key returns the key of r. If it needs an address that is not verified yet, the client is told
// to come again at once, after the handshake (RFC 8470), as by Caddy's client_ip matcher.
func (h *Handler) key(k *keyer, r *http.Request) (limiter.Key, error) {
	switch {
	case !k.awaits(r):
		return k.key(h.guard().Hasher(), r), nil
	case h.observing():
		return shield.NoKey, nil
	}
	return shield.NoKey, caddyhttp.HandlerError{StatusCode: http.StatusTooEarly, Err: errTooEarly}
}

// keys appends the key of r in every zone.
func (h *Handler) keys(r *http.Request, keys []limiter.Key) ([]limiter.Key, error) {
	if h.allowed(r) {
		return keys, nil
	}
	for i := range h.zones {
		z := &h.zones[i]
		key := shield.NoKey
		matched, err := z.matchers.AnyMatchWithError(r)
		if err == nil && matched {
			key, err = h.key(z.keyer, r)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

var errTooEarly = errors.New("the client's address is not verified yet")

var (
	_ caddy.Provisioner  = (*Handler)(nil)
	_ caddy.CleanerUpper = (*Handler)(nil)
)
