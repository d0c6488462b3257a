package shield

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// A State is what traffic has written: what each client has used and was promised, and
// what is in flight. It holds no limits. It outlives the Guards that work on it, and
// several Guards may work on the same parts at once. All of them must take now
// from the same epoch.
type State struct {
	Zones   map[string]*ZoneState // by name
	Backend *Backend
}

// A Backend is the state of one protected backend. The zero Backend is ready to use.
type Backend struct {
	capacity   limiter.Bucket
	preflights limiter.Bucket

	preflightsPassed atomic.Uint64
	inFlight         loadshed.Concurrency
	clients          pushback.Appointments
	blocks           blocks
	disconnected     atomic.Int64               // requests that are kept though their clients have gone
	link             atomic.Pointer[share.Link] // to other replicas; nil: it is not shared

	tickAt atomic.Int64 // when to Tick again
	tickMu sync.Mutex   // held by the one that does; only ever tried
	pace   pace

	classes sync.Map // the class's name: *classCounts

	useMu  sync.Mutex
	newest uint64 // serial of the latest Guard in use; guarded by useMu
	secret []byte // see ownSecret; guarded by useMu

	retryAfter [61]atomic.Uint64
}

// ownSecret returns what signs tickets where the operator has not set a secret.
func (b *Backend) ownSecret() []byte {
	b.useMu.Lock()
	defer b.useMu.Unlock()
	if b.secret == nil {
		b.secret = make([]byte, 32)
		_, _ = rand.Read(b.secret) // never fails: it would crash the program
	}
	return b.secret
}

// use prepares the state for the Guard's decisions. A Guard that was replaced before
// its first request came changes nothing: what is newer stays in force.
func (g *Guard) use(now time.Duration) {
	b := g.backend
	b.useMu.Lock()
	defer b.useMu.Unlock()
	newest := g.serial > b.newest
	if newest {
		b.newest = g.serial
		b.clients.Resize(g.maxClients)
		g.share(now)
		g.shareZones(now)
		for i := range g.zones {
			z := &g.zones[i]
			if was := z.current.Swap(z); was != nil && was.own(now) != z.own(now) { // by another calendar
				z.table.Clear()
			}
		}
	}
	b.inFlight.Use(g.plan, newest)
	g.inUse.Store(true)
}

// tickEvery is how often the counters are looked at.
const tickEvery = 100 * time.Millisecond

// Tick looks at the counters if it is time to. Admit calls it for every request at the cost of one atomic load,
// so there is no goroutine and no timer. Call it about once per second as well, because otherwise nobody
// notices when requests stop.
func (g *Guard) Tick(now time.Duration) {
	b := g.backend
	if int64(now) < b.tickAt.Load() || !b.tickMu.TryLock() {
		return
	}
	defer b.tickMu.Unlock()
	if int64(now) < b.tickAt.Load() { // another goroutine has just looked
		return
	}
	b.tickAt.Store(int64(now - now%tickEvery + tickEvery))
	d := b.decisions()
	b.pace.Look(now, d.Admitted)
	arrivals := d.Admitted + sum(d.Rejected) + sum(d.Observed)
	if l := b.link.Load(); l != nil {
		l.Measure(b.inFlight.Rate(g.plan))
	}
	spare := !g.hasCapacity || 10*b.capacity.Level(g.capacity, now) >= 8*g.capacity.Burst()
	b.inFlight.Tick(now, d.Admitted, d.Rejected[Concurrency], g.plan, spare)
	b.clients.Tick(now, arrivals, d.Rejected[Quota]+d.Rejected[Blocked], b.inFlight.Limited())
}

// classCounts counts the decisions on the requests of one class.
type classCounts struct {
	admitted           atomic.Uint64
	rejected, observed [reasons]atomic.Uint64
}

// Decisions counts what was decided on requests.
type Decisions struct {
	Admitted uint64          // without those only observed
	Rejected [reasons]uint64 // by Reason
	Observed [reasons]uint64 // requests admitted that would have been rejected, by Reason
}

// add adds the counts of a class.
func (d *Decisions) add(c *classCounts) {
	d.Admitted += c.admitted.Load()
	for i := range c.rejected {
		d.Rejected[i] += c.rejected[i].Load()
		d.Observed[i] += c.observed[i].Load()
	}
}

// sum adds up counts by Reason.
func sum(n [reasons]uint64) (all uint64) {
	for i := range n {
		all += n[i]
	}
	return all
}

// decisions returns those on all classes there have been.
func (b *Backend) decisions() (d Decisions) {
	for _, n := range b.classes.Range {
		d.add(n.(*classCounts))
	}
	return d
}

// BackendStats is a snapshot of a Backend.
type BackendStats struct {
	Decisions
	RetryAfter [61]uint64 // rejections by the seconds that they were told; 0: never, 60: longer
	Preflights uint64     // that passed: see Request.Preflight

	pushback.AppointmentStats
	Herd pushback.HerdReport
	loadshed.ConcurrencyStats
}

// Stats returns the counts, each read at a slightly different moment. It is meant for metrics.
func (b *Backend) Stats(now time.Duration) BackendStats {
	s := BackendStats{
		Decisions: b.decisions(), AppointmentStats: b.clients.Stats(now), Herd: b.clients.Herd(), ConcurrencyStats: b.inFlight.Stats(now),
	}
	s.Disconnected, s.Preflights = int(b.disconnected.Load()), b.preflightsPassed.Load()
	for i := range s.RetryAfter {
		s.RetryAfter[i] = b.retryAfter[i].Load()
	}
	return s
}

// Backend returns the state of the backend that the Guard protects.
func (g *Guard) Backend() *Backend { return g.backend }

// ZoneStats returns the counts of the Guard's zones by name: see ZoneState.Stats.
func (g *Guard) ZoneStats(now time.Duration) map[string]ZoneStats {
	all := make(map[string]ZoneStats, len(g.zones))
	for i := range g.zones {
		stats := g.zones[i].Stats(now)
		stats.MaxKeys = g.zones[i].MaxKeys
		all[g.zones[i].name] = stats
	}
	return all
}

// Busiest returns the n clients with the most requests in flight, as far as known: see
// loadshed.Concurrency.Busiest. Their keys are InFlightKeys if there is a per-client limit, and otherwise those
// of appointments.
func (b *Backend) Busiest(n int) []loadshed.ClientLoad { return b.inFlight.Busiest(n) }

// Clients returns how many clients are on record, by how they behave. It visits every record, so it is meant
// for metrics.
func (b *Backend) Clients() [pushback.Classes]int { return b.clients.Clients() }

// ClassStats counts the decisions on the requests of one class.
type ClassStats struct {
	Name     string  `json:"name"`
	Share    float64 `json:"share"` // of the limit in flight, while higher classes need the rest
	Admitted uint64  `json:"admitted"`
	Rejected uint64  `json:"rejected"`
	Observed uint64  `json:"observed"`
}

// ClassStats returns the decisions on each class, the highest class first.
func (g *Guard) ClassStats() []ClassStats {
	list := make([]ClassStats, len(g.classes))
	for i, n := range g.classes {
		c := g.plan.Classes[i]
		var d Decisions
		d.add(n)
		list[i] = ClassStats{c.Name, c.Share, d.Admitted, sum(d.Rejected), sum(d.Observed)}
	}
	return list
}
