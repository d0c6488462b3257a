package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// most bounds the requests of a rate that are in flight at one time.
const most = 5000

// steady runs until ctx ends; what is in flight then is waited for, so that nothing
// is counted as an error that is none.
func steady(ctx context.Context, l *load) {
	var all sync.WaitGroup
	for i := range l.clients {
		all.Go(func() {
			t := l.transport(i, true)
			defer t.CloseIdleConnections()
			for ctx.Err() == nil {
				a := l.attempt(t)
				l.record(a)
				wait(ctx, max(l.pause, a.after()))
			}
		})
	}
	all.Wait()
}

// rate runs until ctx ends, and waits for the requests in flight.
func rate(ctx context.Context, l *load) {
	transports := make([]*http.Transport, l.clients)
	for i := range transports {
		transports[i] = l.transport(i, false)
	}
	places := make(chan struct{}, most)
	var all sync.WaitGroup
	start := time.Now()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
		if !wait(ctx, time.Until(due)) {
			break
		}
		select {
		case places <- struct{}{}:
		default:
			l.skip()
			continue
		}
		all.Go(func() {
			defer func() { <-places }()
			l.record(l.attempt(transports[i%len(transports)]))
		})
	}
	all.Wait()
}

// herd ends when all its clients have ended, or ctx has.
func herd(ctx context.Context, l *load) {
	var all sync.WaitGroup
	for i := range l.clients {
		all.Go(func() {
			if wait(ctx, l.within*time.Duration(i)/time.Duration(l.clients)) {
				l.client(ctx, l.transport(i, false))
			}
		})
	}
	all.Wait()
}

// client runs one client of a herd.
func (l *load) client(ctx context.Context, t *http.Transport) {
	began, gap := time.Now(), time.Duration(0)
	for n := 1; ; n++ {
		a := l.attempt(t)
		l.record(a)
		if a.kind == served {
			l.leave(true, time.Since(began))
			return
		}
		after, again := clients.Exact{}.Next(clients.Rejected{
			Attempt: n, Hint: a.hint, Gap: gap, Elapsed: time.Since(began), U: rand.Float64(), Status: a.told(),
		})
		if !again || time.Since(began)+after > l.patience || !wait(ctx, after) {
			l.leave(false, time.Since(began))
			return
		}
		gap = after
	}
}

// wait returns true after d, or false as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
