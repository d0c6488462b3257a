package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/caddymodule/upload"
	"github.com/herdshield/shield/k8s/endpoint"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// limit is a timeout, and slack what a response may take beyond it on a busy machine: far
// less than the 60 s after which something else would end it.
const (
	limit = 100 * time.Millisecond
	slack = 20 * time.Second
)

var lateResponse = model.Timeouts{Response: limit}

// late starts a pod that serves so, with timeouts on the way.
func late(t *testing.T, is policy.Service, limits model.Timeouts, serve http.HandlerFunc) (*world, *pod) {
	t.Helper()
	p := newPod(t, "late", func(s *httptest.Server) {
		s.Config.Handler = serve
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	})
	return newWorld(t, within(limits, all(origin("web", policy.Ingress{}), backend(service("web", is), p)))), p
}

func within(limits model.Timeouts, m *model.Model) *model.Model {
	m.Rules[0].Timeouts = limits
	return m
}

// hang waits until the request is given up.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // or it would not see that it is given up
	<-r.Context().Done()
}

// took checks how long something took that a timeout has ended.
func took(t *testing.T, since time.Time, least time.Duration) {
	t.Helper()
	if d := time.Since(since); d < least || d > least+slack {
		t.Errorf("it took %v, want %v", d.Round(time.Millisecond), least)
	}
}

func (w *world) outcomes() string {
	var b strings.Builder
	for o, name := range outcomeNames {
		if n := w.controller.requests[o].Load(); n > 0 {
			fmt.Fprintf(&b, "%s %d ", name, n)
		}
	}
	return strings.TrimSpace(b.String())
}

// Requests that a backend never answers end in 504, by each timeout, and free all permits: a
// healthy request is served at once. It does not matter whether shield only observes.
func TestHungRequestsEnd(t *testing.T) {
	for _, tt := range []struct {
		name   string
		is     policy.Service
		limits model.Timeouts
	}{
		{"response", policy.Service{EndpointConcurrency: 4}, lateResponse},
		{"backend", policy.Service{Concurrency: 4}, model.Timeouts{Backend: limit, Response: time.Hour}},
		{"request", policy.Service{Concurrency: 4, EndpointConcurrency: 4}, model.Timeouts{Request: limit}},
		{"no limits", policy.Service{}, lateResponse}, {"adaptive", policy.Service{Adaptive: true}, lateResponse},
		{"observe", policy.Service{Concurrency: 4, Observe: true}, lateResponse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, p := late(t, tt.is, tt.limits, nil)
			p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				p.inside.Add(1)
				defer p.inside.Add(-1)
				if r.URL.Path == "/hold" {
					hang(w, r)
				}
			})
			began, answers := time.Now(), make(chan int)
			for range 4 {
				go func() {
					resp, _ := w.get("a", "/hold")
					answers <- resp.StatusCode
				}()
			}
			for range 4 {
				if status := <-answers; status != http.StatusGatewayTimeout {
					t.Errorf("status %d, want 504", status)
				}
			}
			took(t, began, limit)
			w.expect(http.StatusOK, "a", "/", "a healthy request afterwards")
			waitFor(t, "the backend has been told", func() bool { return p.inside.Load() == 0 })
			if got := w.outcomes(); got != "passed 1 timeout 4" {
				t.Errorf("counted: %s", got)
			}
			if n := w.metrics()["caddy_shield_backend_failures_total"]; tt.name != "no limits" && n != 4 {
				t.Errorf("the shield knows of %v failures of the backend", n)
			}
		})
	}
}

// The time for a request passes while it waits for a permit or for its authentication, too: the
// answer is 504. The time for a permit is the queue's: then it is 503.
func TestWaitingRequestsEnd(t *testing.T) {
	before := mayAsk
	defer func() { mayAsk = before }()
	mayAsk = func(netip.Addr) bool { return true }
	silent := httptest.NewServer(http.HandlerFunc(hang))
	defer silent.Close()
	for _, tt := range []struct {
		name           string
		queue, request time.Duration
		auth           *policy.Auth
		want           int
		counted        string
	}{
		{"for a permit", 9 * time.Second, limit, nil, 504, "timeout 1"}, {"for a permit, shorter", limit, time.Minute, nil, 503, "unserved 1"},
		{"for the authentication", limit, limit, &policy.Auth{URL: silent.URL}, 504, "timeout 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is := policy.Service{EndpointConcurrency: 1, QueueTimeout: tt.queue}
			w := newWorld(t, within(model.Timeouts{Request: tt.request}, filtered(origin("web", policy.Ingress{}), backend(service("red", is), newPod(t, "red", start)), &policy.Filters{Auth: tt.auth})))
			// The permit at the endpoint is taken, past the shield.
			defer must.Get(w.controller.snapshot.Load().backends[0].endpoints.Pick(0, 0, nil))(t).Release(endpoint.Served)
			began := time.Now()
			if resp, _ := w.get("a", "/"); resp.StatusCode != tt.want || w.outcomes() != tt.counted {
				t.Errorf("status %d, counted: %s; want %d, %s", resp.StatusCode, w.outcomes(), tt.want, tt.counted)
			}
			took(t, began, limit)
		})
	}
}

// A response that stops in the middle is broken off, and its permit is free.
func TestHungResponsesEnd(t *testing.T) {
	for _, limits := range []model.Timeouts{lateResponse, {Request: limit}, {Backend: limit}} {
		w, _ := late(t, policy.Service{Concurrency: 1}, limits, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "some")
			_ = http.NewResponseController(w).Flush()
			if r.URL.Path == "/hold" {
				hang(w, r)
			}
			_, _ = io.WriteString(w, strings.Repeat(".", 96))
		})
		began := time.Now()
		resp := must.Get(http.Get(w.base + "/hold"))(t)
		text, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err == nil || string(text) != "some" {
			t.Errorf("%+v: read %q, %v", limits, text, err)
		}
		took(t, began, limit)
		w.expect(http.StatusOK, "a", "/", "a healthy request afterwards")
		if got, n := w.outcomes(), w.metrics()["caddy_shield_backend_failures_total"]; got != "passed 1 timeout 1" || n != 1 {
			t.Errorf("%+v: counted: %s; the shield knows of %v failures of the backend", limits, got, n)
		}
	}
}

// slowBody comes in four parts, with a pause before each.
func slowBody(pause time.Duration) io.Reader {
	r, w := io.Pipe()
	go func() {
		for range 4 {
			time.Sleep(pause) // for real: it is about sockets
			_, _ = io.WriteString(w, "part")
		}
		_ = w.Close()
	}()
	return r
}

// A slow upload is not the backend's failure: its time begins when it has the request.
func TestSlowUploadsAreNotLate(t *testing.T) {
	const limit = 3 * limit // more than a busy machine adds to a pause
	for _, is := range []policy.Service{{}, {Concurrency: 1}} {
		w, _ := late(t, is, model.Timeouts{Response: limit}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hold" {
				hang(w, r)
			}
			_, _ = io.Copy(w, r.Body)
		})
		if resp, text := w.send(http.MethodPost, "a", "/", slowBody(limit/2)); resp.StatusCode != http.StatusOK || text != "partpartpartpart" {
			t.Errorf("status %d, %q", resp.StatusCode, text)
		}
		began := time.Now()
		if resp, _ := w.send(http.MethodPost, "a", "/hold", slowBody(limit/2)); resp.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("status %d, want 504", resp.StatusCode)
		}
		took(t, began, 3*limit)
	}
}

// A client that does not send its body within the time for all of the request is
// answered 408, which is no failure of the backend.
func TestSlowUploadsEndWithTheRequest(t *testing.T) {
	for _, tt := range []struct {
		is     policy.Service
		limits model.Timeouts
		sent   int // more than is read early: the backend has got it
	}{
		{policy.Service{}, model.Timeouts{Request: limit}, 0}, {policy.Service{}, model.Timeouts{Backend: limit}, 1},
		{policy.Service{Concurrency: 1}, model.Timeouts{Request: limit}, 1},
		{policy.Service{Concurrency: 1}, model.Timeouts{Request: limit}, 2 * upload.MaxEarly},
		{policy.Service{Concurrency: 1}, model.Timeouts{Backend: limit}, 2 * upload.MaxEarly},
	} {
		w, _ := late(t, tt.is, tt.limits, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		began := time.Now()
		conn, in := w.dial()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n%s", strings.Repeat("x", tt.sent))
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%+v: %v", tt, err)
		}
		if _ = conn.Close(); resp.StatusCode != http.StatusRequestTimeout || !resp.Close {
			t.Errorf("%+v: status %d, close %v", tt, resp.StatusCode, resp.Close)
		}
		took(t, began, limit)
		if got := w.outcomes(); got != "unreadable 1" {
			t.Errorf("counted: %s", got)
		}
	}
}

// A backend that does not take what the client sends is late as well.
func TestBackendsThatDoNotReadAreLate(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	back := &model.Backend{Service: service("web", policy.Service{Concurrency: 1}), Port: "http",
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort(l.Addr().String())}}}
	w := newWorld(t, within(lateResponse, all(origin("web", policy.Ingress{}), back)))
	conn, in := w.dial()
	began := time.Now()
	go func() {
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 67108864\r\n\r\n"+strings.Repeat("x", 64<<20))
	}()
	resp, err := http.ReadResponse(in, nil)
	if took(t, began, limit); err != nil || resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("response %+v, %v; want 504", resp, err)
	}
}

// Streams outlive the timeout for responses once they have begun: events, gRPC calls, also
// if the client sends nothing more, and upgraded connections.
func TestStreamsOutliveTimeouts(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/grpc+proto"} {
		w, p := late(t, policy.Service{Concurrency: 1}, lateResponse, func(w http.ResponseWriter, r *http.Request) {
			if grpc := kind != "text/event-stream"; grpc != (r.ProtoMajor == 2) {
				t.Errorf("%s: the pod is asked over %s", kind, r.Proto)
			}
			w.Header().Set("Content-Type", kind)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(3 * limit)
			_, _ = io.WriteString(w, "news")
		})
		if kind != "text/event-stream" {
			m := within(lateResponse, all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{Concurrency: 1}), p)))
			m.Rules[0].Backend.Protocol = model.H2C
			w.apply(m)
		}
		resp, text := w.send(http.MethodPost, "a", "/", strings.NewReader("question"), "Content-Type", kind, "Accept", kind)
		if resp.StatusCode != http.StatusOK || text != "news" {
			t.Errorf("%s: status %d, %q", kind, resp.StatusCode, text)
		}
	}
	w := newWorld(t, within(model.Timeouts{Response: limit, Request: limit, Backend: limit},
		all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{Concurrency: 1}), upgrading(t)))))
	conn, in := w.dial()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("response %+v, %v", resp, err)
	}
	time.Sleep(3 * limit)
	fmt.Fprint(conn, "hello")
	_ = conn.SetReadDeadline(time.Now().Add(slack))
	if echo, err := in.Peek(5); err != nil || string(echo) != "hello" {
		t.Errorf("read %q, %v", echo, err)
	}
}

// Retries do not multiply a timeout: a late request is sent nowhere else, and the time for
// its response is that of all attempts.
func TestRetriesDoNotMultiplyTimeouts(t *testing.T) {
	for _, breaks := range []time.Duration{0, limit * 2 / 3} {
		var asked atomic.Int64
		var pods []*pod
		for range 3 {
			pods = append(pods, serving(t, "late", func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1); breaks == 0 {
					hang(w, r)
				}
				time.Sleep(breaks)
				panic(http.ErrAbortHandler)
			}))
		}
		w := newWorld(t, within(lateResponse, all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{Concurrency: 1}), pods...))))
		want := int64(1)
		if breaks > 0 {
			want = 2
		}
		for try := 1; asked.Load() != want; try++ {
			asked.Store(0)
			began := time.Now()
			resp, _ := w.get("a", "/")
			if took(t, began, limit); resp.StatusCode != http.StatusGatewayTimeout {
				t.Errorf("status %d, want 504", resp.StatusCode)
			}
			if n := asked.Load(); n > want || n < want && try == 5 { // on a busy machine the first may be late
				t.Fatalf("breaking off after %v: %d endpoints were asked, want %d", breaks, n, want)
			}
		}
	}
}

// A client that leaves is no timeout, and one that reads slowly is none.
func TestClientsAreNotLateBackends(t *testing.T) {
	const limit = time.Second // more than a busy machine takes from one read of the response to the next
	held := make(chan struct{})
	w, _ := late(t, policy.Service{Concurrency: 1}, model.Timeouts{Response: limit}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			close(held)
			hang(w, r)
		}
		_, _ = w.Write(make([]byte, 32<<20))
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-held
		cancel()
	}()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.base+"/hold", nil)
	if _, err := http.DefaultClient.Do(r); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	waitFor(t, "the client has gone", func() bool { return w.outcomes() != "" })
	if got := w.outcomes(); strings.Contains(got, "timeout") {
		t.Errorf("counted: %s", got)
	}
	var resp *http.Response
	waitFor(t, "its permit is free", func() bool {
		if resp = must.Get(http.Get(w.base))(t); resp.StatusCode != http.StatusOK {
			_ = resp.Body.Close()
		}
		return resp.StatusCode == http.StatusOK
	})
	time.Sleep(limit * 3 / 2)
	n, err := io.Copy(io.Discard, resp.Body)
	if resp.Body.Close(); err != nil || n != 32<<20 {
		t.Errorf("read %d bytes, %v", n, err)
	}
}
