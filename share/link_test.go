package share_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
	"github.com/herdshield/shield/share/virtual"
)

// newLinks returns the Links of some replicas of 100 requests per second, and what exchanges with a store that answers at
// once.
func newLinks(names ...string) (links []*share.Link, clients []*pushback.Appointments, exchange func(now time.Duration, lost int)) {
	limits := share.Limits{Capacity: must(limiter.New(limiter.Config{Rate: 100, Burst: 10})), Max: 30 * time.Second, Replicas: len(names)}
	for _, name := range names {
		own := new(pushback.Appointments)
		own.Resize(pushback.MinMaxClients)
		clients = append(clients, own)
		links = append(links, share.NewLink(name, share.Shared{Capacity: new(limiter.Bucket), InFlight: new(loadshed.Concurrency), Clients: own}, limits, time.Second))
	}
	store := virtual.New()
	return links, clients, func(now time.Duration, lost int) {
		for i, k := range links {
			if ask, ok := k.Due(now); ok && i != lost {
				k.Heard(now+ms, now, store.Do(simStart+now.Milliseconds(), ask))
			} else if ok {
				k.Missed(now + share.GiveUp)
			}
		}
	}
}

// News that are told in vain are told again, and heard once. Those that did not fit into an answer are asked for at once.
func TestNewsAreToldUntilTheyArrive(t *testing.T) {
	links, clients, exchange := newLinks("a", "b")
	now := time.Second
	run := func(d time.Duration, lost int) {
		for end := now + d; now < end; now += 10 * ms {
			exchange(now, lost)
		}
	}
	run(time.Second, -1)
	answers := must(pushback.NewResponses(pushback.ResponseConfig{}, nil))
	terms := pushback.Terms{Responses: answers, Enforce: true}
	reject := func(key uint64) {
		var v pushback.Visit
		var d pushback.Told
		clients[0].Reject(now, &pushback.Caller{Key: key}, &v, &terms, pushback.Supply{Rate: 100}, &d)
	}
	for key := range uint64(20) {
		reject(1000 + key)
	}
	run(400*ms, 0)
	for key := range uint64(20) {
		reject(2000 + key)
	}
	run(time.Second, -1) // the other is idle, and asks twice per second
	known := 0
	for key := range uint64(20) {
		known += clients[1].Client(now, 1000+key).Promises + clients[1].Client(now, 2000+key).Promises
	}
	if known != 40 {
		t.Errorf("the other replica knows of %d promises of 40", known)
	}

	// One that comes early, and is rejected for another reason, keeps its appointment there, too.
	var v pushback.Visit
	var d pushback.Told
	early := pushback.Caller{Key: 3000}
	clients[0].Reject(now, &early, &v, &terms, pushback.Supply{Rate: 100, Token: 10 * time.Second}, &d)
	run(2*time.Second, -1)
	clients[0].Arrive(now, &early, &terms, 100, false, &v)
	run(time.Second, -1)
	if n := clients[1].Client(now, early.Key).Promises; v.Standing != pushback.TooEarly || n != 1 {
		t.Errorf("of a client that came early (%+v) the other replica knows %d promises, want 1", v, n)
	}
	now += share.Beat
	ask, _ := links[0].Due(now)
	links[0].Heard(now, now, share.LeaseAnswer{Now: simStart + now.Milliseconds(), N: 1, More: true, Pools: make([]share.PoolAnswer, len(ask.Pools))})
	if at := links[0].Next(now); at != now {
		t.Errorf("more news are asked for after %v", at-now)
	}
}

// A shell goes on for a moment with a Link whose sharing has ended. It must not divide again
// what is the replica's alone: nothing would end that.
func TestEndedLinkChangesNothing(t *testing.T) {
	plan := must(loadshed.NewPlan(loadshed.PlanConfig{Limit: 10}))
	clients, inFlight := new(pushback.Appointments), new(loadshed.Concurrency)
	clients.Resize(pushback.MinMaxClients)
	inFlight.Use(plan, true)
	now := time.Hour
	k := share.NewLink("r", share.Shared{Capacity: new(limiter.Bucket), InFlight: inFlight, Clients: clients}, share.Limits{InFlight: 10, Replicas: 1}, now)
	store := virtual.New()
	store.Do(int64(now/ms), share.LeaseAsk{Me: "another", Seq: 1, Life: 1, N: 1, Alone: true})
	for range 3 {
		ask, ok := k.Due(now)
		if !ok {
			t.Fatal("nothing is due")
		}
		k.Heard(now+ms, now, store.Do(int64(now/ms), ask))
		now += share.IdleBeat
	}
	ask, ok := k.Due(now)
	before := clients.Awaits(new(pushback.Visit))
	if k.Unlink(now); !before || clients.Awaits(new(pushback.Visit)) {
		t.Errorf("a slot of the store is waited for after the end, or was not before: %v", before)
	}
	k.Heard(now+ms, now, store.Do(int64(now/ms), ask))
	k.Missed(now + 2*ms)
	for end := now + 30*time.Second; now < end; now += share.IdleBeat {
		ask, due := k.Due(now)
		if !ok || ask.Pools != nil || ask.Slots != nil {
			t.Fatalf("%v: the store is told %+v", now, ask)
		}
		if due {
			k.Heard(now+ms, now, store.Do(int64(now/ms), ask))
		}
		k.Look(now)
		var permit loadshed.Permit
		if is, _ := inFlight.Enter(now, plan, &loadshed.Entrant{}, &permit); is != loadshed.Entered {
			t.Fatalf("%v after the end: %v", 30*time.Second-(end-now), is)
		}
		permit.Leave(now, loadshed.Served)
	}
	if bye, ok := k.Bye(now); !ok || !bye.Leaves || bye.Me != "r" {
		t.Errorf("the others are told %+v, %v", bye, ok)
	}
}

// Replicas that are given a number in flight one after the other, where all had an adaptive limit or another number, never
// have more of it together, and each has some at once, though the store does not know yet what the others have.
func TestNumberInPlaceOfAnotherLimit(t *testing.T) {
	for _, replicas := range []int{2, 5} {
		for _, before := range []share.Limits{{Adaptive: 100}, {InFlight: 60}} {
			if replicas == 5 && before.InFlight == 0 && *quotaTime < 20*time.Second {
				continue
			}
			names := []string{"a", "b", "c", "d", "e", "f"}[:replicas]
			links, _, _ := newLinks(names...)
			old, store, now := virtual.New(), virtual.New(), time.Second // the store, of those with the old limit and the new one
			const limit = 24
			before.Max, before.Replicas = 30*time.Second, replicas
			after := share.Limits{InFlight: limit, Max: 30 * time.Second, Replicas: replicas}
			changed := 0
			run := func(d time.Duration) {
				settled := now + share.Beat + 10*ms // until it has heard of its new unit, the replica that changes has its even part, as if it were alone
				most := limit + limit/2
				for end := now + d; now < end; now += 10 * ms {
					sum := 0
					for i, k := range links {
						k.Use(now)
						of := old
						if i < changed {
							of = store
						}
						if ask, ok := k.Due(now); ok {
							k.Heard(now+ms, now, of.Do(simStart+now.Milliseconds(), ask))
						}
						if i < changed {
							sum += k.MayUse(now + ms)
						}
					}
					if now > settled {
						most = limit
					}
					if sum > most {
						t.Fatalf("%d replicas, %+v: at %v those of the new limit may have %d in flight, want %d", replicas, before, now, sum, most)
					}
				}
			}
			for _, k := range links {
				k.Set(now, before)
			}
			run(20 * time.Second)
			for i, k := range links {
				if ask, ok := k.Bye(now); ok {
					old.Do(simStart+now.Milliseconds(), ask)
				}
				k.Set(now, after)
				changed = i + 1
				run(time.Second)
				if n := k.MayUse(now); n < 1 {
					t.Errorf("%d replicas, %+v: a second after replica %d it may have none in flight", replicas, before, i)
				}
			}
			run(20 * time.Second)
			sum := 0
			for _, k := range links {
				sum += k.MayUse(now)
			}
			if sum < limit/3 { // they are idle
				t.Errorf("%d replicas, %+v: in the end they may have %d in flight of %d", replicas, before, sum, limit)
			}
		}
	}
}

// newAsk returns what all asks have alike.
func newAsk(name string) share.LeaseAsk {
	return share.LeaseAsk{Me: name, Life: 1, N: 4, Heard: 1}
}

// Servers run the script as the process does: at the same instants, they answer the same.
func TestServersAnswerAlike(t *testing.T) {
	testserver.Each(t, func(t *testing.T, program string) {
		s := newServer(t, program)
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 3))
			s.Flush()
			here, now := virtual.New(), int64(simStart)
			var state [4]share.LeaseAsk
			for i := range state {
				state[i] = newAsk(fmt.Sprint("replica", i))
			}
			for range 400 {
				now += []int64{0, 1, 3, 20, 100, 100, 400, 2_000, 16_000}[min(r.IntN(9), r.IntN(9), r.IntN(40))] // no key of a server expires
				mine := &state[r.IntN(len(state))]
				mine.Seq++
				a := *mine
				a.Alone, a.Leaves, a.N, a.Heard = r.IntN(12) == 0 || a.Till == 0, r.IntN(60) == 0, 1+r.IntN(4), int64(r.IntN(5))
				a.Slots = &pushback.SlotsAsk{
					Rate: 20 * r.Float64(), Limit: 100, Base: 2, Max: 30_000, Want: r.IntN(5), Proven: r.IntN(3), Numbers: float64(r.IntN(3)), Served: r.Float64(),
					Kept: r.Float64(),
				}
				a.Of = []share.PoolKind{{Rate: 0.1, Cap: 40, Parts: 1, Cost: 1, Stay: 10_000}, {Cap: 21, Stay: 600_000}, {Rate: 0.01, Cap: 20, Parts: 2, Cost: 2, Stay: 9_000}}
				for key := range 5 {
					if of := min(key, 2); r.IntN(3) > 0 {
						a.Keys = append(a.Keys, fmt.Sprint("pool", key))
						a.Pools = append(a.Pools, [5]float64{float64(1 + of), float64(r.IntN(6)), float64(r.IntN(3)), float64(r.IntN(9))})
					}
				}
				if r.IntN(3) == 0 {
					a.Notes = "note"
				}
				want, got := here.Do(now, a), s.Do(now, a)
				if got, want := text(got), text(want); got != want {
					t.Fatalf("seed %d, at %d: %+v\nis answered %s by %s,\nand        %s here", seed, now, a, got, program, want)
				}
				if want.Stale || r.IntN(10) == 0 {
					mine.Life++
					continue
				}
				if mine.Last, mine.Till, mine.After = a.Seq, want.Now+350, want.After; a.Alone {
					mine.Life++
				}
			}
		}
	})
}

// text returns an answer to six digits, with its slots.
func text(a share.LeaseAnswer) string {
	slots := a.Slots
	a.Slots = nil
	return fmt.Sprintf("%.6v %.6v", a, slots)
}

// A store forgets replicas, definitions and notes that are over, and all of it once nobody comes.
func TestAStoreForgets(t *testing.T) {
	s, now, others, most := newServer(t, testserver.Programs(t)[0]), int64(simStart), 0, 0
	read := func(command string, args ...any) int64 { n, _ := redigo.Int64(s.conn.Do(command, args...)); return n }
	for i := range 4200 {
		a := newAsk(fmt.Sprint("replica", i/200))
		a.Seq, a.Alone, a.What, a.Notes = int64(1+i), true, "limit 4", "note"
		a.Of, a.Keys, a.Pools = []share.PoolKind{{Cap: 4, Stay: 10_000}}, []string{"pool"}, [][5]float64{{1, 0, 0, 1}}
		others = len(s.Do(now, a).Others)
		most = max(most, others)
		if now += 1000; i == 0 { // as replicas with other limits do; those of which an answer may not tell would make it count for nothing
			is, _ := s.conn.Do("HGET", "{unit}units", "{unit}roster")
			for n := range 70 {
				read("HSET", "{unit}units", fmt.Sprint("{unit}other", n), is)
			}
		}
	}
	if replicas, held, notes := read("HLEN", "{unit}roster"), read("HLEN", "{unit}pool"), read("LLEN", "{unit}notes"); replicas > 6 || held > 7 || notes > 4096 || others != 0 || most != 64 {
		t.Errorf("of 21 replicas, one after the other, %d are known, and %d of a pool; %d of 4200 notes; %d other definitions, and %d before", replicas, held, notes, others, most)
	}
	for _, key := range []string{"roster", "notes", "units", "pool"} {
		if ms := read("PTTL", "{unit}"+key); ms <= 0 || ms > 600_000 {
			t.Errorf("%s expires after %d ms", key, ms)
		}
	}
}
