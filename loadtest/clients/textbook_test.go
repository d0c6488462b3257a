package clients

import (
	"math"
	"testing"
	"time"
)

// A process may retry a tenth of what it sends.
func TestBudget(t *testing.T) {
	p := policy(t, "google-sre")
	for _, c := range []struct {
		retries, requests int64
		again             bool
	}{{0, 0, true}, {0, 1, true}, {1, 1, false}, {9, 100, true}, {10, 100, false}, {99, 1000, true}, {100, 1000, false}} {
		for attempt, again := range []bool{1: c.again, 2: c.again, 3: false} {
			if attempt == 0 {
				continue
			}
			if _, got := p.Next(Rejected{Attempt: attempt, Retries: c.retries, Requests: c.requests}); got != again {
				t.Errorf("attempt %d, %d of %d are retries: comes back %v, want %v", attempt, c.retries, c.requests, got, again)
			}
		}
	}
}

func TestDecorrelated(t *testing.T) {
	const s = time.Second
	p := Decorrelated{Base: s, Cap: 60 * s}
	for _, c := range []struct{ last, least, most time.Duration }{
		{0, s, 3 * s}, {s, s, 3 * s}, {10 * s, s, 30 * s}, {20 * s, s, 60 * s}, {60 * s, s, 60 * s},
	} {
		least, _ := p.Next(Rejected{Attempt: 2, Gap: c.last})
		most, _ := p.Next(Rejected{Attempt: 2, Gap: c.last, U: math.Nextafter(1, 0)})
		if least != c.least || (most-c.most).Abs() > 1000 {
			t.Errorf("after a wait of %v: %v to %v, want %v to %v", c.last, least, most, c.least, c.most)
		}
	}
}
