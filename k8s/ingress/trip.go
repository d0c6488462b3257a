package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/endpoint"
)

func init() { caddy.RegisterModule(new(Upstreams)) }

// A trip is one request on its way to an endpoint. Its fields are for the request's own
// goroutine, but for the atomic ones.
type trip struct {
	handler *Handler
	passage *passage
	at      atomic.Pointer[endpoint.Endpoint] // where it has a place now
	last    atomic.Pointer[endpoint.Endpoint] // where it had one last
	read    atomic.Bool                       // something of the body has been read for it
	wrote   atomic.Bool                       // the request has been sent to it
	entered time.Duration                     // when it had
	reached bool                              // it has answered
	full    bool                              // no endpoint had a place, and none is waited for any more
	talks   bool                              // the request may be one half of a conversation
	whole   bool                              // its body has been read early, to its end
	tried   []*endpoint.Endpoint
	room    [retries]*endpoint.Endpoint // for tried
}

// tripKey is where requests carry their trip, among Caddy's variables.
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
	if tracker, ok := w.(*shield.Tracker); ok {
		// An upgraded connection, or a stream, gives its place back at once.
		tracker.Before(func() { t.leave(endpoint.Served) })
		defer tracker.Before(nil)
	}
	defer t.arrive(r.Context()) // also if it panics: a response broke off
	if len(r.Header["Upgrade"]) > 0 {
		t.handler.upgraded.Add(1)
		defer t.handler.upgraded.Add(-1)
	}
	forward(r)
	var pace *pacer
	if p.limited && !t.talks {
		pace = newPacer(w, r, t.whole)
		defer pace.end()
	}
	body := shield.WatchBody(r)
	if body != nil {
		r.Body = &readBody{body, t}
	}
	w = &viaWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, pace: pace}
	err := t.handler.proxies[p.protocol].ServeHTTP(w, r, nil)
	switch {
	case err == nil:
		return nil
	case t.last.Load() == nil && t.full:
		return errFull
	case t.last.Load() == nil:
		return caddymodule.ErrUnasked
	case body != nil && shield.OutcomeOf(r, body, http.StatusBadGateway) != shield.Overloaded && r.Context().Err() == nil:
		// The client's body broke off, or came too slowly. Nobody waits for the rest.
		breakOff(w, r)
		return caddyhttp.HandlerError{StatusCode: http.StatusBadRequest, Err: err} // caddyhttp.Error would keep the 502
	}
	return err
}

// errFull is returned for a request for which no endpoint has had a place in time.
var errFull = fmt.Errorf("%w: no endpoint has room", caddymodule.ErrUnasked)

// A readBody notes that something of a body has been read: then it is lost for another
// endpoint.
type readBody struct {
	io.ReadCloser
	trip *trip
}

// Read implements io.Reader.
func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.trip.read.Store(true)
	}
	return n, err
}

// arrive ends the trip. Where what is in flight is limited, the place of a client that
// has gone before there was an answer is kept for as long as such requests take: most
// backends do not notice, and work on (as loadshed.Ghosts has it). The shields'
// places are kept with it.
func (t *trip) arrive(ctx context.Context) {
	if t.reached {
		t.leave(endpoint.Served)
		return
	}
	if t.passage.limited && ctx.Err() != nil && t.at.Load() != nil && t.wrote.Load() {
		time.Sleep(t.passage.expected() - (shield.Now() - t.entered))
	}
	t.leave(endpoint.Unknown) // if it could not be connected to, watchDials has said so
}

const (
	// ghostMeans is how many times the mean time of requests one may have taken whose
	// client has gone, until its place is given to another. Ours: of exponential times,
	// 86 % are shorter.
	ghostMeans = 2

	// firstGuess is the mean time that is expected before any is known, and longestGhost
	// bounds what is kept in any case.
	firstGuess   = 500 * time.Millisecond
	longestGhost = 10 * time.Second
)

// expected returns how long a request whose client has gone is taken to be worked on.
func (e *endpoints) expected() time.Duration {
	mean := time.Duration(e.took.Load())
	if mean == 0 {
		mean = firstGuess
	}
	return min(ghostMeans*mean, longestGhost)
}

// learn takes note of how long a request has taken until its response began: an eighth of
// it counts, as for round trips in TCP (RFC 6298). A note that is lost does no harm.
func (e *endpoints) learn(took time.Duration) {
	mean := e.took.Load()
	if mean == 0 {
		e.took.Store(int64(took))
		return
	}
	e.took.Store(max(1, mean+(int64(took)-mean)/8))
}

// enter takes a place at an endpoint, another one than before.
func (t *trip) enter(ctx context.Context) (*endpoint.Endpoint, error) {
	if t.full || t.read.Load() {
		return nil, endpoint.ErrNone // reverse_proxy asks again, but this has been the last
	}
	if t.leave(endpoint.Unknown) != nil {
		if t.tried == nil {
			t.tried = t.room[:0]
		}
		t.tried = append(t.tried, t.last.Load())
	}
	t.reached = false
	t.wrote.Store(false)
	e, err := t.pick(ctx)
	t.full = err != nil && !errors.Is(err, endpoint.ErrNone)
	if err == nil {
		t.entered = shield.Now()
		t.last.Store(e)
		t.at.Store(e)
	}
	return e, err
}

// pick chooses an endpoint. The shields let in no more than there are places, so it is
// rare that none is free: when endpoints are ejected, or have gone a moment ago. Then
// it waits, as the Service's queue would have had it wait.
func (t *trip) pick(ctx context.Context) (*endpoint.Endpoint, error) {
	set := &t.passage.endpoints.Set
	if !set.Waiting() {
		e, err := set.Pick(shield.Now(), rand.Uint64(), t.tried)
		if !errors.Is(err, endpoint.ErrFull) {
			return e, err
		}
	}
	patience := t.passage.patience
	if patience == 0 {
		return nil, endpoint.ErrFull
	}
	waiter := set.Wait()
	defer waiter.Leave()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for may := waiter.First; ; may = true {
		if may {
			e, err := set.Pick(shield.Now(), rand.Uint64(), t.tried)
			if !errors.Is(err, endpoint.ErrFull) {
				return e, err
			}
		}
		select {
		case <-waiter.Turn:
		case <-again.C: // an ejection may be over
		case <-timer.C:
			return nil, endpoint.ErrFull
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// lookAgain is how often who waits for a place looks by itself: nobody is told that an
// ejection is over, which lasts for a second at least.
const lookAgain = 100 * time.Millisecond

// leave gives back the place, if there is one, and returns where it was.
func (t *trip) leave(o endpoint.Outcome) *endpoint.Endpoint {
	e := t.at.Swap(nil)
	if e != nil {
		e.Release(shield.Now(), o)
	}
	return e
}

// reaching notes that an endpoint has answered.
type reaching struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (n reaching) RoundTrip(r *http.Request) (*http.Response, error) {
	t := tripOf(r.Context())
	if t != nil && t.passage.limited {
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{WroteHeaders: func() { t.wrote.Store(true) }}))
	}
	resp, err := n.RoundTripper.RoundTrip(r)
	if err == nil && t != nil {
		t.reached = true
		if e := t.at.Load(); e != nil {
			e.Reached() // the response may take long, by its client's doing
			t.passage.learn(shield.Now() - t.entered)
		}
	}
	return resp, err
}

// slowDial is how long an endpoint may take to accept a connection until it is taken for
// one that cannot be reached, if the client does not wait any longer. Ours: within a
// cluster it takes a millisecond.
const slowDial = 500 * time.Millisecond

// watchDials has endpoints left alone that cannot be connected to. Nothing else ejects
// one: a client could have any pod break off what it sends it.
func watchDials(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		began, t := shield.Now(), tripOf(ctx) // now, and not when the request may be elsewhere
		conn, err := dial(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		now := shield.Now()
		if ctx.Err() != nil && now-began < slowDial {
			return nil, err // the client has not waited for it
		}
		if t != nil {
			// Only if it is still about that endpoint: the transport dials for
			// whoever is next.
			if e := t.last.Load(); e != nil && e.Addr() == address {
				e.Failed(now)
			}
		}
		return nil, err
	}
}

// Upstreams tells reverse_proxy where shield_ingress wants a request to go: to one
// endpoint, at which it has a place, and another one if it asks again.
type Upstreams struct{}

// CaddyModule implements caddy.Module.
func (*Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.upstreams.shield_ingress", New: func() caddy.Module { return new(Upstreams) }}
}

// GetUpstreams implements reverseproxy.UpstreamSource. No error is returned if there
// is no endpoint: reverse_proxy would log it, for each request.
func (*Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	t := tripOf(r.Context())
	if t == nil {
		return nil, errors.New("the upstreams of shield_ingress are for its own handler")
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
