package shield

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"time"

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
