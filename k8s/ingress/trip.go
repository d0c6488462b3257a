package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/caddymodule/upload"
	"github.com/herdshield/shield/k8s/endpoint"
	"github.com/herdshield/shield/k8s/model"
)

func init() { caddy.RegisterModule(new(Upstreams)) }

// A trip is one request on its way to an endpoint. Only the request's goroutine uses its
// fields, except for the atomic ones.
type trip struct {
	handler *Handler
	target  *model.Target
	passage *passage
	plan    *plan                             // nil: its target has no filters, and its body a known length
	writer  statusWriter                      // to its client
	answer  viaWriter                         // what the endpoint writes to
	end     time.Duration                     // when it must be over; 0: there is no such time
	since   time.Duration                     // since when an endpoint has been waited for; 0: not yet
	entered time.Duration                     // when it got the permit
	at      atomic.Pointer[endpoint.Endpoint] // where it has a permit now
	last    atomic.Pointer[endpoint.Endpoint] // where it had a permit last
	tried   [retries]*endpoint.Endpoint       // those before that, as many as tries
	read    atomic.Bool                       // part of the body has been read for the last one
	reached bool                              // it has answered
	tries   uint8
	late    bool // a timeout has ended the trip
	slow    bool // because of the client
	full    bool // no endpoint had a permit, and the wait is over
	streams bool // both sides may send at once, as in gRPC
	whole   bool // the whole body has been read early
}

// tripKey is the Caddy variable of a request that has its trip.
const tripKey = "shield_ingress.trip"

// tripOf returns the trip of a request's context, nil if it has none.
func tripOf(ctx context.Context) *trip {
	t, _ := caddyhttp.GetVar(ctx, tripKey).(*trip)
	return t
}

// ServeHTTP passes an admitted request to an endpoint. It implements
// caddyhttp.Handler.
func (p *passage) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	t := tripOf(r.Context())
	if x, ok := w.(*shield.Exchange); ok {
		// An upgraded connection, or an event stream, gives its permit back at once.
		x.Then = func() { t.leave(endpoint.Served) }
	}
	defer t.arrive() // also if it panics: a response broke off
	if len(r.Header["Upgrade"]) > 0 {
		t.handler.upgraded.Add(1)
		defer t.handler.upgraded.Add(-1)
	}
	forward(r)
	if t.plan != nil {
		if err := t.handler.askAuth(w, r, t.plan.Auth); err != nil {
			t.late = errors.Is(err, context.DeadlineExceeded)
			return err
		}
		t.plan.change(r)
	}
	paced := p.limited && !t.streams
	if paced {
		defer upload.Pace(r, t.whole)()
	}
	var body *readBody
	if r.Body != nil && r.Body != http.NoBody {
		body = &readBody{ReadCloser: r.Body, trip: t}
		r.Body = body
		if t.plan != nil && t.plan.sized != nil {
			t.plan.sized.ReadCloser = r.Body
			r.Body = t.plan.sized
		}
	}
	t.answer = viaWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, paced: paced, plan: t.plan}
	err := t.handler.proxies[p.protocol].ServeHTTP(&t.answer, r, nil)
	switch {
	case err == nil:
		return nil
	case t.last.Load() == nil && t.full:
		return errFull
	case t.last.Load() == nil:
		return caddymodule.ErrUnasked
	case t.late && !t.slow:
		return caddyhttp.Error(http.StatusGatewayTimeout, shield.ErrTimeout)
	case t.plan.tooLarge():
		breakOff(w, r)
		return caddyhttp.HandlerError{StatusCode: http.StatusRequestEntityTooLarge, Err: err}
	case body != nil && body.broken.Load() && (t.slow || r.Context().Err() == nil):
		// The client's body broke off, or came too slowly. Do not wait for the rest.
		breakOff(w, r)
		return caddyhttp.HandlerError{StatusCode: http.StatusBadRequest, Err: err} // caddyhttp.Error would keep the 502
	}
	return err
}

// errFull is the error of a request that got no permit at any endpoint in time.
var errFull = fmt.Errorf("%w: all endpoints are at their limit", caddymodule.ErrUnasked)

// A readBody records that part of a body has been read, so that it cannot be sent to
// another endpoint, and that it ended too early.
type readBody struct {
	io.ReadCloser
	trip           *trip
	broken, closed atomic.Bool // closed: by the proxy; what Read says then is not the client's doing
}

// Close implements io.Closer.
func (b *readBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// Read implements io.Reader.
func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.trip.read.Store(true)
	}
	if err != nil && err != io.EOF && !b.closed.Load() {
		b.broken.Store(true)
	}
	return n, err
}

// arrive ends the trip. A request whose client has left before the response is here only when the
// backend is done, or has been waited for for long enough: see shield.Exchange.
func (t *trip) arrive() {
	if t.reached {
		t.leave(endpoint.Served)
		return
	}
	t.leave(endpoint.Unknown) // a failed connection has been reported by watchDials
}

// enter takes a permit at an endpoint that has not been tried.
func (t *trip) enter(ctx context.Context) (*endpoint.Endpoint, error) {
	if t.full || t.late || t.read.Load() {
		return nil, endpoint.ErrNone // reverse_proxy retries, but the request cannot
	}
	if e := t.leave(endpoint.Unknown); e != nil {
		t.tried[t.tries] = e
		t.tries++
	}
	t.reached = false
	e, err := t.pick(ctx)
	t.full = err != nil && !errors.Is(err, endpoint.ErrNone)
	if err == nil {
		t.last.Store(e)
		t.at.Store(e)
	}
	return e, err
}

// pick chooses an endpoint. The shields admit at most as many requests as there are permits,
// so all are taken only if endpoints are ejected, or have just left. Then pick waits for
// as long as the Service's queue would.
func (t *trip) pick(ctx context.Context) (*endpoint.Endpoint, error) {
	set := &t.passage.endpoints.Set
	if !set.Waiting() {
		t.entered = shield.Now()
		e, err := set.Pick(t.entered, rand.Uint64(), t.tried[:t.tries])
		if !errors.Is(err, endpoint.ErrFull) {
			return e, err
		}
	}
	if t.passage.maxWait == 0 {
		return nil, endpoint.ErrFull
	}
	waiter := set.Wait()
	defer waiter.Leave()
	timer := time.NewTimer(t.passage.maxWait)
	defer timer.Stop()
	poll := time.NewTicker(waitPoll)
	defer poll.Stop()
	for try := waiter.First; ; try = true {
		if try {
			t.entered = shield.Now()
			e, err := set.Pick(t.entered, rand.Uint64(), t.tried[:t.tries])
			if !errors.Is(err, endpoint.ErrFull) {
				return e, err
			}
		}
		select {
		case <-waiter.Turn:
		case <-poll.C: // an ejection may be over
		case <-timer.C:
			return nil, endpoint.ErrFull
		case <-ctx.Done():
			t.late = errors.Is(ctx.Err(), context.DeadlineExceeded)
			return nil, ctx.Err()
		}
	}
}

// waitPoll is how often a waiting request tries without a turn: the end of an ejection,
// which lasts a second at least, gives none.
const waitPoll = 100 * time.Millisecond

// leave gives back the permit, if there is one, and returns its endpoint.
func (t *trip) leave(o endpoint.Outcome) *endpoint.Endpoint {
	e := t.at.Swap(nil)
	if e != nil {
		e.Release(o)
	}
	return e
}

// reaching records that an endpoint has answered.
type reaching struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (n reaching) RoundTrip(r *http.Request) (*http.Response, error) {
	t := tripOf(r.Context())
	if t != nil && t.plan != nil && t.plan.Host != "" {
		// Not earlier: reverse_proxy would tell the backend that clients asked for this.
		r = r.WithContext(r.Context())
		r.Host = t.plan.Host
	}
	watch := t.watch(&r)
	resp, err := n.RoundTripper.RoundTrip(r)
	resp, err = watch.answered(r, resp, err)
	if err == nil && t != nil {
		t.reached = true
		if e := t.at.Load(); e != nil {
			e.Reached() // the response may take long because of its client
		}
	}
	return resp, err
}

// slowDial is the duration of a dial from which on the endpoint counts as unreachable if the
// client leaves. Ours: within a cluster a connection takes a millisecond.
const slowDial = 500 * time.Millisecond

// watchDials ejects endpoints that do not accept connections. Nothing else ejects one:
// otherwise a client that makes a pod break off responses could.
func watchDials(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		began, t := shield.Now(), tripOf(ctx) // before the request may move on
		conn, err := dial(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		now := shield.Now()
		if ctx.Err() != nil && now-began < slowDial {
			return nil, err // the client has left early
		}
		if t != nil {
			// Only if the request is still there: the transport may dial for the next
			// request.
			if e := t.last.Load(); e != nil && e.Addr() == address {
				e.Failed(now)
			}
		}
		return nil, err
	}
}

// Upstreams gives reverse_proxy the endpoint of a request of shield_ingress, at which it has
// a permit, and for each retry another one.
type Upstreams struct{}

// CaddyModule implements caddy.Module.
func (*Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.upstreams.shield_ingress", New: func() caddy.Module { return new(Upstreams) }}
}

// GetUpstreams implements reverseproxy.UpstreamSource. It returns no error if there is no
// endpoint: reverse_proxy would log it for each request.
func (*Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	t := tripOf(r.Context())
	if t == nil {
		return nil, errors.New("the upstreams of shield_ingress work with its handler only")
	}
	e, err := t.enter(r.Context())
	if err != nil {
		return nil, nil
	}
	return []*reverseproxy.Upstream{{Dial: e.Addr()}}, nil
}

var (
	_ reverseproxy.UpstreamSource = (*Upstreams)(nil)
)
