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

// silence is for how long the API server must not have answered before that is worth
// a line in the log: connections break, and it is restarted. At the start it is said
// at once.
const silence = 5 * time.Second

// contact knows whether the API server answers, and says so when that changes, not for
// each request: client-go says nothing at all if connections are refused, and something
// at every try if it is anything else.
type contact struct {
	last atomic.Int64 // when the API server has answered last, since epoch

	log *zap.Logger

	mu      sync.Mutex    // guards what follows
	reached bool          // it has answered at least once
	failing bool          // since
	since   time.Duration // since epoch
	said    bool
}

// answered takes note of an answer to what was asked at that time.
func (c *contact) answered(asked, now time.Duration) {
	c.last.Store(max(c.last.Load(), int64(asked)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said {
		c.log.Info("the API server answers again", zap.Duration("after", now-c.since))
	}
	c.reached, c.failing, c.said = true, false, false
}

// failed takes note of a request that has had no answer.
func (c *contact) failed(now time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failing {
		c.failing, c.since = true, now
	}
	if c.said || c.reached && now-c.since < silence {
		return
	}
	c.said = true
	c.log.Warn("the API server does not answer, and is tried again; what is known of the cluster stays as it is", zap.Error(err))
}

// down reports whether it has been said that the API server does not answer.
func (c *contact) down() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

// A telephone tells a contact what becomes of requests.
type telephone struct {
	http.RoundTripper
	contact *contact
}

// RoundTrip implements http.RoundTripper.
func (t *telephone) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := now()
	answer, err := t.RoundTripper.RoundTrip(r)
	switch {
	case err == nil && answer.StatusCode < http.StatusInternalServerError:
		t.contact.answered(asked, now())
	case err == nil:
		t.contact.failed(now(), fmt.Errorf("%s %s: %s", r.Method, r.URL.Path, answer.Status))
	case !errors.Is(r.Context().Err(), context.Canceled): // else it is we who hung up
		t.contact.failed(now(), err)
	}
	return answer, err
}

// WrappedRoundTripper is for client-go, which looks for the transport inside.
func (t *telephone) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
