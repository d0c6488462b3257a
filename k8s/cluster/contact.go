package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// outageDelay is how long the API server must not answer before that is logged, since
// connections break and API servers restart. At the start it is logged at once.
const outageDelay = 5 * time.Second

// contact tracks whether the API server answers, and logs changes of that only. client-go
// logs nothing if connections are rejected, and every try for other errors.
type contact struct {
	last atomic.Int64 // time of the last request that was answered, since epoch

	log *zap.Logger

	mu      sync.Mutex    // guards the fields below
	reached bool          // it has answered at least once
	failing bool          // it does not answer
	since   time.Duration // when that began, since epoch
	logged  bool          // that has been logged
}

// answered records an answer to a request that was sent at asked.
func (c *contact) answered(asked, now time.Duration) {
	c.last.Store(max(c.last.Load(), int64(asked)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.logged {
		c.log.Info("the API server answers again", zap.Duration("after", now-c.since))
	}
	c.reached, c.failing, c.logged = true, false, false
}

// failed records a request that got no response.
func (c *contact) failed(now time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failing {
		c.failing, c.since = true, now
	}
	if c.logged || c.reached && now-c.since < outageDelay {
		return
	}
	c.logged = true
	c.log.Warn("the API server does not answer, retrying; the last known state of the cluster stays in force", zap.Error(err))
}

// down reports whether an outage has been logged that has not ended.
func (c *contact) down() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logged
}

// An observedTransport tells a contact the outcome of each request.
type observedTransport struct {
	http.RoundTripper
	contact *contact
}

// RoundTrip implements http.RoundTripper.
func (t *observedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := now()
	answer, err := t.RoundTripper.RoundTrip(r)
	switch {
	case err == nil && answer.StatusCode < http.StatusInternalServerError:
		t.contact.answered(asked, now())
	case err == nil:
		t.contact.failed(now(), fmt.Errorf("%s %s: %s", r.Method, r.URL.Path, answer.Status))
	case !errors.Is(r.Context().Err(), context.Canceled): // else we have cancelled it
		t.contact.failed(now(), err)
	}
	return answer, err
}

// WrappedRoundTripper is for client-go, which looks for the transport inside.
func (t *observedTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
