package shield

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// The example of docs/reference/rules.md: what it says that clients of a herd are told.
func TestExampleOfTheRules(t *testing.T) {
	t.Parallel()
	type told struct {
		wait, hold float64 // seconds, rounded as on the page
		after      int
	}
	check := func(who string, d Decision, reason Reason, want told) {
		t.Helper()
		near := func(is time.Duration, want float64) bool { return math.Abs(is.Seconds()-want) < 0.0051 }
		if d.Admit || d.Reason != reason || !near(d.Wait, want.wait) || !near(d.Hold, want.hold) || d.Hint.Seconds != want.after {
			t.Errorf("%s: %+v; want %v, %+v", who, d, reason, want)
		}
	}
	for _, herd := range []int{100, 400} {
		g, err := New(Config{Capacity: limiter.Config{Rate: 10}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		now, client := time.Hour, limiter.Key(0)
		ask := func(now time.Duration, client limiter.Key) Decision {
			return g.Admit(now, Request{Client: client})
		}
		for ; now < time.Hour+time.Minute; now += 500 * time.Millisecond { // two new clients per second
			if client++; !ask(now, client).Admit {
				t.Fatalf("%v: a client is rejected before there is a herd", now)
			}
		}
		first := client // the herd is of those after it
		rejected := map[int]Decision{}
		for n := 1; n <= herd; n++ {
			d := ask(now, first+limiter.Key(n))
			if d.Admit != (n <= 10) {
				t.Fatalf("client %d of %d is admitted: %v", n, herd, d.Admit)
			}
			rejected[n-10] = d
		}
		check("the first", rejected[1], Capacity, told{1, 0, 1})
		check("the tenth", rejected[10], Capacity, told{2.154, 0.154, 2})
		check("the last of 90", rejected[90], Capacity, told{12.41, 0.41, 12})
		if herd == 400 {
			check("the last with a slot", rejected[227], Capacity, told{29.97, 0.97, 29})
			check("the first with a number", rejected[228], Capacity, told{15.06, 0.06, 15})
		}
		check("the tenth, after a second", ask(now+time.Second, first+20), Early, told{1.154, 0, 2})
		if d := ask(now+rejected[10].Wait, first+20); !d.Admit {
			t.Errorf("it is rejected when it is due: %+v", d)
		}
	}
}
