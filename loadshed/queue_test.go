package loadshed

import (
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// told returns the verdict that a waiter can read by now.
func told(w *waiter) Verdict {
	select {
	case v := <-w.told:
		return v
	default:
		return waiting
	}
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
		{"due, before a fast backend", 0, 0, 10 * ms, 10, 350 * ms},
		{"due, where all wait longer", 0, 0, 30 * ms, 1, 600 * ms},
		{"due, with a timeout", 0, 50 * ms, 30 * ms, 1, 50 * ms},
		{"highest of several classes", 0, 0, 100 * ms, 10, 400 * ms},               // in Netflix's surge, 0.99 of the users are served with 200 ms, and 0.996 so
		{"by default, for all of many permits", 0, 0, time.Second, 100, 1190 * ms}, // that take a second to become free
	} {
		t.Run(c.name, func(t *testing.T) {
			config := PlanConfig{Limit: c.permits, Queue: QueueConfig{Size: 10, Timeout: c.timeout}}
			if strings.HasPrefix(c.name, "highest") {
				config.Classes = []Class{{Name: Critical}, {Name: Default}}
			}
			p := mustPlan(t, config)
			var b Concurrency
			b.Use(p, true)
			now := time.Minute
			for range c.permits {
				b.Enter(now, p, &Entrant{}, new(Permit))
			}
			b.gate.service.Store(int64(c.service))
			var pl Permit
			e := Entrant{Due: strings.HasPrefix(c.name, "due")}
			if c.permits == 100 {
				e.Weight = c.permits
			}
			if c.deadline != 0 {
				e.Deadline = now + c.deadline
			}
			if is, _ := b.Enter(now, p, &e, &pl); is != Waiting || c.want == 0 {
				if is == Waiting || c.want != 0 {
					t.Fatalf("%v; want it to wait for %v", is, c.want)
				}
				return
			}
			if pl.Until() != now+c.want {
				t.Errorf("it waits for %v, want %v", pl.Until()-now, c.want)
			}
		})
	}
}
