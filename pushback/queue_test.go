package pushback

import (
	"math"
	"slices"
	"testing"
	"time"
)

// Deferred clients that come when they are told get slots in the order of their
// numbers: to within what a record rounds where the hops are reckoned, and to
// within a horizon where they are drawn.
func TestTheQueueIsServedInOrder(t *testing.T) {
	for _, n := range []int{3_000, 20_000} {
		var c Calendar
		r := ratesOf(100, time.Second, 30*time.Second)
		// In the order of time: what each was told, and whether it is a slot.
		var waiting []Appointment
		insert := func(a Appointment) {
			i, _ := slices.BinarySearchFunc(waiting, a, func(b, a Appointment) int { return int(b.At - a.At) })
			waiting = slices.Insert(waiting, i, a)
		}
		now := 10 * time.Second
		for i := range n {
			insert(c.Book(now+time.Duration(i)*20*time.Microsecond, r, Untried))
		}
		var slots []time.Duration
		var order []float64
		visits := 0
		for len(waiting) > 0 {
			w := waiting[0]
			waiting = waiting[1:]
			visits++
			if !w.Deferred {
				c.Kept(w.At, w.At, w.Trust)
				slots, order = append(slots, w.At), append(order, w.Number)
				continue
			}
			a := c.Rebook(w.At, Visit{Standing: OnTime, Deferred: true, Number: uint32(w.Number) / numberUnit}, r)
			if a.Deferred && math.Abs(a.Number-w.Number) > numberUnit {
				t.Fatalf("number %v was given back as %v", w.Number, a.Number)
			}
			a.Number = w.Number
			insert(a)
		}
		wantAtMost(t, "queue", slots, 98, 98*SlotWidth.Seconds())
		end := slices.Max(slots)
		if fluid := now + time.Duration(float64(n)/98*float64(time.Second)); end > fluid+20*time.Second {
			t.Errorf("%d clients: the last slot is at %v; a perfect queue ends at %v", n, end, fluid)
		}
		highest, worst := 0.0, 0.0 // how far does a client pass others?
		for _, number := range order {
			worst = max(worst, highest-number)
			highest = max(highest, number)
		}
		// A client that asks just before its number is served may have to ask once more.
		limit := 98 * r.Max.Seconds()
		if n < farHops*int(limit) {
			limit = numberUnit
		}
		if worst > limit {
			t.Errorf("%d clients: %.0f places passed, want at most %.0f", n, worst, limit)
		}
		t.Logf("%d clients: %.2f visits each, %.0f places passed at most", n, float64(visits)/float64(len(slots)), worst)
	}
}

// A reload may take the backend's limit away while clients are deferred, and
// bring it back. The queue must survive a rate without bounds.
func TestQueueSurvivesARateWithoutBounds(t *testing.T) {
	for _, service := range []float64{math.Inf(1), math.MaxFloat64, 1e9} {
		var c Calendar
		r := ratesOf(10, time.Second, 10*time.Second)
		var a Appointment
		for range 200 {
			a = c.Book(time.Second, r, Untried)
		}
		v := Visit{Standing: OnTime, Deferred: true, Number: uint32(a.Number) / numberUnit}
		for i := range 6 {
			c.Overdue(time.Second+time.Duration(i/2)*4*time.Second, v, ratesOf(service, time.Second, 10*time.Second))
		}
		if math.IsNaN(c.served) || c.served < 0 || c.served > c.issued {
			t.Fatalf("service %v: of %v numbers %v are served", service, c.issued, c.served)
		}
		if a := c.Book(40*time.Second, r, Untried); a.Deferred {
			t.Errorf("service %v: %+v long after the queue, want a slot", service, a)
		}
	}
}
