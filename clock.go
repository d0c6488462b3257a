package shield

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/herdshield/shield/loadshed"
)

// epoch is the beginning of time for everything in this process.
var epoch = time.Now()

// Now returns the time since this process began, from the monotonic clock. The
// shells around the Guard take it once per request; the core takes it from them.
func Now() time.Duration { return time.Since(epoch) }

// At returns the instant at which Now returned now. Its time of day is by the clock as it
// shows now, which may have been set since the process began; deadlines do not move with it.
func At(now time.Duration) time.Time { return clock().Add(now - Now()) }

// clock is what tells the time of day. Tests set it.
var clock = time.Now

// Enter decides on a request that arrives at now. If the Decision is Queued, Enter waits until the request gets
// a permit or is rejected. If ctx is done because the client disconnected, the Decision is Gone. Call Done for
// a Decision that admits, and Deliver for any other.
func (g *Guard) Enter(ctx context.Context, now time.Duration, r Request) Decision {
	d := g.Admit(now, r)
	g.Await(ctx, r, &d)
	return d
}

// wakeEvery is how often a waiting request has the queue looked at, as a permit can also become free with time. Ours: of the 64 that wait
// by default it takes nothing that can be measured, and of 10,000, the most that can be set, an eighth of a core.
const wakeEvery = 250 * time.Millisecond

// Await is the second half of Enter, for a Decision from Admit: it waits while that is Queued. r must be what
// Admit got.
func (g *Guard) Await(ctx context.Context, r Request, d *Decision) {
	for d.Queued() {
		wait := d.Until() - Now()
		if d.permit.Waits() {
			wait += time.Millisecond // so that a ctx that is done at the same instant is seen first
		}
		var verdict loadshed.Verdict
		select {
		case <-d.Awaits():
		case <-time.After(min(wait, wakeEvery)):
			if wait > wakeEvery {
				g.backend.inFlight.Wake(Now())
				continue
			}
		case verdict = <-d.Verdict():
		case <-ctx.Done():
			g.Abandon(Now(), d)
			return
		}
		g.Settle(Now(), r, d, verdict)
	}
}

// Deliver delays a rejection for as long as needed, and returns when to send it. It returns false if the client
// is Gone or disconnected during the delay. Then there is nothing to send but GoneStatus.
func (d *Decision) Deliver(ctx context.Context) (now time.Duration, ok bool) {
	if d.Gone || d.Hold == 0 {
		return d.at, !d.Gone
	}
	t := time.NewTimer(d.Hold)
	defer t.Stop()
	select {
	case <-t.C:
		d.Sent()
		return d.at + d.Hold, true
	case <-ctx.Done():
		d.Lost()
		return Now(), false
	}
}

// StatusClientGone is what access logs have for a request whose client has gone before
// it was answered: the 499 of nginx, which Caddy uses as well.
const StatusClientGone = 499

// GoneStatus returns the status of a request whose context was done before it was
// answered: StatusClientGone, or 504 if its handler ran out of time, in which case the
// client is still there.
func GoneStatus(ctx context.Context) int {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	return StatusClientGone
}
