package ingress

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/endpoint"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// newTrip returns a trip to endpoints at these ports of 192.0.2.1, each of which may have
// one request in flight, and the context of its request.
func newTrip(ports ...uint16) (*trip, context.Context) {
	var list []model.Endpoint
	for _, port := range ports {
		list = append(list, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), port)})
	}
	e := new(endpoints)
	e.Update(shield.Now(), list, func(model.Endpoint) int { return 1 })
	t := &trip{passage: &passage{endpoints: e, limited: true}}
	return t, varsContext(httptest.NewRequest(http.MethodGet, "/", nil), map[string]any{tripKey: t})
}

// afterEpoch lets time pass until shield.Now says what it says outside of tests: synctest
// begins in the year 2000, before the process.
func afterEpoch() { time.Sleep(time.Hour - shield.Now()) }

// An endpoint is ejected if it cannot be connected to, or if a client has waited long
// enough for that; not because a client was in a hurry.
func TestDialsEject(t *testing.T) {
	for _, tt := range []struct {
		name        string
		dial, leave time.Duration // when the dial ends, and the client leaves
		address     string
		want        bool
	}{
		{"rejected", time.Millisecond, time.Hour, "", true}, {"a client in a hurry", dialTimeout, slowDial - 1, "", false},
		{"a client that has waited", dialTimeout, slowDial, "", true}, {"for another", time.Millisecond, time.Hour, "192.0.2.1:3", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			afterEpoch()
			trip, ctx := newTrip(1, 2)
			ctx, cancel := context.WithTimeout(ctx, tt.leave)
			defer cancel()
			dial := watchDials(func(ctx context.Context, _, _ string) (net.Conn, error) {
				select {
				case <-time.After(tt.dial):
					return nil, syscall.ECONNREFUSED
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
			e := must.Get(trip.enter(ctx))(t)
			_, _ = dial(ctx, "tcp", cmp.Or(tt.address, e.Addr()))
			if stats := trip.passage.Stats(shield.Now()); (stats[0].Ejected || stats[1].Ejected) != tt.want {
				t.Errorf("%s: %+v; want an ejected one: %v", tt.name, stats, tt.want)
			}
		})
	}
}

// Broken requests and responses eject no endpoint, and mistakes of clients do not count
// as failures of endpoints.
func TestOnlyDialsEject(t *testing.T) {
	var pods []*pod
	for i := range 4 {
		pods = append(pods, newPod(t, fmt.Sprint("pod", i), func(s *httptest.Server) {
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/half" {
					w.Header().Set("Content-Length", "100")
					_ = http.NewResponseController(w).Flush()
				}
				if r.URL.Path != "/read" {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.Copy(io.Discard, r.Body)
			})
			s.Start()
		}))
	}
	for _, limits := range []policy.Service{{}, {EndpointConcurrency: 10}} {
		w := newWorld(t, all(origin("web", policy.Ingress{}), backend(service("web", limits), pods...)))
		counts := &w.controller.requests
		for range 4 {
			w.expect(502, "x", "/", "broken off")
			if resp, err := http.DefaultTransport.RoundTrip(request(t, w.base+"/half")); err == nil {
				if _, err := io.ReadAll(resp.Body); err == nil {
					t.Error("half a response is taken for a whole one")
				}
				_ = resp.Body.Close()
			}
		}
		waitFor(t, "the half responses to be counted", func() bool { return counts[aborted].Load() == 4 })
		before := counts[broken].Load()
		if before != 4 {
			t.Errorf("%d are counted as not answered, want 4", before)
		}
		for _, method := range []string{"GET", "POST"} {
			for range 4 {
				resp := raw(t, w, method+" /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nx\r\n0\r\n\r\n")
				if resp.StatusCode != 400 && resp.StatusCode != 408 {
					t.Errorf("a %s with a bad chunk: got %d, want 400", method, resp.StatusCode)
				}
			}
		}
		if n := counts[broken].Load() - before; n != 0 {
			t.Errorf("%d bad chunks are counted as the endpoints' doing", n)
		}
		if n := counts[unreadable].Load(); n != 8 {
			t.Errorf("%d are counted as unreadable, want 8", n)
		}
		for _, s := range w.controller.snapshot.Load().backends[0].endpoints.Stats(shield.Now()) {
			if s.Ejected {
				t.Errorf("%s is ejected", s.Addr)
			}
		}
	}
}

// raw sends what there is, and returns the response with its body read. Nothing follows.
func raw(t *testing.T, w *world, text string) *http.Response {
	t.Helper()
	conn, in := w.dial()
	defer conn.Close()
	must.Get(io.WriteString(conn, text))(t)
	method, _, _ := strings.Cut(text, " ")
	resp := must.Get(http.ReadResponse(in, &http.Request{Method: method}))(t)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		b := must.Get(io.ReadAll(resp.Body))(t)
		resp.Body = io.NopCloser(strings.NewReader(string(b)))
	}
	return resp
}

// A pod that does not notice when clients leave, as most, never works on more than it may have in flight.
func TestPodsThatIgnoreAborts(t *testing.T) {
	const takes = 50 * time.Millisecond
	p := newPod(t, "red", start)
	p.takes = takes
	s := service("web", policy.Service{EndpointConcurrency: 1, Queue: policy.QueueOff})
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(s, p)))
	w.get("x", "/") // so that the time is known
	for round := range 3 {
		before := p.served.Load()
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if resp, err := http.DefaultTransport.RoundTrip(request(t, w.base+fmt.Sprint("/gone-", round)).WithContext(ctx)); err == nil {
				_ = resp.Body.Close()
			}
		}()
		waitFor(t, "the request at the pod", func() bool { return p.served.Load() > before })
		arrived := time.Now()
		cancel()
		<-gone
		n, prompt := 0, false
		waitFor(t, "room", func() bool {
			n++
			resp, _ := w.get("x", fmt.Sprint("/", round, "-", n)) // each another request, or it would be too early again
			prompt = prompt || time.Since(arrived) < takes        // else the pod may have been done
			return resp.StatusCode == 200
		})
		if n == 1 && prompt {
			t.Errorf("round %d: there was room at once", round)
		}
	}
	if most := p.most.Load(); most > 1 {
		t.Errorf("%d in flight at the pod; want at most 1", most)
	}
}

// A waiter polls for the end of an ejection, which gives no turn.
func TestWaitersSeeTheEndOfAnEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		afterEpoch()
		first, ctx := newTrip(1, 2)
		first.passage.maxWait = time.Minute
		busy := &trip{passage: first.passage}
		e := must.Get(first.enter(ctx))(t)
		e.Failed(shield.Now())
		first.leave(endpoint.Unknown)
		for e, err := busy.enter(ctx); ; e, err = busy.enter(ctx) { // the other one, for long
			if err != nil {
				t.Fatal(err)
			}
			if e.Addr() != first.last.Load().Addr() {
				break
			}
		}
		began := time.Now()
		waits := &trip{passage: first.passage}
		if _, err := waits.enter(ctx); err != nil || time.Since(began) > minEjectionSeen {
			t.Errorf("waited for %v: %v", time.Since(began), err)
		}
	})
}

// minEjectionSeen is the first ejection, and until it is seen that it is over.
const minEjectionSeen = time.Second + 2*waitPoll

// A body that has been read for one endpoint is lost for another: the client hears of
// it, and no endpoint is asked with half a body or none.
func TestReadBodiesAreNotSentTwice(t *testing.T) {
	var whole, other atomic.Int64
	var pods []*pod
	for range 3 {
		pods = append(pods, serving(t, "drops", func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if string(b) == "query" {
				whole.Add(1)
			} else {
				other.Add(1)
			}
			panic(http.ErrAbortHandler)
		}))
	}
	for _, is := range []policy.Service{{}, {EndpointConcurrency: 5}} {
		w := newWorld(t, all(origin("web", policy.Ingress{}), backend(service("web", is), pods...)))
		for _, body := range []io.Reader{strings.NewReader("query"), io.MultiReader(strings.NewReader("query"))} {
			if resp, text := w.send(http.MethodGet, "x", "/", body); resp.StatusCode != http.StatusBadGateway {
				t.Errorf("got %d %q, want 502", resp.StatusCode, text)
			}
		}
	}
	if whole.Load() != 4 || other.Load() != 0 {
		t.Errorf("%d endpoints were asked with the whole body, %d with less; want 4 and 0", whole.Load(), other.Load())
	}
}

// A gRPC stream to a TLS backend is a conversation, too: its body is not waited for.
func TestConversationsAreNotReadEarly(t *testing.T) {
	p := newPod(t, "talks", func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			word := make([]byte, 5)
			_, _ = io.ReadFull(r.Body, word)
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write(word)
		})
		s.StartTLS()
	})
	b := backend(service("web", policy.Service{EndpointConcurrency: 5}), p)
	b.Protocol = model.HTTPS
	w := newWorld(t, all(origin("web", policy.Ingress{}), b))
	half, rest := io.Pipe()
	go func() { _, _ = rest.Write([]byte("hello")) }() // and it stays open
	t.Cleanup(func() { _ = rest.Close() })
	client := &http.Transport{Protocols: new(http.Protocols)}
	client.Protocols.SetUnencryptedHTTP2(true)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, w.base+"/", half))(t)
	r.Header.Set("Content-Type", "application/grpc")
	resp := must.Get(client.RoundTrip(r))(t)
	defer resp.Body.Close()
	word := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, word); err != nil || string(word) != "hello" {
		t.Errorf("got %q: %v", word, err)
	}
}
