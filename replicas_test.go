package shield

import (
	"encoding/base64"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/virtual"
)

// linked returns a Guard whose backend has heard of a store at now, and holds that many
// tokens.
func linked(t testing.TB, c Config, now time.Duration, tokens int) *Guard {
	t.Helper()
	c.Shared, c.Secret = true, []byte("0123456789abcdef")
	g := mustNew(t, c, nil)
	l := g.Link(now)
	store := virtual.New()
	for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
		l.Heard(now, now, store.Do(1e12, ask))
	}
	g.backend.capacity.Heard(g.capacity, now, tokens, 1)
	if alone, _ := l.Alone(now); alone {
		t.Fatal("the link has not heard of the store")
	}
	return g
}

// A request waits for the store for 25 ms at most.
func TestRequestDoesNotWaitForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := Now()
		g := linked(t, Config{Capacity: perSecond(100, 10)}, now, 0)
		g.Enter(t.Context(), now, Request{Client: 2})
		if waited := Now() - now; waited != share.MaxTrip {
			t.Errorf("it has waited for %v, want %v", waited, share.MaxTrip)
		}
	})
}

// A request that waits for a permit has the store asked at once whether another replica has one to spare.
func TestWaitForAPermitAsksTheStore(t *testing.T) {
	now, woken := time.Minute, false
	g := linked(t, Config{Concurrency: 8}, now, 0)
	g.Link(now).OnWake(func() { woken = true })
	for i := range 9 {
		if d := g.Admit(now, one(1+i)); d.Queued() != woken {
			t.Fatalf("request %d waits: %v, and the store is to be asked: %v", i, d.Queued(), woken)
		}
	}
	if !woken {
		t.Error("nine requests at once wait for none of eight permits")
	}
}

// Requests that find no permit, or no token of their zone, ask the store while it answers: neither waits for the other, and a zone
// admits no more than its limit. Run with -race.
func TestTheStoreIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	const keys, rate, burst = 5, 1, 40
	var of [2]*Guard
	for i := range of {
		of[i] = mustNew(t, Config{
			Zones: []Zone{{Name: "z", Limit: perSecond(rate, burst), Shared: true}}, Capacity: perSecond(1e6, 1e6),
			Concurrency: 8, Queue: noQueue, Shared: true, Secret: make([]byte, 16), Replica: string(rune('a' + i)),
		}, nil)
	}
	stores, done, began := [2]*virtual.Store{virtual.New(), virtual.New()}, make(chan struct{}), Now()
	var requests sync.WaitGroup
	var admitted, waited atomic.Int64 // in the zone
	for worker := range 4 {
		requests.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				var held []Decision
				for i := range 16 {
					r := Request{Keys: []limiter.Key{NoKey}}
					if i%4 == 0 {
						r.Keys[0] = limiter.Key(1+(n+worker)%keys) * 0x9e3779b97f4a7c15
					}
					d := of[0].Admit(Now(), r)
					if d.Queued() && i%8 == 0 {
						waited.Add(1)
						select {
						case <-d.Awaits():
						case <-time.After(share.MaxTrip):
						}
						of[0].Settle(Now(), r, &d, 0)
					}
					if d.Queued() {
						of[0].Abandon(Now(), &d)
					} else if d.Admit {
						held = append(held, d)
						if r.Keys[0] != NoKey {
							admitted.Add(1)
						}
					}
				}
				for _, d := range held {
					d.Done(Now(), Served)
				}
				if n%10 == 9 { // so that permits are given back
					time.Sleep(120 * ms)
				}
			}
		})
	}
	for start := time.Now(); time.Since(start) < 2*time.Second || admitted.Load() < keys*burst/2 && time.Since(start) < patience; {
		for _, g := range of {
			for i, l := range sharers(g, Now()) {
				now := Now()
				if ask, ok := l.Due(now); ok {
					l.Heard(Now(), now, stores[i].Do(1e12+now.Milliseconds(), ask))
				}
			}
		}
	}
	close(done)
	requests.Wait()
	most := keys * (burst + 1 + rate*(Now()-began).Seconds())
	t.Logf("%d admitted, at most %.0f; %d waited", admitted.Load(), most, waited.Load())
	if n := admitted.Load(); n < keys*burst/2 || float64(n) > most {
		t.Errorf("%d are admitted, want %d to %.0f", n, keys*burst/2, most)
	}
}

// A zone to which requests come is not idle: the store is told of it each beat.
func TestABusyZoneKeepsItsBeat(t *testing.T) {
	g := mustNew(t, Config{Zones: []Zone{{Name: "each", Limit: perSecond(10, 20), Shared: true}}, Secret: make([]byte, 16)}, nil)
	store, l, beats := virtual.New(), g.Zones(0)[0], 0
	for now := time.Second; now < 21*time.Second; now += 10 * ms {
		g.Admit(now, Request{Keys: []limiter.Key{limiter.Key(now) << 30}})
		if ask, ok := l.Due(now); ok {
			l.Heard(now, now, store.Do(1e12+now.Milliseconds(), ask))
			if now >= 20*time.Second {
				beats++
			}
		}
	}
	if want := int(time.Second/share.Beat) - 1; beats < want {
		t.Errorf("%d beats in a second, want %d", beats, want)
	}
}

// A Guard of another limit is another zone to the store, and forgives no client; one that
// shares no zone has its own again.
func TestASharedZoneIsReloaded(t *testing.T) {
	state := new(State)
	guard := func(burst int, shared bool) *Guard {
		return mustNew(t, Config{Secret: make([]byte, 16), Zones: []Zone{{Name: "each", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: burst}, Shared: shared}}}, state)
	}
	r := Request{Keys: []limiter.Key{42 << 40}}
	taken := func(g *Guard, now time.Duration) (n int) {
		for range 100 {
			if d := g.Admit(now, r); d.Admit {
				n++
			}
		}
		return n
	}
	if n := taken(guard(40, true), time.Second); n != 10 { // of 2 replicas, half of it without a store
		t.Errorf("%d are admitted alone, want 10", n)
	}
	same := guard(40, true)
	if n := taken(same, 2*time.Second); n != 0 {
		t.Errorf("%d are admitted after a reload, want 0", n)
	}
	if n := taken(guard(80, true), 3*time.Second); n != 0 {
		t.Errorf("%d are admitted after a reload with a larger burst, want 0", n)
	}
	z := same.Zones(4 * time.Second)[0]
	if g := guard(40, false); taken(g, 5*time.Second) > 40 || g.Zones(6 * time.Second)[0] != nil {
		t.Error("a zone that is not shared any more is linked, or admits more than its burst")
	}
	if z == nil {
		t.Error("a shared zone has no link")
	}
}

// A replica without the store admits what docs/guides/replicas.md says: of a zone, half of the burst divided by
// the replicas; of the backend, its part of everything; and of all rates, its part.
func TestPartsWithoutTheStore(t *testing.T) {
	page, err := os.ReadFile("docs/guides/replicas.md")
	if err != nil {
		t.Fatal(err)
	}
	limit := limiter.Config{Rate: 10, Burst: 40}
	for _, replicas := range []int{2, 3, 8, 50} {
		// admitted returns how many requests are admitted at once, and per second in the next 100 s. None ends.
		admitted := func(c Config) (burst int, rate float64) {
			c.Replicas, c.Secret, c.Pushback = replicas, make([]byte, 16), undithered
			g, now := mustNew(t, c, nil), time.Second
			q := Request{Keys: []limiter.Key{42 << 40}[:len(c.Zones)]}
			for l := g.Link(now); now < 100*time.Second; now += 10 * time.Millisecond {
				if l != nil {
					l.Due(now)
					l.Missed(now)
				}
			}
			for g.Admit(now, q).Admit {
				burst++
			}
			more := 0
			for end := now + 100*time.Second; now < end; now += 10 * time.Millisecond {
				if g.Admit(now, q).Admit {
					more++
				}
			}
			return burst, float64(more) / 100
		}
		zone, zoneRate := admitted(Config{Zones: []Zone{{Name: "each", Limit: limit, Shared: true}}})
		capacity, capacityRate := admitted(Config{Capacity: limit, Shared: true})
		permits, _ := admitted(Config{Concurrency: 8, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Shared: true})
		if wants := [3]int{max(1, 40/(2*replicas)), max(1, 40/replicas), max(1, 8/replicas)}; [3]int{zone, capacity, permits} != wants {
			t.Errorf("%d replicas: %d, %d and %d are admitted at once; want %d", replicas, zone, capacity, permits, wants)
		}
		part := 10 / float64(replicas)
		if math.Abs(zoneRate-part) > .1*part || math.Abs(capacityRate-part) > .1*part {
			t.Errorf("%d replicas: %v/s and %v/s are admitted; want %v", replicas, zoneRate, capacityRate, part)
		}
		says := fmt.Sprintf("in a zone become %.0f/s and a burst of %d, `capacity 10/s burst 40` becomes %.0f/s and a burst of %d, and 8 permits become %d.",
			zoneRate, zone, capacityRate, capacity, permits)
		if replicas == 2 && !strings.Contains(string(page), says) {
			t.Errorf("docs/guides/replicas.md does not say what two replicas enforce: %s", says)
		}
	}
}

// A first attempt that waits for the store is one, whether it waits for a token of its client's quota or of the
// capacity: retries have what first attempts leave, 40/s of 100/s, also where two replicas share these.
func TestWaitForTheStoreIsOneAttempt(t *testing.T) {
	for name, c := range map[string]Config{
		"quota":    {Zones: []Zone{{Name: "each", Limit: limiter.Config{Rate: 60, Burst: 3}, Shared: true}}, Capacity: perSecond(100, 10)},
		"capacity": {Capacity: perSecond(100, 10), Shared: true},
	} {
		var guards [2]*Guard
		for i := range guards {
			c.Secret, c.Replica = make([]byte, 16), string(rune('a'+i))
			guards[i] = mustNew(t, c, nil)
		}
		store, now, begin := virtual.New(), time.Minute, 65*time.Second
		carry := func() {
			for _, g := range guards {
				for _, l := range sharers(g, now) {
					for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
						l.Heard(now, now, store.Do(1e12+now.Milliseconds(), ask))
					}
				}
			}
		}
		passed, waited := 0, 0
		ask := func(n int, r Request) {
			g := guards[0]
			if c.Shared {
				g = guards[n/2%2]
			}
			d := g.Admit(now, r)
			if d.Queued() {
				waited++
				carry()
				g.Settle(now, r, &d, 0)
			}
			if r.Retry && d.Reason != RetryBudget && now >= begin {
				passed++
			}
		}
		for n := 0; now < begin+10*time.Second; now += 5 * ms {
			carry()
			if n++; n%10 < 3 {
				ask(n, Request{Keys: []limiter.Key{7 << 40}, Client: limiter.Key(n)})
			}
			ask(n, Request{Client: limiter.Key(1<<40 + n), Retry: true})
		}
		if t.Logf("%s: %d retries passed the budget in 10 s, %d requests waited", name, passed, waited); waited < 100 || passed < 350 || passed > 450 {
			t.Errorf("%s: %d retries passed the budget in 10 s, want 400; %d requests waited, want 100", name, passed, waited)
		}
	}
}

// A liar is a store that says anything. Not plausible: no number of it is one that a store
// could say.
type liar struct {
	*rand.Rand
	plausible bool
	keys      []limiter.Key
}

func (r liar) integer() int64 {
	if r.plausible && r.IntN(2) == 0 {
		return []int64{0, 1, 2, 7, 1000, r.Int64N(100), 1_795_000_000_000 + r.Int64N(60_000)}[r.IntN(7)]
	}
	return []int64{-1, math.MinInt64, math.MinInt64 + 1, math.MaxInt64, 1 << 62, -r.Int64() - 1}[r.IntN(6)]
}

func (r liar) float() float64 {
	if r.plausible && r.IntN(2) == 0 {
		return []float64{0, 0.5, 1, 3, 1000 * r.Float64()}[r.IntN(5)]
	}
	return []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1e308, 1e308, -1}[r.IntN(6)]
}

func (r liar) text() string {
	switch r.IntN(3) {
	case 0:
		return fmt.Sprintf("%016x", uint64(r.keys[r.IntN(len(r.keys))]))
	case 1:
		return "0000000000000000"
	}
	b := make([]byte, 8+26*r.IntN(4)) // a batch of news
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return base64.StdEncoding.EncodeToString(b)
}

// fill fills a response.
func (r liar) fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(r.integer())
	case reflect.Float64:
		v.SetFloat(r.float())
	case reflect.Bool:
		v.SetBool(r.IntN(20) == 0)
	case reflect.String:
		v.SetString(r.text())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.fill(v.Elem())
	case reflect.Array:
		for i := range v.Len() {
			r.fill(v.Index(i))
		}
	case reflect.Slice:
		n := r.IntN(4)
		if r.IntN(100) == 0 {
			n = 600
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			r.fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			r.fill(v.Field(i))
		}
	}
}

// lease answers about as many pools as it was asked about, and counts the tokens that it could have been asked for.
func (r liar) lease(ask share.LeaseAsk, given *int) (a share.LeaseAnswer) {
	r.fill(reflect.ValueOf(&a).Elem())
	a.Pools = make([]share.PoolAnswer, len(ask.Pools))
	for i := range a.Pools {
		r.fill(reflect.ValueOf(&a.Pools[i]).Elem())
		if got := a.Pools[i].Got; got > 0 && got <= ask.Pools[i][3] {
			*given += int(got)
		}
	}
	return a
}

// Whatever a store says, a replica admits no more than its part of a limit, as without the
// store, and what the store could give of what it was asked for. It tells its clients times
// that it could have told them without.
func TestAStoreThatLiesAdmitsNoMore(t *testing.T) {
	const (
		rate, burst, permits, replicas = 10, 20, 20, 4
		length                         = 20 * time.Second
		longest                        = limiter.MaxReplicas*time.Second/rate + 2*time.Second // a token of the least part
	)
	keys := []limiter.Key{limiter.KeyOf("a"), limiter.KeyOf("b"), limiter.KeyOf("c")}
	for _, c := range []struct {
		name   string
		config Config
		keys   int
	}{
		{"a zone", Config{Zones: []Zone{{Name: "each", Shared: true, Limit: perSecond(rate, burst)}}}, len(keys)},
		{"the capacity", Config{Capacity: perSecond(rate, burst), Shared: true}, 1},
		{"requests in flight", Config{Concurrency: permits, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Shared: true}, 0},
	} {
		for seed := range uint64(30) {
			store := liar{rand.New(rand.NewPCG(seed, 1)), seed%2 == 1, keys}
			t.Run(fmt.Sprintf("%s, seed %d, plausible %v", c.name, seed, store.plausible), func(t *testing.T) {
				c.config.Secret, c.config.Replicas, c.config.Replica = make([]byte, 16), replicas, "a"
				g := mustNew(t, c.config, nil)
				const began = time.Second
				admitted, given, inFlight, most := 0, 0, []Decision{}, 0
				for now := began; now < began+length; now += 5 * ms {
					carryLies(g, now, store, &given)
					key := keys[store.IntN(len(keys))]
					d := g.Admit(now, Request{Keys: []limiter.Key{key}, Client: key})
					if d.Queued() {
						carryLies(g, now, store, &given)
						g.Settle(now, Request{Keys: []limiter.Key{key}, Client: key}, &d, 0)
					}
					if d.Admit {
						admitted++
						inFlight = append(inFlight, d)
					} else if d.Wait < 0 || d.Hint.Seconds < 1 || max(d.Wait, time.Duration(d.Hint.Seconds)*time.Second) > longest {
						t.Fatalf("at %v: rejected for %v, told %v, %d s", now, d.Reason, d.Wait, d.Hint.Seconds)
					}
					for most = max(most, len(inFlight)); len(inFlight) > 0 && inFlight[0].At() <= now-400*ms; inFlight = inFlight[1:] {
						inFlight[0].Done(now, Served)
					}
				}
				parts := replicas // that limits are divided by
				if store.plausible {
					parts = 1
				}
				limit := float64(burst/parts) + rate/float64(parts)*(length+2*time.Second).Seconds() + 1
				if limit = limit*float64(c.keys) + float64(given); c.keys > 0 && float64(admitted) > limit {
					t.Errorf("%d are admitted, of which %d could be given; want %v at most", admitted, given, limit)
				}
				for _, z := range g.Zones(began + length) {
					if z != nil && z.Escrow.Hot() > len(keys) {
						t.Errorf("%d keys are hot, want %d at most", z.Escrow.Hot(), len(keys))
					}
				}
				if c.keys == 0 && most > permits/parts {
					t.Errorf("%d are in flight, want %d at most", most, permits/parts)
				}
			})
		}
	}
}

// carryLies carries what a Guard has to tell the store. Each tenth answer gets lost.
func carryLies(g *Guard, now time.Duration, store liar, given *int) {
	for _, s := range sharers(g, now) {
		if ask, ok := s.Due(now); ok && store.IntN(10) > 0 {
			s.Heard(now, now, store.lease(ask, given))
		} else if ok {
			s.Missed(now)
		}
	}
}

// A sharer is what a Guard shares with other replicas.
type sharer interface {
	Due(now time.Duration) (share.LeaseAsk, bool)
	Heard(now, asked time.Duration, a share.LeaseAnswer)
	Missed(now time.Duration)
}

func sharers(g *Guard, now time.Duration) (all []sharer) {
	if l := g.Link(now); l != nil {
		all = append(all, l)
	}
	for _, z := range g.Zones(now) {
		if z != nil {
			all = append(all, z)
		}
	}
	return all
}

// Replicas that only observe have no request wait for the store: they say of as many as enforcing ones that there is no token. So does
// Explain.
func TestReplicasThatObserveCountOnTheStore(t *testing.T) {
	for _, c := range []struct {
		every       time.Duration // between requests of each of two replicas, at 100/s for both
		least, most int           // rejected in 10 s
	}{{time.Second, 0, 0}, {20 * ms, 0, 0}, {10 * ms, 940, 980}, {5 * ms, 2940, 2980}} {
		config := Config{Capacity: perSecond(100, 40), Observe: true, Shared: true, Secret: make([]byte, 16)}
		store, now, rejected := virtual.New(), time.Hour, 0
		var of [2]*Guard
		for i := range of {
			config.Replica = string(rune('a' + i))
			of[i] = mustNew(t, config, nil)
		}
		for began := now + 2*time.Second; now < began+10*time.Second; now += ms {
			for i, g := range of {
				l := g.Link(now)
				for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
					l.Heard(now, now, store.Do(1e12+now.Milliseconds(), ask))
				}
				if now < began || (now-began+time.Duration(i)*3*ms)%c.every != 0 {
					continue
				}
				e := g.Explain(now, Request{})
				d := g.Admit(now, Request{})
				if d.Reason != None {
					rejected++
				}
				if e.Reason != d.Reason {
					t.Fatalf("%v was expected, and %v is observed", e.Reason, d.Reason)
				}
			}
		}
		if rejected < c.least || rejected > c.most {
			t.Errorf("one request each %v on both: %d would have been rejected, want %d to %d", c.every, rejected, c.least, c.most)
		}
	}
}
