package caddymodule

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
)

func TestOverloadStartsAndEndsOnce(t *testing.T) {
	var o overload
	for i, step := range []struct {
		at   time.Duration
		is   total
		want change
	}{
		{0, total{}, change{}},
		{1 * time.Second, total{3, 0, 0, 0, 0}, change{new: total{3, 0, 0, 0, 0}, started: true}},
		{2 * time.Second, total{3, 4, 0, 0, 0}, change{new: total{0, 4, 0, 0, 0}}},
		{3 * time.Second, total{3, 4, 0, 0, 0}, change{}},
		{6 * time.Second, total{3, 5, 0, 0, 0}, change{new: total{0, 1, 0, 0, 0}}}, // a wave 4 s later is the same overload
		{10 * time.Second, total{3, 5, 0, 0, 0}, change{}},
		{10*time.Second + 1, total{3, 5, 2, 0, 0}, change{new: total{0, 0, 2, 0, 0}}}, // so is one that only comes too early
		{15 * time.Second, total{3, 5, 2, 0, 0}, change{}},
		{16 * time.Second, total{3, 5, 2, 0, 0}, change{ended: true, lasted: 9*time.Second + 1, refused: 10}},
		{17 * time.Second, total{3, 5, 2, 0, 0}, change{}},
		{18 * time.Second, total{4, 5, 2, 0, 0}, change{new: total{1, 0, 0, 0, 0}, started: true}},
		{19 * time.Second, total{4, 5, 1, 0, 0}, change{}}, // another app's older count
		{30 * time.Second, total{4, 5, 2, 0, 0}, change{ended: true, refused: 1}},
	} {
		if got := o.step(step.at, step.is); got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
		if want := step.want.started || o.on; o.active() != want {
			t.Errorf("step %d: active = %v", i, o.active())
		}
	}
}

// During a reload two apps report from one state: every refusal is reported
// once, and every overload starts and ends once.
func TestTwoReportersShareTheNews(t *testing.T) {
	var o overload
	var mu sync.Mutex
	var reported, started, ended uint64
	var wg sync.WaitGroup
	for seed := range uint64(2) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for i := range uint64(20_000) {
				c := o.step(time.Duration(i)*time.Millisecond, total{capacity: i / 7 * uint64(rng.IntN(2))})
				mu.Lock()
				reported += c.new.capacity
				if c.started {
					started++
				}
				if c.ended {
					ended++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c := o.step(time.Hour, total{capacity: 20_000 / 7})
	reported += c.new.capacity
	if reported != 20_000/7 {
		t.Errorf("%d refusals reported, want %d", reported, 20_000/7)
	}
	if started-ended > 1 {
		t.Errorf("%d overloads started and %d ended", started, ended)
	}
}

// A subscriber that waits for the reload that stops the app must not hang it.
func TestStopDoesNotWaitForSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
		a := &App{ctx: ctx, stop: make(chan struct{}), stopped: make(chan struct{})} // its reporter never ends
		start := time.Now()
		if err := a.Stop(); err != nil || time.Since(start) != stopPatience {
			t.Errorf("Stop took %v, error %v; want %v", time.Since(start), err, stopPatience)
		}
		// Caddy may drop a config that it has started without stopping it.
		b := &App{ctx: ctx}
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-b.stopped
	})
}
