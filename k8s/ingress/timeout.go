package ingress

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
)

// A request that is late is not sent to another endpoint: that has got it already, and one
// that works too slowly would get the more to do. Its permits are free as soon as the time is
// up. The connection to the endpoint is closed, which tells it; whether it stops cannot be
// known, and it has been waited for.

// defaultTimeouts are where neither an annotation nor a flag says otherwise. The response has
// ingress-nginx's, of its proxy-read-timeout.
var defaultTimeouts = model.Timeouts{Response: time.Minute}

// timeouts returns the timeouts of Ingresses without any of their own.
func (a *App) timeouts() model.Timeouts {
	return model.Timeouts{
		Request: time.Duration(a.RequestTimeout), Backend: time.Duration(a.BackendTimeout), Response: time.Duration(a.ResponseTimeout),
	}.Over(defaultTimeouts)
}

// limit sets that the request must be over after d, and returns what is to be called then.
func (t *trip) limit(r *http.Request, d time.Duration) (done func()) {
	t.end = shield.Now() + d
	if len(r.Header["Upgrade"]) > 0 || r.Method == http.MethodConnect {
		return func() {} // an upgraded connection would end with the context
	}
	before := r.Context()
	ctx, cancel := context.WithDeadline(before, shield.At(t.end)) // for waits on the way
	*r = *r.WithContext(ctx)                                      // placeholders are about r
	return func() {
		cancel()
		*r = *r.WithContext(before)
	}
}

// A watch is one attempt at an endpoint, on which a Watchdog has its eyes.
type watch struct {
	*shield.Watchdog
	trip *trip
}

// watch watches an attempt, if the passage has timeouts for it. nil: it has none.
func (t *trip) watch(r **http.Request) *watch {
	if t == nil {
		return nil
	}
	limits, now := t.passage.timeouts, shield.Now()
	end := t.end
	if limits.Backend > 0 && (end == 0 || now+limits.Backend < end) {
		end = now + limits.Backend
	}
	if end == 0 && limits.Response == 0 {
		return nil
	}
	if t.since == 0 {
		t.since = now
	}
	ctx, dog := shield.Watch((*r).Context(), &t.writer, end, limits.Response, t.since)
	*r = (*r).WithContext(ctx)
	(*r).Body = dog.Body((*r).Body)
	return &watch{dog, t}
}

// answered notes how the round trip of the attempt has ended, and returns that.
func (w *watch) answered(r *http.Request, resp *http.Response, err error) (*http.Response, error) {
	switch {
	case w == nil:
	case err != nil:
		err = w.blame(r.Context(), err)
		w.Stop()
	case !w.Begin(r, resp.StatusCode, resp.Header):
		_ = resp.Body.Close()
		return w.answered(r, nil, shield.ErrTimeout)
	case resp.StatusCode != http.StatusSwitchingProtocols:
		w.Reads(true)
		resp.Body = &watchedResponse{resp.Body, w, r.Context()}
	}
	return resp, err
}

// blame returns the error of an attempt that may have been ended by the watch.
func (w *watch) blame(ctx context.Context, err error) error {
	late, clients := w.Late()
	if !late {
		return err
	}
	w.trip.late, w.trip.slow = true, clients
	if !clients {
		caddymodule.NoteTimeout(ctx)
	}
	return shield.ErrTimeout
}

// A watchedResponse is the body of a response. Between the reads of it the client has
// to read.
type watchedResponse struct {
	io.ReadCloser
	watch *watch
	ctx   context.Context
}

// Read implements io.Reader.
func (b *watchedResponse) Read(p []byte) (int, error) {
	b.watch.Reads(false)
	n, err := b.ReadCloser.Read(p)
	defer b.watch.Reads(true)
	if err != nil && err != io.EOF {
		err = b.watch.blame(b.ctx, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchedResponse) Close() error {
	b.watch.Stop()
	return b.ReadCloser.Close()
}
