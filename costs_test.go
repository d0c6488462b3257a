package shield

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/virtual"
)

// A replica is a Guard that works alone, or with a store that answers at once.
type replica struct {
	*Guard
	now   time.Duration
	keys  [1]limiter.Key
	zoned bool // keys tell clients apart
	last  int  // client that took a token
	store *virtual.Store
}

func newReplica(tb testing.TB, c Config, store bool) *replica {
	c.Secret, c.Retries.MaxClients = make([]byte, 16), 1<<14
	c.Shared, c.Zones = store, slices.Clone(c.Zones)
	for i := range c.Zones {
		c.Zones[i].Shared = store
	}
	r := &replica{Guard: mustNew(tb, c, nil), now: time.Hour, store: virtual.New()}
	r.exchange()
	return r
}

// exchange tells the store all that there is to be told, and takes its responses.
func (r *replica) exchange() {
	r.now += 20 * ms
	r.Tick(r.now)
	for _, s := range sharers(r.Guard, r.now) {
		for ask, ok := s.Due(r.now); ok; ask, ok = s.Due(r.now) {
			s.Heard(r.now, r.now, r.store.Do(1_795_000_000_000+r.now.Milliseconds(), ask))
		}
	}
}

// fill gives the replica all tokens, and drain takes them.
func (r *replica) fill() {
	r.now += time.Second
	r.backend.capacity.Heard(r.capacity, r.now, r.capacity.Burst(), -1e9)
}

func (r *replica) drain() {
	r.exchange()
	r.backend.capacity.Lose()
	r.backend.capacity.Heard(r.capacity, r.now, 0, -1e9)
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

// No decision allocates, with a store or without one.
func TestAdmitDoesNotAllocate(t *testing.T) {
	const n = 200
	same, each := func(int) int { return 3 }, func(n int) int { return n }
	for _, c := range []struct {
		name   string
		config Config
		begin  func(r *replica)
		client func(n int) int
		want   Reason
	}{
		{"admit", Config{Capacity: perSecond(1e9, 1e9)}, (*replica).fill, same, None},
		{"admit/promised", Config{Capacity: perSecond(1000, 1000)},
			func(r *replica) { r.crowd(1, n); r.later(2 * time.Second); r.fill() }, each, None},
		{"admit/quota", Config{Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1000, Burst: 1000}}}},
			func(r *replica) { r.later(3 * time.Second); r.zoned = true }, each, None},
		{"reject/capacity", Config{Capacity: perSecond(1e4, 1e4)}, (*replica).drain, each, Capacity},
		{"reject/deferred", Config{Capacity: perSecond(100, 10)},
			func(r *replica) { r.crowd(1e6, 8e3); r.drain() }, each, Capacity},
		{"reject/address", Config{Capacity: perSecond(100, 10)}, (*replica).drain, same, Capacity}, // a crowd behind one
		{"reject/early", Config{Capacity: perSecond(100, 10)},
			func(r *replica) { r.crowd(1e6, 1e3); r.crowd(3, 1); r.later(1200 * ms); r.drain() }, same, Early},
		{"reject/quota", Config{Capacity: perSecond(1e6, 1e6), Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: 20 * time.Second, Burst: 100}}}},
			func(r *replica) {
				r.zoned = true
				for r.exchange(); r.ask(3) != Quota; { // its key gets hot
					r.exchange()
				}
			}, same, Quota},
		{"reject/concurrency", Config{Concurrency: 1, Queue: noQueue},
			func(r *replica) { r.later(time.Second); r.Admit(r.now, Request{}) }, each, Concurrency},
	} {
		for _, store := range []bool{false, true} {
			r := newReplica(t, c.config, store)
			c.begin(r)
			for i := range 50 { // what an exchange has used is in the caches
				r.ask(c.client(1e9 + i))
			}
			client := 0
			if allocs := testing.AllocsPerRun(n-1, func() {
				client++
				if got := r.ask(c.client(client)); got != c.want {
					t.Fatalf("%s, store %v: request %d is decided for %v, want %v", c.name, store, client, got, c.want)
				}
			}); allocs != 0 {
				t.Errorf("%s, store %v: %v allocations, want 0", c.name, store, allocs)
			}
		}
	}
	c := generous
	c.PerClient = 1000
	c.Zones = []Zone{{Name: "z", Limit: perSecond(1e9, 1e9), AutoCost: true, Permit: 10}}
	g := mustNew(t, c, nil)
	g.zones[0].learned.learn(1, 35)             // a request weighs 4
	if n := testing.AllocsPerRun(1000, func() { // keys that are on their shell's stack stay there
		var buf [8]limiter.Key
		d := g.Enter(t.Context(), time.Second, Request{Keys: append(buf[:0], 1), Client: 3, InFlightKey: 3})
		d.Done(time.Second, Served)
	}); n != 0 {
		t.Errorf("entering allocates %v times, want 0", n)
	}
}

// generous has limits of every kind that admit all.
var generous = Config{Zones: []Zone{{Name: "z", Limit: perSecond(1e9, 1e9)}}, Capacity: perSecond(1e9, 1e9), Concurrency: 1000}

// BenchmarkAdmit has decisions without a store, by one processor and by all of them.
func BenchmarkAdmit(b *testing.B) {
	once := limiter.Config{Rate: 1, Per: time.Hour, Burst: 1}
	quota, capacity, concurrency := generous, generous, generous
	quota.Zones, capacity.Capacity, concurrency.Concurrency = []Zone{{Name: "z", Limit: once}}, once, 1
	keys := []limiter.Key{1}
	known := func() Request { return Request{Keys: keys} }
	for _, bench := range []struct {
		name    string
		config  Config
		waiting int // clients
		now     time.Duration
		request func() Request
	}{
		{"admit+done", generous, 0, time.Second, known},
		{"reject/quota", quota, 0, time.Second, known},
		{"reject/capacity", capacity, 0, time.Second, known},
		{"reject/concurrency", concurrency, 0, time.Second, known},
		{"reject/early", Config{Capacity: perSecond(100, 10)}, 1_000, 1300 * ms, func() Request { return one(2e6 + 900) }},
		{"reject/deferred", Config{Capacity: perSecond(100, 10)}, 5_000, time.Second, func() Request { return one(rand.Int()) }},
	} {
		play := func(b *testing.B, loop func(play func(next func() bool))) {
			g := mustNew(b, bench.config, nil)
			if g.Admit(time.Second, known()); bench.waiting > 0 { // and keeps the only token or permit
				crowd(b, g, time.Second, bench.waiting)
			}
			b.ReportAllocs()
			b.ResetTimer()
			loop(func(next func() bool) {
				for next() {
					if d := g.Admit(bench.now, bench.request()); d.Admit {
						d.Done(bench.now, Served)
					} else {
						d.Sent()
					}
				}
			})
		}
		b.Run(bench.name+"/alone", func(b *testing.B) {
			play(b, func(play func(func() bool)) { play(b.Loop) })
		})
		b.Run(bench.name+"/parallel", func(b *testing.B) {
			play(b, func(play func(func() bool)) { b.RunParallel(func(pb *testing.PB) { play(pb.Next) }) })
		})
	}
}
