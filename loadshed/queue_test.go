package loadshed

import (
	"fmt"
	"testing"
	"time"
)

const ms = time.Millisecond

// permits is a granter that has so many.
type permits int

func (n *permits) grant(time.Duration, priority) bool {
	*n--
	return *n >= 0
}

// freed returns a granter of one permit.
func freed() *permits {
	n := permits(1)
	return &n
}

// granting is a function as a granter.
type granting func(priority) bool

func (f granting) grant(_ time.Duration, rank priority) bool { return f(rank) }

// mustJoin joins a queue of 100 that has a timeout of a second.
func mustJoin(t *testing.T, q *queue, now time.Duration, rank priority) *waiter {
	t.Helper()
	w := q.Join(now, 0, rank, 100, time.Second, 0)
	if w == nil {
		t.Fatalf("rejected at %v in rank %d, with %d waiting", now, rank, q.Len())
	}
	return w
}

// told returns the verdict that a waiter can read by now.
func told(w *waiter) Verdict {
	select {
	case v := <-w.told:
		return v
	default:
		return waiting
	}
}

// wantGrants frees one permit after another: they go to want, in that order.
func wantGrants(t *testing.T, q *queue, now time.Duration, want ...*waiter) {
	t.Helper()
	for i, w := range want {
		q.Wake(now, freed())
		if v := told(w); v != Granted {
			t.Fatalf("permit %d at %v: it was %v, want granted", i, now, v)
		}
	}
}

func wantTold(t *testing.T, w *waiter, want Verdict) {
	t.Helper()
	if v := told(w); v != want {
		t.Fatalf("it was told %v, want %v", v, want)
	}
}

func TestOldestFirstWhileTheQueueEmpties(t *testing.T) {
	var q queue
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
	var q queue
	a := mustJoin(t, &q, 0, 0)
	b := mustJoin(t, &q, 100*ms, 0)
	c := q.Join(101*ms, 0, 0, 100, 0, 0)
	d := mustJoin(t, &q, 102*ms, 0)
	e := mustJoin(t, &q, 102*ms, 0)
	wantGrants(t, &q, 102*ms, e)
	q.Expire(105 * ms)
	wantTold(t, c, waiting)
	q.Expire(106 * ms) // 5 ms after it joined; those whose timeout is set keep it
	wantTold(t, c, expired)
	wantGrants(t, &q, 107*ms, d, b, a)

	// It has been empty: patience again.
	f := mustJoin(t, &q, 108*ms, 0)
	g := mustJoin(t, &q, 109*ms, 0)
	q.Expire(200 * ms)
	wantGrants(t, &q, 200*ms, f, g)
}

func TestHigherRankFirst(t *testing.T) {
	var q queue
	var w []*waiter
	for _, rank := range []priority{3, 0, 7, 3, 7} {
		w = append(w, mustJoin(t, &q, 0, rank))
	}
	for _, next := range []struct {
		index int
		rank  priority
	}{{2, 7}, {4, 7}, {0, 3}, {3, 3}, {1, 0}} {
		if r := q.Highest(); r != next.rank {
			t.Errorf("highest rank %d, want %d", r, next.rank)
		}
		wantGrants(t, &q, 0, w[next.index])
	}
}

// A higher rank replaces the one of the lowest that would go last, and no equal one.
func TestFullQueue(t *testing.T) {
	var q queue
	a, b := q.Join(0, 0, 2, 2, time.Second, 0), q.Join(0, 0, 1, 2, time.Second, 0)
	if q.Join(ms, 0, 1, 2, time.Second, 0) != nil {
		t.Error("an equal one joins a full queue")
	}
	c := q.Join(ms, 0, 2, 2, time.Second, 0)
	wantTold(t, b, dropped)
	wantGrants(t, &q, ms, a, c)
}

func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		name                       string
		deadline, timeout, service time.Duration
		want                       time.Duration // when its time is over; 0: rejected
	}{
		{"none", 0, 50 * ms, 30 * ms, 150 * ms},
		{"far", 500 * ms, 50 * ms, 30 * ms, 150 * ms},
		{"before the timeout and service", 160 * ms, 50 * ms, 30 * ms, 130 * ms},
		{"just in time, were there room", 131 * ms, 50 * ms, 30 * ms, 101 * ms},
		{"no time to wait", 130 * ms, 50 * ms, 30 * ms, 0},
		{"no time to be served", 120 * ms, 50 * ms, 30 * ms, 0},
		{"over", 90 * ms, 50 * ms, 0, 0},
		{"the default", 0, 0, 30 * ms, 121 * ms},
		{"negative timeout", 0, -1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var q queue
			w := q.Join(100*ms, c.deadline, 0, 10, c.timeout, c.service)
			if w == nil || c.want == 0 {
				if w != nil || c.want != 0 {
					t.Fatalf("waits: %v; want its time to be over at %v", w != nil, c.want)
				}
				return
			}
			q.Expire(c.want - 1)
			wantTold(t, w, waiting)
			q.Wake(c.want, freed())
			wantTold(t, w, expired)
		})
	}
}

// One request waits and is let in, behind so many others of a lower rank.
func BenchmarkQueue(b *testing.B) {
	for _, others := range []int{0, 31, 9_999} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			var q queue
			for range others {
				q.Join(0, 0, 0, 10_000, time.Hour, 0)
			}
			enter := granting(func(r priority) bool { return r > 0 })
			b.ReportAllocs()
			for b.Loop() {
				w := q.Join(1, 0, 1, 10_000, time.Second, ms)
				q.Wake(1, enter)
				<-w.told
			}
		})
	}
}
