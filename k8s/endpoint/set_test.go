package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
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

// digit returns what points was given for e.
func digit(e *Endpoint) string {
	if e == nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(e.Addr(), "10.0.0."), ":80")
}

// refuse ends a request to an endpoint that does not accept its connection.
func (e *Endpoint) refuse(now time.Duration) {
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

// choose checks which endpoints are chosen.
func choose(t *testing.T, s *Set, now time.Duration, want, what string, args ...any) {
	t.Helper()
	if got := chosen(t, s, now); got != want {
		t.Errorf("%s: chosen %q, want %q", fmt.Sprintf(what, args...), got, want)
	}
}

// usable returns how many endpoints can get requests.
func usable(s *Set) int { return len(s.load().usable) }

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
	var zero Set
	if _, err := zero.Pick(0, 0, nil); !errors.Is(err, ErrNone) || usable(&zero) != 0 || len(zero.Stats(0)) != 0 {
		t.Errorf("the zero Set: %v, %d", err, usable(&zero))
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

// Idle endpoints get equal shares.
func TestEqualShares(t *testing.T) {
	s := newSet("1 2 3 4 5", nil)
	counts := map[string]int{}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		e, _ := s.Pick(t0, random.Uint64(), nil)
		counts[digit(e)]++
		e.Release(Served)
	}
	for d, n := range counts {
		if n < 9_600 || n > 10_400 {
			t.Errorf("%s got %d of 50,000, want about 10,000", d, n)
		}
	}
}

func TestFull(t *testing.T) {
	s := newSet("1 2 3", upTo(2))
	var taken []*Endpoint
	for range 6 {
		taken = append(taken, mustPick(t, s, t0))
	}
	if _, err := s.Pick(t0, 7, nil); !errors.Is(err, ErrFull) {
		t.Fatalf("the seventh of six: %v", err)
	}
	taken[3].Release(Served)
	for u := range uint64(50) { // whichever two are looked at first
		e, err := s.Pick(t0, u*math.MaxUint64/50, nil)
		if err != nil || digit(e) != digit(taken[3]) {
			t.Fatalf("the only one with a free place is %s, picked %s, %v", digit(taken[3]), digit(e), err)
		}
		e.Release(Served)
	}
	s.Update(t0, points("1 2 3"), upTo(1))
	if _, err := s.Pick(t0, 7, nil); !errors.Is(err, ErrFull) {
		t.Errorf("5 in flight, and now 3 at most: %v", err)
	}
	s.Update(t0, points("1 2 3"), upTo(3))
	for range 4 {
		mustPick(t, s, t0)
	}
	if _, err := s.Pick(t0, 7, nil); !errors.Is(err, ErrFull) {
		t.Errorf("9 in flight of 9: %v", err)
	}
}

func TestTried(t *testing.T) {
	s := newSet("1 2 3", nil)
	a := mustPick(t, s, t0)
	b := mustPick(t, s, t0, a)
	c := mustPick(t, s, t0, a, b)
	if all := digit(a) + digit(b) + digit(c); !strings.Contains(all, "1") || !strings.Contains(all, "2") || !strings.Contains(all, "3") {
		t.Errorf("tried one after the other: %s", all)
	}
	if got := chosen(t, s, t0, a, b, c); got != "1 2 3" {
		t.Errorf("all were tried: chosen %q, want any", got)
	}
	// One with a free place is not preferred over one that has not been tried.
	full := newSet("1 2", upTo(1))
	x := mustPick(t, full, t0)
	y := mustPick(t, full, t0)
	x.Release(Unknown)
	if _, err := full.Pick(t0, 0, []*Endpoint{x}); !errors.Is(err, ErrFull) {
		t.Errorf("the only untried one is full: %v", err)
	}
	y.Release(Unknown)
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
	one(t0).refuse(t0)
	choose(t, s, t0+999*ms, "2 3 4", "after one failure")
	before.refuse(t0 + 500*ms)
	alsoBefore.Release(Served)
	choose(t, s, t0+999*ms, "2 3 4", "after outcomes of requests from before")

	now := t0 + time.Second
	for _, lasts := range []time.Duration{2, 4, 8, 16, 30, 30, 30} {
		trial := one(now)
		choose(t, s, now+999*ms, "2 3 4", "while it is on trial")
		trial.refuse(now + 10*ms)
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
	one(now).refuse(now)
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
			e.take(t0).refuse(t0)
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
		s.load().live[i].take(t0).refuse(t0 + time.Duration(i))
	}
	s.Update(t0, points("1 2 3"), nil)
	choose(t, s, t0, "1 2", "three left, who had all been ejected")
	s.Update(t0, points("3 d4 n5"), nil)
	choose(t, s, t0, "3", "one left")
}

func TestEjectedIsTheLastResort(t *testing.T) {
	s := newSet("1 2", upTo(1))
	dead := mustPick(t, s, t0)
	dead.refuse(t0)
	other := mustPick(t, s, t0)
	if digit(other) == digit(dead) {
		t.Fatal("picked the ejected one")
	}
	if _, err := s.Pick(t0, 0, nil); !errors.Is(err, ErrFull) {
		t.Errorf("an ejected one is not used when the others are full: %v", err)
	}
	again := mustPick(t, s, t0, other)
	if digit(again) != digit(dead) {
		t.Errorf("picked %s; want the ejected one rather than one that has been tried", digit(again))
	}
	again.refuse(t0)
	if until := time.Duration(again.outTil.Load()); until != t0+time.Second {
		t.Errorf("ejected until %v after it began; want a second, whatever fails meanwhile", until-t0)
	}
	again = mustPick(t, s, t0, other)
	again.Release(Served) // it is back
	if e := mustPick(t, s, t0); digit(e) != digit(dead) {
		t.Errorf("picked %s", digit(e))
	}
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
	// A free place matters more than warm caches.
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

func TestComingBack(t *testing.T) {
	s := newSet("1 2", upTo(2))
	var taken []*Endpoint
	for range 4 {
		taken = append(taken, mustPick(t, s, t0))
	}
	s.Update(t0, points("2"), upTo(2))
	stats := s.Stats(t0)
	if len(stats) != 2 || stats[1] != (Stat{Addr: "10.0.0.1:80", State: model.NotReady, Gone: true, InFlight: 2, Cap: 2}) {
		t.Errorf("stats %+v", stats)
	}
	s.Update(t0, points("n1 2"), upTo(2))
	s.Update(t0, points("1 2"), upTo(2))
	if _, err := s.Pick(t0, 0, nil); !errors.Is(err, ErrFull) {
		t.Errorf("it came back with 2 of 2 in flight: %v", err)
	}
	for _, e := range taken {
		e.Release(Served)
	}
	old := s.load().live[0]
	s.Update(t0, nil, nil)
	if _, err := s.Pick(t0, 0, nil); !errors.Is(err, ErrNone) || len(s.Stats(t0)) != 0 || len(s.gone) != 0 {
		t.Errorf("all have left: %v, %d remembered", err, len(s.gone))
	}
	s.Update(t0, points("1 2"), upTo(2))
	if s.load().live[0] == old {
		t.Error("idle ones are to be forgotten")
	}
}

// A Pick that has loaded the endpoints before an Update takes no place at one that has left
// idle: the count would be lost when the endpoint comes back.
func TestPickDuringUpdate(t *testing.T) {
	s := newSet("1 2", upTo(2))
	busy := mustPick(t, s, t0)
	before := s.load()
	s.Update(t0, points("3"), upTo(2))
	for range 2 { // one more place at the busy one
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

// An endpoint that has left with requests in flight is remembered until the first Update after their end.
func TestGoneAreForgotten(t *testing.T) {
	s := newSet("1 2", nil)
	for i := range 50 {
		s.Update(t0, points(fmt.Sprint(i+1)), nil)
		e := mustPick(t, s, t0)
		defer e.Release(Served)
		if i%2 == 0 {
			e := mustPick(t, s, t0)
			e.Release(Served)
		}
	}
	if len(s.gone) != 49 {
		t.Errorf("%d remembered, want the 49 that are in use", len(s.gone))
	}
	for _, e := range slices.Clone(s.gone) {
		e.state.Add(^uint64(0))
	}
	s.Update(t0, points("50"), nil) // nothing new
	if len(s.gone) != 0 {
		t.Errorf("%d remembered, want none", len(s.gone))
	}
	for range 49 {
		s.load().live[0].state.Add(1) // for the deferred ones; their endpoints are retired
	}
}

// Hundreds of goroutines pick while endpoints come and go, fail, drain and change their caps. The requests that
// an endpoint sees are never more than its cap, and in the end all places have been given back.
func TestCapIsNeverExceeded(t *testing.T) {
	const goroutines, rounds, addrs = 400, 300, 8
	var seen, peak [addrs + 1]atomic.Int64
	var s Set
	s.Update(0, points("1 2 3 4 5 6 7 8"), upTo(3))
	var clock, picked, full, none atomic.Int64
	var wg, updater sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	updater.Go(func() {
		random := rand.New(rand.NewPCG(3, 4))
		for ctx.Err() == nil {
			var all []model.Endpoint
			for _, ep := range points("1 2 3 4 5 6 7 8") {
				if random.IntN(3) > 0 {
					ep.State = model.EndpointState(random.IntN(4) % 3)
					all = append(all, ep)
				}
			}
			s.Update(time.Duration(clock.Add(int64(100*ms))), all, func(ep model.Endpoint) int {
				return 1 + random.IntN(3) // 3 at most
			})
			s.Stats(0)
			runtime.Gosched()
		}
	})
	for g := range goroutines {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 5))
			var tried []*Endpoint
			for range rounds {
				e, err := s.Pick(time.Duration(clock.Load()), random.Uint64(), tried)
				switch {
				case errors.Is(err, ErrFull):
					full.Add(1)
				case errors.Is(err, ErrNone):
					none.Add(1)
				}
				if err != nil {
					tried = tried[:0]
					runtime.Gosched()
					continue
				}
				picked.Add(1)
				i := digit(e)[0] - '0'
				n := seen[i].Add(1)
				for p := peak[i].Load(); n > p && !peak[i].CompareAndSwap(p, n); p = peak[i].Load() {
				}
				if random.IntN(2) == 0 {
					runtime.Gosched()
				}
				seen[i].Add(-1)
				tried = append(tried[:0], e)
				if random.IntN(3) == 0 {
					e.Failed(time.Duration(clock.Load()))
				}
				e.Release(Outcome(random.IntN(2)))
			}
		})
	}
	wg.Wait()
	stop()
	updater.Wait()
	for i := 1; i <= addrs; i++ {
		if p := peak[i].Load(); p > 3 {
			t.Errorf("endpoint %d saw %d at once, want at most 3", i, p)
		}
	}
	for _, st := range s.Stats(0) {
		if st.InFlight != 0 {
			t.Errorf("%s: %d places were not given back", st.Addr, st.InFlight)
		}
	}
	if picked.Load() == 0 || full.Load() == 0 {
		t.Errorf("%d picked, %d full, %d none: the test is to have all of them", picked.Load(), full.Load(), none.Load())
	}
}

// FuzzSet plays scripts of Updates, Picks and Releases, and compares the Set with its
// documentation and with separate counts.
func FuzzSet(f *testing.F) {
	f.Add([]byte{0, 0b11, 0b01, 2, 9, 2, 9, 2, 9, 3, 0, 3, 1})
	f.Add([]byte{0, 0xff, 0, 1, 9, 4, 0, 2, 7, 2, 8, 5, 50, 4, 0, 0, 0x0f, 0xf0, 2, 1, 5, 255, 2, 3})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 1000 {
			return
		}
		var s Set
		now := time.Hour
		state, limits := map[string]model.EndpointState{}, map[string]int{}
		inFlight := map[string]int{}
		var open, tried []*Endpoint
		next := func() byte {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return b
		}
		for len(script) > 0 {
			switch op := next(); op % 6 {
			case 0, 1: // eight addresses, two bits each
				bits := uint16(next()) | uint16(next())<<8
				var all []model.Endpoint
				clear(state)
				clear(limits)
				for i, ep := range points("1 2 3 4 5 6 7 8") {
					if b := bits >> (2 * i) & 3; b < 3 {
						ep.State = model.EndpointState(b)
						all = append(all, ep)
						state[ep.Addr.String()] = ep.State
						limits[ep.Addr.String()] = int(op) / 6 % 4
					}
				}
				s.Update(now, all, upTo(int(op)/6%4))
			case 2:
				e, err := s.Pick(now, uint64(next())*0x0101010101010101, tried)
				want := model.Draining
				for _, st := range state {
					if st == model.Ready {
						want = model.Ready
					}
				}
				usable, room := 0, 0
				out := map[string]bool{}
				for _, st := range s.Stats(now) {
					out[st.Addr] = st.Ejected
				}
				untried := 0
				for addr, st := range state {
					if st != want {
						continue
					}
					usable++
					was := slices.ContainsFunc(tried, func(e *Endpoint) bool { return e.Addr() == addr })
					if !was {
						untried++
					}
					if !was && !out[addr] && (limits[addr] == 0 || inFlight[addr] < limits[addr]) {
						room++
					}
				}
				switch {
				case errors.Is(err, ErrNone) != (usable == 0):
					t.Fatalf("%v with %d usable", err, usable)
				case errors.Is(err, ErrFull) && room > 0 && (e == nil || e.picked == regular):
					t.Fatalf("full, but %d have free places", room)
				case err == nil:
					if st, ok := state[e.Addr()]; !ok || st != want {
						t.Fatalf("%s picked, which is %v, not %v", e.Addr(), st, want)
					}
					inFlight[e.Addr()]++
					if l := limits[e.Addr()]; l > 0 && inFlight[e.Addr()] > l {
						t.Fatalf("%s has %d in flight, of %d", e.Addr(), inFlight[e.Addr()], l)
					}
					if untried > 0 && slices.ContainsFunc(tried, func(t *Endpoint) bool { return t.Addr() == e.Addr() }) {
						t.Fatalf("%s picked again, though %d have not been tried", e.Addr(), untried)
					}
					if room > 0 && out[e.Addr()] && e.picked != trial {
						t.Fatalf("%s picked, which is ejected, though %d are not", e.Addr(), room)
					}
					open = append(open, e)
				}
				tried = tried[:0]
			case 3, 4:
				if len(open) == 0 {
					continue
				}
				i := int(next()) % len(open)
				e := open[i]
				open = slices.Delete(open, i, i+1)
				inFlight[e.Addr()]--
				if op/6%3 == 1 {
					e.Failed(now)
				}
				e.Release(Outcome(min(op/6%3, 1)))
				if op%6 == 4 {
					tried = append(tried, e)
				}
			case 5:
				now += time.Duration(next()) * 100 * ms
			}
			ejected := 0
			for _, st := range s.Stats(now) {
				if st.InFlight != inFlight[st.Addr] {
					t.Fatalf("%s has %d in flight, want %d", st.Addr, st.InFlight, inFlight[st.Addr])
				}
			}
			for _, e := range s.load().usable {
				if e.ejected(now) {
					ejected++
				}
			}
			if 2*ejected > usable(&s) {
				t.Fatalf("%d of %d are ejected", ejected, usable(&s))
			}
		}
	})
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

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		s := hundred(upTo(64))
		s.Update(t0, s.load().endpoints[:n], upTo(64))
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			b.ReportAllocs()
			u := uint64(1)
			for b.Loop() {
				u = u*0x5851f42d4c957f2d + 1
				e, _ := s.Pick(t0, u, nil)
				e.Release(Served)
			}
		})
		b.Run(fmt.Sprintf("%d-parallel", n), func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				u := rand.Uint64()
				for pb.Next() {
					u = u*0x5851f42d4c957f2d + 1
					if e, err := s.Pick(t0, u, nil); err == nil {
						e.Release(Served)
					}
				}
			})
		})
	}
	b.Run("100-full", func(b *testing.B) {
		s := hundred(upTo(64))
		for {
			if _, err := s.Pick(t0, rand.Uint64(), nil); err != nil {
				break
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			s.Pick(t0, 7, nil)
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	s := hundred(upTo(64))
	a, c := s.load().endpoints, s.load().endpoints[:99]
	limit := upTo(64)
	b.Run("same", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Update(t0, a, limit)
		}
	})
	b.Run("one-more-or-less", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Update(t0, c, limit)
			a, c = c, a
		}
	})
}
