package shield

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// sharing is how a Guard works with other replicas.
type sharing struct {
	shared   bool
	replica  string
	replicas int
}

// sharing returns what c says of other replicas.
func (c *Config) sharing() (sharing, error) {
	s := sharing{c.Shared, cmp.Or(c.Replica, processName), cmp.Or(c.Replicas, DefaultReplicas)}
	if s.replicas < 1 || s.replicas > MaxReplicas {
		return s, fmt.Errorf("replicas is %d; want 1 to %d", c.Replicas, MaxReplicas)
	}
	return s, nil
}

// processName names the process among its replicas.
var processName = rand.Text()

// Link returns what joins the backend to those of other replicas, through a store that a
// program has serve it; nil if the backend is not shared, by the newest Guard in use. From
// now on the Guard's settings count, as from its first decision.
func (g *Guard) Link(now time.Duration) *share.Link {
	if !g.inUse.Load() {
		g.use(now)
	}
	return g.backend.link.Load()
}

// share has the backend shared, or not, as the Guard says.
func (g *Guard) share(now time.Duration) {
	b := g.backend
	_, longest := g.terms.Bounds(&pushback.Caller{})
	limits := share.Limits{Capacity: g.capacity, Max: longest, Replicas: g.replicas}
	limits.InFlight, limits.Adaptive = g.plan.Most()
	switch l := b.link.Load(); {
	case !g.shared && l != nil:
		b.link.Store(nil)
		l.Unlink(now)
	case g.shared && l == nil:
		b.link.Store(share.NewLink(g.replica, share.Shared{Capacity: &b.capacity, InFlight: &b.inFlight, Clients: &b.clients}, limits, now))
	case g.shared:
		l.Set(now, limits)
	}
}

// lookAtStore has the limits follow the store, or do without it.
func (g *Guard) lookAtStore(now time.Duration) {
	if l := g.backend.link.Load(); l != nil {
		l.Look(now)
	}
}

// askStore returns what a request may wait for whose claim finds no token. It releases that.
func (g *Guard) askStore(now time.Duration, t *try, c limiter.Claim) <-chan struct{} {
	misses := !t.made && c.Misses(now, t.visit.IsDue(), t.tokens)
	c.Release()
	if !misses {
		return nil
	}
	return g.backend.link.Load().Ask()
}

// lacksPlace notes that a request finds no place in flight.
func (g *Guard) lacksPlace(t *try) {
	t.firm, t.place = true, !t.made && g.backend.link.Load().MayHavePlace()
}

// awaitShare has a request wait for the store that replicas share, which may have a place for it; or a slot for its
// client, if the backend has no capacity for it: its answer is held back for a moment anyway. No lock may be held: the
// store's answer is taken under that of the link, and takes others.
func (g *Guard) awaitShare(t *try) {
	switch t.d.Reason {
	case None, Quota, PerClient:
		return
	}
	if t.made || t.d.place.Waits() {
		return
	}
	if slot := g.backend.clients.Awaits(&t.visit); !slot && !t.place {
		return
	}
	if ends := g.backend.link.Load().Ask(); ends != nil {
		t.firm, t.d.awaits = false, ends
	}
}

// A trip is what a request has to do with the store.
type trip struct {
	made bool // it has waited for the store, or must not
	back bool // it has waited
	firm bool // a limit refuses whatever the store says
	// It has found no place in flight, and the store may have one.
	place bool
}

// refused notes that a limit refuses. ends is closed when the store has told it more; nil:
// the store has nothing to say.
func (t *try) refused(ends <-chan struct{}) {
	if ends == nil {
		t.firm = true
	} else {
		t.d.awaits = ends
	}
}

// queued reports whether the request has to wait, for the store or for a place. It keeps
// what Settle needs then.
func (t *try) queued() bool {
	d := t.d
	if t.made || t.firm {
		d.awaits = nil
	}
	if !d.Queued() {
		return false
	}
	d.visit = visits.Get().(*pushback.Visit)
	*d.visit = t.visit
	return true
}
