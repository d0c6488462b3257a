package shield

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/meter"
)

// TestHeavyRequestsGetTheirTurn has a client ask for half of the permits every five seconds, among light requests of 20 ms each, for which
// there are 20 permits. It is served within two seconds: from the queue, or, without one, by appointment, where the other clients
// wait for theirs as well. What is in flight never weighs more than the limit.
func TestHeavyRequestsGetTheirTurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		queue     int
		rate      float64 // of light requests per second
		addresses int     // that they are from; 0: each is of a new client
		returns   bool    // those that are rejected come back when they were told
		most      time.Duration
	}{
		{0, 900, 0, true, 2 * time.Second},
		{0, 900, 200, false, 2 * time.Second},
		{0, 1000, 0, true, 2 * time.Second},
		{0, 1000, 200, true, 2 * time.Second},
		{0, 1000, 200, false, 2 * time.Second},
		{0, 1500, 200, false, 2 * time.Second}, // newest first
		{loadshed.NoQueue, 900, 200, true, 2 * time.Second},
		{loadshed.NoQueue, 1000, 200, true, 2 * time.Second},
		{loadshed.NoQueue, 1000, 0, true, 5 * time.Second}, // as many seconds ahead as appointments are made for
		{loadshed.NoQueue, 1500, 0, false, 2 * time.Second},
	} {
		name := fmt.Sprintf("queue %d, %v/s of %d addresses, rejected ones return: %v", c.queue, c.rate, c.addresses, c.returns)
		var all, longest time.Duration
		heavy, lights, seeds := 0, 0, seedsOf(10, 2)
		const from, until = time.Hour, time.Hour + 30*time.Second
		for seed := range seeds {
			s := newStage(t, Config{Concurrency: 20, Queue: loadshed.QueueConfig{Size: c.queue}}, 1000, 0, seed)
			weight := 0
			s.admitted = func(c *call) {
				if weight += max(1, c.Weight); weight > s.g.backend.inFlight.InFlight() || s.g.backend.inFlight.InFlight() > 20 {
					t.Fatalf("%s: %d are in flight, and the Guard counts %d, want 20 at most", name, weight, s.g.backend.inFlight.InFlight())
				}
			}
			var ask func(now time.Duration, key limiter.Key, w int, returns bool, done func(now time.Duration))
			ask = func(now time.Duration, key limiter.Key, w int, returns bool, done func(now time.Duration)) {
				one := &call{Request: Request{Client: key, Weight: w}, takes: 20 * ms}
				one.served = func(now time.Duration) { weight -= w; done(now) }
				one.told = func(now time.Duration) {
					if returns {
						s.at(now+time.Duration(one.d.Hint.Seconds)*time.Second+s.about(s.jitter), func(now time.Duration) { ask(now, key, w, true, done) })
					}
				}
				s.ask(now, one)
			}
			s.often(from, until, c.rate, func(now time.Duration) {
				ask(now, s.client(c.addresses), 1, c.returns, func(time.Duration) { lights++ })
			})
			for at := from + 5*time.Second; at < until-5*time.Second; at += 5 * time.Second {
				s.at(at, func(now time.Duration) {
					took := until - now // if it is not served
					s.at(until, func(time.Duration) { heavy, all, longest = heavy+1, all+took, max(longest, took) })
					ask(now, s.client(0), 10, true, func(now time.Duration) { took = now - at })
				})
			}
			s.play(until)
		}
		t.Logf("%s: heavy ones take %v on average and %v at most, beside %.0f light ones/s", name, all/time.Duration(heavy), longest, float64(lights)/30/float64(seeds))
		if longest > c.most {
			t.Errorf("%s: a heavy request takes %v, want %v at most", name, longest, c.most)
		}
	}
}

// TestManyHeavyRequestsLeavePermits: heavy requests that could use all permits alone, of 10 permits for 100 ms each, leave a part of them to light ones.
func TestManyHeavyRequestsLeavePermits(t *testing.T) {
	s := newStage(t, Config{Concurrency: 20}, 1000, 0, 1)
	heavy, light := 0, 0
	const from, until = time.Hour, time.Hour + 10*time.Second
	s.often(from, until, 20, func(now time.Duration) {
		s.ask(now, &call{Request: Request{Client: s.client(0), Weight: 10}, takes: 100 * ms, served: func(time.Duration) { heavy++ }})
	})
	s.often(from, until, 500, func(now time.Duration) {
		s.ask(now, &call{Request: Request{Client: s.client(0)}, takes: 20 * ms, served: func(time.Duration) { light++ }})
	})
	s.play(until)
	if light < 1500 || heavy < 140 {
		t.Errorf("%d heavy and %d light requests are served, want 140 and 1,500", heavy, light)
	}
}

// TestMeanWeightLowersTheRate: where each request takes four of twenty permits for 100 ms, 50 per second are served, and appointments are
// made for that many, in an overload and before one.
func TestMeanWeightLowersTheRate(t *testing.T) {
	for _, rate := range []float64{30, 200} {
		s := newStage(t, Config{Concurrency: 20}, 1000, 0, 1)
		s.often(time.Hour, time.Hour+time.Minute, rate, func(now time.Duration) {
			s.ask(now, &call{Request: Request{Client: s.client(0), Weight: 4}, takes: 100 * ms})
		})
		s.play(time.Hour + time.Minute)
		if got := s.g.Rate(); got < 45 || got > 60 {
			t.Errorf("while %v/s come, the rate is %.0f/s, want 50/s, and a tenth more to see whether it is more", rate, got)
		}
	}
}

// TestAdaptiveLimitCountsWeights: a backend of twenty workers, of which each request takes four, has an adaptive limit of twenty permits and some
// headroom, and serves what it can.
func TestAdaptiveLimitCountsWeights(t *testing.T) {
	for seed := range seedsOf(10, 3) {
		s := newStage(t, Config{Adaptive: new(loadshed.AdaptiveConfig{})}, 5, 40*ms, seed)
		served, highest := 0, 0
		s.often(time.Hour, time.Hour+time.Minute, 200, func(now time.Duration) {
			s.ask(now, &call{Request: Request{Client: s.client(0), Weight: 4}, served: func(now time.Duration) {
				if now > time.Hour+30*time.Second {
					served, highest = served+1, max(highest, s.g.Limit())
				}
			}})
		})
		s.play(time.Hour + time.Minute)
		if rate := served / 30; rate < 110 || highest < 20 || highest > 60 {
			t.Errorf("seed %d: %d/s are served, with up to %d permits; want nearly 125/s, and 20 to 60 permits", seed, rate, highest)
		}
	}
}

// Requests weigh what Config.Weight says, and more than all permits is all. One client has as many as its own limit says.
func TestWeightsOfHandlers(t *testing.T) {
	g := mustNew(t, Config{
		Concurrency: 10, PerClient: 6, Queue: noQueue, Pushback: undithered,
		Client: func(r *http.Request) string { return r.Header.Get("X-Client") },
		Weight: func(r *http.Request) int { n, _ := strconv.Atoi(r.Header.Get("X-Weight")); return n },
	}, nil)
	var held []Decision
	for i, c := range []struct {
		client, weight string
		want           Reason
		inFlight       int
	}{
		{"a", "4", None, 4},
		{"a", "3", PerClient, 4},
		{"a", "2", None, 6},
		{"b", "5", Concurrency, 6},
		{"b", "-1", None, 7},
		{"c", "1000000000000", Concurrency, 7}, // it needs all
		{"", "", None, 0},                      // all of these are done
		{"c", "1000000000000", None, 10},
	} {
		if c.client == "" {
			for _, d := range held {
				d.Done(Now(), Served)
			}
			continue
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Client", c.client)
		r.Header.Set("X-Weight", c.weight)
		d := g.Admit(Now(), g.request(r, Now(), nil))
		if d.Admit {
			held = append(held, d)
		}
		if d.Reason == PerClient && g.Responses().Status(d.Rejection()) != http.StatusTooManyRequests {
			t.Errorf("request %d is not rejected with the status of its client's limit", i)
		}
		if d.Reason != c.want || g.backend.inFlight.InFlight() != c.inFlight {
			t.Errorf("request %d gets %v with %d in flight, want %v with %d", i, d.Reason, g.backend.inFlight.InFlight(), c.want, c.inFlight)
		}
	}
}

// Neither clients that hang up nor the costs of others make a client's requests heavy.
func TestWhatWeightsBelieve(t *testing.T) {
	settle, _ := meter.Parse("header X-Cost")
	key, other := limiter.Key(1<<40+1), limiter.Key(1<<40+2)
	g := mustNew(t, Config{Zones: []Zone{{Name: "z", Limit: perSecond(1e6, 1e6), AutoCost: true, Settle: &settle, Permit: 100}}, Concurrency: 20}, nil)
	weighs := func(key limiter.Key) int { return g.weigh(&Request{Keys: []limiter.Key{key}}) }
	z := g.zones[0].ZoneState
	for range 3 {
		z.learned.learn(key, 250)
		z.learned.learn(other, 5000)
	}
	for range 20 {
		z.learned.doubt(key)
	}
	if n := z.learned.reserve(key, 0); n < 4900 {
		t.Errorf("after clients have hung up %v are deposited, want about 5000", n)
	}
	z.learned.learn(key, 250)
	if weighs(key) != 3 || weighs(other) != 50 || weighs(1<<42) > 1 {
		t.Errorf("%d, %d and %d permits, want 3, 50, and at most 1", weighs(key), weighs(other), weighs(1<<42))
	}
}

// TestWeightByLearnedCost has reports cost ten times as much as pages. As long as no cost is known each takes one permit, and so do requests
// that the zone does not count. From the first response on a report takes ten permits of twenty.
func TestWeightByLearnedCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		settle := must(meter.Parse("header X-Cost"))
		g := mustNew(t, Config{
			Zones: []Zone{{
				Name: "tokens", Unit: "tokens", Limit: perSecond(1e9, 1e9), AutoCost: true, Settle: &settle, Permit: 1000,
				Key: func(r *http.Request) string { return r.URL.Path },
			}},
			Concurrency: 20,
		}, nil)
		h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if cost := map[string]string{"/report": "9500", "/page": "950"}[r.URL.Path]; cost != "" {
				w.Header().Set("X-Cost", cost)
			}
		}))
		weighs := func(path string) int { // in a dry run, and by what it takes
			time.Sleep(time.Second) // and the whole burst is there again
			q := g.request(httptest.NewRequest(http.MethodGet, path, nil), Now(), nil)
			e := g.Explain(Now(), q)
			d := g.Admit(Now(), q)
			n := g.Explain(Now(), q).Occupancy.InFlight
			if d.Done(Now(), Aborted); n != e.Weight {
				t.Errorf("%s takes %d permits, but Explain says %d", path, n, e.Weight)
			}
			return n
		}
		for _, c := range []struct {
			serve string // before
			path  string
			want  int
		}{
			{"/untold", "/untold", 1},
			{"/untold", "/report", 1},
			{"/report", "/report", 10},
			{"/page", "/page", 1},
			{"/page", "/report", 10},
			{"/page", "/another", 1}, // nothing is known of it
		} {
			time.Sleep(time.Second)
			answerTo(h, httptest.NewRequest(http.MethodGet, c.serve, nil))
			if got := weighs(c.path); got != c.want {
				t.Errorf("after %s, %s takes %d permits, want %d", c.serve, c.path, got, c.want)
			}
		}
		q := g.request(httptest.NewRequest(http.MethodGet, "/report", nil), Now(), nil)
		if q.Keys[0] = NoKey; g.weigh(&q) > 1 {
			t.Error("a request that the zone does not count takes more than one permit")
		}
		if q.Weight = 3; g.weigh(&q) != 3 {
			t.Error("a request that says what it weighs does not take as many permits")
		}
	})
}
