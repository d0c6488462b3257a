package endpoint

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

const ms = time.Millisecond

// t0 is long after all slow starts.
const t0 = time.Hour

// points returns endpoints from their last digits: "1 2 d3 n4" are two that are
// Ready, one that is Draining and one that is NotReady.
func points(s string) []model.Endpoint {
	var all []model.Endpoint
	for f := range strings.FieldsSeq(s) {
		var ep model.Endpoint
		if d, ok := strings.CutPrefix(f, "d"); ok {
			f, ep.State = d, model.Draining
		}
		if d, ok := strings.CutPrefix(f, "n"); ok {
			f, ep.State = d, model.NotReady
		}
		ep.Addr = netip.MustParseAddrPort("10.0.0." + f + ":80")
		all = append(all, ep)
	}
	return all
}

func upTo(n int) func(model.Endpoint) int { return func(model.Endpoint) int { return n } }

// newSet returns a Set of such points at t0.
func newSet(s string, limit func(model.Endpoint) int) *Set {
	set := new(Set)
	set.Update(t0, points(s), limit)
	return set
}

func digit(e *Endpoint) string {
	if e == nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(e.Addr(), "10.0.0."), ":80")
}

// reject ends a request to an endpoint that does not accept its connection.
func (e *Endpoint) reject(now time.Duration) {
	e.Failed(now)
	e.Release(Unknown)
}

// chosen returns which endpoints a thousand picks choose, sorted.
func chosen(t *testing.T, s *Set, now time.Duration, tried ...*Endpoint) string {
	t.Helper()
	seen := map[string]bool{}
	for i := range uint64(1000) {
		e, err := s.Pick(now, i*0x9e3779b97f4a7c15, tried)
		if err != nil {
			return err.Error()
		}
		seen[digit(e)] = true
		e.Release(Unknown)
	}
	var all []string
	for d := range seen {
		all = append(all, d)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func choose(t *testing.T, s *Set, now time.Duration, want, what string, args ...any) {
	t.Helper()
	if got := chosen(t, s, now); got != want {
		t.Errorf("%s: chosen %q, want %q", fmt.Sprintf(what, args...), got, want)
	}
}

func mustPick(t *testing.T, s *Set, now time.Duration, tried ...*Endpoint) *Endpoint {
	t.Helper()
	return must.Get(s.Pick(now, rand.Uint64(), tried))(t)
}

func TestUsable(t *testing.T) {
	for _, c := range []struct{ endpoints, chosen string }{
		{"", ErrNone.Error()}, {"n1 n2", ErrNone.Error()}, {"1", "1"}, {"1 2 3", "1 2 3"}, {"1 d2 n3 4", "1 4"}, {"d1 d2 n3", "1 2"}, {"d1", "1"},
	} {
		s := newSet(c.endpoints, nil)
		if got := chosen(t, s, t0); got != c.chosen {
			t.Errorf("%q: chosen %q, want %q", c.endpoints, got, c.chosen)
		}
	}
}

// The less loaded of two: of two endpoints it is always the less loaded one, and of a
// hundred none has more than a few above the mean.
func TestLeastInFlight(t *testing.T) {
	two := newSet("1 2", nil)
	first := mustPick(t, two, t0)
	for range 100 {
		e := mustPick(t, two, t0)
		if digit(e) == digit(first) {
			t.Fatalf("%s chosen, which has 1 in flight", digit(e))
		}
		e.Release(Served)
	}

	s := hundred(nil)
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		must.Get(s.Pick(t0, random.Uint64(), nil))(t)
	}
	for _, st := range s.Stats(t0) {
		if st.InFlight < 95 || st.InFlight > 103 { // one random choice: 70 to 130
			t.Errorf("%s has %d in flight of a mean of 100", st.Addr, st.InFlight)
		}
	}
}

func TestEjection(t *testing.T) {
	s := newSet("1 2 3 4", nil)
	one := func(now time.Duration) *Endpoint { // as a request does that has tried the others
		t.Helper()
		m := s.load()
		e := mustPick(t, s, now, &m.live[1].handles[0], &m.live[2].handles[0], &m.live[3].handles[0])
		if digit(e) != "1" {
			t.Fatalf("picked %s", digit(e))
		}
		return e
	}
	before, alsoBefore := one(t0), one(t0)
	one(t0).reject(t0)
	choose(t, s, t0+999*ms, "2 3 4", "after one failure")
	before.reject(t0 + 500*ms)
	alsoBefore.Release(Served)
	choose(t, s, t0+999*ms, "2 3 4", "after outcomes of requests from before")

	now := t0 + time.Second
	for _, lasts := range []time.Duration{2, 4, 8, 16, 30, 30, 30} {
		trial := one(now)
		choose(t, s, now+999*ms, "2 3 4", "while it is on trial")
		trial.reject(now + 10*ms)
		now += 10*ms + lasts*time.Second
		choose(t, s, now-1, "2 3 4", "%v after the trial failed", lasts*time.Second-1)
	}
	// Nothing is known of the first trial, but the second takes its turn.
	one(now).Release(Unknown)
	now += time.Second
	long := one(now)
	long.Reached()
	if s.Stats(now)[0].Ejected {
		t.Error("ejected, though it was reached")
	}
	long.Release(Served)
	choose(t, s, now, "1 2 3 4", "after it was reached")
	// It begins again at a second.
	one(now).reject(now)
	choose(t, s, now+time.Second-1, "2 3 4", "after it failed again")
	one(now + time.Second).Release(Served)
	choose(t, s, now+time.Second, "1 2 3 4", "after its trial went well")
}

// If more than half fail, the fault is not theirs.
func TestNeverMoreThanHalfAreEjected(t *testing.T) {
	for n := 1; n <= 9; n++ {
		var s Set
		s.Update(t0, points("1 2 3 4 5 6 7 8 9")[:n], nil)
		for _, e := range slices.Clone(s.load().live) {
			e.take(t0).reject(t0)
		}
		ejected := 0
		for _, st := range s.Stats(t0) {
			if st.Ejected {
				ejected++
			}
		}
		if ejected != n/2 {
			t.Errorf("%d of %d that failed are ejected, want %d", ejected, n, n/2)
		}
	}
	// Nor when the others leave: the one that has longest to go stays out.
	s := newSet("1 2 3 4 5 6", nil)
	for i := range 3 {
		s.load().live[i].take(t0).reject(t0 + time.Duration(i))
	}
	s.Update(t0, points("1 2 3"), nil)
	choose(t, s, t0, "1 2", "three left, who had all been ejected")
	s.Update(t0, points("3 d4 n5"), nil)
	choose(t, s, t0, "3", "one left")
}

func TestSlowStart(t *testing.T) {
	s := newSet("1 2 3", nil)
	if s.Stats(t0)[0].Warming {
		t.Error("the first ones start slowly")
	}
	s.Update(t0, points("1 2 3 n4"), nil)
	s.Update(t0, points("1 2 3 4"), nil)
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		at       time.Duration
		min, max int // of 40,000 picks, of which a quarter is its share
	}{
		{0, 800, 1200}, {time.Second, 800, 1200}, {5 * time.Second, 4700, 5900}, {9 * time.Second, 8700, 9700}, {10 * time.Second, 9700, 10300},
	} {
		n := 0
		for range 40_000 {
			e, _ := s.Pick(t0+c.at, random.Uint64(), nil)
			if digit(e) == "4" {
				n++
			}
			e.Release(Served)
		}
		if n < c.min || n > c.max {
			t.Errorf("%v after it became ready: %d of 40,000, want %d to %d", c.at, n, c.min, c.max)
		}
	}
	// A free permit matters more than warm caches.
	full := newSet("1", upTo(1))
	full.Update(t0, points("1 2"), upTo(1))
	a, b := mustPick(t, full, t0), mustPick(t, full, t0)
	if digit(a) == digit(b) {
		t.Errorf("both at %s", digit(a))
	}
	// When all are new, they share as always.
	full.Update(t0, points("3 4 5"), nil)
	choose(t, full, t0, "3 4 5", "now")
}

// A Pick that has loaded the endpoints before an Update takes no permit at one that has left
// idle: the count would be lost when the endpoint comes back.
func TestPickDuringUpdate(t *testing.T) {
	s := newSet("1 2", upTo(2))
	busy := mustPick(t, s, t0)
	before := s.load()
	s.Update(t0, points("3"), upTo(2))
	for range 2 { // one more permit at the busy one
		if e, gone := before.pick(t0, 0, nil); e != nil && digit(e) != digit(busy) || e == nil && !gone {
			t.Fatalf("picked %q, gone %v", digit(e), gone)
		}
	}
	if got := busy.state.Load() & maxCap; got != 2 {
		t.Errorf("%d in flight at the busy one, want 2", got)
	}
	s.Update(t0, points("1 2"), upTo(2))
	for _, e := range s.load().live {
		if e == busy.live != (e.state.Load()&maxCap == 2) {
			t.Errorf("%s came back with %d in flight", e.addr, e.state.Load()&maxCap)
		}
	}
	if got := mustPick(t, s, t0); digit(got) == digit(busy) {
		t.Error("a third one at the busy endpoint")
	}
}

func hundred(limit func(model.Endpoint) int) *Set {
	var all []model.Endpoint
	for i := range 100 {
		all = append(all, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 80)})
	}
	s := new(Set)
	s.Update(t0, all, limit)
	return s
}

func TestPickDoesNotAllocate(t *testing.T) {
	s := hundred(upTo(64))
	tried := []*Endpoint{mustPick(t, s, t0)}
	if n := testing.AllocsPerRun(1000, func() {
		e, _ := s.Pick(t0, rand.Uint64(), tried)
		e.Release(Served)
	}); n != 0 {
		t.Errorf("Pick and Release allocate %v times, want 0", n)
	}
}

// await takes a permit as soon as there is one, in its turn.
func await(s *Set, now time.Duration) *Endpoint {
	w := s.Wait()
	defer w.Leave()
	for may := w.First; ; may = true {
		if may {
			if e, err := s.Pick(now, rand.Uint64(), nil); err == nil {
				return e
			}
		}
		<-w.Turn
	}
}

func has(w *Waiter) bool { return len(w.Turn) > 0 }

// Free permits go to the requests that have waited longest, and to none that has not joined the line.
func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet("1 2", upTo(1))
		taken := []*Endpoint{mustPick(t, s, t0), mustPick(t, s, t0)}
		if s.Waiting() {
			t.Error("the line is not empty, though no request has joined")
		}
		served := make(chan int, 10)
		permits := make(chan *Endpoint, 10)
		for n := range 5 {
			go func() {
				e := await(s, t0)
				served <- n
				permits <- e
			}()
			synctest.Wait()
		}
		if !s.Waiting() || len(served) > 0 {
			t.Fatalf("%d were served, with no permit free", len(served))
		}
		for _, e := range taken {
			permits <- e
		}
		for n := range 5 {
			(<-permits).Release(Served)
			synctest.Wait()
			if len(served) != 1 {
				t.Fatalf("%d were served for one permit", len(served))
			}
			if got := <-served; got != n {
				t.Fatalf("the one who came as number %d was served as number %d", got, n)
			}
		}
		if s.Waiting() {
			t.Error("the line is not empty, though all were served")
		}
	})
}

// No permit stays free while a request waits: not if a waiter leaves with its turn, nor if
// more permits become free than there are waiters, before others join.
func TestTurnsAreNotLost(t *testing.T) {
	s := newSet("1", upTo(2))
	x, y := mustPick(t, s, t0), mustPick(t, s, t0)
	a, b := s.Wait(), s.Wait()
	x.Release(Served)
	if !has(a) || has(b) {
		t.Fatalf("turns: %v, %v; want the first one's", has(a), has(b))
	}
	a.Leave() // its client has gone
	if !has(b) {
		t.Fatal("the turn of the one who has gone is lost")
	}
	<-b.Turn
	x = mustPick(t, s, t0)
	b.Leave()

	a = s.Wait()
	x.Release(Served)
	y.Release(Served) // a has a turn already
	b = s.Wait()
	<-a.Turn
	mustPick(t, s, t0)
	a.Leave()
	if !has(b) {
		t.Error("a permit is free, and the one who waits for it is not told")
	}
}

// With waiters that come, are served and give up in any order, while endpoints come, go and
// fail, the cap holds, and no waiter waits for ever: synctest reports the deadlock.
func TestNoWaiterIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet("1 2 3", upTo(2))
		var wg sync.WaitGroup
		var mu sync.Mutex
		busy := map[string]int{}
		for g := range 40 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(g), 6))
				for n := range 60 {
					if random.IntN(4) == 0 { // one whose client leaves before its turn, or just then
						w := s.Wait()
						time.Sleep(time.Duration(random.IntN(3)) * ms)
						w.Leave()
						continue
					}
					e, err := s.Pick(t0, random.Uint64(), nil)
					if err != nil {
						e = await(s, t0)
					}
					mu.Lock()
					busy[e.Addr()]++
					if busy[e.Addr()] > 2 {
						t.Errorf("%s has %d in flight", e.Addr(), busy[e.Addr()])
					}
					mu.Unlock()
					if n%2 == 0 {
						time.Sleep(time.Duration(random.IntN(3)) * ms)
					}
					mu.Lock()
					busy[e.Addr()]--
					mu.Unlock()
					if random.IntN(3) == 0 {
						e.Failed(t0)
					}
					e.Release(Outcome(random.IntN(2)))
				}
			})
		}
		for n := range 30 {
			time.Sleep(ms)
			s.Update(t0, points([]string{"1 2 3", "2", "3 d1", "1 2"}[n%4]), upTo(2))
		}
		wg.Wait()
		if s.Waiting() {
			t.Error("the line is not empty")
		}
		if slices.ContainsFunc(s.Stats(t0), func(st Stat) bool { return st.InFlight > 0 }) {
			t.Errorf("%+v: permits were not given back", s.Stats(t0))
		}
	})
}
