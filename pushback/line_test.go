package pushback

import (
	"math"
	"testing"
	"time"
)

// told plays n clients that are rejected at once, and returns when each is to come.
func told(l *Line, now time.Duration, n int, rate float64, longest time.Duration) (turns []Turn) {
	for range n {
		t, _ := l.next(now, Supply{Rate: rate}, claim{min: time.Second, max: longest})
		turns = append(turns, t)
	}
	return turns
}

// A new client can compute what a client of a herd is told: the rate is 100/s, so 98 clients
// are promised in a second. The tenth of a herd has 9 before it, from a second ahead on.
func TestTenthOfAHerd(t *testing.T) {
	var l Line
	turns := told(&l, time.Minute, 200, 100, 30*time.Second)
	for i, want := range map[int]time.Duration{
		0: time.Second, 9: time.Second + 9*time.Second/98, 97: time.Second + 97*time.Second/98, 98: 2 * time.Second,
	} {
		if got := turns[i].At - time.Minute; got < want-time.Microsecond || got > want+time.Microsecond {
			t.Errorf("client %d is told %v, want %v", i+1, got, want)
		}
	}
}

// In any time no more clients are promised than the backend can serve, and one second's
// rounding; they are in the order in which they came, and none waits for longer than it may.
func TestPromisesNeverExceedTheRate(t *testing.T) {
	for _, rate := range []float64{0.05, 0.4, 1, 3, 50, 1000} {
		var l Line
		const longest = 59 * time.Second
		now := time.Minute + 300*time.Millisecond
		turns := told(&l, now, int(80*rate)+20, rate, longest)
		slots := 0
		for i, turn := range turns {
			if turn.At < now+time.Second || turn.At > now+longest {
				t.Fatalf("rate %v: client %d is told %v", rate, i, turn.At-now)
			}
			if !turn.Slot {
				continue
			}
			slots++
			if i > 0 && turn.At < turns[i-1].At {
				t.Fatalf("rate %v: client %d is told %v, the one before %v", rate, i, turn.At-now, turns[i-1].At-now)
			}
			if most := math.Ceil(rate*(turn.At-now-time.Second).Seconds()) + 1; float64(slots) > most {
				t.Fatalf("rate %v: %d are promised up to %v, want %v", rate, slots, turn.At-now, most)
			}
		}
		if least := 0.95*rate*57 - 1; float64(slots) < least {
			t.Errorf("rate %v: %d slots, want %v", rate, slots, least)
		}
	}
}

// Clients for which there is no second ask again after equal hops, in their order, and have a
// slot when their numbers are served.
func TestTail(t *testing.T) {
	var l Line
	const rate, longest = 100, 30 * time.Second
	now := time.Minute
	turns := told(&l, now, 5000, rate, longest)
	var waiting []Turn
	for _, turn := range turns {
		if !turn.Slot {
			waiting = append(waiting, turn)
		}
	}
	if n := len(waiting); n < 2000 || n > 2300 {
		t.Fatalf("%d in the tail", n)
	}
	requests, slots := 0, 0
	last, served := time.Duration(0), -1
	for slots < len(waiting) {
		next := -1
		for i := range waiting {
			if !waiting[i].Slot && (next < 0 || waiting[i].At < waiting[next].At) {
				next = i
			}
		}
		turn := &waiting[next]
		at := turn.At
		l.comes(at, rate, turn)
		*turn, _ = l.next(at, Supply{Rate: rate}, claim{had: turn, trust: Proven, min: time.Second, max: longest})
		if requests++; requests > 3*len(waiting) {
			t.Fatal("clients of the tail ask in vain")
		}
		if turn.Slot {
			if next < served-200 {
				t.Fatalf("client %d of the tail has its slot after client %d", next, served)
			}
			slots, last, served = slots+1, max(last, turn.At), next
		}
	}
	if last > now+54*time.Second || requests > 2*len(waiting) {
		t.Errorf("the last of 5,000 is served after %v, with %d requests of %d clients", last-now, requests, len(waiting))
	}
}

// After a flood of clients that never come back, the next one is told to come soon: few of
// those before it are expected.
func TestLineOfNoShows(t *testing.T) {
	var l Line
	now := time.Minute
	for range 1000 {
		turns := told(&l, now, 10, 50, 30*time.Second)
		if now > time.Minute+8*time.Second && turns[0].At-now > 4*time.Second {
			t.Fatalf("told to come in %v, when no client has come back for %v", turns[0].At-now, now-time.Minute)
		}
		now += 10 * time.Millisecond
	}
	// Two minutes without a line later, all is forgotten.
	for range 150 {
		now += time.Second
		l.tick(now, false, false)
	}
	if kept := l.stats(now).KeptShare; kept < .95 {
		t.Errorf("later %v of the new clients are expected", kept)
	}
}

// The tokens that new clients take at once, while no client waits, are not promised.
func TestBaseLoadIsNotPromised(t *testing.T) {
	var l Line
	now := time.Minute
	for range 60 {
		for range 40 {
			l.fresh.Add(1)
		}
		now += time.Second
		l.tick(now, false, false)
	}
	if spare := l.Spare(100); math.Abs(spare-58) > 1 {
		t.Errorf("spare is %v, want 98 - 40", spare)
	}
	if spare := l.Spare(20); math.Abs(spare-2) > .01 {
		t.Errorf("spare is %v, want the least, 2", spare)
	}
}

// A client that came for its slot in vain has the next second with room before those that
// come now.
func TestDueInVain(t *testing.T) {
	var l Line
	now := time.Minute
	turns := told(&l, now, 1000, 100, 30*time.Second)
	at := turns[0].At
	l.comes(at, 100, &turns[0])
	again, _ := l.next(at, Supply{Rate: 100}, claim{had: &turns[0], trust: Proven, min: time.Second, max: 30 * time.Second})
	behind, _ := l.next(at, Supply{Rate: 100}, claim{min: time.Second, max: 30 * time.Second})
	if !again.Slot || again.At > at+2*time.Second || behind.At < turns[999].At-time.Second {
		t.Errorf("it is to come in %v, the next one in %v", again.At-at, behind.At-at)
	}
}

// Of 5,000 numbers whose clients have gone a line that has run dry skips a quarter, then half, and then the rest, and the store is told of
// this replica's part of them.
func TestNumbersOfThoseWhoHaveGone(t *testing.T) {
	alone := 0.
	for _, replicas := range []int{1, 2} {
		var l Line
		const rate, longest = 10, 30 * time.Second
		now := time.Minute
		l.replicas = replicas
		told(&l, now, 5000, rate, longest)
		left, skipped := l.stats(now).Deferred, 0.
		for end := now + 2*time.Minute; now < end; now += time.Second {
			l.mu.Lock()
			l.advance(now, rate)
			l.mu.Unlock()
			served := l.AskSlots(now, rate, longest).Served
			if skipped == 0 && served > 0 {
				if replicas == 1 {
					alone = served
				} else if served < .4*alone || served > .6*alone {
					t.Errorf("one of two replicas skips %.0f numbers at first, and one alone %.0f; want half", served, alone)
				}
			}
			skipped += served
		}
		if is := l.stats(now).Deferred; is > left/20 {
			t.Errorf("%d replicas: after two minutes %d of %d numbers are waited for", replicas, is, left)
		}
		if skipped < float64(left)/2 {
			t.Errorf("%d replicas: the store is told of %.0f skipped numbers of %d", replicas, skipped, left)
		}
	}
}
