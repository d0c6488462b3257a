package live

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// plain is how most programs retry: they obey Retry-After, and wait a fixed time where there
// is none. It adds no jitter of its own, so that instants are exact.
type plain struct{ delay time.Duration }

func (p plain) Next(r clients.Refused) (time.Duration, bool) {
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	return p.delay, true
}

// patient is a herd of one that starts at once and reaches no limit that a test does not
// set.
var patient = LoadConfig{
	Target: here, Herd: 1, Even: true, Mix: clients.All(plain{time.Second}),
	Timeout: time.Second, Attempts: 100, Patience: time.Minute,
}

// runDirect runs a herd against h in a bubble and returns its result and how
// long it took.
func runDirect(t *testing.T, ctx context.Context, c LoadConfig, h http.Handler) (LoadResult, time.Duration) {
	t.Helper()
	start := time.Now()
	r := load(t, c, h).Run(ctx)
	checkLoad(t, r)
	return r, time.Since(start)
}

// over returns c against the server at url.
func over(t *testing.T, url string, c LoadConfig) *Load {
	t.Helper()
	var err error
	if c.Target, err = NewTarget(t.Context(), url, false); err != nil {
		t.Fatal(err)
	}
	l, err := NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
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
				if all := r.All; all.Served != 1 || all.Requests != 4 || all.Answers[strconv.Itoa(s.status)] != 3 || all.LastServed != s.lastServed {
					t.Errorf("result is %+v; want served at %v after 3 answers of %d", all, s.lastServed, s.status)
				}
			})
		})
	}
}

func TestHerdGivesUp(t *testing.T) {
	for _, s := range []struct {
		name     string
		change   func(*LoadConfig)
		handler  http.Handler
		attempts int
		took     time.Duration
	}{
		{"after its attempts", func(c *LoadConfig) { c.Attempts = 3 },
			refusing(99, 503, ""), 3, 2 * time.Second},
		{"when a hint goes beyond its patience", func(c *LoadConfig) { c.Patience = 10 * time.Second },
			refusing(99, 429, "4"), 3, 8 * time.Second},
		{"at once when the request is wrong", func(*LoadConfig) {},
			refusing(99, 404, ""), 1, 0},
		{"after time-outs, each of which it waits for", func(c *LoadConfig) { c.Attempts = 2 },
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), 2, 3 * time.Second},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := patient
				s.change(&c)
				r, took := runDirect(t, t.Context(), c, s.handler)
				if r.All.GaveUp != 1 || r.All.Requests != s.attempts || took != s.took {
					t.Errorf("%d gave up, %d attempts, %v; want 1, %d, %v", r.All.GaveUp, r.All.Requests, took, s.attempts, s.took)
				}
			})
		})
	}
}

func TestHerdStartsEvenlyWithinItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patient
		c.Herd, c.Within = 4, time.Second
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
		c.Herd, c.FirstAddress = 3, netip.MustParseAddr("10.0.0.255")
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
		c.Herd = 4
		r, _ := runDirect(t, t.Context(), c, refusing(3, 503, "1"))
		want := []int{4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3}
		if !slices.Equal(r.Tenths, want) {
			t.Errorf("sent %v; want %v", r.Tenths, want)
		}
	})
	var long series
	long.begin(24*time.Hour, true, false)
	if n := len(long.tenths); n != maxTenths {
		t.Errorf("after a day, %d tenths are kept; want %d", n, maxTenths)
	}
}

func TestPerSuccess(t *testing.T) {
	if got := (&Tally{Requests: 5, Served: 2}).PerSuccess(); got != 2.5 {
		t.Errorf("PerSuccess = %v; want 2.5", got)
	}
	if got := (&Tally{Requests: 5}).PerSuccess(); got != 0 {
		t.Errorf("PerSuccess without success = %v; want 0", got)
	}
}

func TestHerdStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patient
		c.Herd, c.Within = 10, 10*time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond)
		defer cancel()
		b := startBackend(t, BackendConfig{Config: plant.Config{Workers: 1, Queue: 1, Notices: true}, Service: time.Minute})
		r, took := runDirect(t, ctx, c, b) // some wait to start, some for an answer, some to retry
		if took != 5500*time.Millisecond {
			t.Errorf("Run ended after %v, want 5.5s", took)
		}
		if r.All.Trying != 6 || r.All.GaveUp != 0 { // the sixth came at 5 s
			t.Errorf("%d still trying, %d gave up; want 6, 0: they were stopped", r.All.Trying, r.All.GaveUp)
		}
	})
}

// The claim of the package, in virtual time: a backend that could serve the herd in 3 s
// serves few clients, wastes its work on the others, and stays so long after the rush. The
// same herd, told when to come back, is served.
func TestBackendCollapsesUnderAHerdAndAGateSavesIt(t *testing.T) {
	herd := LoadConfig{
		Target: here, Herd: 300, Within: time.Second, Even: true, Timeout: time.Second,
		Mix: clients.All(plain{500 * time.Millisecond}), Attempts: 12, Patience: 21 * time.Second,
	}
	fragile := BackendConfig{Config: plant.Config{Workers: 6, Coherency: 1.0 / 100, Slowest: 3, Queue: 1200}, Service: 60 * time.Millisecond}
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, fragile)
		r, _ := runDirect(t, t.Context(), herd, b)
		s := b.Stats()
		if r.All.Served > 100 || r.All.GaveUp < 200 || r.All.LastServed > 3*time.Second {
			t.Errorf("without a gate: %+v; want at most 100 served, all within 3s", r.All)
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
		if r.All.Served != 300 || b.Stats().Wasted != 0 {
			t.Errorf("with a gate: %+v, %d wasted; want all 300 served, 0 wasted", r.All, b.Stats().Wasted)
		}
	})
}

func TestHerdOverSockets(t *testing.T) {
	b := startBackend(t, BackendConfig{Config: plant.Config{Workers: 4, Queue: 100}, Service: time.Millisecond})
	srv := httptest.NewServer(b)
	defer srv.Close()
	c := patient
	c.Herd, c.Timeout, c.Attempts = 50, 30*time.Second, 1
	r := over(t, srv.URL, c).Run(t.Context())
	checkLoad(t, r)
	if r.All.Served != 50 || r.All.LastServed <= 0 {
		t.Errorf("result is %+v; want 50 served", r.All)
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
	c.Herd, c.Connected, c.Timeout, c.Mix = 20, true, 30*time.Second, clients.All(plain{})
	r := over(t, srv.URL, c).Run(t.Context())
	checkLoad(t, r)
	if r.All.Served != 20 || r.All.Requests != 40 || r.All.Unreachable != 0 {
		t.Errorf("result is %+v; want 20 served in 40 attempts", r.All)
	}
	if n := opened.Load(); n != 40 {
		t.Errorf("%d connections; want one for each attempt", n)
	}
}
