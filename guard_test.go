package shield

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

// must returns what a call returned that may fail, and does not in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func mustNew(tb testing.TB, c Config, s *State) *Guard {
	tb.Helper()
	return must(New(c, s))
}

// noQueue is of limits in flight that reject at once.
var noQueue = loadshed.QueueConfig{Size: loadshed.NoQueue}

func perSecond(rate float64, burst int) limiter.Config {
	return limiter.Config{Rate: rate, Burst: burst}
}

func TestEachLimitRejectsForItsReason(t *testing.T) {
	g := mustNew(t, Config{
		Zones:       []Zone{{Name: "z", Limit: perSecond(1, 2)}},
		Capacity:    limiter.Config{Rate: 3, Per: time.Minute, Burst: 3},
		Concurrency: 2,
		Queue:       noQueue,
	}, nil)
	alice, bob, carol := []limiter.Key{1}, []limiter.Key{2}, []limiter.Key{3}
	var held []Decision
	for i, step := range []struct {
		keys   []limiter.Key
		reason Reason
		wait   time.Duration
		hint   pushback.Hint
	}{
		{alice, None, 0, pushback.Hint{}},
		{alice, None, 0, pushback.Hint{}},
		{bob, Concurrency, time.Second, pushback.Hint{Seconds: 1, Ms: 1000}}, // the first slot that can be told
		{alice, Quota, time.Second, pushback.Hint{Seconds: 1, Ms: 1000}},     // her own wait, whoever waits for the backend
	} {
		d := g.Admit(0, Request{Keys: step.keys})
		if d.Reason != step.reason || d.Wait != step.wait || d.Hint != step.hint || d.Admit != (d.Reason == None) {
			t.Errorf("step %d: got %+v, want %v, wait %v, %+v", i, d, step.reason, step.wait, step.hint)
		}
		if d.Admit {
			held = append(held, d)
		}
	}
	for _, d := range held {
		d.Done(1500*ms, Served)
	}
	// One of the capacity's three is left; each takes 20 s to come back.
	if d := g.Admit(1500*ms, Request{Keys: bob}); !d.Admit {
		t.Errorf("bob: %+v, want admitted", d)
	}
	// Bob has the slot of the first 20.4 s.
	d := g.Admit(1500*ms, Request{Keys: carol})
	if d.Reason != Capacity || d.Zone != -1 || d.Hint.Seconds < 15 || d.Hint.Seconds > 30 {
		t.Errorf("carol: %+v, want capacity, in the second half of 30 s", d)
	}
	s := g.backend.Stats(1500 * ms)
	if s.Admitted != 3 || s.Rejected != [reasons]uint64{Quota: 1, Capacity: 1, Concurrency: 1} || s.RetryAfter[1] != 2 || s.RetryAfter[d.Hint.Seconds] != 1 || s.InFlight != 1 {
		t.Errorf("stats: %+v", s)
	}
}

// A rejection charges nothing anywhere: not the zones before the one that
// rejects, not those after it, not the backend.
func TestRejectionChargesNothing(t *testing.T) {
	for _, order := range [][2]string{{"a", "b"}, {"b", "a"}} {
		g := mustNew(t, Config{
			Zones: []Zone{
				{Name: order[0], Limit: perSecond(1, 1)},
				{Name: order[1], Limit: perSecond(1, 5)},
			},
			Capacity:    perSecond(100, 100),
			Concurrency: 100,
		}, nil)
		g.Admit(0, Request{Keys: []limiter.Key{7, 9}})
		for range 50 {
			if d := g.Admit(0, Request{Keys: []limiter.Key{7, 9}}); d.Reason != Quota || d.Zone != 0 {
				t.Fatalf("order %v: %+v, want the first zone to reject", order, d)
			}
		}
		for i := range 4 {
			if d := g.Admit(0, Request{Keys: []limiter.Key{NoKey, 9}}); !d.Admit {
				t.Errorf("order %v: request %d in the second zone only: %+v; rejections of the first were charged there", order, i, d)
			}
		}
		if n := g.backend.inFlight.InFlight(); n != 5 {
			t.Errorf("order %v: %d in flight, want 5", order, n)
		}
	}
}

// The longest wait is told, with the zone that asks for it.
func TestLongestWaitIsTold(t *testing.T) {
	g := mustNew(t, Config{Zones: []Zone{
		{Name: "z", Limit: perSecond(1, 1)},
		{Name: "m", Limit: limiter.Config{Rate: 1, Per: time.Minute, Burst: 1}},
		{Name: "a", Limit: perSecond(10, 1)},
	}}, nil)
	keys := Request{Keys: []limiter.Key{1, 1, 1}}
	g.Admit(0, keys)
	d := g.Admit(0, keys)
	if d.Zone != 1 || d.Wait != time.Minute || d.Hint != (pushback.Hint{Seconds: 60, Ms: 60_000}) {
		t.Errorf("%+v, want zone 1, told 60 s", d)
	}
	if g.zones[1].name != "m" || g.zones[1].Stats(0).Rejected != 1 {
		t.Error("the rejection was not counted for the zone that rejected")
	}
	// A client over its quota has to wait for the backend as well.
	g = mustNew(t, Config{Zones: []Zone{{Name: "z", Limit: perSecond(1, 1)}}, Capacity: limiter.Config{Rate: 1, Per: 20 * time.Second, Burst: 1}}, nil)
	keys = Request{Keys: []limiter.Key{1}, Client: 1}
	g.Admit(0, keys)
	if d := g.Admit(0, keys); d.Reason != Quota || d.Wait < 20*time.Second {
		t.Errorf("%+v, want told to wait for the backend's token in 20 s", d)
	}
}

// A retry at the time that its client was told needs no room in the retry budget: shield has
// asked for it.
func TestRetryOnTimeIsNoRetry(t *testing.T) {
	g := mustNew(t, Config{Capacity: perSecond(10, 10), Pushback: undithered}, nil)
	now := time.Minute
	for i := range 200 { // the rejected ones come back as retries
		g.Admit(now, one(1+i))
	}
	for i := range 200 {
		c := g.backend.clients.Client(now, uint64(1+i))
		if c.Promises == 0 || c.Deferred {
			continue
		}
		r := one(1 + i)
		r.Retry = true
		if d := g.Admit(c.Due, r); d.Reason == RetryBudget {
			t.Errorf("client %d comes on time: %+v", i, d)
		}
	}
}

// Thousands of goroutines, three limits: every one binds and holds exactly, and what was rejected for one was charged to none, while
// Guards come and go on the same State, and clients are explained and forgiven.
func TestLimitsHoldTogetherUnderContention(t *testing.T) {
	const goroutines, rounds = 2_000, 20
	never := func(burst int) limiter.Config { return limiter.Config{Rate: 1, Per: time.Minute, Burst: burst} }
	for _, c := range []struct {
		name        string
		a, b        int // bursts of two zones: a for one key, b for two keys
		capacity    int
		concurrency int
		binds       Reason
		admitted    int
	}{
		{"quota of the one key", 2_000, 40_000, 40_000, 1_000_000, Quota, 2_000},
		{"quota of the two keys", 40_000, 900, 40_000, 1_000_000, Quota, 1_800},
		{"capacity", 40_000, 40_000, 3_000, 1_000_000, Capacity, 3_000},
		{"concurrency", 40_000, 40_000, 40_000, 7, Concurrency, 0}, // any number, one after the other
	} {
		t.Run(c.name, func(t *testing.T) {
			var s State
			cfg := Config{
				Zones:       []Zone{{Name: "b", Limit: never(c.b)}, {Name: "a", Limit: never(c.a)}},
				Capacity:    never(c.capacity),
				Concurrency: c.concurrency,
				PerClient:   100_000,
				Queue:       noQueue,
			}
			g := mustNew(t, cfg, &s)
			cfg.Zones = []Zone{cfg.Zones[1], cfg.Zones[0]}
			mirrored := []*Guard{mustNew(t, cfg, &s)} // the same zones in the other order: the locks must not cross
			for _, cfg.Retries.MaxClients = range []int{1 << 12, 1 << 15, 1 << 13} {
				mirrored = append(mirrored, mustNew(t, cfg, &s))
			}
			var inside occupancy
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for i := range goroutines {
				wg.Go(func() {
					for range rounds {
						ofA, ofB := limiter.Key(5), limiter.Key(1+i%2)
						if c.binds != Quota { // no request must queue for a zone's lock
							ofA = limiter.Key(i+1) * 0x9e3779b97f4a7c15
							ofB = ofA
						}
						guard, keys := g, []limiter.Key{ofB, ofA}
						if i%3 == 0 {
							guard, keys = mirrored[i%len(mirrored)], []limiter.Key{ofA, ofB}
						}
						d := guard.Admit(time.Second, Request{Keys: keys, Client: ofB, InFlightKey: ofB})
						if !d.Admit {
							d.Sent()
							continue
						}
						leave := inside.enter()
						admitted.Add(1)
						runtime.Gosched() // let others come while this one is inside
						leave()
						d.Done(time.Second, Served)
					}
				})
			}
			wg.Go(func() {
				for i := range 30 {
					reload, other := cfg, Request{Keys: []limiter.Key{3, 3}, Client: 3}
					reload.Retries.MaxClients = 1 << (12 + i%4)
					if _, err := New(reload, &s); err != nil {
						t.Error(err)
					}
					s.Backend.Clients()
					g.Explain(time.Second, other)
					g.Forgive(time.Second, other)
				}
			})
			wg.Wait()
			st, n := g.backend.Stats(0), int(admitted.Load())
			if c.admitted > 0 && n != c.admitted {
				t.Errorf("%d admitted, want %d", n, c.admitted)
			}
			if most := int(inside.most.Load()); c.binds == Concurrency && most != c.concurrency {
				t.Errorf("at most %d in flight, want %d", most, c.concurrency)
			}
			if st.Rejected[c.binds] == 0 || st.InFlight != 0 || st.Clients != 0 || st.Held != 0 || int(st.Admitted) != n ||
				st.Admitted+st.Rejected[Quota]+st.Rejected[Capacity]+st.Rejected[Concurrency] != goroutines*rounds {
				t.Errorf("%+v does not add up to %d requests, %d of them admitted", st, goroutines*rounds, n)
			}
			// Each bucket was charged for the admitted requests, no more and no less.
			for name, zone := range s.Zones {
				if charged := int(zone.Stats(time.Second).Admitted); charged != n {
					t.Errorf("zone %s was charged %d times for %d requests", name, charged, n)
				}
			}
			if charged := c.capacity - s.Backend.capacity.Level(g.capacity, time.Second); charged != n {
				t.Errorf("the capacity was charged %d times for %d requests", charged, n)
			}
		})
	}
}

// A Guard that follows another on its State applies its own limits at once and
// forgives no client.
func TestNewLimitsOnOldState(t *testing.T) {
	var s State
	keys := Request{Keys: []limiter.Key{1}}
	with := func(burst, concurrency int) *Guard {
		return mustNew(t, Config{Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: burst}}}, Concurrency: concurrency}, &s)
	}
	old := with(2, 0)
	old.Admit(time.Second, keys)
	old.Admit(time.Second, keys)
	if d := with(2, 0).Admit(time.Second, keys); d.Reason != Quota {
		t.Errorf("the same limit again: %+v; all clients were forgiven", d)
	}
	raised := with(4, 0)
	for i := range 3 {
		if d := raised.Admit(time.Second, keys); d.Admit != (i < 2) {
			t.Errorf("burst raised from 2 to 4, request %d: %+v", i, d)
		}
	}
	if d := old.Admit(time.Second, keys); d.Reason != Quota {
		t.Errorf("the old guard: %+v; the new limit leaked into it", d)
	}
	busy := with(100, 5)
	for range 5 {
		busy.Admit(2*time.Second, keys)
	}
	if d := with(100, 3).Admit(2*time.Second, keys); d.Reason != Concurrency {
		t.Errorf("concurrency lowered to 3 with 5 in flight: %+v", d)
	}
	// One that was replaced before its first request changes nothing for others.
	replaced := mustNew(t, Config{Retries: Retries{MaxClients: pushback.MinMaxClients}}, &s)
	before := s.Backend.Stats(0).MaxClients
	with(100, 3).Admit(2*time.Second, keys)
	if replaced.Admit(2*time.Second, keys); s.Backend.Stats(0).MaxClients != before {
		t.Errorf("%d clients are remembered at most, %d before", s.Backend.Stats(0).MaxClients, before)
	}
}

// In observe mode no request is rejected or waits, and no pause is made. What would have been
// rejected is counted, and holds no permit. A client that a Guard before has told to come later is
// let in.
func TestObserveRejectsNothing(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   [reasons]uint64
	}{
		{Config{Zones: []Zone{{Name: "z", Limit: perSecond(1, 2)}}, Capacity: perSecond(1, 3), Concurrency: 40}, [reasons]uint64{None: 3, Quota: 8, Capacity: 9}},
		{Config{Adaptive: &loadshed.AdaptiveConfig{Max: 2, Initial: 2}, PerClient: 1, Classes: []loadshed.Class{{Name: "critical"}}}, [reasons]uint64{None: 1, PerClient: 19}},
	} {
		c.config.Observe = true
		g := mustNew(t, c.config, nil)
		const now = 21 * time.Second
		var got [reasons]uint64
		var all []Decision
		for i := range 20 {
			d := g.Admit(now, Request{Keys: []limiter.Key{limiter.Key(1 + i/10)}, InFlightKey: 1, Class: uint8(i % 2)})
			if !d.Admit || d.Queued() || (d.Reason == None) != (d.Wait == 0) {
				t.Fatalf("request %d: %+v", i, d)
			}
			got[d.Reason]++
			all = append(all, d)
		}
		if n := g.backend.inFlight.InFlight(); got != c.want || n != int(got[None]) {
			t.Errorf("by reason %v, %d in flight; want %v, and as many as would be admitted", got, n, c.want)
		}
		for _, d := range all {
			d.Done(now, Served)
		}
		for i := range 2 * loadshed.RefusalsToPause {
			all[0].Pause(now+time.Duration(i)*time.Second, time.Minute)
		}
		s := g.backend.Stats(now)
		if got[None] = 0; s.Rejected != [reasons]uint64{} || s.Observed != got || s.InFlight != 0 || s.Clients != 0 || s.Pauses != 0 {
			t.Errorf("%+v", s)
		}
		for _, z := range g.ZoneStats(now) {
			if z.Observed != got[Quota] || z.Rejected != 0 {
				t.Errorf("%+v", z)
			}
		}
	}
	c := Config{Capacity: perSecond(10, 10)}
	g, s := crowded(t, c, time.Second, 50)
	if d := g.Admit(1700*ms, one(2e6+45)); d.Reason != Early {
		t.Fatalf("%+v, want rejected as early", d)
	}
	c.Observe = true
	if d := mustNew(t, c, s).Admit(1700*ms, one(2e6+45)); !d.Admit {
		t.Errorf("in observe mode: %+v", d)
	}
}

func TestNewNamesEveryFault(t *testing.T) {
	_, err := New(Config{
		Zones: []Zone{
			{Name: "bad name", Limit: perSecond(1, 1)},
			{Name: "costly", Limit: perSecond(1, 3), Cost: 4},
			{Name: "free", Limit: perSecond(1, 3), Cost: -1},
			{Name: "small", Limit: perSecond(1, 1), MaxKeys: 10},
			{Name: "small", Limit: perSecond(0, 1)},
			{Name: strings.Repeat("x", 65), Limit: perSecond(1, 1)},
			{Name: inFlightPolicy, Limit: perSecond(1, 1)},
		},
		PerClient:   1,
		Capacity:    perSecond(-5, 1),
		Concurrency: -1,
		Pushback:    pushback.ResponseConfig{Body: "json"},
	}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`zone "bad name": name is "bad name"; use 1 to 64 letters`,
		`zone "costly": cost is 4; use more than 0 and at most the burst, 3`,
		`zone "free": cost is -1; use more than 0 and at most the burst, 3`,
		`zone "small": max_keys is 10; use 10000 to 67108864`,
		`zone "small": another zone has this name`,
		`zone "in_flight": the name is reserved for the per-client in-flight limit`,
		`zone "small": rate is 0 per 1s; use more than 0`,
		`xxx"; use 1 to 64 letters`,
		`capacity: rate is -5 per 1s`,
		`concurrency is -1; use 1 to 1000000`,
		`body is "json"; use auto, problem, html, text or none`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	zone := Zone{Name: "z", Limit: perSecond(1, 1), Shared: true}
	for want, c := range map[string]Config{
		"concurrency is 3 and adaptive; use only one of them":               {Concurrency: 3, Adaptive: &loadshed.AdaptiveConfig{}},
		"queue is set without a concurrency limit; set concurrency as well": {Queue: loadshed.QueueConfig{Size: 3}},
		"queue is -2; use 1 to 10000":                                       {Concurrency: 3, Queue: loadshed.QueueConfig{Size: -2}},
		"queue timeout is 2m0s; use more than 0, up to 1m0s":                {Concurrency: 3, Queue: loadshed.QueueConfig{Size: 2, Timeout: 2 * time.Minute}},
		"concurrency per client is -1; use 1 to 1000000":                    {PerClient: -1},
		"class is set without a concurrency limit; set concurrency as well": {Classes: []loadshed.Class{{Name: "critical"}}},
		`concurrency: streams is "some"; use auto, free or hold`:            {Concurrency: 1, Streams: "some"},
		"sharing: secret has 0 bytes; use at least 16":                      {Zones: []Zone{zone}},
		"secret has 3 bytes; use at least 16":                               {Secret: []byte("abc")},
	} {
		s := new(State)
		if _, err := New(c, s); err == nil || err.Error() != want || s.Backend != nil || s.Zones != nil {
			t.Errorf("%v, and the State is %+v; want %q, and no change", err, s, want)
		}
	}
	if _, err := New(Config{Shared: true}, nil); err == nil {
		t.Error("a backend is shared without a secret")
	}
	defer func() {
		if recover() == nil {
			t.Error("Must does not panic")
		}
	}()
	Must(New(RatePerClient(-1, 2), nil))
}

// A client that comes before its time is let in where no other waits, with as many
// appointments as one client may have, again and again.
func TestWhoWaitsAloneMayComeEarly(t *testing.T) {
	for _, promises := range []int{1, 2, pushback.GroupThreshold} {
		g := mustNew(t, Config{Concurrency: 1, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Pushback: undithered}, nil)
		holds := g.Admit(time.Minute, one(1))
		for round := range 20 {
			now := time.Minute + time.Duration(round)*5*time.Second
			mine := one(2 + round)
			for range promises {
				if d := g.Admit(now, mine); d.Admit {
					t.Fatalf("round %d: admitted, and there is no room", round)
				}
			}
			now += 500 * ms
			holds.Done(now, Served)
			for range promises {
				d := g.Admit(now, mine)
				if d.Reason == Early {
					t.Errorf("%d appointments, round %d: rejected as early", promises, round)
				}
				if d.Admit {
					d.Done(now, Served)
				}
			}
			now += 2 * time.Second
			if holds = g.Admit(now, mine); !holds.Admit {
				t.Fatalf("round %d: %+v after its time", round, holds)
			}
		}
	}
}

// Preflights are no requests: none of a thousand is rejected though others are, and they change neither quotas nor what was promised
// to their client. A flood of them is requests as any.
func TestPreflights(t *testing.T) {
	now := time.Hour
	s := new(State)
	g := mustNew(t, Config{Capacity: perSecond(10, 20), Zones: []Zone{{Name: "z", Limit: perSecond(10, 10)}}}, s)
	ask := func(client limiter.Key, preflight bool) Decision {
		return g.Admit(now, Request{Client: client, Keys: []limiter.Key{client}, Preflight: preflight})
	}
	admitted := 0
	for range 500 {
		for range 2 {
			if d := ask(7, true); !d.Admit || d.permit.Held() {
				t.Fatalf("a preflight: %+v", d)
			}
		}
		if ask(7, false).Admit {
			admitted++
		}
	}
	if n := s.Backend.Stats(now); admitted != 10 || n.Admitted != 10 {
		t.Errorf("%d requests admitted, and %d counted, want 10", admitted, n.Admitted)
	}
	if n := s.Backend.Stats(now).Preflights; n != 1000 {
		t.Errorf("%d preflights are counted as such, want 1,000", n)
	}
	rest := 0 // of the capacity: further preflights are requests as any
	for client := range limiter.Key(100) {
		if ask(100+client, true).Admit {
			rest++
		}
	}
	if rest != 10 {
		t.Errorf("%d more preflights at once pass, want 10", rest)
	}
	now += time.Second
	passed := 0
	for range 1000 {
		if ask(10, true).Admit {
			passed++
		}
	}
	if passed < 10 || passed > 20 { // beside those that are requests as any
		t.Errorf("after a second %d more pass, want as many as the capacity", passed)
	}
	now += time.Minute
	if err := g.Block(now, 11, now+time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := ask(11, true); d.Reason != Blocked {
		t.Errorf("a preflight of a blocked client: %+v", d)
	}
}

// A client whose page asks first, before its time, is admitted at its time, and before others who come then.
func TestPreflightBeforeAnAppointment(t *testing.T) {
	now := time.Hour
	g := mustNew(t, Config{Capacity: perSecond(10, 10)}, nil)
	var due time.Duration
	for client := limiter.Key(1); client <= 100; client++ {
		if d := g.Admit(now, Request{Client: client, Precise: true}); client == 50 {
			due = now + time.Duration(d.Hint.Ms)*time.Millisecond
		}
	}
	if d := g.Admit(due-300*time.Millisecond, Request{Client: 50, Precise: true, Preflight: true}); !d.Admit {
		t.Errorf("the preflight: %+v", d)
	}
	for g.Admit(due-time.Millisecond, Request{}).Admit { // others take all tokens that there are
	}
	if d := g.Admit(due, Request{Client: 50, Precise: true}); !d.Admit && !d.Queued() || d.Reason == Early {
		t.Errorf("at its time: %+v", d)
	}
}
