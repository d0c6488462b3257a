package live

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// load returns a Load that meets h in a bubble.
func load(t *testing.T, c LoadConfig, h http.Handler) *Load {
	t.Helper()
	l, err := NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	l.send = handlerSender{l.cfg, h}.send
	return l
}

// handlerSender carries attempts to a handler without sockets, which a synctest
// bubble cannot wait for.
type handlerSender struct {
	cfg LoadConfig
	h   http.Handler
}

func (w handlerSender) send(ctx context.Context, c *client) reply {
	rec := httptest.NewRecorder()
	w.h.ServeHTTP(rec, w.cfg.request(ctx, c))
	if err := ctx.Err(); err != nil {
		return failed(ctx, err)
	}
	return reply{status: rec.Code, hint: hintOf(rec.Header().Get, time.Now())}
}

// here is a target without a server.
var here = Target{
	URL:       &url.URL{Scheme: "http", Host: "127.0.0.1:1", Path: "/"},
	Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")},
}

// one is a load of one client, without limits that a test does not set.
var one = LoadConfig{
	Target: here, Herd: 1, Mix: clients.All(clients.Fixed{Gap: time.Second}),
	Timeout: time.Second, Patience: time.Hour, Even: true,
}

// rejecting answers its first n requests with status and Retry-After, and then 200.
func rejecting(n, status int, retryAfter string) http.HandlerFunc {
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

// checkLoad checks the invariants of a result.
func checkLoad(t *testing.T, r LoadResult) {
	t.Helper()
	tallies := map[string]Tally{"all": r.All, "herd": r.Herd, "others": r.Others}
	for _, p := range r.Policies {
		tallies["a policy"] = p.Tally
	}
	for name, n := range tallies {
		answers := 0
		for _, m := range n.Responses {
			answers += m
		}
		if n.Clients != n.Served+n.GaveUp+n.Trying {
			t.Errorf("%s: %d clients, but %d served + %d gave up + %d trying", name, n.Clients, n.Served, n.GaveUp, n.Trying)
		}
		if n.Requests != n.TimedOut+n.Unreachable+n.CutOff+answers {
			t.Errorf("%s: %d requests, but %d timed out + %d unreachable + %d cut off + %d answers", name, n.Requests, n.TimedOut, n.Unreachable, n.CutOff, answers)
		}
		if n.CutOff > n.Trying || (n.OldestCut > 0) && n.CutOff == 0 {
			t.Errorf("%s: %d of %d trying cut off, the oldest after %v", name, n.CutOff, n.Trying, n.OldestCut)
		}
		if int(n.Wait.Count) != n.Served || int(n.Attempt.Count) != answers || int(n.Late.Count) != n.Requests {
			t.Errorf("%s: %d waits, %d answers' times, %d latenesses; want %d, %d, %d", name, n.Wait.Count, n.Attempt.Count, n.Late.Count, n.Served, answers, n.Requests)
		}
		if n.Late.Min < 0 || n.Wait.Min < 0 {
			t.Errorf("%s: a request was early: %v, %v", name, n.Late, n.Wait)
		}
	}
	skipped, cutOff := 0, 0
	for _, p := range r.Policies {
		skipped, cutOff = skipped+p.Skipped, cutOff+p.CutOff
	}
	n := r.All
	if r.Herd.Clients+r.Others.Clients != n.Clients || skipped != n.Skipped || cutOff != n.CutOff || r.Herd.Skipped+r.Others.Skipped != n.Skipped || r.Herd.CutOff+r.Others.CutOff != n.CutOff {
		t.Errorf("the herd and others, or the policies, don't add up: %+v", r)
	}
	var sum Second
	inFlight := 0
	for _, s := range r.Seconds {
		sum.Served += s.Served
		sum.GaveUp += s.GaveUp
		sum.TimedOut += s.TimedOut
		sum.Rejected += s.Rejected
		sum.Unreachable += s.Unreachable
		sum.CutOff += s.CutOff
		sum.Herd.Admitted += s.Herd.Admitted + s.NewClients.Admitted
		sum.Herd.Came += s.Herd.Came + s.NewClients.Came
		inFlight = int(s.InFlight)
	}
	is := [...]int32{sum.Served, sum.GaveUp, sum.TimedOut, sum.Rejected, sum.Unreachable, sum.CutOff, sum.Herd.Came, sum.Herd.Admitted + sum.Rejected + sum.TimedOut + sum.Unreachable + sum.CutOff}
	for i, want := range []int{n.Served, n.GaveUp, n.TimedOut, n.Rejected, n.Unreachable, n.CutOff, n.Requests, n.Requests} {
		if int(is[i]) != want {
			t.Errorf("the seconds add up to %+v; the tally is %+v", sum, n)
		}
	}
	if inFlight != n.CutOff || r.Stopped == nil && n.Trying != 0 || r.Stopped != ErrStopped && n.CutOff != 0 || r.Coming > r.Took {
		t.Errorf("stopped %v after %v, clients came for %v: %d in flight, %d trying, %d cut off", r.Stopped, r.Took, r.Coming, inFlight, n.Trying, n.CutOff)
	}
}

func TestClientsObeyTheirPolicies(t *testing.T) {
	for _, s := range []struct {
		name    string
		change  func(*LoadConfig)
		handler http.Handler
		served  bool
		sent    int
		took    time.Duration // -1: any
	}{
		{"served at once", func(*LoadConfig) {}, rejecting(0, 503, ""), true, 1, 0},
		{"a fixed gap", func(*LoadConfig) {}, rejecting(3, 503, "7"), true, 4, 3 * time.Second},
		{"Retry-After", func(c *LoadConfig) { c.Mix = clients.All(clients.Late{}) }, rejecting(2, 429, "7"), true, 3, 14 * time.Second},
		{"an attempts limit", func(c *LoadConfig) { c.Attempts = 3 }, rejecting(9, 503, ""), false, 3, 2 * time.Second},
		{"a policy that gives up", func(c *LoadConfig) { c.Mix = clients.All(clients.GiveUp{}) }, rejecting(9, 503, ""), false, 1, 0},
		{"patience", func(c *LoadConfig) { c.Patience = 2500 * time.Millisecond }, rejecting(9, 503, ""), false, 3, 2 * time.Second},
		{"an error of the request", func(*LoadConfig) {}, rejecting(9, 404, ""), false, 1, 0},
		{"a policy that knows statuses is asked", func(c *LoadConfig) {
			c.Mix = clients.All(clients.Named{Name: "x", Policy: clients.Client{On: clients.S403, Own: clients.Fixed{Gap: time.Second}}})
		}, rejecting(1, 403, ""), true, 2, time.Second},
		{"a redirect is no success", func(*LoadConfig) {}, rejecting(9, 302, ""), false, 1, 0},
		{"a library obeys the Retry-After of a 500", func(c *LoadConfig) { c.Mix = named(t, "client-go") }, rejecting(1, 500, "1"), true, 2, time.Second},
		{"others obey that of a 503", func(c *LoadConfig) { c.Mix = clients.All(clients.Late{}) }, rejecting(1, 503, "2"), true, 2, 2 * time.Second},
		{"but not that of a 500", func(c *LoadConfig) { c.Mix, c.Patience = named(t, "exact"), 20*time.Second }, rejecting(1, 500, "60"), true, 2, -1},
		{"nor return after a 404", func(c *LoadConfig) { c.Mix = named(t, "exact") }, rejecting(1, 404, "1"), false, 1, 0},
		{"a Retry-After of 63 years", func(c *LoadConfig) { c.Mix = clients.All(clients.Late{By: 0.2}) }, rejecting(9, 503, "2000000000"), false, 1, 0},
		{"a server that never answers", func(c *LoadConfig) { c.Attempts = 2 },
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), false, 2, 3 * time.Second},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := one
				s.change(&c)
				r := load(t, c, s.handler).Run(t.Context())
				checkLoad(t, r)
				took := r.Took.Round(50 * time.Millisecond) // libraries take a few ms to react
				if s.took < 0 {
					s.took = took
				}
				if (r.All.Served == 1) != s.served || r.All.Requests != s.sent || took != s.took {
					t.Errorf("%d served after %d requests in %v; want %v, %d, %v", r.All.Served, r.All.Requests, r.Took, s.served, s.sent, s.took)
				}
				if s.served && r.All.Wait.Max != r.Took {
					t.Errorf("waited %v, want %v", r.All.Wait.Max, r.Took)
				}
			})
		})
	}
}

// The rate does not depend on the answers to earlier clients.
func TestOpenLoopDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := one
		c.Herd, c.Rate, c.Duration, c.Timeout = 0, 10, 2*time.Second, time.Minute
		start := time.Now()
		stall := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(5*time.Second - time.Since(start)) // of the bubble
		})
		r := load(t, c, stall).Run(t.Context())
		checkLoad(t, r)
		if r.Seconds[0].NewClients.Came != 10 || r.Seconds[1].NewClients.Came != 10 || r.Seconds[1].InFlight != 20 {
			t.Errorf("seconds are %+v; want 10 in each of the first two, 20 under way", r.Seconds)
		}
		if len(r.Tenths) != 20 || slices.ContainsFunc(r.Tenths, func(n int) bool { return n != 1 }) {
			t.Errorf("%v came by the tenth; want one in each of 20", r.Tenths)
		}
		if w := r.All.Wait; w.Max != 5*time.Second || w.Min != 3100*time.Millisecond {
			t.Errorf("waits are %+v; want 3.1s to 5s: each from when it was due", w)
		}
	})
}

// Latencies include the lateness of this process, which is shown.
func TestLatenciesRunFromWhenTheyWereDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := load(t, one, rejecting(0, 0, ""))
		start := time.Now()
		time.Sleep(3 * time.Second) // a machine that was busy
		cl := &client{load: l, start: start, due: time.Second}
		l.enter(cl)
		cl.live(t.Context(), t.Context(), nil)
		n := l.Result().All
		if n.Late.Max != 2*time.Second || n.Wait.Max != 2*time.Second || n.Attempt.Max != 2*time.Second {
			t.Errorf("late %v, wait %v, attempt %v; want 2s", n.Late.Max, n.Wait.Max, n.Attempt.Max)
		}
	})
}

// spy is a policy that records its arguments.
type spy struct{ seen *[]clients.Rejected }

func (s spy) Next(r clients.Rejected) (time.Duration, bool) {
	*s.seen = append(*s.seen, r)
	return time.Second, true
}

func TestPoliciesAreToldEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := one
		var seen []clients.Rejected
		c.Mix, c.Attempts = clients.All(spy{&seen}), 4
		n := 0
		load(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch n++; n {
			case 1:
				w.Header().Set("Retry-After", "3")
				w.Header().Set("Retry-After-Ms", "2500")
				w.WriteHeader(429)
			case 2:
				<-r.Context().Done()
			default:
				w.WriteHeader(502)
			}
		})).Run(t.Context())
		want := []clients.Rejected{
			{Attempt: 1, Status: 429, Requests: 1},
			{Attempt: 2, Status: clients.NoAnswer, Gap: time.Second, Elapsed: 2 * time.Second, Requests: 2, Retries: 1},
			{Attempt: 3, Status: 502, Gap: time.Second, Elapsed: 3 * time.Second, Requests: 3, Retries: 2},
		}
		want[0].Hint.Seconds, want[0].Hint.Ms = 3, 2500
		if len(seen) != len(want) {
			t.Fatalf("asked %d times, want %d", len(seen), len(want))
		}
		for i, got := range seen {
			if got.U <= 0 || got.U >= 1 {
				t.Errorf("draw is %v", got.U)
			}
			got.U = 0
			if got != want[i] {
				t.Errorf("told %+v; want %+v", got, want[i])
			}
		}
	})
}

func TestMixIsPlayedInItsShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := one
		c.Herd, c.Within, c.FirstAddress, c.Identities = 1000, time.Second, netip.MustParseAddr("10.0.0.1"), 10
		c.Mix = clients.Population{{Weight: 3, Policy: clients.GiveUp{}}, {Weight: 1, Policy: clients.Fixed{Gap: time.Second}, Precise: true}}
		var mu sync.Mutex
		asked, addresses := 0, map[string]bool{}
		r := load(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			addresses[r.Header.Get("X-Forwarded-For")] = true
			if r.Header.Get("Shield-Retry") != "" {
				if asked++; asked > 1 {
					return
				}
			}
			w.WriteHeader(503)
		})).Run(t.Context())
		checkLoad(t, r)
		gone, stay := r.Policies[0], r.Policies[1]
		if gone.Clients < 700 || gone.Clients > 800 || gone.GaveUp != gone.Clients || stay.Served != stay.Clients || stay.Requests != stay.Clients+1 {
			t.Errorf("policies fared %+v", r.Policies)
		}
		if len(addresses) != 10 || !addresses["10.0.0.10"] {
			t.Errorf("addresses are %v; want 10.0.0.1 to 10.0.0.10", addresses)
		}
	})
}

func TestRunsEnd(t *testing.T) {
	t.Run("with their context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := one
			c.Herd, c.Within, c.Timeout = 10, 10*time.Second, 2*time.Second
			c.Mix = clients.All(clients.Fixed{Gap: time.Minute})
			ctx, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond)
			defer cancel()
			r := load(t, c, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })).Run(ctx)
			checkLoad(t, r)
			var b strings.Builder
			if err := WriteLoad(&b, c, r); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"  under way when stopped                2\n", "    the oldest for                 1.50 s\n",
				"6 clients were still trying, and 2 requests under way.",
			} {
				if !strings.Contains(b.String(), want) {
					t.Errorf("output has no %q:\n%s", want, &b)
				}
			}
			if !errors.Is(r.Stopped, ErrStopped) || r.Took != 5500*time.Millisecond || r.All.Clients != 6 || r.All.Trying != 6 || r.All.TimedOut != 4 {
				t.Errorf("stopped %v after %v: %+v; want 6 trying, of which 4 had timed out", r.Stopped, r.Took, r.All)
			}
			if r.All.CutOff != 2 || r.All.OldestCut != 1500*time.Millisecond || r.Seconds[5].InFlight != 2 || r.Seconds[5].CutOff != 2 {
				t.Errorf("%d cut off, the oldest after %v, the last second %+v; want 2, 1.5s, 2 in flight", r.All.CutOff, r.All.OldestCut, r.Seconds[5])
			}
		})
	})
	t.Run("after enough requests", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := one
			c.Herd, c.Requests = 10, 25
			r := load(t, c, rejecting(99, 503, "")).Run(t.Context())
			checkLoad(t, r)
			if !errors.Is(r.Stopped, ErrRequests) || r.All.Requests != 25 || r.Took != 2*time.Second {
				t.Errorf("stopped %v after %d requests in %v; want 25 in 2s", r.Stopped, r.All.Requests, r.Took)
			}
		})
	})
	t.Run("with no more clients than there may be", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := one
			c.Herd, c.Rate, c.Duration, c.Timeout, c.Attempts = 0, MaxRate, 210*time.Millisecond, time.Second, 1
			r := load(t, c, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })).Run(t.Context())
			checkLoad(t, r)
			if r.All.Clients != MaxClients || r.All.Skipped != 1000 {
				t.Errorf("%d came, %d did not; want %d, 1000", r.All.Clients, r.All.Skipped, MaxClients)
			}
		})
	})
}

// A machine that is too slow for a rate makes a run with fewer clients, not a longer one. A
// herd comes even if late.
func TestClientsThatAreTooLateDoNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for behind, overdue := range map[time.Duration]int{1400 * time.Millisecond: 0, 1600 * time.Millisecond: 1000} {
			c := one
			c.Herd, c.Within, c.Rate, c.Duration = 10, 20*time.Millisecond, 1000, time.Second
			c.Mix = clients.Population{{Weight: 1, Policy: clients.GiveUp{}}, {Weight: 1, Policy: clients.Exact{}}}
			l := load(t, c, rejecting(0, 0, ""))
			l.arrive(t.Context(), time.Now().Add(-behind), func(c *client) { l.enter(c) })
			r := l.Result()
			if r.All.Clients != 1010-overdue || r.All.Skipped != overdue || r.Others.Skipped != overdue {
				t.Errorf("%v behind: %+v; want %d that did not come", behind, r.All, overdue)
			}
			if a, b := r.Policies[0].Skipped, r.Policies[1].Skipped; a+b != overdue || overdue > 0 && (a < 400 || b < 400) {
				t.Errorf("%d and %d of the policies did not come; want %d together", a, b, overdue)
			}
		}
	})
}

func TestArrivals(t *testing.T) {
	all := func(c LoadConfig) (at []time.Duration) {
		for d := range c.arrivals() {
			at = append(at, d)
		}
		if !slices.IsSorted(at) {
			t.Fatalf("they come out of order: %v", at)
		}
		return at
	}
	c := LoadConfig{Rate: 100, Duration: 100 * time.Second, Herd: 50, Within: time.Second, HerdAfter: 20 * time.Second, Seed: 3}
	at := all(c)
	if !slices.Equal(at, all(c)) {
		t.Error("the same seed makes other arrivals")
	}
	perSecond := make([]float64, 100)
	for _, d := range at {
		perSecond[int(d.Seconds())]++
	}
	perSecond[20] -= 50 // the herd
	mean, variance := 0., 0.
	for _, n := range perSecond {
		mean += n / 100
		variance += (n - 100) * (n - 100) / 100
	}
	if mean < 97 || mean > 103 || variance < 60 || variance > 150 { // of a Poisson process they are the same
		t.Errorf("%.1f come per second, with a variance of %.0f; want about 100 and 100", mean, variance)
	}
	c.Even, c.Rate = true, 3
	if at := all(c); len(at) != 350 || at[1] != time.Second/3 || at[60] != c.HerdAfter || at[61] != c.HerdAfter {
		t.Errorf("%d evenly spaced arrivals, %v, ...; want 350, each third of a second", len(at), at[:3])
	}
	for rate, most := range map[float64]int{0: 0, 1e-300: 1, 1e-9: 1, 1e-3: 12} {
		for _, even := range []bool{true, false} {
			if at := all(LoadConfig{Rate: rate, Duration: time.Hour, Even: even, Seed: 1}); len(at) > most {
				t.Errorf("%d come at %g per second", len(at), rate)
			}
		}
	}
}

func TestTargets(t *testing.T) {
	for in, want := range map[string]string{ // "": fine
		"http://127.0.0.1:8080/x?y=1": "",
		"https://localhost":           "",
		"http://[::1]:80/":            "",
		"http://[::ffff:127.0.0.1]/":  "",
		"http://192.0.2.1/":           "192.0.2.1; use a loopback address",
		"http://0.0.0.0:80/":          "use a loopback address",
		"http://[::]:80/":             "use a loopback address",
		"http://127.0.0.1:0/":         "port 0; use 1 to 65535",
		"http://127.0.0.1:70000/":     "port 70000; use 1 to 65535",
		"127.0.0.1:80":                "use http://host:port/path",
		"ftp://127.0.0.1/":            "use http://host:port/path",
		"http:///x":                   "use http://host:port/path",
		"http://a:b@127.0.0.1/":       "put credentials in a header",
		"":                            "use http://host:port/path",
	} {
		_, err := NewTarget(t.Context(), in, false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("NewTarget(%q): error is %v; want %q in it", in, err, want)
		}
		if strings.Contains(want, "loopback") {
			if !errors.Is(err, ErrRemote) {
				t.Errorf("NewTarget(%q): error is %v; want ErrRemote", in, err)
			}
			if _, err := NewTarget(t.Context(), in, true); err != nil {
				t.Errorf("NewTarget(%q), allowed: %v", in, err)
			}
		}
	}
}

func TestHints(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, s := range []struct {
		status      int
		fields      string // Retry-After, Retry-After-Ms, X-Should-Retry
		seconds, ms int
		never       bool
	}{
		{503, "5||", 5, 0, false},
		{429, "5|4321|", 5, 4321, false},
		{500, "5|4321|", 0, 0, false},
		{503, "Fri, 01 May 2026 12:00:30 GMT||", 30, 0, false},
		{503, "Fri, 01 May 9999 11:00:30 GMT||", math.MaxInt32, 0, false},
		{503, "2000000000|100000000000000000|", 2_000_000_000, 1<<41 - 1, false},
		{503, "-1|-5|", 0, 0, false},
		{503, "5|5|false", 0, 0, true},
	} {
		h := http.Header{}
		for i, v := range strings.Split(s.fields, "|") {
			if v != "" {
				h.Set([]string{"Retry-After", "Retry-After-Ms", "X-Should-Retry"}[i], v)
			}
		}
		got, _ := asks(clients.Exact{}, s.status, hintOf(h.Get, now))
		if got.Seconds != s.seconds || got.Ms != s.ms || got.Never != s.never {
			t.Errorf("%d with %s: %+v; want %d s, %d ms, never %v", s.status, s.fields, got, s.seconds, s.ms, s.never)
		}
		if d := told(got); (d > 0) != (s.seconds > 0 || s.ms > 0) || d < 0 {
			t.Errorf("%+v tells %v", got, d)
		}
	}
}
