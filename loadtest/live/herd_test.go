package live

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// patient is a herd of one that starts at once and reaches no limit that a test does not
// set.
var patient = HerdConfig{
	URL: "http://127.0.0.1:1", Clients: 1, Timeout: time.Second,
	RetryDelay: time.Second, Attempts: 100, Patience: time.Minute,
}

// runDirect runs a herd against h in a bubble and returns its result and how
// long it took.
func runDirect(t *testing.T, ctx context.Context, c HerdConfig, h http.Handler) (Result, time.Duration) {
	t.Helper()
	herd, err := NewHerd(c)
	if err != nil {
		t.Fatal(err)
	}
	herd.load.wire = handlerSender{herd.load.cfg, h}
	start := time.Now()
	r := herd.Run(ctx)
	checkConservation(t, r)
	return r, time.Since(start)
}

func checkConservation(t *testing.T, r Result) {
	t.Helper()
	attempts := r.TimedOut + r.Unreachable
	for _, n := range r.Answers {
		attempts += n
	}
	if attempts != r.Attempts {
		t.Errorf("%d attempts by outcome, %d in all: %+v", attempts, r.Attempts, r)
	}
	if r.Answers[http.StatusOK] != r.Served {
		t.Errorf("%d answers of 200, %d clients served", r.Answers[http.StatusOK], r.Served)
	}
}

// refusing answers its first n requests with status and Retry-After, and then 200.
func refusing(n, status int, retryAfter string) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return
		}
		n--
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(status)
	}
}

func TestHerdObeysRetryAfter(t *testing.T) {
	for _, s := range []struct {
		name       string
		status     int
		retryAfter string
		lastServed time.Duration
	}{
		{"429 with a hint", 429, "5", 15 * time.Second},
		{"503 with a hint", 503, "2", 6 * time.Second},
		{"503 without", 503, "", 3 * time.Second},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := runDirect(t, t.Context(), patient, refusing(3, s.status, s.retryAfter))
				if r.Served != 1 || r.Attempts != 4 || r.Answers[s.status] != 3 || r.LastServed != s.lastServed {
					t.Errorf("result is %+v; want served at %v after 3 answers of %d", r, s.lastServed, s.status)
				}
			})
		})
	}
}

func TestHerdGivesUp(t *testing.T) {
	for _, s := range []struct {
		name     string
		change   func(*HerdConfig)
		handler  http.Handler
		attempts int
		took     time.Duration
	}{
		{"after its attempts", func(c *HerdConfig) { c.Attempts = 3 },
			refusing(99, 503, ""), 3, 2 * time.Second},
		{"when a hint goes beyond its patience", func(c *HerdConfig) { c.Patience = 10 * time.Second },
			refusing(99, 429, "4"), 3, 8 * time.Second},
		{"at once when the request is wrong", func(*HerdConfig) {},
			refusing(99, 404, ""), 1, 0},
		{"after time-outs, each of which it waits for", func(c *HerdConfig) { c.Attempts = 2 },
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), 2, 3 * time.Second},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := patient
				s.change(&c)
				r, took := runDirect(t, t.Context(), c, s.handler)
				if r.GaveUp != 1 || r.Attempts != s.attempts || took != s.took {
					t.Errorf("%d gave up, %d attempts, %v; want 1, %d, %v", r.GaveUp, r.Attempts, took, s.attempts, s.took)
				}
			})
		})
	}
}

func TestHerdStartsEvenlyWithinItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patient
		c.Clients, c.Window = 4, time.Second
		start := time.Now()
		var mu sync.Mutex
		at := map[time.Duration]int{}
		runDirect(t, t.Context(), c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			at[time.Since(start)]++
		}))
		for _, want := range []time.Duration{0, 250e6, 500e6, 750e6} {
			if at[want] != 1 {
				t.Errorf("arrivals are %v; want one at %v", at, want)
			}
		}
	})
}

func TestClientsSayWhoTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patient
		c.Clients, c.FirstAddress = 3, netip.MustParseAddr("10.0.0.255")
		var mu sync.Mutex
		seen := map[string]int{}
		refuse := refusing(3, 503, "1")
		runDirect(t, t.Context(), c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen[r.Header.Get("X-Forwarded-For")]++
			mu.Unlock()
			refuse(w, r)
		}))
		if want := map[string]int{"10.0.0.255": 2, "10.0.1.0": 2, "10.0.1.1": 2}; !maps.Equal(seen, want) {
			t.Errorf("clients said they were %v; want %v", seen, want)
		}
	})
}

func TestSentCountsRequestsByTheTenthOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patient
		c.Clients = 4
		r, _ := runDirect(t, t.Context(), c, refusing(3, 503, "1"))
		want := []int{4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3}
		if !slices.Equal(r.Sent, want) {
			t.Errorf("sent %v; want %v", r.Sent, want)
		}
	})
	var long series
	long.begin(24*time.Hour, true, false)
	if n := len(long.tenths); n != maxTenths {
		t.Errorf("after a day, %d tenths are kept; want %d", n, maxTenths)
	}
}

func TestResultFigures(t *testing.T) {
	r := Result{Clients: 2, Served: 1, Attempts: 5, LastServed: time.Second}
	if _, all := r.Drained(); all {
		t.Error("1 of 2 served, and yet drained")
	}
	r.Served, r.LastServed = 2, 2*time.Second
	if d, all := r.Drained(); d != 2*time.Second || !all {
		t.Errorf("Drained = %v, %v; want 2s, true", d, all)
	}
	if got := r.PerSuccess(); got != 2.5 {
		t.Errorf("PerSuccess = %v; want 2.5", got)
	}
	if got := (Result{Attempts: 5}).PerSuccess(); got != 0 {
		t.Errorf("PerSuccess without success = %v; want 0", got)
	}
}

func TestHerdStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patient
		c.Clients, c.Window = 10, 10*time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond)
		defer cancel()
		b := startBackend(t, BackendConfig{Workers: 1, Service: time.Minute, Crowd: 1, MaxSlowdown: 1, Queue: 1})
		r, took := runDirect(t, ctx, c, b) // some wait to start, some for an answer, some to retry
		if took != 5500*time.Millisecond {
			t.Errorf("Run ended after %v, want 5.5s", took)
		}
		if r.Trying() != 10 || r.GaveUp != 0 {
			t.Errorf("%d still trying, %d gave up; want 10, 0: they were stopped", r.Trying(), r.GaveUp)
		}
	})
}

// The claim of the package, in virtual time: a backend that could serve the herd in 3 s
// serves few clients, wastes its work on the others, and stays so long after the rush. The
// same herd, told when to come back, is served.
func TestBackendCollapsesUnderAHerdAndAGateSavesIt(t *testing.T) {
	herd := HerdConfig{
		URL: "http://127.0.0.1:1", Clients: 300, Window: time.Second, Timeout: time.Second,
		RetryDelay: 500 * time.Millisecond, Attempts: 12, Patience: 21 * time.Second,
	}
	fragile := BackendConfig{Workers: 6, Service: 60 * time.Millisecond, Crowd: 100, MaxSlowdown: 3, Queue: 1200}
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, fragile)
		r, _ := runDirect(t, t.Context(), herd, b)
		s := b.Stats()
		if r.Served > 100 || r.GaveUp < 200 || r.LastServed > 3*time.Second {
			t.Errorf("without a gate: %+v; want at most 100 served, all within 3s", r)
		}
		if s.Wasted < 4*s.Served {
			t.Errorf("without a gate: %d wasted, %d served; want most of the work wasted", s.Wasted, s.Served)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, fragile)
		var mu sync.Mutex
		due := time.Now() // when the next request may pass: one each 12.5 ms, 80 % of capacity
		r, _ := runDirect(t, t.Context(), herd, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if now := time.Now(); due.After(now) {
				mu.Unlock()
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			} else {
				due = now.Add(12500 * time.Microsecond)
			}
			mu.Unlock()
			b.ServeHTTP(w, r)
		}))
		if r.Served != 300 || b.Stats().Wasted != 0 {
			t.Errorf("with a gate: %+v, %d wasted; want all 300 served, 0 wasted", r, b.Stats().Wasted)
		}
	})
}

func TestHerdOverSockets(t *testing.T) {
	b := startBackend(t, BackendConfig{Workers: 4, Service: time.Millisecond, Crowd: 1000, MaxSlowdown: 2, Queue: 100})
	srv := httptest.NewServer(b)
	defer srv.Close()
	herd, err := NewHerd(HerdConfig{URL: srv.URL, Clients: 50, Timeout: 30 * time.Second, Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := herd.Run(t.Context())
	checkConservation(t, r)
	if r.Served != 50 || r.Trying() != 0 || r.LastServed <= 0 {
		t.Errorf("result is %+v; want 50 served", r)
	}
	if s := b.Stats(); s.Served != 50 || s.Inside != 0 {
		t.Errorf("stats are %+v; want 50 served, 0 inside", s)
	}
}

// Each client's connection is open before the herd starts, and serves only its first
// attempt.
func TestConnectedHerd(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(refusing(20, 503, "0"))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	c := patient
	c.URL, c.Clients, c.Connected, c.Timeout, c.RetryDelay = srv.URL, 20, true, 30*time.Second, 0
	herd, err := NewHerd(c)
	if err != nil {
		t.Fatal(err)
	}
	r := herd.Run(t.Context())
	checkConservation(t, r)
	if r.Served != 20 || r.Attempts != 40 || r.Unreachable != 0 {
		t.Errorf("result is %+v; want 20 served in 40 attempts", r)
	}
	if n := opened.Load(); n != 40 {
		t.Errorf("%d connections; want one for each attempt", n)
	}
	if r.LastCame <= 0 || r.LastCame > r.LastServed {
		t.Errorf("last came at %v, last served at %v", r.LastCame, r.LastServed)
	}
}

func TestNewHerdNamesEveryFault(t *testing.T) {
	for want, c := range map[string]HerdConfig{
		`live: target is "ftp://x"`:         {URL: "ftp://x"},
		"--herd is 20001; want 0 to 20000":  {URL: "http://127.0.0.1:1", Clients: 20001},
		"--timeout is 0s; want more than 0": {URL: "http://127.0.0.1:1", Clients: 1},
	} {
		if _, err := NewHerd(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v; want %q in it", err, want)
		}
	}
}
