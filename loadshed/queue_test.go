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
	w := q.Join(now, now+time.Second, rank, 100, 100*ms)
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
	c := mustJoin(t, &q, 102*ms, 0)
	wantGrants(t, &q, 102*ms, c, b, a)

	// It has been empty: the oldest first again.
	d := mustJoin(t, &q, 108*ms, 0)
	e := mustJoin(t, &q, 109*ms, 0)
	wantGrants(t, &q, 200*ms, d, e)
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
	a, b := q.Join(0, time.Second, 2, 2, ms), q.Join(0, time.Second, 1, 2, ms)
	if q.Join(ms, time.Second, 1, 2, ms) != nil {
		t.Error("an equal one joins a full queue")
	}
	c := q.Join(ms, time.Second, 2, 2, ms)
	wantTold(t, b, dropped)
	wantGrants(t, &q, ms, a, c)
}

// A request waits until it can just be served before its deadline, for the timeout that is set, or else for as long as twenty
// permits take to become free, but at least 100 ms, and less again where that is slow.
func TestHowLongARequestWaits(t *testing.T) {
	for _, c := range []struct {
		name                       string
		deadline, timeout, service time.Duration
		permits                    int
		want                       time.Duration // 0: rejected
	}{
		{"no deadline", 0, 50 * ms, 30 * ms, 1, 50 * ms},
		{"a far one", 400 * ms, 50 * ms, 30 * ms, 1, 50 * ms},
		{"one before the timeout and service", 60 * ms, 50 * ms, 30 * ms, 1, 30 * ms},
		{"just in time, were there room", 31 * ms, 50 * ms, 30 * ms, 1, ms},
		{"no time to wait", 30 * ms, 50 * ms, 30 * ms, 1, 0},
		{"no time to be served", 20 * ms, 50 * ms, 30 * ms, 1, 0},
		{"over", -10 * ms, 50 * ms, 0, 1, 0},
		{"by default", 0, 0, 100 * ms, 10, 200 * ms},
		{"by default, one permit", 0, 0, 30 * ms, 1, 600 * ms},
		{"by default, a fast backend", 0, 0, 10 * ms, 10, 100 * ms},
		{"by default, a slow one", 0, 0, 10 * time.Second, 10, 200 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustPlan(t, PlanConfig{Limit: c.permits, Queue: QueueConfig{Size: 10, Timeout: c.timeout}})
			var b Concurrency
			b.Use(p, true)
			now := time.Minute
			for range c.permits {
				b.Enter(now, p, &Entrant{}, new(Permit))
			}
			b.gate.service.Store(int64(c.service))
			var pl Permit
			e := Entrant{}
			if c.deadline != 0 {
				e.Deadline = now + c.deadline
			}
			if is, _ := b.Enter(now, p, &e, &pl); is != Waiting || c.want == 0 {
				if is == Waiting || c.want != 0 {
					t.Fatalf("%v; want it to wait for %v", is, c.want)
				}
				return
			}
			b.Sweep(now + c.want - 1)
			wantTold(t, pl.wait, waiting)
			b.Sweep(now + c.want)
			wantTold(t, pl.wait, expired)
		})
	}
}

// One request waits and is let in, behind so many others of a lower rank.
func BenchmarkQueue(b *testing.B) {
	for _, others := range []int{0, 31, 9_999} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			var q queue
			for range others {
				q.Join(0, time.Hour, 0, 10_000, ms)
			}
			enter := granting(func(r priority) bool { return r > 0 })
			b.ReportAllocs()
			for b.Loop() {
				w := q.Join(1, time.Second, 1, 10_000, ms)
				q.Wake(1, enter)
				<-w.told
			}
		})
	}
}
