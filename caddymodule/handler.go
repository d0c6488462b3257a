package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/door"
	"github.com/herdshield/shield/caddymodule/upload"
	"github.com/herdshield/shield/dialect"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler implements an HTTP handler that protects a fragile backend: a rate limiter, a load shedder, and a
// scheduler of retries. It rejects requests over a client's quota, over the rate the backend can serve, and
// over what it can have in flight. Each rejected client gets its own appointment, so that clients return spread
// out, at the rate the backend can spare.
//
// All limits are checked before any is charged, so a rejected request uses up nothing. Clients over their quota
// get a 429, and requests over a limit of the backend get a 503, both with a computed `Retry-After`. A client
// that retries before its appointment while others wait gets the same time again. gRPC clients get the gRPC
// equivalent. If a quota depends on the address, requests from addresses that aren't verified yet (HTTP/3 early
// data) get a 425.
//
// These placeholders are set for handlers, error routes and logs. On `admit`, all are empty except for the
// decision, the class and the load.
//
// Placeholder | Description
// ------------|-------------
// `{http.shield.decision}` | `admit`, `reject`, or `observe`: admitted only because the mode is observe
// `{http.shield.reason}` | why it was rejected: `quota`, `capacity`, `concurrency`, `per_client`; `early`: before its appointment; `retry_budget`: too many retries; `pause`: the backend asked for a pause; `blocked`: you blocked the client
// `{http.shield.zone}` | the zone that rejected for `quota`; empty for other reasons
// `{http.shield.retry_after}` | the client's wait in seconds; empty if it is told not to return
// `{http.shield.retry_after_ms}` | the same in milliseconds
// `{http.shield.class}` | the class of the request, if there are classes, also on `admit`
// `{shield.json.*}` | a field of the request's JSON body, such as `{shield.json.model}`, in keys and matchers of the handler; empty if it isn't within the first 64 KiB
// `{http.shield.load}` | how loaded the backend is right now, from 0 (idle) to 1 (full); above 1, requests or clients are waiting
type Handler struct {
	// The backend's name in metrics, logs and status: up to 64 letters, digits and `_-./:`. State survives
	// reloads under this name. Handlers with the same name share one capacity, one concurrency limit and one
	// memory of clients, so their capacity, concurrency (except weights), queue, classes (except matchers),
	// retries and shared must be identical. It defaults to the server's name, numbered from the second handler
	// on.
	Name string `json:"name,omitempty"`

	// `enforce` (default), or `observe`: reject nothing, and report what would have been rejected.
	Mode string `json:"mode,omitempty"`

	// The per-client quotas. Every matching zone is checked.
	Zones []*Zone `json:"zones,omitempty" caddyfile:"zone"`

	// The rate the backend can serve.
	Capacity *Rate `json:"capacity,omitempty"`

	// How many requests the backend can have in flight.
	Concurrency *Concurrency `json:"concurrency,omitempty"`

	// Where requests over the in-flight limit wait briefly.
	Queue *Queue `json:"queue,omitempty"`

	// How long to wait for the backend: `1ms` to `24h` (default: forever). A late request gets a 504, or its
	// response is cut off, and counts as a failure of the backend. The time runs until the response starts, and
	// then between its parts, but not while the client still has to send or to read. Event streams and gRPC
	// calls can pause for an hour once they have started, and upgraded connections forever. With `observe`
	// there is no timeout.
	Timeout *caddy.Duration `json:"timeout,omitempty"`

	// Who goes first at the in-flight limit.
	Classes []*Class `json:"classes,omitempty" caddyfile:"class"`

	// What a rejection looks like.
	Pushback *Pushback `json:"pushback,omitempty"`

	// How appointments are enforced.
	Retries *Retries `json:"retries,omitempty"`

	// Let the listener wrapper `shield`, if the server has it, reject repeated requests before Caddy handles
	// them (default true). With `off`, access logs have a line for every request.
	FastReject *bool `json:"fast_reject,omitempty"`

	// Share the capacity, the concurrency and the appointments with other replicas (default true with a store,
	// see [App]). All of them must define those identically. Of an adaptive limit, each replica uses its part
	// of `max`.
	Shared *bool `json:"shared,omitempty"`

	record     *backendRecord
	force      *atomic.Pointer[inForce] // nil: it is not provisioned
	base       shield.Config            // without overrides
	live       bool                     // it does not come from the config of Caddy, and bodies come to it from another handler: see Live
	applied    []*override              // overrides that are for it, and have a place in it; guarded by changes.mu
	state      shield.State
	zones      []handlerZone
	clients    *keyer // the key of appointments
	perClient  *keyer // the key of requests in flight; nil: they are not counted by client
	classes    []handlerClass
	class      uint8                    // for shield.Request, of requests that no class matches; 0: the default
	allow      func(netip.Addr) bool    // addresses that the quotas do not count; nil: none
	admitted   []caddy.ReplacerFunc     // by class
	classNames []string                 // "" if there are no classes
	asked      bool                     // requests say to some zone what they cost, or their rate
	tracks     bool                     // it limits the backend, and needs to know how requests end
	readsJSON  bool                     // a key or matcher has a placeholder of the JSON in the body
	errors     func() caddyhttp.Handler // the server's error routes, or nil
	logged     bool                     // the server has access logs
	atDoor     *door.Shield             // nil: its rejections are not remembered
	lease      lease
}

// handlerZone is what requests need of a zone, and its state.
type handlerZone struct {
	of       *Handler
	index    int // among its zones
	name     string
	record   *zoneRecord
	keyer    *keyer
	matchers caddyhttp.MatcherSets

	cost, rate string // placeholders of what a request says of itself; "": none
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
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return errors.New("the handler shield is not in an HTTP server; put it in one")
	}
	cfg, err := app.Check(h, server.Name())
	if err != nil {
		return err
	}
	cfg.CostUnknown = func(zone string) {
		app.logger.Warn("a response doesn't report its cost; shield charges what it reserved, for this response and later ones", zap.String("shield", h.Name), zap.String("zone", zone))
	}
	for i, z := range h.Zones {
		h.zones[i].record = h.lease.take("zone "+z.Name, NewLiveZoneState(z.Name)).(*zoneRecord)
		if h.zones[i].matchers, err = loadMatchers(ctx, z); err != nil {
			return fmt.Errorf("shield %q: zone %q: match: %w", h.Name, z.Name, err)
		}
	}
	if err := h.newGuard(cfg, h.lease.take("shield "+h.Name, new(backendRecord)).(*backendRecord)); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	app.keeper.load(h)
	if err := h.provisionClasses(ctx); err != nil {
		return fmt.Errorf("shield %q: %w", h.Name, err)
	}
	app.configured = append(app.configured, h)
	app.warnOfAddresses(h, server)
	h.errors = h.errorRoutes(server)
	h.logged = server.Logs != nil
	if h.FastReject == nil || *h.FastReject {
		h.atDoor = h.forDoor()
	}
	return nil
}

// newGuard makes the Guard on the state of its backend and zones, and sets what requests,
// metrics, logs and status need to know of it.
func (h *Handler) newGuard(cfg shield.Config, backend *backendRecord) (err error) {
	h.base, h.state = cfg, shield.State{Backend: &backend.Backend, Zones: map[string]*shield.ZoneState{}}
	for i, z := range cfg.Zones {
		h.zones[i].of, h.zones[i].index = h, i
		h.state.Zones[z.Name] = h.zones[i].record.ZoneState
	}
	g, err := shield.New(cfg, &h.state)
	if err != nil {
		return err
	}
	h.force = new(atomic.Pointer[inForce])
	h.force.Store(&inForce{g, cfg})
	h.record, h.tracks = backend, cfg.Capacity.Rate > 0 || g.Plan().Limits() || g.Plan().PerClient > 0
	for _, c := range g.Plan().Classes {
		class := ""
		if len(cfg.Classes) > 0 {
			class = c.Name
		}
		h.admitted, h.classNames = append(h.admitted, h.placeholdersOf(class)), append(h.classNames, class)
	}
	return nil
}

// Cleanup implements caddy.CleanerUpper. Requests in flight keep using their state.
func (h *Handler) Cleanup() error {
	h.lease.giveBack()
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	is := h.force.Load() // overrides may put another in force meanwhile
	if r.ContentLength != 0 && !h.live && !is.config.Observe && is.guard.Plan().Limits() && !talks(r) {
		return h.receive(w, r, next)
	}
	return h.decide(w, r, is, next)
}

// bodies are those that are read before their requests ask for a permit.
var bodies upload.Early

// receive reads what a request brings before it is decided on, and bounds how slowly the rest may come: a
// client that sends a byte a minute would hold a permit for as long as it likes.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	whole, done, err := bodies.Read(r, 0)
	defer done()
	if err != nil {
		return unreadable(w, r, err)
	}
	defer upload.Pace(r, whole)()
	return h.decide(w, r, h.force.Load(), next)
}

// unreadable returns the error of a request whose body cannot be read.
func unreadable(w http.ResponseWriter, r *http.Request, err error) error {
	if r.ProtoMajor == 1 { // over HTTP/2 it would end the other requests of the connection, too
		w.Header().Set("Connection", "close")
	}
	if is, ok := errors.AsType[caddyhttp.HandlerError](err); ok { // of a reader that bounds the body's size, say
		return is
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return caddyhttp.HandlerError{StatusCode: http.StatusRequestTimeout, Err: errors.New("the request body did not arrive in time")}
	}
	return caddyhttp.HandlerError{StatusCode: http.StatusBadRequest, Err: fmt.Errorf("the request body can't be read: %w", err)}
}

// talks reports whether a request's client may wait for a response before it sends more: over HTTP/2
// gRPC's do, those of CONNECT, and others that do not say how much they send.
func talks(r *http.Request) bool {
	return r.ProtoMajor > 1 && (r.Method == http.MethodConnect || r.ContentLength < 0 || pushback.IsGRPC(r))
}

// decide has the Guard decide on a request, and does as it says.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request, is *inForce, next caddyhttp.Handler) error {
	g := is.guard
	var body *document
	if h.readsJSON {
		body = documentOf(r, !is.config.Observe)
		defer func() { body.done() }()
	}
	about := g.Describe(r) // all of q but the keys, which stay on the stack when a door remembers the rest
	var buf [8]limiter.Key // for as many zones as are common
	keys, err := h.identify(r, is, &about, buf[:0])
	if err != nil {
		return err
	}
	now := shield.Now()
	if err := h.classify(r, g, &about); err != nil {
		return err
	}
	if h.Concurrency != nil && h.Concurrency.Weight != "" {
		about.Weight = h.weigh(r)
	}
	if h.tracks || g.Responses().Dither() {
		about.Deadline = shield.Deadline(r, now)
	}
	if h.asked {
		about.Asks = h.said(r)
	}
	q := about
	q.Keys = keys
	if body != nil && body.err != nil && body.paced {
		return unreadable(w, r, body.err)
	}
	d, decided := door.Of(r).Take(h.atDoor)
	if !decided {
		d = g.Admit(now, q)
	}
	if d.Queued() {
		g.Await(r.Context(), q, &d)
	}
	switch load := d.ClientLoad(); {
	case d.Gone:
	case d.Reason != shield.None:
		h.annotate(r, &d)
		h.countRejected(r, &q, &d)
	case load.InFlight > 1:
		by := h.clients
		if h.perClient != nil && limiter.Key(load.Key) == q.InFlightKey {
			by = h.perClient
		}
		count(&h.record.busy, d.At(), oncall.Event{Client: load.Key}, by, r)
	}
	if d.Backlog > 0 {
		g.Responses().Warn(w.Header(), d.Backlog)
	}
	if d.Admit {
		g.Remaining(w.Header(), d.At(), &q)
	}
	if body != nil {
		body.r, body.begin = nil, nil
	}
	if !d.Admit {
		return h.reject(w, r, g, &about, keys, &d, now)
	}
	return h.pass(w, r, is, &d, next, now)
}

// pass has next serve an admitted request, and records how it ends, and how long it took: also if next panics, as reverse_proxy does
// when a response breaks off.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, is *inForce, d *shield.Decision, next caddyhttp.Handler, arrived time.Duration) (err error) {
	ctx := r.Context()
	repl, _ := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl != nil && d.Reason == shield.None {
		repl.Map(h.admitted[d.Class])
	}
	if !h.tracks && h.Timeout == nil && !d.Charged() {
		defer func() { h.took(outcomeAdmitted, statusOf(w, err), shield.Now()-arrived) }()
		return next.ServeHTTP(dialect.Restore(w, r), r)
	}
	proxy, returned, limit := proxyResult{repl: repl}, false, time.Duration(0)
	if repl != nil {
		proxy.before, _ = repl.Get(proxyLatency)
		if ctx.Value(caddyhttp.ErrorCtxKey) != nil { // that another shield's backend was late says nothing of the one behind an error route
			proxy.late, _ = repl.Get(lateKey)
			proxy.decided, _ = repl.Get(placeholders[0])
		}
	}
	if h.Timeout != nil && !is.config.Observe {
		limit = time.Duration(*h.Timeout)
	}
	x, inner := is.guard.Begin(dialect.Restore(w, r), r, d, h.tracks, limit)
	if inner != r {
		*r = *inner // placeholders are about r, whatever the handlers behind make of it
	}
	defer func() {
		outcome, status, pause := proxy.result(x, h.Timeout != nil, err, returned)
		if late, slow := x.Late(); late && !slow {
			NoteTimeout(ctx)
		}
		x.Failed = cmp.Or(status, statusOf(w, err))
		x.End(outcome, pause)
		if inner != r {
			*r = *r.WithContext(ctx)
		}
		h.took(outcomeAdmitted, x.Failed, shield.Now()-arrived)
	}()
	if err = next.ServeHTTP(x, r); limit > 0 {
		err = orTimeout(x, r, err)
	}
	returned = true
	return err
}
