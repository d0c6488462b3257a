package clients

import (
	"math"
	"math/rand/v2"
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
	// Ten thousand clients that all fail: the share of retries stays under 10%.
	var retries, requests int64
	for range 10_000 {
		requests++
		for attempt := 1; ; attempt++ {
			if _, again := p.Next(Rejected{Attempt: attempt, Retries: retries, Requests: requests}); !again {
				break
			}
			retries++
			requests++
		}
	}
	if share := float64(retries) / float64(requests); share < 0.099 || share > 0.1001 {
		t.Errorf("%.4f of the requests are retries, want 0.1", share)
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

// Each client retries once in each window, whatever the failures take, and the
// rate of retries never rises.
func TestModifiedBinary(t *testing.T) {
	const n = 50_000
	p := ModifiedBinary{Slot: time.Second}
	for _, delay := range []time.Duration{0, 40 * time.Millisecond} {
		draw := rand.New(rand.NewPCG(1, 2))
		bins := make([]int, 62)
		for range n {
			elapsed := delay
			for attempt := 1; attempt <= 5; attempt++ {
				wait, again := p.Next(Rejected{Attempt: attempt, Elapsed: elapsed, U: draw.Float64()})
				sent := (elapsed + wait).Seconds()
				start, end := math.Exp2(float64(attempt))-2, math.Exp2(float64(attempt+1))-2
				// An attempt that failed after the end of its window begins the next one late.
				if !again || sent < start || sent > end+1e-6 {
					t.Fatalf("attempt %d, after %v: comes back at %v s, want %v to %v", attempt, elapsed, sent, start, end)
				}
				bins[min(int(sent), 61)]++
				elapsed += wait + delay
			}
		}
		for i, got := range bins {
			// N/2^⌊log2(t+2)⌋ per slot; a delay d makes of the first window [d, 2).
			want := n / math.Exp2(math.Floor(math.Log2(float64(i)+2)))
			if slack := 5*math.Sqrt(want) + want*1.1*delay.Seconds(); math.Abs(float64(got)-want) > slack {
				t.Errorf("delay %v: %d retries in second %d, want %.0f ± %.0f", delay, got, i, want, slack)
			}
		}
	}
	// A timeout that outlasts its window: uniform in the rest of the one that it is in.
	for _, c := range []struct {
		u    float64
		want time.Duration
	}{{0, 0}, {0.5, 2 * time.Second}, {math.Nextafter(1, 0), 4 * time.Second}} {
		if got, _ := p.Next(Rejected{Attempt: 1, Elapsed: 10 * time.Second, U: c.u}); (got - c.want).Abs() > time.Microsecond {
			t.Errorf("after a timeout of 10 s, draw %v: waits %v, want %v", c.u, got, c.want)
		}
	}
}
