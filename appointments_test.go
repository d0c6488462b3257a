package shield

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// one returns the request of client i for one thing.
func one(i int) Request { return Request{Client: limiter.Key(i)} }

// crowded returns a Guard without tokens at now, and n clients that wait.
func crowded(tb testing.TB, c Config, now time.Duration, n int) (*Guard, *State) {
	tb.Helper()
	s := new(State)
	g := mustNew(tb, c, s)
	for i := range 1_000_000 {
		if d := g.Admit(now, one(1e6+i)); !d.Admit {
			break
		}
	}
	for i := range n {
		if d := g.Admit(now, one(2e6+i)); d.Admit {
			tb.Fatalf("%d of %d was admitted", i, n)
		}
	}
	return g, s
}

// Whether promises are kept is learned from those of which it can be known.
func TestOnlyWatchedPromisesCount(t *testing.T) {
	for name, c := range map[string]struct {
		cfg Config
		ask func(i int) Request
	}{
		"clients without a name": {Config{Capacity: perSecond(100, 10)}, func(i int) Request { return Request{} }},
		"quotas": {
			Config{Capacity: perSecond(100, 100), Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: 5 * time.Second, Burst: 1}}}},
			func(i int) Request {
				k := limiter.Key(1 + i%400)
				return Request{Keys: []limiter.Key{k}, Client: k}
			},
		},
	} {
		g := mustNew(t, c.cfg, nil)
		for i := range 20_000 {
			if d := g.Admit(time.Second+time.Duration(i)*2*ms, c.ask(i)); d.Hold > 0 {
				d.Sent()
			}
		}
		st := g.backend.Stats(42 * time.Second)
		if st.KeptShare != 1 || st.Promises.NoShow != 0 {
			t.Errorf("%s: share %v, %+v; want nothing learned", name, st.KeptShare, st.Promises)
		}
	}
}

// A request that is refused for a quota does not come to the backend, and takes nothing of
// what it can spare.
func TestQuotaFloodIsNoLoad(t *testing.T) {
	g := mustNew(t, Config{Capacity: perSecond(100, 100), Zones: []Zone{{Name: "z", Limit: perSecond(1, 1)}}}, nil)
	for i := range 60_000 {
		g.Admit(time.Second+time.Duration(i)*ms, Request{Keys: []limiter.Key{1}, Client: 1})
	}
	if s := g.Spare(); s < 95 {
		t.Errorf("a thousand refusals per second for a quota leave %v/s to spare, want 97", s)
	}
}

// Parallel requests of one client, and a client whose answer is still held back,
// get appointments of their own; one that repeats itself does not.
func TestParallelRequests(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(10, 10)}, time.Second, 0)
	first := g.Admit(time.Second, one(1))
	second := g.Admit(time.Second+first.Hold/2, one(1))
	if first.Hold < 10*ms || second.Admit || second.Reason != Capacity || time.Second+first.Hold/2+second.Wait <= time.Second+first.Wait {
		t.Errorf("while the answer is held for %v: %+v", first.Hold, second)
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
			t.Fatalf("repetition %d: %+v, want the promise of %v", i, d, first.Wait)
		}
	}
	if d := g.Admit(time.Second+first.Wait, one(1)); !d.Admit {
		t.Errorf("on time: %+v", d)
	}
	if st := g.backend.Stats(10 * time.Second); st.Broken != 0 || st.Promises.Kept != 1 || st.Refused[Early] != 7 {
		t.Errorf("%+v", st)
	}
}

// Strangers leave some tokens to others. That is no reason for a later time than
// that of the next free slot.
func TestReserveDoesNotPostpone(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(10, 1000)}, time.Second, 20)
	last := time.Duration(0)
	for i := range 10 {
		now := time.Second + time.Duration(1+i)*77*ms
		d := g.Admit(now, one(1+i))
		if d.Admit || d.Wait > 5*time.Second || now+d.Wait < last {
			t.Errorf("%v later: %+v, want the slot behind 20 others and after %v", now-time.Second, d, last)
		}
		last = now + d.Wait
	}
	// But where one token takes longer than all who wait, it is.
	g, _ = crowded(t, Config{Capacity: limiter.Config{Rate: 1, Per: 10 * time.Second, Burst: 1}}, time.Second, 0)
	first := g.backend.clients.Ahead(time.Second)
	if d := g.Admit(time.Second, one(1)); first < 10*time.Second || first > 10250*ms || d.Wait < 20*time.Second || d.Wait > 20500*ms {
		t.Errorf("a token is earned in 10 s: one waits for %v, and then %+v", first, d)
	}
}

// Clients that read milliseconds are not held back, and are told the truth.
func TestPreciseClients(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(100, 10)}, time.Second, 400)
	for i := range 100 {
		r := one(1 + i)
		r.Precise = true
		d := g.Admit(time.Second, r)
		exact := int((d.Wait + ms - 1) / ms)
		if d.Admit || d.Hold != 0 || d.Hint.Ms != exact || d.Hint.Seconds != (exact+999)/1000 {
			t.Errorf("%+v, want %d ms", d, exact)
		}
	}
	// A client that repeats itself is not worth holding a connection for.
	if d := g.Admit(time.Second+200*ms, one(100)); d.Reason != Early || d.Hold != 0 {
		t.Errorf("a hammering client is held: %+v", d)
	}
}

func TestHeldRefusalsAreBounded(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(1000, 10)}, time.Second, 0)
	held, told := 0, 0
	var last Decision
	for i := range 3 * pushback.MaxHeld / 2 {
		d := g.Admit(time.Second, one(1+i))
		told++
		if d.Hold > 0 {
			held++
			last = d
		} else if w := time.Duration(d.Hint.Seconds) * time.Second; w < d.Wait || w >= d.Wait+time.Second {
			t.Errorf("not held: %+v", d)
		}
	}
	if held != pushback.MaxHeld || g.backend.Stats(0).Held != pushback.MaxHeld {
		t.Errorf("%d of %d are held, want %d", held, told, pushback.MaxHeld)
	}
	last.Sent()
	if d := g.Admit(time.Second, one(1e6)); d.Hold == 0 && d.Wait%time.Second >= ms {
		t.Errorf("one was sent, the next is not held: %+v", d)
	}
}

// A hopeless wait is told as such, and nothing is kept of it.
func TestGiveUp(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(10, 10), Pushback: pushback.AnswerConfig{GiveUp: time.Minute}}, time.Second, 0)
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
}

// Refused requests of one client, for a quota, come back in their order, each
// when it has earned its tokens.
func TestQuotaAppointmentsAreInOrder(t *testing.T) {
	for _, capacity := range []limiter.Config{{}, perSecond(100, 100)} {
		g := mustNew(t, Config{Capacity: capacity, Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: 2 * time.Second, Burst: 4}, Cost: 2}}}, nil)
		ask := func(now time.Duration, kind int) Decision {
			d := g.Admit(now, Request{Keys: []limiter.Key{7}, Client: 7})
			if d.Hold > 0 {
				d.Sent()
			}
			return d
		}
		for round := range 3 { // each as if nothing had been before
			begin := time.Duration(1+100*round) * time.Second
			ask(begin, 1)
			ask(begin, 2)
			var at []time.Duration
			for i := range 5 {
				d := ask(begin, 10+i)
				at = append(at, begin+d.Wait)
				want := begin + time.Duration(i+1)*4*time.Second
				if d.Reason != Quota || at[i] < want || at[i] > want+slack {
					t.Fatalf("round %d, refusal %d: %+v, want about %v", round, i, d, want)
				}
			}
			if d := ask(begin+time.Second+500*ms, 10); d.Reason != Quota {
				t.Errorf("%+v", d)
			}
			for i, now := range at {
				if d := ask(now, 10+i); !d.Admit {
					t.Errorf("round %d, return %d at %v: %+v", round, i, now, d)
				}
			}
		}
	}
}

// slack is how much later than the tokens a quota's slot may be in the line
// that is almost empty.
const slack = 300 * ms

// costly are the ways of an unwelcome request, and of a welcome one among them.
var costly = []struct {
	name string
	make func(tb testing.TB) func(n int) Reason
	want Reason
}{
	{"early", func(tb testing.TB) func(int) Reason {
		g, _ := crowded(tb, Config{Capacity: perSecond(100, 10)}, time.Second, 1_000)
		r := one(2e6 + 900)
		return func(int) Reason { return g.Admit(2*time.Second-700*ms, r).Reason }
	}, Early},
	{"promise/moving", func(tb testing.TB) func(int) Reason { // 250,000 refusals per second, half of what the backend does
		g := mustNew(tb, Config{Concurrency: 1}, nil)
		d := g.Admit(0, one(1))
		d.Done(2*time.Microsecond, Served)
		g.Admit(time.Second, one(1))
		return func(n int) Reason {
			d := g.Admit(time.Second+time.Duration(n)*4*time.Microsecond, one(100+n))
			if d.Hold > 0 {
				d.Sent()
			}
			return d.Reason
		}
	}, Concurrency},
	{"promise/deferred", func(tb testing.TB) func(int) Reason {
		g, _ := crowded(tb, Config{Capacity: perSecond(100, 10)}, time.Second, 5_000)
		return func(n int) Reason {
			d := g.Admit(time.Second, one(1e8+n))
			if d.Hold > 0 {
				d.Sent()
			}
			return d.Reason
		}
	}, Capacity},
	{"promise/quota", func(tb testing.TB) func(int) Reason { // no client is asked for twice while its promise counts
		const clients = 1 << 20
		g := mustNew(tb, Config{Capacity: perSecond(1e6, 1e6), Zones: []Zone{{Name: "z", MaxKeys: 2 * clients, Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: 100}, Cost: 100}}}, nil)
		keys := make([]limiter.Key, 1)
		ask := func(now time.Duration, n int) Reason {
			keys[0] = limiter.Key(1+n%clients) * 0x9e3779b97f4a7c15
			d := g.Admit(now, Request{Keys: keys, Client: keys[0]})
			if d.Hold > 0 {
				d.Sent()
			}
			return d.Reason
		}
		for n := range clients {
			ask(time.Duration(n)*2*time.Microsecond, n)
		}
		return func(n int) Reason { return ask(10*time.Second+time.Duration(n)*100*time.Microsecond, n) }
	}, Quota},
	{"promise/own quota", func(tb testing.TB) func(int) Reason { // a slot in the line, from the time that the client has earned
		const clients = 1 << 16
		g := mustNew(tb, Config{Capacity: perSecond(1e6, 1e6), Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: 20 * time.Second, Burst: 1}}}}, nil)
		keys := make([]limiter.Key, 1)
		return func(n int) Reason { // each key twice, ten microseconds apart, and again long after
			k := n / 2
			keys[0] = limiter.Key(1+k%clients) * 0x9e3779b97f4a7c15
			now := time.Second + time.Duration(k/clients)*200*time.Second + time.Duration(k%clients)*10*time.Microsecond
			d := g.Admit(now, Request{Keys: keys, Client: keys[0]})
			if d.Hold > 0 {
				d.Sent()
			}
			if n%2 == 0 {
				return Quota - Reason(d.Reason) // the admitted half
			}
			return d.Reason
		}
	}, Quota},
	{"admit/quiet", func(tb testing.TB) func(int) Reason {
		g := mustNew(tb, Config{Capacity: perSecond(1e9, 1e9), Concurrency: 1000}, nil)
		return admitted(g)
	}, None},
	{"admit/backlog", func(tb testing.TB) func(int) Reason {
		g := mustNew(tb, Config{Capacity: perSecond(1e9, 1e9), Concurrency: 1000}, nil)
		for i := range 1_000 {
			r := one(2e6 + i)
			c, told := r.caller(), pushback.Told{}
			g.backend.clients.Refuse(time.Second, &c, &pushback.Visit{}, &g.terms, pushback.Supply{Rate: 100, Token: 10 * time.Second}, &told)
		}
		return admitted(g)
	}, None},
}

func admitted(g *Guard) func(n int) Reason {
	return func(n int) Reason {
		d := g.Admit(time.Second+time.Duration(n), one(5e6+n%1000))
		if d.Admit {
			d.Done(time.Second+time.Duration(n), Served)
		}
		return d.Reason
	}
}

func TestAppointmentsDoNotAllocate(t *testing.T) {
	for _, c := range costly {
		if c.name == "promise/quota" && testing.Short() {
			continue
		}
		run, n := c.make(t), 0
		if allocs := testing.AllocsPerRun(2_000, func() {
			if got := run(n); got != c.want {
				t.Fatalf("%s: request %d is refused for %v, want %v", c.name, n, got, c.want)
			}
			n++
		}); allocs != 0 {
			t.Errorf("%s allocates %v times, want 0", c.name, allocs)
		}
	}
}

func BenchmarkAppoint(b *testing.B) {
	for _, c := range costly {
		b.Run(c.name, func(b *testing.B) {
			run, n := c.make(b), 0
			b.ReportAllocs()
			for b.Loop() {
				if got := run(n); got != c.want {
					b.Fatalf("request %d: %v, want %v", n, got, c.want)
				}
				n++
			}
		})
	}
	for _, c := range costly {
		if c.name == "promise/quota" || c.name == "promise/own quota" {
			continue // one buffer for its keys
		}
		b.Run("parallel/"+c.name, func(b *testing.B) {
			run := c.make(b)
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				n, end := 0, 0
				for pb.Next() {
					if n == end {
						end = int(next.Add(64))
						n = end - 64
					}
					run(n)
					n++
				}
			})
		})
	}
}

// A client that is on time, but finds no token, is told when there is one, not to
// come again at once: the line's next slots may be free while the bucket is
// empty.
func TestExcusedClientIsToldWhenThereIsAToken(t *testing.T) {
	c := Config{
		Capacity: limiter.Config{Rate: 1, Per: 3 * time.Second, Burst: 10},
		Retries:  Retries{Tickets: true, Secret: []byte("a secret of the replicas")},
	}
	one, two := mustNew(t, c, nil), mustNew(t, c, nil)
	now := time.Hour
	for range 10 {
		one.Admit(now, Request{Client: 1})
	}
	r := Request{Client: 2, Precise: true, ClientID: []byte("k")}
	d := one.Admit(now, r)
	due := now + d.Wait
	for range 10 { // the other replica has just been emptied
		two.Admit(due, Request{Client: 1})
	}
	r.Ticket = d.Ticket
	if d = two.Admit(due, r); d.Admit || d.Wait < 3*time.Second {
		t.Errorf("%v, told to wait %v; the next token comes in 3 s", d.Reason, d.Wait)
	}
}

// back returns when a refused client returns that does what it is told.
func back(now time.Duration, d Decision) time.Duration {
	if d.Hold > 0 {
		d.Sent()
	}
	return now + d.Hold + time.Duration(d.Hint.Seconds)*time.Second
}

// One who asks for nine things, over and over, has a few promises, and is not taken
// for one that waits alone when the others wait in the queue.
func TestAskingForMuchGainsNothing(t *testing.T) {
	for i := range 16 {
		burst, every := 2+i/4, 250*ms<<(i%4) // of a bucket of one nothing can be left to others
		g := mustNew(t, Config{Capacity: limiter.Config{Rate: 1, Per: every, Burst: burst}}, nil)
		next := make([]time.Duration, int(200*time.Second/every)+1) // when each honest client comes
		for i := range next {
			next[i] = time.Second + time.Duration(i)*ms
		}
		polls, cheat, honest := 0, 0, 0
		for now := time.Second; now < 200*time.Second; now += 10 * ms {
			if now%(50*ms) == 0 && now > 2*time.Second {
				if d := g.Admit(now, Request{Client: 99999}); d.Admit {
					cheat++
				} else {
					back(now, d)
				}
				polls++
			}
			for i, at := range next {
				if at > now {
					continue
				}
				if d := g.Admit(now, one(1+i)); d.Admit {
					honest++
					next[i] = time.Hour
				} else {
					next[i] = back(now, d)
				}
			}
		}
		if 2*cheat > honest {
			t.Errorf("burst %d, 1 per %v: %d for the one who asks for all, %d for all others", burst, every, cheat, honest)
		}
	}
}

// A refusal of a client that comes too early counts in its class, as all others do.
func TestEarlyRefusalsCountInTheirClass(t *testing.T) {
	g, _ := crowded(t, Config{Capacity: perSecond(100, 10)}, time.Second, 1_000)
	early := 0
	for i := range 50 {
		if d := g.Admit(1700*ms, one(2e6+900+i)); d.Reason == Early {
			early++
		}
	}
	counted := g.backend.decisions()
	if n := sum(counted.Refused); early == 0 || counted.Refused[Early] != uint64(early) || g.ClassStats()[0].Refused != n {
		t.Errorf("%d refused in the only class, %d in all, %d of them early", g.ClassStats()[0].Refused, n, early)
	}
}

// A quota that renews once per hour is told so, and a client that obeys comes back once.
func TestQuotaOfAnHourIsToldTheTruth(t *testing.T) {
	c := Config{Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: 1}}}}
	for _, most := range []time.Duration{0, 10 * time.Minute} {
		c.Pushback.QuotaMax = most
		g := mustNew(t, c, nil)
		now, returns := time.Minute, 0
		ask := func() Decision { return g.Admit(now, Request{Keys: []limiter.Key{1}, Client: 1}) }
		ask()
		for d := ask(); !d.Admit; d = ask() {
			now = back(now, d)
			returns++
		}
		t.Logf("quota_max %v: served after %v and %d returns", most, now-time.Minute, returns)
		if want := map[time.Duration]int{0: 1, 10 * time.Minute: 6}[most]; returns != want || now != time.Minute+time.Hour {
			t.Errorf("quota_max %v: %d returns, served after %v; want %d, and an hour", most, returns, now-time.Minute, want)
		}
	}
}
