package main

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sleep returns when a request of so long is over, or its client's patience is.
func sleep(ctx context.Context, d time.Duration) outcome {
	if until(ctx, time.Now().Add(d)) {
		return served
	}
	return timedOut
}

func TestLoadDoesNotWaitForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := load{rate: 100, lasts: time.Minute, timeout: time.Second, seed: 1}
		got := l.run(t.Context(), func(ctx context.Context, _ int) outcome { return sleep(ctx, time.Hour) })
		// Poisson: the standard deviation of 6000 is 77.
		if n := got.count[timedOut]; n < 5700 || n > 6300 {
			t.Errorf("%d requests have timed out; want about 6000", n)
		}
		if took := time.Since(began); took < 59*time.Second || took > 62*time.Second {
			t.Errorf("the load took %v; want its minute and the last client's second", took)
		}
		if got.goodput() != 0 || got.count[served] != 0 {
			t.Errorf("%d served; want none", got.count[served])
		}
	})
}

func TestLoadIsPoisson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perSecond := make([]float64, 400)
		var mu sync.Mutex // guards perSecond
		began := time.Now()
		load{rate: 50, lasts: 400 * time.Second, timeout: time.Second, seed: 2}.run(t.Context(), func(context.Context, int) outcome {
			mu.Lock()
			defer mu.Unlock()
			perSecond[int(time.Since(began)/time.Second)]++
			return served
		})
		sum, squares := 0.0, 0.0
		for _, n := range perSecond {
			sum += n
			squares += n * n
		}
		mean := sum / 400
		variance := squares/400 - mean*mean
		// Both are the rate. Their standard errors are 0.35 and 3.5.
		if math.Abs(mean-50) > 1.5 || math.Abs(variance-50) > 15 {
			t.Errorf("mean %.1f and variance %.1f per second; want 50 and 50", mean, variance)
		}
	})
}

// What the sender holds up is latency of the requests that it should have sent.
func TestLatencyIsFromWhenARequestWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := load{rate: 100, lasts: 10 * time.Second, timeout: time.Second, seed: 3}
		got := l.run(t.Context(), func(ctx context.Context, _ int) outcome { return sleep(ctx, 300*time.Millisecond) })
		if p50, p99 := quantile(got.latencies, .5), quantile(got.latencies, .99); p50 != 300*time.Millisecond || p99 != p50 {
			t.Errorf("p50 %v, p99 %v; want 300ms", p50, p99)
		}
		// A send that overstays its context was of no use to its client.
		got = l.run(t.Context(), func(context.Context, int) outcome { time.Sleep(1100 * time.Millisecond); return served })
		if got.count[served] != 0 || got.count[timedOut] == 0 {
			t.Errorf("%d served, %d timed out; want none served", got.count[served], got.count[timedOut])
		}
	})
}

func TestSaturateMeasuresCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := make(chan struct{}, 8)
		got := saturate(t.Context(), 16, 5*time.Second, func(ctx context.Context, _ int) outcome {
			select {
			case workers <- struct{}{}:
				defer func() { <-workers }()
				return sleep(ctx, 50*time.Millisecond)
			case <-ctx.Done():
				return timedOut
			}
		})
		if math.Abs(got-160) > 3 {
			t.Errorf("capacity is %.1f per second; want 160", got)
		}
	})
}

func TestQuantileIsNearestRank(t *testing.T) {
	sorted := []time.Duration{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, .25: 1, .5: 2, .51: 3, .99: 4, 1: 4} {
		if got := quantile(sorted, q); got != want {
			t.Errorf("quantile %g is %d; want %d", q, got, want)
		}
	}
	if got := quantile(nil, .5); got != 0 {
		t.Errorf("quantile of nothing is %v; want 0", got)
	}
}
