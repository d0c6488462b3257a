package loadshed

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const ms = time.Millisecond

// places returns a function for Wake that has n places.
func places(n int) func(Rank) bool {
	return func(Rank) bool {
		n--
		return n >= 0
	}
}

// mustJoin joins a queue of 100 that has a timeout of a second.
func mustJoin(t *testing.T, q *Queue, now time.Duration, rank Rank) *Waiter {
	t.Helper()
	w := q.Join(now, 0, rank, 100, time.Second, 0)
	if w == nil {
		t.Fatalf("refused at %v in rank %d, with %d waiting", now, rank, q.Len())
	}
	return w
}

// told returns the verdict that a Waiter can read by now.
func told(w *Waiter) Verdict {
	select {
	case v := <-w.C:
		return v
	default:
		return waiting
	}
}

// wantGrants frees one place after another: they go to want, in that order.
func wantGrants(t *testing.T, q *Queue, now time.Duration, want ...*Waiter) {
	t.Helper()
	for i, w := range want {
		if n := q.Wake(now, places(1)); n != 1 {
			t.Fatalf("place %d at %v: %d let in, want 1", i, now, n)
		}
		if v := told(w); v != Granted {
			t.Fatalf("place %d at %v: it was %v, want granted", i, now, v)
		}
	}
}

func wantTold(t *testing.T, w *Waiter, want Verdict) {
	t.Helper()
	if v := told(w); v != want {
		t.Fatalf("it was told %v, want %v", v, want)
	}
}

func TestOldestFirstWhileTheQueueEmpties(t *testing.T) {
	var q Queue
	for burst := range 5 {
		// Every burst lasts for 100 ms. There is never more than an instant between
		// them, and that is enough.
		now := time.Duration(burst) * 100 * ms
		a := mustJoin(t, &q, now, 0)
		b := mustJoin(t, &q, now+50*ms, 0)
		c := mustJoin(t, &q, now+100*ms, 0)
		wantGrants(t, &q, now+100*ms, a, b, c)
	}
}

func TestNewestFirstOnceTheQueueStands(t *testing.T) {
	var q Queue
	a := mustJoin(t, &q, 0, 0)
	b := mustJoin(t, &q, 100*ms, 0)
	c := mustJoin(t, &q, 101*ms, 0)
	d := mustJoin(t, &q, 102*ms, 0)
	wantGrants(t, &q, 102*ms, d)
	if next := q.Expire(105 * ms); next != 106*ms {
		t.Errorf("the next expires at %v, want 106ms: 5 ms after it joined", next)
	}
	wantTold(t, c, waiting)
	if next := q.Expire(106 * ms); next != time.Second {
		t.Errorf("the next expires at %v, want 1s: those that came in time keep their timeout", next)
	}
	wantTold(t, c, Expired)
	wantGrants(t, &q, 107*ms, b, a)

	// It has been empty: patience again.
	e := mustJoin(t, &q, 108*ms, 0)
	f := mustJoin(t, &q, 109*ms, 0)
	if next := q.Expire(200 * ms); next != 1108*ms {
		t.Errorf("the next expires at %v, want 1.108s", next)
	}
	wantGrants(t, &q, 200*ms, e, f)
}

func TestHigherRankFirst(t *testing.T) {
	var q Queue
	var w []*Waiter
	for _, rank := range []Rank{3, 0, 7, 3, 200} { // 200 counts as 7
		w = append(w, mustJoin(t, &q, 0, rank))
	}
	for _, next := range []struct {
		index int
		rank  Rank
	}{{2, 7}, {4, 7}, {0, 3}, {3, 3}, {1, 0}} {
		if r := q.Highest(); r != next.rank {
			t.Errorf("highest rank %d, want %d", r, next.rank)
		}
		wantGrants(t, &q, 0, w[next.index])
	}
}

func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		name                       string
		deadline, timeout, service time.Duration
		want                       time.Duration // when its time is over; 0: refused
	}{
		{"none", 0, 50 * ms, 30 * ms, 150 * ms},
		{"far", 500 * ms, 50 * ms, 30 * ms, 150 * ms},
		{"before the timeout and service", 160 * ms, 50 * ms, 30 * ms, 130 * ms},
		{"just in time, were there room", 131 * ms, 50 * ms, 30 * ms, 101 * ms},
		{"no time to wait", 130 * ms, 50 * ms, 30 * ms, 0},
		{"no time to be served", 120 * ms, 50 * ms, 30 * ms, 0},
		{"over", 90 * ms, 50 * ms, 0, 0},
		{"no timeout", 0, 0, 0, 0},
		{"negative timeout", 0, -1, 0, 0},
		{"endless timeout", 0, math.MaxInt64, 0, math.MaxInt64},
		{"endless timeout, with a deadline", 200 * ms, math.MaxInt64, 30 * ms, 170 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			var q Queue
			w := q.Join(100*ms, c.deadline, 0, 10, c.timeout, c.service)
			if next := q.Expire(100 * ms); next != c.want || (w == nil) != (c.want == 0) {
				t.Fatalf("its time is over at %v, want %v", next, c.want)
			}
			if w == nil {
				return
			}
			q.Expire(c.want - 1)
			wantTold(t, w, waiting)
			if n := q.Wake(c.want, places(1)); n != 0 {
				t.Error("it was let in when its time was over")
			}
			wantTold(t, w, Expired)
		})
	}
}

func TestWakeSurvivesAPanic(t *testing.T) {
	var q Queue
	a, b := mustJoin(t, &q, 0, 0), mustJoin(t, &q, 0, 0)
	func() {
		defer func() { _ = recover() }()
		first := true
		q.Wake(0, func(Rank) bool {
			if !first {
				panic("no idea")
			}
			first = false
			return true
		})
	}()
	wantTold(t, a, Granted)
	if q.Len() != 1 {
		t.Errorf("%d wait, want 1", q.Len())
	}
	wantGrants(t, &q, 0, b)
}

// Thousands of clients with a gate of 7 places, of which many leave while they wait, and
// some just as they are let in: none is forgotten or let in twice, and every place comes
// back.
func TestPlacesAreConserved(t *testing.T) {
	const limit, clients, rounds = 7, 3_000, 20
	var g Gate
	var q Queue
	var clock, inside, served, refused, joined, lost atomic.Int64
	now := func() time.Duration { return time.Duration(clock.Add(int64(time.Microsecond))) }
	enter := func(Rank) bool { return g.Enter(limit, 0) }
	serve := func() {
		if n := inside.Add(1); n > limit {
			t.Errorf("%d inside, limit %d", n, limit)
		}
		runtime.Gosched()
		inside.Add(-1)
		served.Add(1)
	}
	leave := func() {
		g.Detach(0)
		q.Wake(now(), enter)
	}
	visit := func(rng *rand.Rand) {
		if g.Enter(limit, 0) {
			serve()
			leave()
			return
		}
		w := q.Join(now(), 0, Rank(rng.IntN(Ranks)), 200, time.Duration(rng.IntN(2000))*time.Microsecond, 0)
		if w == nil {
			refused.Add(1)
			return
		}
		joined.Add(1)
		q.Wake(now(), enter)
		for range rng.IntN(4) {
			runtime.Gosched()
		}
		if rng.IntN(2) == 0 {
			if q.Leave(w) == Granted {
				lost.Add(1)
				leave()
			}
			return
		}
		v := <-w.C
		select {
		case v := <-w.C:
			t.Errorf("a second verdict: %v", v)
		default:
		}
		q.Release(w)
		if v == Granted {
			serve()
			leave()
		}
	}
	var all, expirer sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range rounds {
				visit(rng)
			}
		})
	}
	var stop atomic.Bool
	expirer.Go(func() {
		for !stop.Load() {
			q.Expire(now())
			runtime.Gosched()
		}
	})
	all.Wait()
	stop.Store(true)
	expirer.Wait()

	s := q.Stats()
	if g.InFlight() != 0 || s.Length != 0 || q.Len() != 0 {
		t.Errorf("%d places taken, %d wait; want none", g.InFlight(), s.Length)
	}
	if sum := s.Granted + s.Expired + s.Dropped + s.Gone; sum != uint64(joined.Load()) {
		t.Errorf("%d verdicts for %d that joined", sum, joined.Load())
	}
	for what, n := range map[string]uint64{
		"granted": s.Granted, "expired": s.Expired, "dropped": s.Dropped, "gone": s.Gone,
		"refused": uint64(refused.Load()), "granted and gone": uint64(lost.Load()),
	} {
		if n == 0 {
			t.Errorf("none was %s: the test has not tried it", what)
		}
	}
	t.Logf("%+v, %d served, %d refused, %d granted and gone", s, served.Load(), refused.Load(), lost.Load())
}

// No timeout is ever over, so that a waiter that is forgotten waits for ever.
func TestNoWaiterIsForgotten(t *testing.T) {
	const limit, clients, rounds = 2, 1_000, 50
	var g Gate
	var q Queue
	enter := func(Rank) bool { return g.Enter(limit, 0) }
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for range rounds {
				if !g.Enter(limit, 0) {
					w := q.Join(0, 0, Rank(i%Ranks), clients, math.MaxInt64, 0)
					q.Wake(0, enter)
					if v := <-w.C; v != Granted {
						t.Errorf("it was %v", v)
					}
					q.Release(w)
				}
				runtime.Gosched()
				g.Detach(0)
				q.Wake(0, enter)
			}
		})
	}
	all.Wait()
	if s := q.Stats(); g.InFlight() != 0 || s.Length != 0 || s.Granted == 0 {
		t.Errorf("%d places taken, %+v; want none, no waiters, and some let in", g.InFlight(), s)
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	var q Queue
	enter := places(math.MaxInt)
	var now time.Duration
	for range 100 {
		mustJoin(t, &q, 0, 0)
	}
	q.Expire(time.Hour)
	now = time.Hour
	for what, cycle := range map[string]func(){
		"granted": func() {
			w := q.Join(now, now+time.Second, 3, 100, time.Second, ms)
			q.Wake(now, enter)
			<-w.C
			q.Release(w)
		},
		"expired": func() {
			w := q.Join(now, 0, 3, 100, time.Second, ms)
			now += time.Second
			q.Expire(now)
			<-w.C
			q.Release(w)
		},
		"gone":    func() { q.Leave(q.Join(now, 0, 3, 100, time.Second, ms)) },
		"refused": func() { q.Join(now, 0, 0, 0, time.Second, ms) },
	} {
		if n := testing.AllocsPerRun(1000, cycle); n != 0 {
			t.Errorf("%s: %v allocations, want none", what, n)
		}
	}
}

// oracle is a Queue as simple as can be: a slice, in the order of joining.
type oracle struct {
	all            []entry
	filled         [Ranks]time.Duration
	gap, grantedAt time.Duration
	ended          map[Verdict]uint64
	waited         time.Duration
}

type entry struct {
	w             *Waiter
	rank          Rank
	joined, until time.Duration
}

func (o *oracle) standing(now time.Duration, r Rank) bool { return now-o.filled[r] > 100*ms }

// atOrAbove counts the waiters in r or above.
func (o *oracle) atOrAbove(r Rank) (n int) {
	for _, e := range o.all {
		if e.rank >= r {
			n++
		}
	}
	return n
}

// choose returns the index of the waiter that goes first in the highest rank, or last in
// the lowest.
func (o *oracle) choose(now time.Duration, first bool) int {
	best := 0
	for i, e := range o.all {
		b := o.all[best].rank
		if e.rank > b && first || e.rank < b && !first || e.rank == b && first == o.standing(now, b) {
			best = i
		}
	}
	return best
}

func (o *oracle) end(i int, now time.Duration, v Verdict) *Waiter {
	e := o.all[i]
	o.all = append(o.all[:i:i], o.all[i+1:]...)
	o.ended[v]++
	if v != Gone {
		o.waited += now - e.joined
	}
	return e.w
}

// expire returns those whose time is over.
func (o *oracle) expire(now time.Duration) (over []*Waiter) {
	for i := 0; i < len(o.all); {
		if o.all[i].until <= now {
			over = append(over, o.end(i, now, Expired))
		} else {
			i++
		}
	}
	return over
}

// join returns whether a request may join, and which expire and are dropped for it.
func (o *oracle) join(now, deadline time.Duration, rank Rank, max int, timeout, service time.Duration) (until time.Duration, ok bool, over []*Waiter, dropped *Waiter) {
	if len(o.all) >= max {
		over = o.expire(now)
	}
	full := len(o.all) >= max
	if full && (len(o.all) == 0 || o.all[o.choose(now, false)].rank >= rank) {
		return 0, false, over, nil
	}
	for r := range rank + 1 {
		if o.atOrAbove(r) == 0 {
			o.filled[r] = now
		}
	}
	if len(o.all) == 0 && now-o.grantedAt > time.Second {
		o.gap = 0
	}
	ahead := o.atOrAbove(rank)
	if o.standing(now, rank) {
		timeout = min(timeout, 5*ms)
		ahead = o.atOrAbove(rank + 1)
	}
	since := o.grantedAt
	if o.filled[0] > since {
		since = o.filled[0]
	}
	gap := o.gap
	if now-since > gap {
		gap = now - since
	}
	wait := min(timeout, time.Duration(ahead+1)*gap)
	until = now + timeout
	if deadline != 0 {
		if now+wait+service > deadline {
			return 0, false, over, nil
		}
		until = min(until, deadline-service)
	}
	if until <= now {
		return 0, false, over, nil
	}
	if full {
		dropped = o.end(o.choose(now, false), now, Dropped)
	}
	return until, true, over, dropped
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 1, 3, 4, 0, 1, 4, 0, 1})
	f.Add([]byte{0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0, 7, 0, 5, 1, 9, 6, 2, 1})
	f.Add([]byte{0, 1, 0, 0, 1, 250, 0, 9, 250, 4, 0, 1, 4, 0, 1, 5, 0, 200, 7, 200, 0})
	f.Add([]byte{2, 31, 0, 2, 63, 9, 2, 7, 40, 4, 1, 8, 2, 3, 80, 6, 0, 3, 0, 1, 90})
	f.Add([]byte("a queue is a line of those that would rather not be in one at all"))
	f.Fuzz(agrees)
}

// The same, for long scripts of a fixed seed.
func TestQueueAgreesWithOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		script := make([]byte, 3*500)
		slowness := 1 + rng.IntN(255) // else the queue is always empty
		for i := range script {
			script[i] = byte(rng.Uint32())
			if i%3 == 2 {
				script[i] = byte(rng.IntN(slowness) / 8)
			}
		}
		agrees(t, script)
	}
}

// agrees has a Queue and its oracle do the same: each three bytes of script are
// what happens, to what, and how long after the last.
func agrees(t *testing.T, script []byte) {
	var q Queue
	o := oracle{ended: map[Verdict]uint64{}}
	var now time.Duration
	wantVerdict := func(what string, w *Waiter, want Verdict) {
		t.Helper()
		if v := told(w); v != want {
			t.Fatalf("%s at %v: told %v, want %v", what, now, v, want)
		}
		if want == Granted || want == Expired || want == Dropped {
			q.Release(w)
		}
	}
	for ; len(script) >= 3; script = script[3:] {
		what, which, gap := script[0]%8, script[1], script[2]
		now += time.Duration(gap) * ms / 4
		switch what {
		case 0, 1, 2, 3: // join
			rank, max := Rank(which%Ranks), 12
			timeout := time.Duration(which/8) * 10 * ms
			service := time.Duration(which%5) * ms
			var deadline time.Duration
			if what >= 2 {
				deadline = now + service + time.Duration(which)*time.Duration(which)*ms/64
			}
			w := q.Join(now, deadline, rank, max, timeout, service)
			until, ok, over, dropped := o.join(now, deadline, rank, max, timeout, service)
			if ok != (w != nil) {
				t.Fatalf("join at %v, deadline %v, rank %d, timeout %v, service %v: may %v, want %v", now, deadline, rank, timeout, service, w != nil, ok)
			}
			for _, w := range over {
				wantVerdict("join", w, Expired)
			}
			if dropped != nil {
				wantVerdict("join", dropped, Dropped)
			}
			if ok {
				o.all = append(o.all, entry{w, rank, now, until})
			}
		case 4, 5: // wake, with few places, for high ranks only
			room, least := int(which%4), Rank(which/4%4)
			places := room
			n := q.Wake(now, func(r Rank) bool {
				if r < least || places == 0 {
					return false
				}
				places--
				return true
			})
			granted := 0
			for len(o.all) > 0 {
				i := o.choose(now, true)
				e := o.all[i]
				if e.until <= now {
					wantVerdict("wake", o.end(i, now, Expired), Expired)
					continue
				}
				if e.rank < least || granted == room {
					break
				}
				since := o.grantedAt
				if o.filled[0] > since {
					since = o.filled[0]
				}
				o.gap += (now - since - o.gap) / 16
				o.grantedAt = now
				wantVerdict("wake", o.end(i, now, Granted), Granted)
				granted++
			}
			if n != granted {
				t.Fatalf("wake at %v: %d let in, want %d", now, n, granted)
			}
		case 6: // leave
			if len(o.all) > 0 {
				w := o.end(int(which)%len(o.all), now, Gone)
				if v := q.Leave(w); v != Gone {
					t.Fatalf("leave at %v: %v, want gone", now, v)
				}
			}
		case 7: // expire
			next := q.Expire(now)
			for _, w := range o.expire(now) {
				wantVerdict("expire", w, Expired)
			}
			var want time.Duration
			for _, e := range o.all {
				if want == 0 || e.until < want {
					want = e.until
				}
			}
			if next != want {
				t.Fatalf("expire at %v: next %v, want %v", now, next, want)
			}
		}
		for _, e := range o.all {
			wantVerdict("meanwhile", e.w, waiting)
		}
		var highest Rank
		for _, e := range o.all {
			highest = max(highest, e.rank)
		}
		if q.Len() != len(o.all) || q.Highest() != highest {
			t.Fatalf("at %v: %d wait, up to rank %d; want %d, %d", now, q.Len(), q.Highest(), len(o.all), highest)
		}
		want := QueueStats{len(o.all), o.ended[Granted], o.ended[Expired], o.ended[Dropped], o.ended[Gone], o.waited}
		if s := q.Stats(); s != want {
			t.Fatalf("at %v: %+v, want %+v", now, s, want)
		}
	}
}

// One request waits and is let in, behind so many others of a lower rank.
func BenchmarkQueue(b *testing.B) {
	for _, others := range []int{0, 31, 9_999} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			var q Queue
			for range others {
				q.Join(0, 0, 0, 10_000, time.Hour, 0)
			}
			enter := func(r Rank) bool { return r > 0 }
			b.ReportAllocs()
			for b.Loop() {
				w := q.Join(1, 0, 1, 10_000, time.Second, ms)
				q.Wake(1, enter)
				<-w.C
				q.Release(w)
			}
		})
	}
}

// The queue is full, as it is in a flood.
func BenchmarkQueueRefuses(b *testing.B) {
	var q Queue
	q.Join(0, 0, 0, 1, time.Hour, 0)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if q.Join(1, 0, 0, 1, time.Second, ms) != nil {
				b.Error("two in a queue of one")
			}
		}
	})
}

// Of a backend that takes long for each request, a burst takes longer.
func TestSlowBackendsQueueStandsLater(t *testing.T) {
	for service, want := range map[time.Duration]time.Duration{0: 5 * ms, 10 * ms: 5 * ms, 100 * ms: time.Second} {
		var q Queue
		q.Join(0, 0, 0, 100, time.Second, service)
		w := q.Join(300*ms, 0, 0, 100, time.Second, service)
		if got := w.until - w.joined; got != want {
			t.Errorf("with %v of service, a request that joins a queue of 300ms waits for %v, want %v", service, got, want)
		}
	}
}
