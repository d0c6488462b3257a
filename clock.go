package shield

import (
	"context"
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
