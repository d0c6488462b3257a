package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A load is a Poisson process of requests that does not wait for answers, as the
// traffic of many clients that know nothing of each other: each comes once, at its
// time, whether or not those before it have been answered.
type load struct {
	rate    float64 // requests per second
	lasts   time.Duration
	timeout time.Duration // how long a client waits for its answer
	seed    uint64
}

// An outcome is how a request ended for its client.
type outcome uint8

const (
	served   outcome = iota // a 2xx, complete and in time
	refused                 // turned away by shield, in time
	failed                  // any other answer, or a broken connection
	timedOut                // no complete answer in time
	outcomes
)

// A tally is what the clients of a load have met with.
type tally struct {
	span      time.Duration
	count     [outcomes]int
	latencies []time.Duration // of those served, sorted
	late      []time.Duration // how long after its time each was sent, sorted: the machine's fault
}

// run sends the load and returns when each request has ended. send must return
// soon after its context ends.
//
// Time runs from the instant at which a request was due, for its latency and for
// its client's patience: if this process is late, then that counts as latency, and
// does not hide what the requests that should have been sent would have met
// (coordinated omission: Tene, "How NOT to Measure Latency", 2013).
func (l load) run(ctx context.Context, send func(ctx context.Context, client int) outcome) tally {
	t := tally{span: l.lasts}
	var mu sync.Mutex // guards t
	var clients sync.WaitGroup
	random := rand.New(rand.NewPCG(l.seed, 0))
	start := time.Now()
	next := time.Duration(0)
	for client := 0; ; client++ {
		next += time.Duration(random.ExpFloat64() / l.rate * float64(time.Second))
		if next >= l.lasts {
			break
		}
		due := start.Add(next)
		if !until(ctx, due) {
			break
		}
		clients.Go(func() {
			late := time.Since(due)
			ctx, cancel := context.WithDeadline(ctx, due.Add(l.timeout))
			defer cancel()
			o := send(ctx, client)
			took := time.Since(due)
			if took > l.timeout {
				o = timedOut // it had answered while nobody waited any more
			}
			mu.Lock()
			defer mu.Unlock()
			t.count[o]++
			t.late = append(t.late, late)
			if o == served {
				t.latencies = append(t.latencies, took)
			}
		})
	}
	clients.Wait()
	slices.Sort(t.latencies)
	slices.Sort(t.late)
	return t
}

// until waits for an instant, or returns false as soon as ctx ends.
func until(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// goodput returns how many were served per second.
func (t tally) goodput() float64 { return float64(t.count[served]) / t.span.Seconds() }

// offered returns how many came per second.
func (t tally) offered() float64 {
	sum := 0
	for _, n := range t.count {
		sum += n
	}
	return float64(sum) / t.span.Seconds()
}

// quantile returns the nearest-rank quantile q of sorted times, 0 if there are none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// saturate keeps so many requests in flight and returns how many are served per
// second: the capacity of what serves them, if they are more than it can work on
// at once.
func saturate(ctx context.Context, inFlight int, lasts time.Duration, send func(ctx context.Context, client int) outcome) float64 {
	var mu sync.Mutex
	var ends []time.Time
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var clients sync.WaitGroup
	for client := range inFlight {
		clients.Go(func() {
			for ctx.Err() == nil {
				if send(ctx, client) == served {
					mu.Lock()
					ends = append(ends, time.Now())
					mu.Unlock()
				}
			}
		})
	}
	clients.Wait()
	if len(ends) < 2 {
		return 0
	}
	// From one end to another, the time before the first answer does not count.
	first, last := ends[0], ends[0]
	for _, end := range ends {
		if end.Before(first) {
			first = end
		}
		if end.After(last) {
			last = end
		}
	}
	return float64(len(ends)-1) / last.Sub(first).Seconds()
}
