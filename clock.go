package shield

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// epoch is the beginning of time for everything in this process.
var epoch = time.Now()

// Now returns the time since this process began, from the monotonic clock. The
// shells around the Guard take it once per request; the core takes it from them.
func Now() time.Duration { return time.Since(epoch) }

// At returns the instant at which Now returned now.
func At(now time.Duration) time.Time { return epoch.Add(now) }

// Hold waits until d has passed, for a refusal that is to be held back. It
// reports whether the client is still there.
func Hold(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Await waits until a queued request has a place or is refused, or its client has
// gone: then it returns false, and the Decision is done with. r must be what Admit
// was given.
func (g *Guard) Await(ctx context.Context, r Request, d *Decision) (stays bool) {
	g.backend.sweep()
	select {
	case verdict := <-d.queued.w.C:
		g.Settle(Now(), r, d, verdict)
		return true
	case <-ctx.Done():
		g.Abandon(Now(), d)
		return false
	}
}

// A sweeper is the one timer for all that wait in a queue.
type sweeper struct {
	armed atomic.Bool
	mu    sync.Mutex // guards timer
	timer *time.Timer
}

// sweep has the queue looked at until nobody waits in it.
func (b *Backend) sweep() {
	s := &b.sweeper
	if s.armed.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		s.timer = time.AfterFunc(sweepEvery, b.swept)
	} else {
		s.timer.Reset(sweepEvery)
	}
}

func (b *Backend) swept() {
	s := &b.sweeper
	s.mu.Lock()
	defer s.mu.Unlock()
	b.latest.Load().Sweep(Now())
	if b.queue.Len() == 0 {
		s.armed.Store(false)
		if b.queue.Len() == 0 || s.armed.Swap(true) {
			return // who joined since has found it disarmed, or will
		}
	}
	s.timer.Reset(sweepEvery)
}
