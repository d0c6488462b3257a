package shield

import (
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/virtual"
)

// A replica is a Guard whose decisions are measured. It works alone, or with a store that
// answers at once.
type replica struct {
	*Guard
	now   time.Duration
	keys  [1]limiter.Key
	zoned bool // keys tell clients apart
	last  int  // client that took a token
	store bool
	wake  chan struct{} // as that of a shell that has not run yet
	pools *virtual.Store
	zones *virtual.Store
}

func newReplica(tb testing.TB, c Config, store bool) *replica {
	c.Secret, c.Retries.MaxClients = make([]byte, 16), 1<<14
	c.Shared, c.Zones = store, slices.Clone(c.Zones)
	for i := range c.Zones {
		c.Zones[i].Shared = store
	}
	r := &replica{Guard: mustNew(tb, c, nil), now: time.Hour, store: store, zones: virtual.New(), pools: virtual.New(), wake: make(chan struct{}, 1)}
	r.exchange()
	return r
}

func (r *replica) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// exchange tells the store all that there is to be told, and takes its answers.
func (r *replica) exchange() {
	r.now += 20 * ms
	r.Tick(r.now)
	if !r.store {
		return
	}
	const epoch = 1_795_000_000_000
	link := r.Link(r.now)
	link.OnWake(r.wakeUp)
	for ask, ok := link.Due(r.now); ok; ask, ok = link.Due(r.now) {
		link.Heard(r.now, r.now, r.pools.Do(epoch+r.now.Milliseconds(), ask))
	}
	for _, z := range r.Zones(r.now) {
		for ask, ok := z.Due(r.now); ok; ask, ok = z.Due(r.now) {
			z.Heard(r.now, r.now, r.zones.Do(epoch+r.now.Milliseconds(), ask))
		}
	}
}

// fill gives the replica all tokens, and drain takes them.
func (r *replica) fill() {
	r.now += time.Second
	r.backend.capacity.Heard(r.now, r.capacity.Burst(), 0, time.Hour)
}

func (r *replica) drain() {
	r.exchange()
	r.backend.capacity.Lose()
	r.backend.capacity.Heard(r.now, 0, 0, time.Hour)
	for r.last++; r.ask(1<<40+r.last) == None; r.last++ {
	}
}

// ask has a client ask. It returns reasons if the request is to wait for the store.
func (r *replica) ask(client int) Reason {
	if r.zoned {
		r.keys[0] = limiter.Key(client) * 0x9e3779b97f4a7c15
	}
	d := r.Admit(r.now, Request{Client: limiter.Key(client), Keys: r.keys[:]})
	switch {
	case d.Queued(): // for the store
		r.Abandon(r.now, &d)
		return Reason(reasons)
	case d.Admit:
		d.Done(r.now, Served)
	case d.Hold > 0:
		d.Sent()
	}
	return d.Reason
}

// crowd has so many clients ask, from the one of that number on.
func (r *replica) crowd(from, n int) {
	r.drain()
	for i := range n {
		r.ask(from + i)
	}
	r.exchange()
}

// later lets so much time pass, in which nothing comes.
func (r *replica) later(d time.Duration) {
	for end := r.now + d; r.now < end; r.now += 30 * ms {
		r.exchange()
	}
}

// A sharedCost is a decision that may cost more with a store than without one. It is made
// in rounds, one each 20 ms, and after some all begins anew.
type sharedCost struct {
	name   string
	config Config
	first  func(r *replica)
	begin  func(r *replica, n int) // before a round, from request n on
	client func(n int) int
	want   Reason
}

var sharedCosts = []sharedCost{
	{"admit", Config{Capacity: perSecond(1e9, 1e9)}, none,
		func(r *replica, _ int) { r.fill() }, same, None},
	{"admit/promised", Config{Capacity: perSecond(1000, 1000)}, none,
		func(r *replica, n int) { r.crowd(n, perRound); r.later(2 * time.Second); r.fill() }, each, None},
	{"admit/quota", Config{Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1000, Burst: 1000}}}},
		func(r *replica) { r.later(3 * time.Second) },
		func(r *replica, n int) { r.exchange(); r.zoned = true }, some, None},
	{"refuse/capacity", Config{Capacity: perSecond(1e4, 1e4)}, none,
		func(r *replica, _ int) { r.drain() }, each, Capacity},
	{"refuse/deferred", Config{Capacity: perSecond(100, 10)},
		func(r *replica) { r.crowd(1e6, 8e3) },
		func(r *replica, _ int) { r.drain() }, each, Capacity},
	{"refuse/address", Config{Capacity: perSecond(100, 10)}, none, // a crowd behind one
		func(r *replica, _ int) { r.drain() }, same, Capacity},
	{"refuse/early", Config{Capacity: perSecond(100, 10)},
		func(r *replica) { r.crowd(1e6, 1e3); r.crowd(3, 1); r.later(1200 * ms) },
		func(r *replica, n int) { r.drain() }, same, Early},
	{"refuse/quota", Config{Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: 20 * time.Second, Burst: 100}}}}, none,
		func(r *replica, _ int) {
			r.zoned = true
			for r.exchange(); r.ask(3) != Quota; { // its key gets hot
				r.exchange()
			}
		}, same, Quota},
	{"refuse/concurrency", Config{Concurrency: 1},
		func(r *replica) { r.later(time.Second); r.Admit(r.now, Request{}) },
		func(r *replica, _ int) { r.exchange() }, each, Concurrency},
}

const perRound, rounds = 200, 25

func none(*replica)  {}
func same(int) int   { return 3 }
func some(n int) int { return 1 + n%1000 }
func each(n int) int { return n }

// round prepares a round that begins with request n. It returns the replica that plays it: r,
// or a new one.
func (c *sharedCost) round(tb testing.TB, r *replica, n int, store bool) *replica {
	if n%(rounds*perRound) == 0 {
		r = newReplica(tb, c.config, store)
		c.first(r)
	}
	c.begin(r, 1+n)
	for i := range 50 { // what an exchange has used is in the caches
		r.ask(c.client(1e9 + n + i))
	}
	return r
}

// play has the requests of a round come.
func (c *sharedCost) play(tb testing.TB, r *replica, n int) {
	for i := range perRound {
		if got := r.ask(c.client(1 + n + i)); got != c.want {
			tb.Fatalf("%s: request %d is decided for %v, want %v", c.name, n+i, got, c.want)
		}
	}
}

func TestSharedDecisionsDoNotAllocate(t *testing.T) {
	for i := range sharedCosts {
		c := &sharedCosts[i]
		r := c.round(t, nil, 0, true)
		n := 0
		if allocs := testing.AllocsPerRun(perRound-1, func() {
			if got := r.ask(c.client(1 + n)); got != c.want {
				t.Fatalf("%s: request %d is decided for %v, want %v", c.name, n, got, c.want)
			}
			n++
		}); allocs != 0 {
			t.Errorf("%s allocates %v times, want 0", c.name, allocs)
		}
	}
}

// Benchmark of what a store costs a decision. With and without it rounds are played in turn.
// Of each round between two beginnings the median counts, and of all those the mean.
func BenchmarkShared(b *testing.B) {
	for i := range sharedCosts {
		c := &sharedCosts[i]
		b.Run(c.name, func(b *testing.B) {
			var of [2]*replica
			var took [2][rounds][]float64
			for n := 0; b.Loop(); n += perRound {
				for i := range of {
					of[i] = c.round(b, of[i], n, i == 1)
					began := time.Now()
					c.play(b, of[i], n)
					round := &took[i][n/perRound%rounds]
					*round = append(*round, float64(time.Since(began))/perRound)
				}
			}
			alone, least := summary(took[0][:])
			store, least2 := summary(took[1][:])
			b.ReportMetric(alone, "alone-ns")
			b.ReportMetric(store, "store-ns")
			b.ReportMetric(store-alone, "more-ns")
			b.ReportMetric(least, "alone-min-ns")
			b.ReportMetric(least2, "store-min-ns")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// summary returns the means of the medians, and of the minima.
func summary(took [][]float64) (median, least float64) {
	for _, of := range took {
		if len(of) > 0 {
			slices.Sort(of)
			median += of[len(of)/2] / float64(len(took))
			least += of[0] / float64(len(took))
		}
	}
	return median, least
}
