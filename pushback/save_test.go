package pushback

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// After a restart every rejected client finds what it was told: it comes too early before, is due then, and is new to none. The line
// goes on behind those that are promised, at slow backends too.
func TestSavedAppointmentsAreKept(t *testing.T) {
	for _, rate := range []float64{0.5, 3, 100, 1000} {
		for seed := range uint64(5) {
			rng := rand.New(rand.NewPCG(seed, 1))
			terms, supply := termsOf(t, ResponseConfig{NoDither: true}), Supply{Rate: rate}
			a, now := new(Appointments), time.Duration(rng.Int64N(int64(time.Hour)))
			clients := 10 + int(20*rate)
			reject := func(a *Appointments, now time.Duration, key uint64) Told {
				var told Told
				a.Reject(now, &Caller{Key: key}, &Visit{}, terms, supply, &told)
				return told
			}
			told := map[uint64]time.Duration{} // when, after the instant of Save
			for key := range uint64(clients) {
				told[1+key] = reject(a, now, 1+key).Wait
			}
			down, then := time.Duration(rng.IntN(3000))*time.Millisecond, time.Duration(rng.Int64N(int64(time.Minute)))
			again := new(Appointments)
			again.Load(a.Save(now), down, then, rate)
			if n := again.stats(then).Deferred; n != a.stats(now).Deferred {
				t.Errorf("rate %v, seed %d: %d clients are in the tail, %d were", rate, seed, n, a.stats(now).Deferred)
			}
			var slots []time.Duration // of clients of before and of new ones, without those that are to ask again
			for key := range uint64(2 * clients) {
				if told[1+key] == 0 {
					reject(again, then, 1+key)
				}
				again.promises.each(then, 1+key, 0, func(_ promise, turn Turn) bool {
					if turn.Slot {
						slots = append(slots, turn.At)
					}
					return true
				})
			}
			slices.Sort(slots)
			for i, n := 0, 3+int(rate); i+n < len(slots); i++ { // so many take more than a second
				if over := slots[i+n] - slots[i]; slots[i] > then && over < time.Second {
					t.Fatalf("rate %v, seed %d: %d clients are told to come within %v", rate, seed, n+1, over)
				}
			}
			wrong := 0
			for key, at := range told {
				var v, early Visit
				if at > down+time.Second {
					again.Arrive(then+at-down-500*time.Millisecond, &Caller{Key: key}, terms, rate, false, &early)
				}
				if at < down {
					at = down // it could not come before
				}
				if early.Standing == TooEarly {
					if d := (early.At - (then + at - down)).Abs(); d > 2*time.Millisecond {
						t.Fatalf("rate %v, seed %d: a client is due %v off", rate, seed, d)
					}
					continue
				}
				again.Arrive(then+at-down, &Caller{Key: key}, terms, rate, false, &v)
				if !v.OnTime() {
					wrong++
				}
			}
			if wrong > clients/100 { // two tags may be alike, and a set full
				t.Errorf("rate %v, seed %d: %d of %d clients are not on time", rate, seed, wrong, clients)
			}
		}
	}
}

// A client that was known before a restart still goes before new ones while others wait, and after a minute nothing is left.
func TestSavedAppointmentsEnd(t *testing.T) {
	terms, supply := termsOf(t, ResponseConfig{NoDither: true}), Supply{Rate: 1}
	var a, again, late Appointments
	now := time.Hour
	for key := range uint64(20) {
		var told Told
		a.Reject(now, &Caller{Key: 1 + key}, &Visit{}, terms, supply, &told)
	}
	a.Admitted(now, 99, &Visit{})
	a.RejectQuota(now, &Caller{Key: 98}, 98, 10*time.Second, time.Second, terms, new(Told)) // it takes no room, before and after
	is := a.Save(now)
	again.Load(is, 500*time.Millisecond, 0, 1)
	var v Visit
	if again.Arrive(10*time.Second, &Caller{Key: 99}, terms, 1, false, &v); !v.First() {
		t.Errorf("a known client is %+v; want it to go before new ones", v)
	}
	told := float32(0)
	for i := range again.ring {
		told += again.ring[i].told[untried] + again.ring[i].told[Proven]
	}
	if told != 20 {
		t.Errorf("%v clients are expected, want the 20 that were told to come", told)
	}
	late.Load(is, time.Hour, 0, 1)
	if n := late.Clients(); n != [Classes]int{} || late.Backlogged(0) {
		t.Errorf("an hour later %v clients are remembered", n)
	}
	for _, bad := range []*Record{{}, {Who: []uint64{1}}, {Who: []uint64{1<<64 - 1}, Due: []uint64{1<<64 - 1}}} {
		new(Appointments).Load(bad, 0, 0, 1)
	}
}
