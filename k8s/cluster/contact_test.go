package cluster

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/herdshield/shield/k8s/testbed/must"
)

// TestContact: an outage of the API server is logged once, and its end once, whatever the
// number of tries. At the start it is logged at once.
func TestContact(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	c := &contact{log: zap.New(core)}
	client := logger(c.log, c.down)
	refused := errors.New("connection refused")
	logged := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range logs.TakeAll() {
			got = append(got, e.Message)
		}
		if len(got) != len(want) {
			t.Fatalf("logged %q, want %q", got, want)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("logged %q, want %q", got[i], want[i])
			}
		}
	}
	second := time.Second
	c.failed(1*second, refused)
	logged("does not answer")
	for i := range 100 {
		c.failed(time.Duration(2+i)*second, refused)
		client.Error(refused, "Failed to watch")
	}
	logged()
	c.answered(102*second, 103*second)
	c.answered(103*second, 104*second)
	client.Error(refused, "Failed to watch")
	logged("answers again", "Failed to watch")

	c.failed(110*second, refused) // a connection broke
	c.answered(110*second, 111*second)
	c.failed(112*second, refused)
	c.failed(116*second, refused)
	logged()
	c.failed(117*second, refused)
	c.failed(118*second, refused)
	logged("does not answer")
	c.answered(120*second, 121*second)
	if got, want := time.Duration(c.last.Load()), 120*second; got != want {
		t.Errorf("the last contact was at %v, want %v", got, want)
	}
	logged("answers again")
}

type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// TestObservedTransport: which outcomes count as answers.
func TestObservedTransport(t *testing.T) {
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	for _, test := range []struct {
		name   string
		ctx    context.Context
		status int // 0: an error
		logged int
		last   bool
	}{
		{"200", t.Context(), 200, 0, true}, {"403", t.Context(), 403, 0, true}, {"503", t.Context(), 503, 1, false},
		{"refused", t.Context(), 0, 1, false}, {"canceled", ctx, 0, 0, false},
	} {
		core, logs := observer.New(zap.InfoLevel)
		c := &contact{log: zap.New(core)}
		transport := &observedTransport{answers(func(*http.Request) (*http.Response, error) {
			if test.status == 0 {
				return nil, errors.New("refused")
			}
			return &http.Response{StatusCode: test.status}, nil
		}), c}
		r := must.Get(http.NewRequestWithContext(test.ctx, http.MethodGet, "http://127.0.0.1/", nil))(t)
		_, _ = transport.RoundTrip(r)
		if n := logs.Len(); n != test.logged || (c.last.Load() > 0) != test.last {
			t.Errorf("%s: %d lines, want %d; last contact %v", test.name, n, test.logged, c.last.Load())
		}
	}
}
