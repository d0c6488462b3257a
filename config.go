package shield

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// Bounds of a Config.
const (
	DefaultMaxKeys = 200_000
	MaxConcurrency = 1_000_000
	maxName        = 64

	// inFlightPolicy is what clients are told that PerClient is called.
	inFlightPolicy = "in_flight"
)

// Config is what the operator sets. A Guard without zones, capacity and
// concurrency admits everything.
type Config struct {
	// Observe admits every request, and counts what would have been refused.
	Observe bool

	// Zones are the quotas of single clients. A request may be in several.
	Zones []Zone

	// Capacity is what the backend can take in all. A Rate of 0 means no limit.
	Capacity limiter.Config

	// Concurrency is how many requests may be in flight to the backend: at
	// most MaxConcurrency. 0 means no limit, or the one that Adaptive finds.
	Concurrency int

	// Adaptive finds out by itself how many requests may be in flight. nil means
	// not to.
	Adaptive *loadshed.AdaptiveConfig

	// PerClient is how many requests one client, by Request.Tenant, may have in
	// flight: at most MaxConcurrency. 0 means no limit.
	PerClient int

	// Queue is where requests wait a moment that find no room in flight.
	Queue Queue

	// Classes say who is let in first where there is not room in flight for all:
	// see loadshed.NewClasses. nil means that all are alike.
	Classes []loadshed.Class

	// Pushback says how refusals are worded.
	Pushback pushback.AnswerConfig

	// Retries says how clients are held to the times they were told.
	Retries Retries

	// IgnoreHerds looks for no herds, and leaves no room for those that come
	// periodically.
	IgnoreHerds bool
}

// A Queue is where requests wait a moment for room in flight: see
// loadshed.Queue.
type Queue struct {
	// Size is how many may wait at once: 1 to MaxQueue. 0 means
	// DefaultQueue where the limit is Adaptive, and none where it is not; NoQueue
	// means none.
	Size int

	// Timeout is how long one may wait: at most MaxQueueTimeout. 0 means seven
	// tenths of what the backend takes for one, within 10 to 200 ms; of the highest
	// of several classes, 200 ms.
	Timeout time.Duration
}

// The sizes of a Queue, and its longest timeout. The default absorbs what
// random arrivals bring beyond the mean: at 0.93 of the backend's capacity it
// leaves a tenth of the refusals that there would be without it.
const (
	NoQueue         = -1
	DefaultQueue    = 64
	MaxQueueTimeout = time.Minute
)

// Retries says what is remembered of refused clients.
type Retries struct {
	// Lenient admits clients that come before the time they were told, if there
	// is room, as if nothing had been said to them.
	Lenient bool

	// MaxClients bounds how many refused clients are remembered, at 16 bytes
	// each: pushback.MinMaxClients to pushback.MaxMaxClients. 0 means
	// pushback.DefaultMaxClients.
	MaxClients int

	// Tickets gives clients their appointments signed, so that other replicas
	// and a restarted one honour them. Clients bring them back in the
	// Shield-Retry field or a cookie.
	Tickets bool

	// Secret signs tickets: at least 16 bytes, the same for all replicas. nil
	// means one of this process's own, so that tickets are worth nothing to
	// others.
	Secret []byte
}

// A Zone is a quota that every client has by itself.
type Zone struct {
	// Name identifies the zone in metrics and in what clients are told: 1 to 64
	// letters, digits and _ - . / : only, different from the other zones' names.
	Name string

	// Limit is what each client may do.
	Limit limiter.Config

	// Cost is how many tokens one request takes: 1 to the burst. 0 means 1.
	Cost int

	// MaxKeys bounds how many clients are remembered: limiter.MinKeys to
	// limiter.MaxKeys. 0 means DefaultMaxKeys. See limiter.Table for who is
	// forgotten.
	MaxKeys int

	// Key names the client of a request, for Guard.Handler only. All requests
	// with the same name, "" too, share one bucket. nil means the address of
	// the peer: IPv4 by address, IPv6 by /64.
	Key func(*http.Request) string
}

// A Guard applies one Config. It is safe for concurrent use.
type Guard struct {
	observe     bool
	enforce     bool
	herds       bool
	dither      bool
	zones       []zone // in the order of their names: see admit
	order       []int  // where in zones each of Config.Zones is
	keys        []func(*http.Request) string
	hasCapacity bool
	capacity    limiter.Limit
	concurrency int  // 0: adaptive, or no limit
	adaptive    bool // law finds the limit
	law         loadshed.Law
	perClient   int
	queue       Queue // Size 0: none
	classes     loadshed.Classes
	counts      []*classCounts // of each class
	enter       func(loadshed.Rank) bool
	backend     *Backend
	maxClients  int
	secret      []byte // of tickets; nil: none are given
	inUse       atomic.Bool
	serial      uint64 // the later made, the higher
	answers     *pushback.Answers
	pulse       func(from, to time.Duration) float64 // nil: herds are ignored
}

// zone is a checked Zone and its state.
type zone struct {
	*ZoneState
	index   int // in Config.Zones and in Request.Keys
	limit   limiter.Limit
	cost    int
	maxKeys int
}

// New returns a Guard that works on s; nil means a State of its own. What s
// lacks is added to it; nothing in it changes before the Guard's first decision,
// so that a Guard that is thrown away has done nothing. The error names everything
// that is wrong with c.
func New(c Config, s *State) (*Guard, error) {
	g := &Guard{observe: c.Observe, enforce: !c.Retries.Lenient && !c.Observe, herds: !c.IgnoreHerds, concurrency: c.Concurrency}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	var policies []pushback.Policy
	seen := map[string]bool{}
	for i, z := range c.Zones {
		if err := CheckName(z.Name); err != nil {
			bad("zone %q: %w", z.Name, err)
		}
		if seen[z.Name] {
			bad("zone %q is there twice; want different names", z.Name)
		}
		seen[z.Name] = true
		limit, err := limiter.New(z.Limit)
		if err != nil {
			bad("zone %q: %w", z.Name, err)
		}
		if z.Cost == 0 {
			z.Cost = 1
		}
		if err == nil && (z.Cost < 1 || z.Cost > limit.Burst()) {
			bad("zone %q: cost is %d; want 1 to the burst of %d", z.Name, z.Cost, limit.Burst())
		}
		if z.MaxKeys == 0 {
			z.MaxKeys = DefaultMaxKeys
		}
		if z.MaxKeys < limiter.MinKeys || z.MaxKeys > limiter.MaxKeys {
			bad("zone %q: max_keys is %d; want %d to %d", z.Name, z.MaxKeys, limiter.MinKeys, limiter.MaxKeys)
		}
		g.zones = append(g.zones, zone{index: i, limit: limit, cost: z.Cost, maxKeys: z.MaxKeys})
		g.keys = append(g.keys, z.Key)
		policies = append(policies, pushback.Policy{Name: z.Name, Quota: limit.Burst() / max(1, z.Cost), Window: limit.Refill()})
	}
	if c.Capacity != (limiter.Config{}) {
		var err error
		g.hasCapacity = true
		if g.capacity, err = limiter.New(c.Capacity); err != nil {
			bad("capacity: %w", err)
		}
	}
	if c.Concurrency < 0 || c.Concurrency > MaxConcurrency {
		bad("concurrency is %d; want 1 to %d", c.Concurrency, MaxConcurrency)
	}
	if c.Adaptive != nil {
		if c.Concurrency != 0 {
			bad("concurrency is %d, and adaptive; want one of them", c.Concurrency)
		}
		var err error
		g.adaptive = true
		if g.law, err = loadshed.NewLaw(*c.Adaptive); err != nil {
			bad("concurrency: %w", err)
		}
	}
	if c.PerClient < 0 || c.PerClient > MaxConcurrency {
		bad("concurrency per client is %d; want 1 to %d", c.PerClient, MaxConcurrency)
	}
	g.perClient = c.PerClient
	g.queue = c.Queue
	limited := g.adaptive || c.Concurrency > 0
	switch {
	case c.Queue.Size == NoQueue, c.Queue == (Queue{}) && !g.adaptive:
		g.queue.Size = 0
	case !limited:
		bad("there is a queue, but no concurrency to wait for")
	case c.Queue.Size == 0 && !g.adaptive:
		bad("queue timeout is %v, but there is no queue; want its size", c.Queue.Timeout)
	case c.Queue.Size == 0 && g.adaptive:
		g.queue.Size = DefaultQueue
	}
	if g.queue.Size < 0 || g.queue.Size > MaxQueue {
		bad("queue is %d; want 1 to %d", c.Queue.Size, MaxQueue)
	}
	if c.Queue.Timeout < 0 || c.Queue.Timeout > MaxQueueTimeout {
		bad("queue timeout is %v; want more than 0, to %v", c.Queue.Timeout, MaxQueueTimeout)
	}
	if c.Classes != nil && !limited {
		bad("there are classes, but no concurrency to share")
	}
	var err error
	if g.classes, err = loadshed.NewClasses(c.Classes); err != nil {
		bad("%w", err)
	}
	if c.Retries.MaxClients == 0 {
		c.Retries.MaxClients = pushback.DefaultMaxClients
	}
	if n := c.Retries.MaxClients; n < pushback.MinMaxClients || n > pushback.MaxMaxClients {
		bad("retries: max_clients is %d; want %d to %d", n, pushback.MinMaxClients, pushback.MaxMaxClients)
	}
	if c.Retries.Secret != nil && !c.Retries.Tickets {
		bad("retries: there is a secret, but tickets are off")
	}
	if c.Retries.Tickets {
		if c.Retries.Secret == nil {
			c.Retries.Secret = processSecret()
		}
		if _, err := pushback.NewTickets(c.Retries.Secret, 1); err != nil {
			bad("retries: %w", err)
		}
	}
	if g.perClient > 0 {
		policies = append(policies, pushback.Policy{Name: inFlightPolicy, Quota: g.perClient, Concurrent: true})
	}
	if g.answers, err = pushback.NewAnswers(c.Pushback, policies); err != nil {
		bad("pushback: %w", err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	if s == nil {
		s = new(State)
	}
	for i, z := range c.Zones {
		g.zones[i].ZoneState = s.zone(z.Name)
	}
	slices.SortFunc(g.zones, func(a, b zone) int { return strings.Compare(a.name, b.name) })
	g.order = make([]int, len(g.zones))
	for i, z := range g.zones {
		g.order[z.index] = i
	}
	g.dither = g.answers.Dither()
	g.serial = serial.Add(1)
	g.backend = s.backend()
	g.enter = g.enterFromQueue
	for i := range g.classes.Len() {
		g.counts = append(g.counts, g.backend.class(g.classes.At(i).Name))
	}
	if g.herds {
		g.pulse = g.backend.pulse
	}
	g.maxClients = c.Retries.MaxClients
	if c.Retries.Tickets {
		g.secret = bytes.Clone(c.Retries.Secret)
	}
	return g, nil
}

// serial numbers the Guards of the process.
var serial atomic.Uint64

// use prepares the state for the Guard's decisions. A Guard that was replaced before
// its first request came changes nothing: what is newer stays in force.
func (g *Guard) use() {
	b := g.backend
	b.useMu.Lock()
	defer b.useMu.Unlock()
	if g.serial > b.newest {
		b.newest = g.serial
		b.ledger.Resize(g.maxClients)
	}
	if last := b.latest.Load(); g.limitsRoom() && (last == nil || last.serial < g.serial) {
		b.latest.Store(g)
	}
	g.inUse.Store(true)
}

// CheckName returns an error unless name can stand unquoted in headers, labels
// and logs.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:", r))
	}
	if !ok {
		return fmt.Errorf("name is %q; want 1 to %d letters, digits and _ - . / : only", name, maxName)
	}
	return nil
}

// Answers returns the writer of this Guard's refusals.
func (g *Guard) Answers() *pushback.Answers { return g.answers }
