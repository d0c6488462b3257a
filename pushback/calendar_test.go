package pushback

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func ratesOf(service float64, least, most time.Duration) Rates {
	return Rates{Rate: service, Min: least, Max: most}
}

// excess returns by how much promises exceed the rate in the worst of all times
// [a, b): the largest of n − rate·(b−a), n those within. By Kadane's argument
// only the times from one promise to another matter.
func excess(at []time.Duration, rate float64) (worst float64, from, to time.Duration) {
	at = slices.Sorted(slices.Values(at))
	least, leastAt := math.Inf(1), time.Duration(0)
	for i, t := range at {
		if begin := float64(i) - rate*t.Seconds(); begin < least {
			least, leastAt = begin, t
		}
		if e := float64(i+1) - rate*t.Seconds() - least; e > worst {
			worst, from, to = e, leastAt, t
		}
	}
	return worst, from, to
}

// reserved reports whether anything was reserved between two states of a ring.
func reserved(before, after *[buckets]bucket) bool {
	for i := range after {
		if b, a := &before[i], &after[i]; a.worth > b.worth || a.number != b.number && a.worth > 0 {
			return true
		}
	}
	return false
}

func wantAtMost(t *testing.T, what string, at []time.Duration, rate, bucket float64) {
	t.Helper()
	// A millionth is what is left of the free end of a bucket.
	if worst, from, to := excess(at, rate); worst > bucket+1+1e-3 {
		t.Errorf("%s: from %v to %v come %.2f more than %.4g per second; want at most a bucket of %.4g and one", what, from, to, worst, rate, bucket)
	}
}

// Whatever is asked for in whatever order, the returns that are promised in any
// time τ are at most s·τ, a bucket and one. Those that are excused may use what
// the plan leaves free: s/0.98 with them. When the capacity changes, the law is
// that of the largest.
//
// It holds to the letter where one promise takes up little of a bucket: from 16
// per second on. Below that a quota's slot may lie before time that is reserved
// already, and what it takes is paid after that; and what a smaller capacity has
// put off is invisible to a larger one. Book alone keeps the law down to one in
// a minute, where a promise takes up half of the ring.
func TestPromisesNeverExceedTheSpareRate(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var c Calendar
		most := time.Duration(2+rng.IntN(58)) * time.Second
		least := min(time.Duration(rng.IntN(3))*time.Second, most)
		service := 40 * math.Pow(10, rng.Float64()*2) // s is 20 to 4,000
		bookOnly := seed%4 == 0
		excuses, changes := seed%4 == 1, seed%4 == 2
		if bookOnly {
			service = 0.034 * math.Pow(10, rng.Float64()*4)
		} else if changes {
			service *= 4
		}
		r := ratesOf(service, least, most)
		c.base.rate = rng.Float64() * service / 2
		now := time.Duration(rng.Int64N(int64(time.Hour)))
		largest := c.Spare(service)
		var slots []time.Duration
		for range 3_000 {
			switch rng.IntN(8) {
			case 0:
				now += time.Duration(rng.ExpFloat64() * float64(time.Second))
			case 1:
				now += time.Duration(rng.Int64N(int64(10 * ms)))
			case 2:
				if rng.IntN(20) == 0 {
					now += time.Duration(rng.Int64N(int64(3 * most))) // no client comes for a while
				}
				if changes {
					r.Rate = service * (0.25 + rng.Float64())
					largest = max(largest, c.Spare(r.Rate))
				}
			}
			var a Appointment
			made := c.counts.Made
			switch n := rng.IntN(6); {
			case n == 0 && !bookOnly:
				before := new([buckets]bucket)
				if c.ring != nil {
					*before = *c.ring
				}
				a = c.BookFrom(now, now+time.Duration(rng.Int64N(int64(most))), r)
				if c.ring == nil || !reserved(before, c.ring) {
					continue // there was no slot, and it was told its own time
				}
			case n == 1 && excuses:
				a = c.Excuse(now, r, Proven)
			default:
				a = c.Book(now, r, Untried)
			}
			if a.At < now+least || a.At > now+most {
				t.Fatalf("seed %d: at %v told to come at %v; want %v to %v later", seed, now, a.At, least, most)
			}
			if !a.Deferred {
				slots = append(slots, a.At)
			}
			if c.counts.Made > made { // all promises are kept
				n := int64(a.At / SlotWidth)
				c.bucket(n).kept[a.Trust]++
			}
		}
		if excuses {
			largest /= utilisation
		}
		wantAtMost(t, "all", slots, largest, largest*SlotWidth.Seconds())
		if t.Failed() {
			t.Fatalf("seed %d: service %v, %d slots, excuses %v, changes %v", seed, service, len(slots), excuses, changes)
		}
	}
}

// A slot is promised to as many clients as it takes for one of them to come.
func TestOverbookingFollowsTheKeptShare(t *testing.T) {
	for _, trust := range []Trust{Untried, Proven} {
		for _, kept := range []float64{1, 0.7, 0.5, 0.25, 0.1} {
			var c Calendar
			r := ratesOf(100, time.Second, 59*time.Second)
			for range 100 {
				c.kept[trust].add(100, 100*kept)
			}
			c.surge = surge{number: int64(time.Minute / SlotWidth), usual: 1e9} // these are not in addition to others
			share := c.share(trust)
			if want := max(minKept[trust], kept); math.Abs(share-want) > 0.05 {
				t.Errorf("%v of 10,000 promises kept: the share is %v", kept, share)
			}
			var slots []time.Duration
			for range 60_000 {
				if a := c.Book(time.Minute, r, trust); !a.Deferred {
					slots = append(slots, a.At)
				}
			}
			s := c.Spare(100) / share
			wantAtMost(t, "overbooked", slots, s, s*SlotWidth.Seconds())
			if got, want := float64(len(slots)), 58*s; math.Abs(got-want) > want/200+1 {
				t.Errorf("share %v: %v slots in 58 s, want %v", share, got, want)
			}
		}
	}
}

// Slots that were promised to clients that do not come are free again, at once: the
// next one gets the first, and the queue has run dry.
func TestCalendarMovesForwardInAFlood(t *testing.T) {
	var c Calendar
	r := ratesOf(50, time.Second, 30*time.Second)
	now := time.Minute
	for range 5_000 {
		c.Book(now, r, Untried)
	}
	if a := c.Book(now, r, Untried); !a.Deferred {
		t.Fatalf("the horizon is full: %+v", a)
	}
	now += 4 * time.Second // none of them has come
	c.Arrived(now, time.Second, 50, 0)
	if c.Doubt() != 1 {
		t.Errorf("after %+v: doubt %v", c.counts, c.Doubt())
	}
	if a := c.Book(now, r, Untried); a.Deferred || a.Wait > 1250*ms {
		t.Errorf("none of 5,000 comes, and the next one is told %+v", a)
	}
	// One that is in addition to what is usual need not be like them.
	for range 500 {
		c.Book(now, r, Untried)
	}
	if share := c.share(Untried); share < 0.9 {
		t.Errorf("a herd comes during a flood: the share is %v", share)
	}
}

// While neither the capacity nor the share changes, because all come, who comes later gets a later
// slot, and all slots are used: a herd is served as fast as the rate allows.
func TestFirstComeFirstServed(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var c Calendar
		service := math.Pow(10, rng.Float64()*4-1)
		r := ratesOf(service, time.Second, 59*time.Second)
		now := time.Duration(rng.Int64N(int64(time.Hour)))
		last, queued := Appointment{}, 0.0
		first, n := now, 0
		for i := range 2_000 {
			if rng.IntN(3) == 0 {
				now += time.Duration(rng.Float64() * 0.5 / service * float64(time.Second))
			}
			a := c.Book(now, r, Untried)
			switch {
			case a.Deferred && a.Number <= queued:
				t.Fatalf("seed %d: number %v after %v", seed, a.Number, queued)
			case a.Deferred:
				queued = a.Number
			case queued > c.served:
				t.Fatalf("seed %d: request %d passes the queue: %+v", seed, i, a)
			case a.At < last.At:
				t.Fatalf("seed %d: request %d gets %v after %v", seed, i, a.At, last.At)
			default:
				last = a
				n++
				c.bucket(int64(a.At / SlotWidth)).kept[a.Trust]++
			}
		}
		// The first slot is a second away, and one in each bucket may be lost.
		s := c.Spare(service)
		if reach := (last.At - first - time.Second).Seconds(); reach*s > float64(n)+2+s/4 {
			t.Errorf("seed %d: %d slots reach for %.2f s at %.4g per second", seed, n, reach, s)
		}
	}
}

// All clients keep their promises, through the rounding of the records. Then the share
// is 1, or more slots would be promised than can be served.
func TestAllKeptIsAShareOfOne(t *testing.T) {
	for _, service := range []float64{1, 10, 12.245, 48 / utilisation, 100, 1000} {
		var c Calendar
		var l Ledger
		l.Resize(1 << 16)
		r := ratesOf(service, time.Second, 59*time.Second)
		now := time.Second
		n := min(int(c.Spare(service)*50), 5_000)
		at := make([]time.Duration, n)
		for i := range at {
			a := c.Book(now, r, Untried)
			if a.Deferred || !l.Write(now, uint64(i+1), 1, a, now, ReplaceNone) {
				t.Fatalf("%v/s: client %d has no slot: %+v", service, i, a)
			}
			at[i] = a.At
		}
		for i, at := range at {
			v := l.Keep(at, uint64(i+1))
			c.Kept(at, v.At, Untried)
			c.Arrived(at, time.Second, 0, 0)
		}
		c.Arrived(now+2*time.Minute, time.Second, 0, 0)
		s := c.Stats(0)
		if p, share := s.Promises, s.KeptShare; share != 1 || int(p.Kept) != n || p.NoShow != 0 || p.Late != 0 {
			t.Errorf("%v/s: %d promises, all kept: %+v, share %v", service, n, p, share)
		}
	}
}

// No client comes: all promises of a bucket are counted a second after it, also without
// a call for minutes.
func TestNoShowsAreCounted(t *testing.T) {
	for _, later := range []time.Duration{0, time.Minute, time.Hour, 1_000 * time.Hour} {
		var c Calendar
		r := ratesOf(100, time.Second, 30*time.Second)
		for range 1_000 {
			c.Book(time.Second, r, Untried)
		}
		c.Arrived(14*time.Second+later, time.Second, 0, 0)
		s := c.Stats(0)
		if p, share := s.Promises, s.KeptShare; p.Made != 1_000 || p.NoShow != 1_000 || share != minKept[Untried] {
			t.Errorf("%v later: %+v, share %v; want 1,000 made, none kept", later, p, share)
		}
	}
}

// The share is of the promises for which clients come, in time or late, down to
// minKept. Two minutes after the last backlog, the next crowd is trusted.
func TestKeptShareIsOfThoseThatCome(t *testing.T) {
	for _, c := range []struct{ inTime, late, want float64 }{
		{1, 0, 1}, {0.6, 0, 0.6}, {0, 1, 1}, {0.3, 0.4, 0.7}, {0.45, 0, 0.45}, {0, 0, minKept[Untried]},
	} {
		var cal Calendar
		r := ratesOf(10, time.Second, 59*time.Second)
		var comes []time.Duration // when clients come for their slots, in order
		var slots []time.Duration
		for i := range 500 {
			slot := cal.Book(time.Second, r, Untried).At
			switch part := float64(i%20) / 20; {
			case part < c.inTime:
				comes, slots = append(comes, slot), append(slots, slot)
			case part < c.inTime+c.late:
				comes, slots = append(comes, slot+2*time.Second), append(slots, slot)
			}
		}
		seconds := func(from, to int) {
			for s := from; s < to; s++ {
				now := time.Duration(s) * time.Second
				for i, at := range comes {
					if at > now-time.Second && at <= now {
						cal.Kept(at, slots[i], Untried)
					}
				}
				cal.Arrived(now, time.Second, 0, 0)
			}
		}
		seconds(1, 50)
		during := cal.Stats(49 * time.Second).KeptShare
		seconds(50, 175) // the backlog ends at 53 s
		after := cal.Stats(174 * time.Second).KeptShare
		t.Logf("%.0f %% in time and %.0f %% late: %.3f during the backlog, %.3f two minutes after", 100*c.inTime, 100*c.late, during, after)
		if math.Abs(during-c.want) > 0.06+0.06*c.late || after < 0.99 { // some are late this moment
			t.Errorf("want %v, and nearly 1", c.want)
		}
	}
}

// A wait beyond the ring is no reason to forget promises.
func TestLongWaitForATokenForgetsNoPromise(t *testing.T) {
	for _, wait := range []time.Duration{31 * time.Second, 127 * time.Second, 128 * time.Second, time.Hour, 30 * 24 * time.Hour} {
		var c Calendar
		r := ratesOf(10, time.Second, 30*time.Second)
		var slots []time.Duration
		for range 100 {
			slots = append(slots, c.Book(time.Second, r, Untried).At)
		}
		for i := range 520 {
			far := r
			far.Token = wait + time.Duration(i)*SlotWidth
			if a := c.Book(time.Second, far, Untried); !a.Deferred {
				t.Fatalf("a slot in %v for one who has to wait %v", a.Wait, wait)
			}
			c.Leave()
		}
		for range 100 { // excuses look at every bucket
			if a := c.Excuse(time.Second, r, Proven); !a.Deferred {
				slots = append(slots, a.At)
			}
		}
		wantAtMost(t, wait.String(), slots, 10, 10*SlotWidth.Seconds())
	}
}

func TestCapacityThatReturnsIsUsed(t *testing.T) {
	var c Calendar
	low, high := ratesOf(10, time.Second, 59*time.Second), ratesOf(100, time.Second, 59*time.Second)
	for range 300 {
		c.Book(time.Second, low, Untried)
	}
	a := c.Book(time.Second, high, Untried)
	if a.At > 2*time.Second+SlotWidth {
		t.Errorf("ten times the capacity, and the next slot is in %v", a.Wait)
	}
	// In small steps, too: one in 200 per booking.
	c = Calendar{}
	for i := range 500 {
		a = c.Book(time.Second, ratesOf(10*math.Pow(1.005, float64(i)), time.Second, 59*time.Second), Untried)
		if a.Deferred {
			t.Fatalf("request %d is deferred", i)
		}
	}
	// All that is promised fits into as much of the last rate as it is.
	last := 10 * math.Pow(1.005, 500) * utilisation
	if fluid := 500 / last; (a.At - 2*time.Second).Seconds() > 1.1*fluid+0.25 {
		t.Errorf("500 promises reach for %v at a rate that grew to %.0f/s: want about %.1f s", a.At-2*time.Second, last, fluid)
	}
}

// After hours without a request, the calendar is as good as new, and what it
// takes to find that out is bounded by the ring.
func TestLongIdleTime(t *testing.T) {
	for _, idle := range []time.Duration{127 * time.Second, 128 * time.Second, 129 * time.Second, time.Hour, 20 * 365 * 24 * time.Hour} {
		var c Calendar
		r := ratesOf(20, time.Second, 30*time.Second)
		for range 2_000 {
			c.Book(time.Second, r, Untried)
		}
		now := time.Second + idle
		a := c.Book(now, r, Untried)
		if a.Deferred && idle > 200*time.Second || !a.Deferred && a.At > now+time.Second+SlotWidth && idle > time.Minute {
			t.Errorf("after %v: %+v", idle, a)
		}
		if !c.Backlogged(now) && !a.Deferred || c.Backlogged(a.At) || !c.Expecting(now) || c.Expecting(a.At+maxLate) {
			t.Errorf("after %v: standing %v, expecting %v", idle, c.Backlogged(now), c.Expecting(now))
		}
		if reach := c.Stats(now).Backlog; !a.Deferred && reach != a.Wait {
			t.Errorf("after %v: the backlog reaches for %v, want %v", idle, reach, a.Wait)
		}
	}
}

// An appointment that is taken back is the next one's, once.
func TestForgottenSlotIsGivenAgain(t *testing.T) {
	var c Calendar
	r := ratesOf(10, time.Second, 30*time.Second)
	now := time.Second
	var at []time.Duration
	for range 50 {
		at = append(at, c.Book(now, r, Untried).At)
	}
	c.Forget(now, at[20], Untried)
	again := c.Book(now, r, Untried).At
	if d := (again - at[20]).Abs(); d > 2*SlotWidth {
		t.Errorf("slot %v was taken back, the next one got %v", at[20], again)
	}
	if next := c.Book(now, r, Untried).At; next <= at[49] {
		t.Errorf("slot %v was given a second time: %v", at[20], next)
	}
	c.Forget(again, again, Untried) // it has passed: no client can use it
	c.Forget(now, time.Hour, Untried)
	wantAtMost(t, "forgotten", append(slices.Delete(at, 20, 21), again), c.Spare(10), c.Spare(10)*SlotWidth.Seconds())
}

// A waiting client is counted until it comes, is served before, or has not come.
func TestWaitingClientsAreCounted(t *testing.T) {
	var c Calendar
	r := ratesOf(10, time.Second, 30*time.Second)
	now := time.Second
	var at []time.Duration
	want := func(n int) {
		t.Helper()
		if c.Waiting() != n || c.Stats(now).Waiting != n {
			t.Errorf("%d wait, in the snapshot %d; want %d", c.Waiting(), c.Stats(now).Waiting, n)
		}
	}
	for range 50 {
		at = append(at, c.Book(now, r, Untried).At)
	}
	c.BookFrom(now, now+time.Second, r) // waits for its quota, not for the backend
	want(50)
	c.Unwatched(Appointment{At: at[0]}) // waits all the same
	want(50)
	c.Kept(at[1], at[1], Untried)
	want(49)
	for range 4 { // one client's, of which only the nearest is known
		c.Forget(now, at[40], Untried)
	}
	want(45)
	c.Forget(now, at[49]+time.Minute, Untried)
	want(45)
	now = at[49] + maturity + SlotWidth
	c.Arrived(now, time.Second, 0, 0)
	want(0)
	c.Kept(now, at[2], Untried)
	want(0)
}

// A slot may be anywhere in a bucket. Its client is counted no longer once it has come, or is
// forgiven, or has come to another replica, although its record has rounded the slot down.
func TestEveryReturnIsCounted(t *testing.T) {
	for what, comes := range map[string]func(c *Calendar, now, at time.Duration){
		"come":                    func(c *Calendar, now, at time.Duration) { c.Kept(at, at.Truncate(dueUnit), Untried) },
		"been forgiven":           func(c *Calendar, now, at time.Duration) { c.Forget(now, at.Truncate(dueUnit), Untried) },
		"come to another replica": func(c *Calendar, now, at time.Duration) { c.HearKept(at.Truncate(dueUnit), Untried) },
	} {
		for _, zero := range []time.Duration{0, 98765432109 * time.Nanosecond} { // the time of a store
			var c Calendar
			if zero > 0 {
				c.Join(time.Second, zero, 1, 0)
			}
			r := ratesOf(100, dueUnit, 30*time.Second)
			for i := range 2_000 {
				now := time.Minute + time.Duration(i)*333*ms
				at := c.Book(now, r, Untried).At
				comes(&c, now, at)
				if n := c.Waiting(); n != 0 {
					t.Fatalf("%d wait after the one that was told %v has %s", n, at, what)
				}
			}
		}
	}
}

// A time that was read long before it is used leaves no client waiting for ever.
func TestLateClockReading(t *testing.T) {
	for _, least := range []time.Duration{0, time.Second} {
		var c Calendar
		r := ratesOf(10, least, 30*time.Second)
		c.Book(10*time.Second, r, Untried)
		c.Excuse(10*time.Second-1300*ms-least, r, Proven)
		c.Arrived(time.Minute, time.Second, 0, 0)
		if n := c.Waiting(); n != 0 {
			t.Errorf("min %v: %d wait, long after their time", least, n)
		}
	}
}

// The narrowest horizons: one second, or the same at both ends. Nothing is ever
// told outside of them.
func TestNarrowHorizons(t *testing.T) {
	for _, bounds := range [][2]time.Duration{{time.Second, time.Second}, {0, time.Second}, {59 * time.Second, 59 * time.Second}, {time.Second, 2 * time.Second}} {
		for _, service := range []float64{0.01, 1, 50, 1e9} {
			var c Calendar
			r := ratesOf(service, bounds[0], bounds[1])
			for i := range 500 {
				now := time.Duration(i) * 7 * ms
				for _, a := range []Appointment{
					c.Book(now, r, Untried), c.BookFrom(now, now+time.Duration(i)*10*ms, r), c.Excuse(now, r, Proven), c.Later(now, r),
					c.Rebook(now, Visit{Standing: OnTime, Deferred: true, Number: 1}, r),
				} {
					if a.At < now+r.Min || a.At > now+r.Max || a.Wait <= 0 && r.Min > 0 {
						t.Fatalf("%v, %v/s: at %v: %+v", bounds, service, now, a)
					}
				}
			}
		}
	}
}

// A known herd's pulse is left free in its buckets, and nine tenths of a bucket
// at the most.
func TestPulseIsLeftFree(t *testing.T) {
	var c Calendar
	r := ratesOf(100, time.Second, 30*time.Second)
	at := 10 * time.Second
	r.Pulse = func(from, to time.Duration) float64 {
		if from <= at && at < to {
			return 20
		}
		if from <= 2*at && 2*at < to {
			return 1e6
		}
		return 0
	}
	n := map[int64]int{}
	for range 2_500 {
		if a := c.Book(time.Second, r, Untried); !a.Deferred {
			n[int64(a.At/SlotWidth)]++
		}
	}
	whole, pulse, flood := n[int64(9*time.Second/SlotWidth)], n[int64(at/SlotWidth)], n[int64(2*at/SlotWidth)]
	if whole < 24 || whole > 25 || pulse < 4 || pulse > 5 || flood < 2 || flood > 3 {
		t.Errorf("%d slots in a bucket, %d in one with a pulse of 20, %d in one with a flood; want 24.5, 4.5 and 2.5", whole, pulse, flood)
	}
}

// Many at once get what one after the other would get.
func TestParallelBookings(t *testing.T) {
	var c Calendar
	r := ratesOf(500, time.Second, 59*time.Second)
	const workers, each = 16, 1_000
	got := make([][]time.Duration, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				a := c.Book(time.Second, r, Untried)
				if a.Deferred {
					t.Error("deferred; the horizon has room for all")
				}
				got[w] = append(got[w], a.At)
				c.Backlogged(time.Second)
				c.Stats(time.Second)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(got...)
	wantAtMost(t, "parallel", all, c.Spare(500), c.Spare(500)*SlotWidth.Seconds())
	slices.Sort(all)
	if dup := len(all) - len(slices.Compact(all)); dup > 0 {
		t.Errorf("%d slots were given twice", dup)
	}
}

// FuzzCalendar: whatever is called with whatever, no appointment is outside of
// its bounds, no number is lost, and the slots keep to the law.
func FuzzCalendar(f *testing.F) {
	f.Add([]byte{0, 10, 0, 10, 1, 200, 2, 3, 3, 50, 4, 9, 5, 100, 6, 77, 7, 255}, uint16(1000), uint8(30))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 5, 255, 5, 255, 5, 255, 3, 1, 4, 1}, uint16(1), uint8(1))
	f.Add([]byte{9, 0}, uint16(100), uint8(20)) // any time, where no other waits
	f.Fuzz(func(t *testing.T, steps []byte, tenths uint16, most uint8) {
		var c Calendar
		r := ratesOf(float64(tenths)/10+0.01, time.Second, time.Duration(1+most%59)*time.Second)
		now := time.Duration(0)
		var last Appointment
		for i := 0; i+1 < len(steps) && i < 2_000; i += 2 {
			x := time.Duration(steps[i+1])
			var a Appointment
			v := Visit{Standing: OnTime, Deferred: true, Number: uint32(last.Number) / numberUnit, At: last.At}
			switch steps[i] % 10 {
			case 0:
				a = c.Book(now, r, Trust(steps[i]/16%2))
			case 1:
				far := r
				far.Token = x * x * ms
				a = c.Book(now, far, Untried)
			case 2:
				a = c.BookFrom(now, now+x*100*ms, r)
			case 3:
				a = c.Rebook(now, v, r)
			case 4:
				a = c.Excuse(now, r, Proven)
			case 5:
				now += x * x * 10 * ms
				continue
			case 6:
				c.Forget(now, last.At, last.Trust)
				continue
			case 7:
				c.Kept(now, last.At, last.Trust)
				c.Leave()
				continue
			case 8:
				c.Arrived(now, x*100*ms, uint64(x), 0)
				continue
			case 9:
				c.Overdue(now, v, r)
				a = c.Later(now, r)
			}
			if a.At < now+r.Min || a.At > now+r.Max || a.Wait < r.Min {
				t.Fatalf("step %d at %v: %+v, want %v to %v", i, now, a, r.Min, r.Max)
			}
			if a.Deferred && !(a.Number >= 0) || !(c.served <= c.issued && c.served >= 0) {
				t.Fatalf("step %d: %+v, served %v of %v", i, a, c.served, c.issued)
			}
			last = a
		}
		waiting := 0
		for i := range buckets {
			if c.ring == nil {
				break // nothing has been promised
			}
			b := &c.ring[i]
			if load := c.load(b); !(load >= 0) || math.IsInf(load, 0) || min(b.made[Untried], b.made[Proven], b.waiting) < 0 {
				t.Fatalf("%+v", *b)
			}
			waiting += int(b.waiting)
		}
		if c.Waiting() != waiting {
			t.Fatalf("%d are waiting, by the buckets %d", c.Waiting(), waiting)
		}
		if share := c.share(Untried); !(share >= minKept[Untried] && share <= 1) {
			t.Fatalf("share %v of %+v", share, c.kept)
		}
		if s := c.Spare(r.Rate); !(s > 0 && s <= r.Rate) {
			t.Fatalf("spare %v of %v", s, r.Rate)
		}
	})
}
