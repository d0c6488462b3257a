package shield

import (
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// one returns the request of client i for one thing.
func one(i int) Request { return Request{Client: limiter.Key(i)} }

// crowded returns a Guard without tokens at now, and n clients that wait.
func crowded(tb testing.TB, c Config, now time.Duration, n int) (*Guard, *State) {
	tb.Helper()
	s := new(State)
	g := mustNew(tb, c, s)
	crowd(tb, g, now, n)
	return g, s
}

// crowd takes all tokens, and has n clients wait.
func crowd(tb testing.TB, g *Guard, now time.Duration, n int) {
	tb.Helper()
	for i := 0; g.Admit(now, one(1e6+i)).Admit; i++ {
	}
	for i := range n {
		if g.Admit(now, one(2e6+i)).Admit {
			tb.Fatalf("%d of %d was admitted", i, n)
		}
	}
}

// Whether appointments are kept is learned from those of which it can be known: not of clients
// without a name, nor of quotas. A request that is rejected for a quota does not come to the
// backend, and takes nothing of what it can spare.
func TestOnlyWatchedPromisesCount(t *testing.T) {
	quota := func(rate float64) Config {
		return Config{Capacity: perSecond(100, 100), Zones: []Zone{{Name: "z", Limit: perSecond(rate, 1)}}}
	}
	for _, c := range []struct {
		config  Config
		clients int // 0: without a name
		spare   float64
	}{{Config{Capacity: perSecond(100, 10)}, 0, 0}, {quota(.2), 400, 0}, {quota(1), 1, 95}} {
		g := mustNew(t, c.config, nil)
		for i := range 60_000 {
			var r Request
			if c.clients > 0 {
				r = one(1 + i%c.clients)
				r.Keys = []limiter.Key{r.Client}
			}
			d := g.Admit(time.Second+time.Duration(i)*ms, r)
			d.Sent()
		}
		if st := g.backend.Stats(time.Minute); st.KeptShare != 1 || st.Promises.NoShow != 0 || g.Spare() < c.spare {
			t.Errorf("%+v: share %v, %v/s to spare, %+v; want nothing learned", c, st.KeptShare, g.Spare(), st.Promises)
		}
	}
}

// Parallel requests of one client, and a client whose answer is still held back,
// get appointments of their own; one that repeats itself does not.
func TestParallelRequests(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(10, 10)}, time.Second, 0)
	first := g.Admit(time.Second, one(1))
	second := g.Admit(time.Second+first.Hold/2, one(1))
	if first.Hold < 10*ms || second.Admit || second.Reason != Capacity || time.Second+first.Hold/2+second.Wait <= time.Second+first.Wait {
		t.Errorf("while the response is held for %v: %+v", first.Hold, second)
	}
	other := g.Admit(time.Second, Request{Client: 1})
	if other.Reason != Capacity || other.Wait <= second.Wait-first.Hold {
		t.Errorf("another request: %+v", other)
	}

	g, _ = crowded(t, Config{Capacity: perSecond(10, 10)}, time.Second, 50)
	first = g.Admit(time.Second, one(1))
	for i := range 7 {
		now := time.Second + first.Hold + time.Duration(i+1)*100*ms
		if d := g.Admit(now, one(1)); d.Reason != Early || (now+d.Wait-time.Second-first.Wait).Abs() > 5*ms || d.Hold != 0 {
			t.Fatalf("repetition %d: %+v, want the appointment of %v", i, d, first.Wait)
		}
	}
	if d := g.Admit(time.Second+first.Wait, one(1)); !d.Admit {
		t.Errorf("on time: %+v", d)
	}
	if st := g.backend.Stats(10 * time.Second); st.Broken != 0 || st.Promises.Kept != 1 || st.Rejected[Early] != 7 {
		t.Errorf("%+v", st)
	}
}

// Where one token takes longer than all who wait, a client is told when it is earned.
func TestTokensAreSlowerThanTheLine(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: limiter.Config{Rate: 1, Per: 10 * time.Second, Burst: 1}}, time.Second, 0)
	first := g.backend.clients.Ahead(time.Second)
	if d := g.Admit(time.Second, one(1)); first < 10*time.Second || first > 10250*ms || d.Wait < 20*time.Second || d.Wait > 20500*ms {
		t.Errorf("a token is earned in 10 s: one waits for %v, and then %+v", first, d)
	}
}

// Clients that were delayed together come together, after their time. Each of them goes on when its token is earned, and none
// needs another appointment, unless that takes too long. One that hangs up meanwhile leaves its token to the next; in observe
// mode, and for a client that has given up before, nobody waits.
func TestRushOfTheDue(t *testing.T) {
	const clients = 30
	c := Config{Capacity: perSecond(100, 10)}
	g, s := crowded(t, c, time.Second, 0)
	var late time.Duration
	for i := range clients {
		d := g.Admit(time.Second, one(1+i))
		late = max(late, time.Second+d.Hold+time.Duration(d.Hint.Seconds)*time.Second)
		d.Sent()
	}
	crowd(t, g, late-111*ms, 0) // its last one is due, and takes a token of the next
	observed := c
	observed.Observe = true
	var at []time.Duration
	for i := range clients {
		r, given := one(1+i), g
		switch i {
		case 12:
			r.Deadline = late + 20*ms
		case 20:
			given = mustNew(t, observed, s)
		}
		d := given.Admit(late, r)
		if i == 15 && d.Queued() {
			if g.Abandon(late+ms, &d); !d.Gone || d.Queued() {
				t.Errorf("it has hung up: %+v", d)
			}
			continue
		}
		now := max(late, d.Until())
		if d.Queued() {
			g.Settle(now, r, &d, 0)
		}
		switch waits := now > late; {
		case i == 12 && (d.Admit || waits), i == 20 && (!d.Admit || waits), d.Admit == (i == 12 || i > 27):
			t.Errorf("client %d, %v later: %+v", i, now-late, d)
		case d.Reason == None:
			at = append(at, now)
		}
	}
	if n := len(at); at[9] != late || at[n-1]-late > tokenWait || excess(at, 100) > 10+1e-3 {
		t.Errorf("%d of %d go on, after %v; want 10 at once, and then one each 10 ms for %v", n, clients, at, tokenWait)
	}
}

// What a client that waits for its token takes of its quota, be it all, is charged once, and comes back if it hangs up.
func TestTokenWaitIsChargedOnce(t *testing.T) {
	for left, end := range map[int]func(g *Guard, r Request, d *Decision){
		0: func(g *Guard, r Request, d *Decision) { g.Settle(d.Until(), r, d, 0) },
		5: func(g *Guard, _ Request, d *Decision) { g.Abandon(d.At(), d) },
	} {
		z := tokensZone(t, Zone{Cost: 5})
		z.Limit = perSecond(.01, 5)
		g, _ := crowded(t, Config{Capacity: perSecond(100, 10), Zones: []Zone{z}}, time.Second, 0)
		r := Request{Client: 1, Keys: []limiter.Key{1}}
		d := g.Admit(time.Second, r)
		at := time.Second + d.Hold + time.Duration(d.Hint.Seconds)*time.Second
		d.Sent()
		crowd(t, g, at, 0)
		if d = g.Admit(at, r); !d.Queued() || g.Explain(at, r).Zones[0].Tokens != 0 {
			t.Fatalf("at its time, without a token: %+v", d)
		}
		if end(g, r, &d); d.Admit != (left == 0) {
			t.Errorf("in the end: %+v", d)
		}
		if n := g.Explain(at+time.Second, r).Zones[0].Tokens; n != left {
			t.Errorf("%d of 5 are left of its quota, want %d", n, left)
		}
	}
}

// A client of the highest class that always hangs up while it waits for its token, or is over its quota by then, takes no more
// than that quota from the others. Its permit and its token are given back.
func TestHangingUpTakesOnlyTheOwnQuota(t *testing.T) {
	for _, hangsUp := range []bool{true, false} {
		g := mustNew(t, Config{
			Capacity: perSecond(100, 10), Concurrency: 1000, Zones: []Zone{{Name: "z", Limit: perSecond(10, 10)}},
			Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}},
		}, nil)
		others := 0
		type waiting struct {
			r Request
			d Decision
		}
		var queue []waiting
		for now := time.Minute; now < time.Minute+20*time.Second; now += ms {
			if n := int(now / ms); n%5 == 0 { // 200/s
				key := limiter.Key(n)
				if d := g.Admit(now, Request{Client: key, Keys: []limiter.Key{key}, Class: 2}); d.Admit {
					others++
					d.Done(now, Served)
				}
			}
			r := Request{Client: 1, Keys: []limiter.Key{1}, Class: 1} // 1,000/s
			switch d := g.Admit(now, r); {
			case d.Queued() && hangsUp:
				g.Abandon(now, &d)
			case d.Queued():
				queue = append(queue, waiting{r, d})
			case d.Admit:
				d.Done(now, Served)
			}
			queue = slices.DeleteFunc(queue, func(w waiting) bool {
				if over := now >= w.d.Until(); !over {
					return false
				}
				if g.Settle(now, w.r, &w.d, 0); w.d.Admit {
					w.d.Done(now, Served)
				}
				return true
			})
		}
		if is := g.backend.Stats(time.Hour); others < 1780 || is.InFlight != 0 {
			t.Errorf("hangs up %v: of 100/s the others get %d in 20 s, %d in flight; want 90/s", hangsUp, others, is.InFlight)
		}
	}
}

// Clients that read milliseconds are not held back, and are told the truth. No client is kept
// from its response until it has given up.
func TestWhoIsNotHeld(t *testing.T) {
	const now = time.Second
	g, _ := crowded(t, Config{Capacity: perSecond(100, 10)}, now, 400)
	held := 0
	for i := range 200 {
		r := one(1 + i)
		if r.Precise = i%2 == 0; !r.Precise {
			r.Deadline = now + 500*ms
		}
		d := g.Admit(now, r)
		exact := int((d.Wait + ms - 1) / ms)
		switch {
		case r.Precise && (d.Hold != 0 || d.Hint.Ms != exact || d.Hint.Seconds != (exact+999)/1000):
			t.Errorf("%+v, want %d ms", d, exact)
		case !r.Precise && now+d.Hold >= r.Deadline:
			t.Errorf("held for %v, and it has 500ms", d.Hold)
		case d.Hold > 0:
			held++
		}
	}
	if held == 0 {
		t.Error("none was held at all")
	}
	// A client that repeats itself is not worth holding a connection for.
	if d := g.Admit(now+200*ms, one(199)); d.Reason != Early || d.Hold != 0 {
		t.Errorf("a hammering client is held: %+v", d)
	}
}

func TestHeldRejectionsAreBounded(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(1000, 10)}, time.Second, 0)
	held := 0
	var last Decision
	for i := range 3 * pushback.MaxHeld / 2 {
		d := g.Admit(time.Second, one(1+i))
		if d.Hold > 0 {
			held++
			last = d
		} else if w := time.Duration(d.Hint.Seconds) * time.Second; w < d.Wait || w >= d.Wait+time.Second {
			t.Errorf("not held: %+v", d)
		}
	}
	if held != pushback.MaxHeld || g.backend.Stats(0).Held != pushback.MaxHeld {
		t.Errorf("%d are held, want %d", held, pushback.MaxHeld)
	}
	last.Sent()
	if d := g.Admit(time.Second, one(1e6)); d.Hold == 0 && d.Wait%time.Second >= ms {
		t.Errorf("one was sent, the next is not held: %+v", d)
	}
}

// A hopeless wait is told as such, and nothing is kept of it.
func TestGiveUp(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(10, 10), Pushback: pushback.ResponseConfig{GiveUp: time.Minute}}, time.Second, 0)
	never, n := 0, 0
	for i := range 2_000 {
		d := g.Admit(time.Second, one(1+i))
		if d.Hint.Never {
			never++
			if d.Hold != 0 || d.Wait < time.Minute {
				t.Errorf("%+v", d)
			}
		} else if n++; never > 0 {
			t.Fatalf("request %d is told %+v after %d that were told never", i, d, never)
		}
	}
	if want := 9.8 * 59; float64(n) < want*0.95 || float64(n) > want*1.05 {
		t.Errorf("%d are told a time, want as many as fit into a minute: %.0f", n, want)
	}
	if deferred := g.backend.Stats(time.Second).Deferred; deferred > 310 {
		t.Errorf("%d wait in the queue; clients that were told never do not", deferred)
	}

	// Nor of those behind one address.
	g, told := mustNew(t, Config{Capacity: perSecond(1, 1), Pushback: pushback.ResponseConfig{GiveUp: time.Minute}}, nil), 0
	for range 400 {
		if d := g.Admit(time.Second, one(1)); !d.Admit && !d.Hint.Never {
			told++
		}
	}
	if e := g.Explain(time.Second, one(1)); e.Client.Promises != told {
		t.Errorf("%d behind one address are told a time, and %d appointments kept", told, e.Client.Promises)
	}

	// They have no numbers in the tail, and so none of others move up when they are told never.
	g, told = mustNew(t, Config{Capacity: perSecond(10, 10), Pushback: pushback.ResponseConfig{Max: 30 * time.Second, GiveUp: time.Minute}}, nil), 0
	for i := range 900 {
		g.Admit(time.Second, one(max(1, i-400)))
	}
	before := g.backend.Stats(time.Second).Deferred
	for range 2000 {
		if d := g.Admit(time.Second, one(1)); d.Hint.Never {
			told++
		}
	}
	if after := g.backend.Stats(time.Second).Deferred; after < before || before < 200 || told < 1000 {
		t.Errorf("%d of one address are told never, and of %d clients with numbers %d are left", told, before, after)
	}
}

// Rejected requests of one client, for a quota, come back in their order, each
// when it has earned its tokens, or a little later in a line that is almost empty.
func TestQuotaAppointmentsAreInOrder(t *testing.T) {
	for _, capacity := range []limiter.Config{{}, perSecond(100, 100)} {
		g := mustNew(t, Config{Capacity: capacity, Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: 2 * time.Second, Burst: 4}, Cost: 2}}}, nil)
		ask := func(now time.Duration) Decision { return g.Admit(now, Request{Keys: []limiter.Key{7}, Client: 7}) }
		for round := range 3 { // each as if nothing had been before
			begin := time.Duration(1+100*round) * time.Second
			ask(begin)
			ask(begin)
			var at []time.Duration
			for i := range 5 {
				d := ask(begin)
				at = append(at, begin+d.Wait)
				want := begin + time.Duration(i+1)*4*time.Second
				if d.Reason != Quota || at[i] < want || at[i] > want+300*ms {
					t.Fatalf("round %d, rejection %d: %+v, want about %v", round, i, d, want)
				}
			}
			if d := ask(begin + 1500*ms); d.Reason != Quota {
				t.Errorf("%+v", d)
			}
			for i, now := range at {
				if d := ask(now); !d.Admit {
					t.Errorf("round %d, return %d at %v: %+v", round, i, now, d)
				}
			}
		}
	}
}

// A quota that renews once per hour is told so. A client that repeats itself hears the same time again, and one that obeys comes back once.
func TestQuotaOfAnHourIsToldTheTruth(t *testing.T) {
	for most, want := range map[time.Duration]int{0: 1, 10 * time.Minute: 6} {
		g := mustNew(t, Config{
			Zones:    []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: 1}}},
			Pushback: pushback.ResponseConfig{QuotaMax: most},
		}, nil)
		r := Request{Keys: []limiter.Key{1}, Client: 1}
		now, returns := time.Minute, 0
		ask := func() Decision { return g.Admit(now, r) }
		ask()
		d := ask()
		for range 7 {
			due := now + d.Wait
			now += time.Second
			if d = ask(); d.Reason != Quota || (now+d.Wait-due).Abs() > 5*ms {
				t.Errorf("quota_max %v: %+v, want told %v again", most, d, due)
			}
		}
		for ; !d.Admit; d = ask() {
			now += d.Hold + time.Duration(d.Hint.Seconds)*time.Second
			returns++
		}
		if returns != want || now != time.Minute+time.Hour {
			t.Errorf("quota_max %v: %d returns, served after %v; want %d, and an hour", most, returns, now-time.Minute, want)
		}
	}
}
