package pushback

import (
	"testing"
	"time"
)

// shared returns a Calendar of one of four replicas, of a backend that takes 100 per second.
func shared(now time.Duration) (*Calendar, Rates) {
	c := new(Calendar)
	c.Join(now, 0, 4, 1)
	return c, Rates{Rate: 100, Min: time.Second, Max: 30 * time.Second}
}

// book returns how many of n promises are due in each bucket from the first on.
func book(c *Calendar, now time.Duration, r Rates, n int) map[int64]int {
	due := map[int64]int{}
	for range n {
		due[c.number(c.Book(now, r, Untried).At)]++
	}
	return due
}

func TestSlotsAreDividedGrantedAndGuessed(t *testing.T) {
	now := 10 * time.Second
	c, r := shared(now)

	// Before anything is granted: a fourth of the first buckets, then guesses at the full rate,
	// and after those at a fourth of it.
	first := c.number(now + time.Second)
	due := book(c, now, r, 60)
	even := due[first] + due[first+1]
	if even < 10 || even > 14 {
		t.Errorf("%d are due in the buckets that are divided by four: %v", even, due)
	}
	if due[first+2] < maxGuesses || due[first+3] > 8 {
		t.Errorf("guesses are not dense at first, or not thin then: %v", due)
	}
	if !c.WantsSlots() {
		t.Error("it wants no slots, and has guessed")
	}
	ask := c.AskSlots(now, time.Millisecond, r)
	guessed := 0.0
	for _, g := range ask.Guessed {
		guessed += g.Size
	}
	if guessed != float64(60-even) || ask.Want < 20 {
		t.Errorf("it tells of %v guesses, and wants %v; want %d, and some", guessed, ask.Want, 60-even)
	}
	if again := c.AskSlots(now, time.Millisecond, r); len(again.Guessed) > 0 {
		t.Errorf("it tells of its guesses twice: %v", again.Guessed)
	}

	// Granted slots are booked, and no others.
	from := first + 40
	c.HearSlots(now, &SlotsAnswer{First: first + 2, Cursor: from + 2, Grants: []Slot{{from, 3}, {from + 1, 5}}}, r)
	due = book(c, now, r, 8)
	if due[from] != 3 || due[from+1] != 5 {
		t.Errorf("of 3 and 5 slots are used %v", due)
	}
	if due = book(c, now, r, 1); due[from]+due[from+1] > 0 {
		t.Errorf("a ninth is booked into 8 slots: %v", due)
	}

	// Slots that are not needed go back.
	c.HearSlots(now, &SlotsAnswer{First: first + 2, Cursor: from + 4, Grants: []Slot{{from + 3, 6}}}, r)
	book(c, now, r, 2)
	ask = c.AskSlots(now+100*time.Millisecond, time.Millisecond, r)
	if len(ask.Back) != 1 || ask.Back[0] != (Slot{from + 3, 4}) || ask.Want != 0 {
		t.Errorf("it gives back %v and wants %v; want 4 slots back", ask.Back, ask.Want)
	}

	// A store that has forgotten all is told what it holds.
	c.Forgot()
	if ask = c.AskSlots(now+101*time.Millisecond, time.Millisecond, r); ask.First != first+2 || len(ask.Anew) < 4 {
		t.Errorf("it tells a new store of %v from %d on", ask.Anew, ask.First)
	}
}

// Promises of others take no room here, but belong to the backlog and to the share that is
// kept.
func TestPromisesOfOtherReplicas(t *testing.T) {
	now := 10 * time.Second
	c, r := shared(now)
	at := now + 2*time.Second
	for range 40 {
		c.Hear(Appointment{At: at})
	}
	if c.Ahead(now) != 2*time.Second || c.Waiting() != 40 {
		t.Errorf("the backlog is %v of %d, want 2s of 40", c.Ahead(now), c.Waiting())
	}
	for range 10 {
		c.HearKept(at, Untried)
	}
	c.Arrived(now+4*time.Second, time.Second, 0, 0)
	if share := c.Stats(now + 4*time.Second).KeptShare; share > 0.5 {
		t.Errorf("the share of kept promises is %.2f, and 10 of 40 were", share)
	}
	if n := c.Stats(now + 4*time.Second).Promises; n.Made > 0 || n.NoShow > 1 {
		t.Errorf("promises of others are counted as this replica's: %+v", n)
	}
	c.Part()
	if a := c.Book(now+5*time.Second, r, Untried); a.Deferred || a.Wait > 2*time.Second {
		t.Errorf("alone it books %+v", a)
	}
}

// Numbers of the queue are issued by all.
func TestQueueOfAllReplicas(t *testing.T) {
	now := 10 * time.Second
	c, r := shared(now)
	r.Max = 3 * time.Second
	n := 0
	for ; n < 2000 && !c.Book(now, r, Untried).Deferred; n++ {
	}
	for range 9 {
		c.Book(now, r, Untried)
	}
	ask := c.AskSlots(now, 0, r)
	if ask.Numbers != 10 {
		t.Fatalf("it has issued %v numbers, want 10", ask.Numbers)
	}
	c.HearSlots(now, &SlotsAnswer{Issued: 510}, r)
	if a := c.Book(now, r, Untried); a.Number != 511 {
		t.Errorf("the next number is %v, want 511: others have issued 500", a.Number)
	}
}
