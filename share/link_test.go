package share

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

// A fleet is some replicas that share 100 tokens per second and a burst of 10, a store, and
// what is on its way between them, in virtual time. Their clocks differ.
type fleet struct {
	*rand.Rand
	limit limiter.Limit
	store Model
	of    []*replica
	now   time.Duration
	lost  func(replica int) bool          // whether what is sent now gets lost
	trip  func(replica int) time.Duration // one way
	took  []time.Duration                 // tokens
}

type replica struct {
	*Link
	ahead  time.Duration // its clock, of the fleet's
	events []func()
	at     []time.Duration
}

func newFleet(n int) *fleet {
	l, err := limiter.New(limiter.Config{Rate: 100, Burst: 10})
	if err != nil {
		panic(err)
	}
	f := &fleet{
		Rand: rand.New(rand.NewPCG(1, uint64(n))), limit: l, now: time.Second,
		lost: func(int) bool { return false }, trip: func(int) time.Duration { return ms / 2 },
	}
	for i := range n {
		f.add(fmt.Sprintf("r%d", i), n)
	}
	return f
}

func (f *fleet) add(name string, assumed int) {
	ahead := time.Duration(f.Int64N(int64(time.Hour)))
	clients := new(pushback.Appointments)
	clients.Resize(pushback.MinMaxClients)
	f.of = append(f.of, &replica{ahead: ahead, Link: NewLink(name, Shared{Capacity: new(limiter.Bucket), InFlight: new(loadshed.Concurrency), Clients: clients},
		Limits{Capacity: f.limit, Max: 30 * time.Second, Replicas: assumed}, f.now+ahead)})
}

// run goes on for so long, a millisecond at a time. Each millisecond, wants says for which
// replicas a request comes.
func (f *fleet) run(d time.Duration, wants func(replica int) int) {
	for end := f.now + d; f.now < end; f.now += ms / 2 {
		for i, r := range f.of {
			if r == nil {
				continue
			}
			for len(r.at) > 0 && r.at[0] <= f.now {
				do := r.events[0]
				r.at, r.events = r.at[1:], r.events[1:]
				do()
			}
			now := f.now + r.ahead
			if f.now%ms == 0 {
				for range wants(i) {
					r.Look(now)
					if took, misses := r.take(f.limit, now); took {
						f.took = append(f.took, f.now)
					} else if misses {
						r.Ask()
					}
				}
			}
			for ask, ok := r.Due(now); ok; ask, ok = r.Due(now) {
				f.send(i, ask)
			}
			if next := r.Next(now); next <= now {
				panic(fmt.Sprintf("a shell that has just asked what is due is to ask again %v ago: it would never rest", now-next))
			}
		}
	}
}

func (r *replica) take(l limiter.Limit, now time.Duration) (took, misses bool) {
	c, wait := r.Capacity.ClaimAbove(l, now, 1, 0)
	defer c.Release()
	if wait == 0 {
		c.Commit()
		return true, false
	}
	return false, c.Misses(now, false, 0)
}

func (f *fleet) send(i int, ask Ask) {
	r, sent := f.of[i], f.now
	later := func(d time.Duration, do func()) {
		r.at, r.events = append(r.at, f.now+d), append(r.events, do)
	}
	if f.lost(i) {
		later(GiveUp, func() { r.Missed(f.now + r.ahead) })
		return
	}
	way := f.trip(i)
	later(way, func() {
		answer := f.store.Plan(1_795_000_000_000+int64(f.now/ms), ask)
		mustBeBounded(&answer, &ask)
		if f.lost(i) {
			later(max(0, GiveUp-way), func() { r.Missed(f.now + r.ahead) })
			return
		}
		later(way, func() { r.Heard(f.now+r.ahead, sent+r.ahead, answer) })
	})
}

// excess returns the most that was taken beyond burst + rate * time, in any window.
func (f *fleet) excess() (most float64) {
	level, last := float64(f.limit.Burst()), time.Duration(0)
	for _, at := range f.took {
		level = min(float64(f.limit.Burst()), level+(at-last).Seconds()*f.limit.Rate()) - 1
		last = at
		most = max(most, -level)
	}
	return most
}

func (f *fleet) alone() (n int) {
	for _, r := range f.of {
		if alone, _ := r.Alone(); alone {
			n++
		}
	}
	return n
}

// Whatever happens to the store and the way to it, no more is taken than the limit says, and one
// for each replica.
func TestReplicasKeepTheLimitInAnyFault(t *testing.T) {
	for seed := range uint64(400) {
		n := 2 + int(seed%4)
		f := newFleet(n)
		f.Rand = rand.New(rand.NewPCG(seed, 7))
		cut, slow := make([]bool, n), make([]time.Duration, n)
		f.lost = func(i int) bool { return cut[i] }
		f.trip = func(i int) time.Duration { return ms/2 + slow[i] }
		f.run(2*time.Second, func(int) int { return 0 })
		for range 30 {
			everyone := f.IntN(2) == 0
			of := f.IntN(n)
			is := f.IntN(4)
			for i := range n {
				if everyone || i == of {
					cut[i], slow[i] = is == 1, time.Duration(is/2)*time.Duration(f.IntN(120))*ms
				}
			}
			if f.IntN(8) == 0 {
				f.store = Model{}
			}
			f.run(time.Duration(f.IntN(1500))*ms, func(int) int { return f.IntN(2) })
		}
		// The store counts in whole milliseconds: one of these runs has 0.2 more.
		if is := f.excess(); is > float64(n)+0.25 {
			t.Errorf("seed %d: %d replicas took %.1f more than the limit, want at most one each", seed, n, is)
		}
	}
}

// With the store one that has all of the demand gets all of the rate; without it its part.
func TestOneReplicaGetsAllOfTheRate(t *testing.T) {
	f := newFleet(4)
	gone := false
	f.lost = func(int) bool { return gone }
	only := func(i int) int { return 1 - min(i, 1) }
	f.run(time.Second, only)
	if f.alone() > 0 {
		t.Fatalf("%d replicas are alone, with a store", f.alone())
	}
	count := func() int {
		before := len(f.took)
		f.run(10*time.Second, only)
		return len(f.took) - before
	}
	if n := count(); n < 970 || n > 1001 {
		t.Errorf("one replica of four took %d tokens in 10 s, want 1000", n)
	}
	gone = true
	f.run(2*time.Second, only)
	if n := count(); f.alone() != 4 || n < 240 || n > 260 {
		t.Errorf("without the store one replica took %d tokens in 10 s, and %d are alone; want 250, and 4", n, f.alone())
	}
	gone = false
	f.run(time.Second, only)
	if n := count(); f.alone() > 0 || n < 970 || n > 1012 {
		t.Errorf("with the store again it took %d tokens in 10 s, and %d are alone", n, f.alone())
	}
}

// A replica that ends leaves its part to the others at once.
func TestReplicaSaysGoodbye(t *testing.T) {
	f := newFleet(2)
	both := func(int) int { return 1 }
	f.run(16*time.Second, both) // the store is not young any more
	last := f.of[1]
	bye, ok := last.Bye(f.now + last.ahead)
	if !ok || !bye.Leaves {
		t.Fatalf("the last ask is %+v, %t", bye, ok)
	}
	f.store.Plan(1_795_000_000_000+int64(f.now/ms), bye)
	f.of[1] = nil
	f.run(100*ms, both)
	before := len(f.took)
	f.run(5*time.Second, both)
	if n := len(f.took) - before; n < 485 || n > 501 {
		t.Errorf("the replica that is left took %d tokens in 5 s, want 500", n)
	}
	if _, again := last.Bye(f.now + last.ahead); again {
		t.Error("it says goodbye twice")
	}
}

// A replica that never hears of the store has its part, of as many as the operator says.
func TestReplicaWithoutAStore(t *testing.T) {
	f := newFleet(2)
	f.lost = func(int) bool { return true }
	f.run(12*time.Second, func(int) int { return 1 })
	if n := len(f.took); f.excess() > 2 || n < 1150 {
		t.Errorf("two replicas took %d tokens in 12 s, %.1f more than the limit", n, f.excess())
	}
}

func TestNotesAsText(t *testing.T) {
	const zero = 1_795_000_000_000 * ms
	notes := []pushback.Note{
		{Key: 1<<63 + 5, Turn: pushback.Turn{At: 5 * time.Second, Trust: pushback.Proven, Slot: true}, Told: 4 * time.Second},
		{Key: 7, Turn: pushback.Turn{At: 70 * time.Second, Number: 12345}, Told: 71 * time.Second},
		{Key: 9, Turn: pushback.Turn{At: 5 * time.Second, Slot: true}, Told: ms, Shared: true},
		{Key: 8, Turn: pushback.Turn{At: ms}, Kept: true, OnTime: true, Told: ms},
	}
	b := batch{7, 9, notes}
	if got := decode(b.encode(zero), zero); !reflect.DeepEqual(got, b) {
		t.Errorf("notes are\n%+v, want\n%+v", got, b)
	}
	if n := CountNews(b.encode(zero)); n != len(notes) {
		t.Errorf("%d notes are counted, want %d", n, len(notes))
	}
	for _, text := range []string{"", "x", "AAAA", b.encode(zero)[1:], "====", string([]byte{0, 255})} {
		if got := decode(text, zero); len(got.notes) > 0 {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestClockOfTheStore(t *testing.T) {
	var c clock
	at := func(sent, now time.Duration, ms int64) bool { return c.set(now, sent, ms) }
	if at(10*ms, 14*ms, 1012) || c.zero != time.Second {
		t.Fatalf("the store's time at 0 is %v, want 1s", c.zero)
	}
	if at(100*ms, 160*ms, 1155) || c.zero != time.Second {
		t.Errorf("a slow trip has changed it to %v", c.zero)
	}
	if !at(200*ms, 202*ms, 5201) || c.zero != 5*time.Second {
		t.Errorf("a failover has not changed it: %v", c.zero)
	}
	if at(62*time.Second, 62*time.Second+30*ms, 67_035) || c.zero != 5*time.Second+20*ms {
		t.Errorf("after a minute it is %v, want it read anew", c.zero)
	}
}

// News that are told in vain are told again, and heard once.
func TestNewsAreToldUntilTheyArrive(t *testing.T) {
	f := newFleet(2)
	lost := false
	f.lost = func(i int) bool { return lost && i == 0 }
	none := func(int) int { return 0 }
	f.run(time.Second, none)
	one, other := f.of[0], f.of[1]
	limit := f.limit.Rate()
	answers, err := pushback.NewAnswers(pushback.AnswerConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	terms := pushback.Terms{Answers: answers, Enforce: true}
	refuse := func(r *replica, key uint64) {
		var v pushback.Visit
		var d pushback.Told
		c := pushback.Caller{Key: key}
		r.Clients.Refuse(f.now+r.ahead, &c, &v, &terms, pushback.Supply{Rate: limit}, &d)
	}
	for key := range uint64(20) {
		refuse(one, 1000+key)
	}
	lost = true
	f.run(400*ms, none)
	for key := range uint64(20) {
		refuse(one, 2000+key)
	}
	lost = false
	f.run(time.Second, none) // the other is idle, and asks twice per second
	known := 0
	for _, first := range []uint64{1000, 2000} {
		for key := range uint64(20) {
			switch n := other.Clients.Client(f.now+other.ahead, first+key).Promises; n {
			case 1:
				known++
			case 0:
			default:
				t.Errorf("client %d has %d promises at the other replica", first+key, n)
			}
		}
	}
	if known != 40 {
		t.Errorf("the other replica knows of %d promises of 40", known)
	}
}

// A replica that is the only one has all of the limit at once, whatever the operator guessed.
func TestLoneReplicaHasAllOfTheLimit(t *testing.T) {
	f := newFleet(1)
	f.of = nil
	f.add("one", 5)
	f.run(6*time.Second, func(int) int { return 1 })
	if n := len(f.took); n < 580 || f.excess() > 1 {
		t.Errorf("it took %d tokens in 6 s, want 600", n)
	}
}

// The store of some limits is not told of others: those wait until the link is served anew.
func TestNewLimitsWaitForTheirStore(t *testing.T) {
	f := newFleet(1)
	r := f.of[0]
	now := func() time.Duration { return f.now + r.ahead }
	r.OnWake(func() {})
	f.run(time.Second, func(int) int { return 1 })
	l := r.limits
	l.Max *= 2
	r.Set(now(), l)
	f.now += Beat
	ask, ok := r.Due(now())
	if !ok || ask.Slots.Max != l.Max.Milliseconds()/2 {
		t.Fatalf("the store of the old limits is told of %+v, %t", ask.Slots, ok)
	}
	r.Missed(now())
	r.OnWake(func() {})
	f.now += Beat
	if ask, ok = r.Due(now()); !ok || ask.Slots.Max != l.Max.Milliseconds() {
		t.Errorf("that of the new ones is told of %+v, %t", ask.Slots, ok)
	}
}

// A shell goes on for a moment with a Link whose sharing has ended. It must not divide again
// what is the replica's alone: nothing would end that.
func TestEndedLinkChangesNothing(t *testing.T) {
	plan, err := loadshed.NewPlan(loadshed.PlanConfig{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	clients, inFlight := new(pushback.Appointments), new(loadshed.Concurrency)
	clients.Resize(pushback.MinMaxClients)
	inFlight.Use(plan)
	now := time.Hour
	k := NewLink("r", Shared{Capacity: new(limiter.Bucket), InFlight: inFlight, Clients: clients}, Limits{InFlight: 10, Replicas: 1}, now)
	var store Model
	for range 3 {
		ask, ok := k.Due(now)
		if !ok {
			t.Fatal("nothing is due")
		}
		k.Heard(now+ms, now, store.Plan(int64(now/ms), ask))
		now += IdleBeat
	}
	ask, ok := k.Due(now)
	k.Unlink(now)
	k.Heard(now+ms, now, store.Plan(int64(now/ms), ask))
	k.Missed(now + 2*ms)
	for end := now + 30*time.Second; now < end; now += IdleBeat {
		if _, due := k.Due(now); !ok || due || k.Next(now) < end {
			t.Fatalf("%v: an exchange is due", now)
		}
		k.Look(now)
		var place loadshed.Place
		if is, _ := inFlight.Enter(now, plan, &loadshed.Entrant{}, &place); is != loadshed.Entered {
			t.Fatalf("%v after the end: %v", 30*time.Second-(end-now), is)
		}
		place.Leave(now, loadshed.Served)
	}
	if bye, ok := k.Bye(now); !ok || !bye.Leaves || bye.Name != "r" {
		t.Errorf("the others are told %+v, %v", bye, ok)
	}
}
