package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestAttempt sends to a server that answers in many ways, on a connection that has
// been used before: the server always sees a request once.
func TestAttempt(t *testing.T) {
	var came atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		switch h := w.Header(); r.URL.Path {
		case "/ok":
			h.Set("X-Backend-Pod", "p")
			h.Set("X-Backend-In-Flight", "3")
		case "/wait":
			h.Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/503":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/502":
			w.WriteHeader(http.StatusBadGateway)
		case "/cut":
			panic(http.ErrAbortHandler)
		}
	}))
	defer s.Close()
	l := newLoad(config{method: "POST", body: 10, clients: 1, timeout: 10 * time.Second})
	send := func(t *http.Transport, path string) answer {
		l.url = s.URL + path
		a := l.attempt(t)
		l.record(a)
		return a
	}
	for _, c := range []struct {
		path, kind string
		after      time.Duration
	}{
		{"/ok", "served", 0}, {"/wait", "refused", 7 * time.Second}, {"/503", "status 503", 20 * time.Millisecond},
		{"/502", "status 502", 20 * time.Millisecond}, {"/cut", "connection closed", 20 * time.Millisecond},
	} {
		transport := l.transport(0, true)
		send(transport, "/ok")
		was := came.Load()
		if a := send(transport, c.path); a.kind != c.kind || a.after() != c.after {
			t.Errorf("%s: %s, comes again after %v; want %s, %v", c.path, a.kind, a.after(), c.kind, c.after)
		}
		if n := came.Load() - was; n != 1 {
			t.Errorf("%s: sent %d times; want once", c.path, n)
		}
		transport.CloseIdleConnections()
	}
	r := l.end()
	if r.Requests != 10 || r.Served != 6 || r.Refused != 1 || r.Errors != 3 || r.Dialled != 5 {
		t.Errorf("%d requests, %d served, %d refused, %d errors, %d connections; want 10, 6, 1, 3, 5", r.Requests, r.Served, r.Refused, r.Errors, r.Dialled)
	}
	if p := r.Pods["p"]; p == nil || *p != (pod{Served: 6, Most: 3}) {
		t.Errorf("the pod is %+v; want 6 served, 3 at most", p)
	}
}

// TestHerd sends a herd to a server that refuses every client once.
func TestHerd(t *testing.T) {
	var came atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if came.Add(1) <= 5 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer s.Close()
	l := newLoad(config{url: s.URL, clients: 5, from: netip.MustParseAddr("127.0.0.1"), timeout: 10 * time.Second, patience: time.Minute})
	herd(context.Background(), l)
	r := l.end()
	want := herdResult{Clients: 5, Served: 5, PerSuccess: 2, ToldMin: 1, ToldMax: 1, Drained: r.Herd.Drained, MeanWait: r.Herd.MeanWait}
	if *r.Herd != want || r.Herd.Drained < 1 {
		t.Errorf("the herd fared %+v; want %+v, after 1 s", *r.Herd, want)
	}
}

func TestWrongFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"rate -url http://127.0.0.1/ -rate 0": "-rate is 0", "steady -url https://127.0.0.1/": "-url is",
		"herd -url http://127.0.0.1/ -clients 0": "-clients is 0", "herd -url http://127.0.0.1/ -patience -1s": "negative",
		"steady -url http://127.0.0.1/ -body 100000000": "-body is",
	} {
		args := strings.Fields(flags)
		if _, err := parse(args[0], args[1:]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error with %q", flags, err, want)
		}
	}
}
