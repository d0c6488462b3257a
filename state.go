package shield

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// A State is what traffic has written: who has used what, and what is in
// flight. It holds no limits. It outlives the Guards that work on it, and
// several Guards may work on the same parts at once. All of them must take now
// from the same epoch.
type State struct {
	// Zones holds one ZoneState per zone, by name.
	Zones map[string]*ZoneState

	// Backend is the state of the protected backend.
	Backend *Backend
}

func (s *State) zone(name string) *ZoneState {
	if s.Zones == nil {
		s.Zones = map[string]*ZoneState{}
	}
	if s.Zones[name] == nil {
		s.Zones[name] = NewZoneState(name)
	}
	return s.Zones[name]
}

func (s *State) backend() *Backend {
	if s.Backend == nil {
		s.Backend = new(Backend)
	}
	return s.Backend
}

// A ZoneState holds the buckets of one zone's clients.
type ZoneState struct {
	name  string
	salt  uint64 // tells the keys of this zone from those of others
	table limiter.Table

	refused  atomic.Uint64
	observed atomic.Uint64
}

// NewZoneState returns the empty state of the zone of that name.
func NewZoneState(name string) *ZoneState {
	return &ZoneState{name: name, salt: uint64(limiter.KeyOf("zone " + name))}
}

// Refusals returns how many requests the zone has refused, and how many it would
// have refused.
func (z *ZoneState) Refusals() (refused, observed uint64) {
	return z.refused.Load(), z.observed.Load()
}

// ZoneStats is a snapshot of a ZoneState.
type ZoneStats struct {
	Keys     int    // clients whose bucket is not full
	Admitted uint64 // requests that were charged
	Refused  uint64 // requests refused for this zone
	Observed uint64 // requests that would have been refused for it
	Evicted  uint64 // clients forgotten before their bucket was full
	Shared   uint64 // requests admitted from a shared bucket, for want of room
}

// Stats visits every key, a few thousand at a time under one lock: it is meant
// for scrapes.
func (z *ZoneState) Stats(now time.Duration) ZoneStats {
	t := z.table.Stats()
	return ZoneStats{
		Keys: z.table.Len(now), Admitted: t.Admitted, Evicted: t.Evicted, Shared: t.Shared,
		Refused: z.refused.Load(), Observed: z.observed.Load(),
	}
}

// A Backend is the state of one protected backend. The zero Backend is ready.
type Backend struct {
	capacity      limiter.Bucket
	gate          loadshed.Gate
	adaptive      loadshed.Adaptive
	changes       changes // of the adaptive limit
	queue         loadshed.Queue
	sweeper       sweeper               // of the queue
	wokeAt        atomic.Int64          // when it was woken last
	latest        atomic.Pointer[Guard] // of those that limit what is in flight
	useMu         sync.Mutex
	newest        uint64       // serial of the latest Guard in use; guarded by useMu
	refusing      atomic.Int64 // how many times in a row the backend has asked to be left alone
	refusingSince atomic.Int64 // when it did so first
	shares        loadshed.Shares
	clients       loadshed.InFlight // under pressure: see Guard.classOf
	tenants       loadshed.InFlight // for Config.PerClient
	budget        loadshed.Budget   // of retries
	pause         loadshed.Pause
	ghosts        loadshed.Orphans
	calendar      pushback.Calendar
	ledger        pushback.Ledger
	watch         watch
	signers       signers

	crowded  atomic.Int64  // when there was no room last: see Backend.idle
	held     atomic.Int64  // refusals that wait to be sent
	returned atomic.Uint64 // arrivals of clients that had a promise
	onTime   atomic.Uint64 // those of them whose time had come
	broken   atomic.Uint64 // clients that came when they were told and were refused
	early    atomic.Uint64 // clients that came too early and were admitted

	redeemed  atomic.Uint64 // tickets that made a stranger as good as on time
	worthless atomic.Uint64 // tickets that were forged, foreign, used or too old
	families  [pushback.Families]familyCounts

	classMu sync.Mutex
	classes map[string]*classCounts // by the class's name

	admitted   atomic.Uint64
	failed     atomic.Uint64 // of them, those that the backend could not serve
	refused    [reasons]atomic.Uint64
	observed   [reasons]atomic.Uint64
	retryAfter [60]atomic.Uint64
}

// BackendStats is a snapshot of a Backend.
type BackendStats struct {
	InFlight   int             // requests that hold a place
	Admitted   uint64          // requests admitted, without those only observed
	Refused    [reasons]uint64 // by Reason
	Observed   [reasons]uint64 // requests admitted that would have been refused, by Reason
	RetryAfter [60]uint64      // refusals by the seconds that they were told; 0: never

	Backlog       time.Duration // how far the promised slots reach
	Deferred      int           // clients that wait in the queue behind them
	Promises      pushback.Promises
	KeptShare     float64 // of promised slots, how many clients come for: 0.25 to 1
	Broken        uint64  // clients that came when told and were refused
	EarlyAdmitted uint64  // clients that came too early and were admitted
	Held          int     // refusals that are being held back
	Redeemed      uint64  // tickets that were honoured for clients that were not known
	Worthless     uint64  // tickets that were forged, foreign, used or too old
	Families      [pushback.Families]FamilyStats
	MaxClients    int // clients that can be remembered
}

// Stats returns the counts, each read at a slightly different moment.
func (b *Backend) Stats(now time.Duration) BackendStats {
	s := BackendStats{
		InFlight: b.gate.InFlight(), Admitted: b.admitted.Load(),
		Broken: b.broken.Load(), EarlyAdmitted: b.early.Load(), Held: int(b.held.Load()),
		MaxClients: b.ledger.MaxClients(),
		Redeemed:   b.redeemed.Load(), Worthless: b.worthless.Load(),
	}
	for i := range s.Families {
		f := &b.families[i]
		s.Families[i] = FamilyStats{f.told.Load(), f.kept.Load(), f.late.Load(), f.early.Load()}
	}
	s.Backlog, s.Deferred = b.calendar.Backlog(now)
	s.Promises, s.KeptShare = b.calendar.Promises()
	for i := range s.Refused {
		s.Refused[i] = b.refused[i].Load()
		s.Observed[i] = b.observed[i].Load()
	}
	for i := range s.RetryAfter {
		s.RetryAfter[i] = b.retryAfter[i].Load()
	}
	return s
}

// FamilyStats counts what clients of one pushback.Family did with what they were
// told.
type FamilyStats struct {
	Told  uint64 // refusals with a time to come back
	Kept  uint64 // returns at that time
	Late  uint64 // returns more than a second and a quarter of the wait later
	Early uint64 // returns before
}

// classCounts counts the decisions on one class of requests.
type classCounts struct{ admitted, refused, observed atomic.Uint64 }

// class returns the counts of the class of that name.
func (b *Backend) class(name string) *classCounts {
	b.classMu.Lock()
	defer b.classMu.Unlock()
	if b.classes == nil {
		b.classes = map[string]*classCounts{}
	}
	if b.classes[name] == nil {
		b.classes[name] = new(classCounts)
	}
	return b.classes[name]
}

type familyCounts struct{ told, kept, late, early atomic.Uint64 }

// Clients returns how many clients are remembered, by how they behave. It visits
// every record: it is meant for scrapes.
func (b *Backend) Clients() [pushback.Classes]int { return b.ledger.Clients() }
