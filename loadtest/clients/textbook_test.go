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

func TestElapsedLimit(t *testing.T) {
	for elapsed, want := range map[time.Duration]bool{0: true, 15 * time.Minute: true, 15*time.Minute + 1: false} {
		if _, again := (GoogleHTTPJava{}).Next(Rejected{Attempt: 20, Elapsed: elapsed}); again != want {
			t.Errorf("google-http-java-client comes back %v after the start: %v, want %v", elapsed, again, want)
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

// A client that learns of its failure after the end of its window takes the one that it is in, uniformly in the rest. Otherwise windows
// are those of the catalog's table.
func TestModifiedBinary(t *testing.T) {
	p := ModifiedBinary{Slot: time.Second}
	for _, c := range []struct {
		u    float64
		want time.Duration
	}{{0, 0}, {0.5, 2 * time.Second}, {math.Nextafter(1, 0), 4 * time.Second}} {
		if got, _ := p.Next(Rejected{Attempt: 1, Elapsed: 10 * time.Second, U: c.u}); (got - c.want).Abs() > time.Microsecond {
			t.Errorf("after a timeout of 10 s, draw %v: waits %v, want %v", c.u, got, c.want)
		}
	}
}
