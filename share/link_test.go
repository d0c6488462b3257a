package share

import (
	"reflect"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

// newLinks returns the Links of some replicas of 100 requests per second, and what exchanges with a store that answers at
// once.
func newLinks(names ...string) (links []*Link, exchange func(now time.Duration, lost int)) {
	l, err := limiter.New(limiter.Config{Rate: 100, Burst: 10})
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		clients := new(pushback.Appointments)
		clients.Resize(pushback.MinMaxClients)
		links = append(links, NewLink(name, Shared{Capacity: new(limiter.Bucket), InFlight: new(loadshed.Concurrency), Clients: clients},
			Limits{Capacity: l, Max: 30 * time.Second, Replicas: len(names)}, time.Second))
	}
	store := new(Model)
	return links, func(now time.Duration, lost int) {
		for i, k := range links {
			if ask, ok := k.Due(now); ok && i != lost {
				k.Heard(now+ms, now, store.Plan(1_795_000_000_000+now.Milliseconds(), ask))
			} else if ok {
				k.Missed(now + GiveUp)
			}
		}
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
	links, exchange := newLinks("a", "b")
	now := time.Second
	run := func(d time.Duration, lost int) {
		for end := now + d; now < end; now += 10 * ms {
			exchange(now, lost)
		}
	}
	run(time.Second, -1)
	answers, err := pushback.NewAnswers(pushback.AnswerConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	terms := pushback.Terms{Answers: answers, Enforce: true}
	refuse := func(key uint64) {
		var v pushback.Visit
		var d pushback.Told
		links[0].Clients.Refuse(now, &pushback.Caller{Key: key}, &v, &terms, pushback.Supply{Rate: 100}, &d)
	}
	for key := range uint64(20) {
		refuse(1000 + key)
	}
	run(400*ms, 0)
	for key := range uint64(20) {
		refuse(2000 + key)
	}
	run(time.Second, -1) // the other is idle, and asks twice per second
	known := 0
	for key := range uint64(20) {
		known += links[1].Clients.Client(now, 1000+key).Promises + links[1].Clients.Client(now, 2000+key).Promises
	}
	if known != 40 {
		t.Errorf("the other replica knows of %d promises of 40", known)
	}
}

// The store of some limits is not told of others: those wait until the link is served anew.
func TestNewLimitsWaitForTheirStore(t *testing.T) {
	links, exchange := newLinks("a")
	r, now := links[0], time.Second
	r.OnWake(func() {})
	exchange(now, -1)
	l := r.limits
	l.Max *= 2
	r.Set(now, l)
	now += IdleBeat
	ask, ok := r.Due(now)
	if !ok || ask.Slots.Max != l.Max.Milliseconds()/2 {
		t.Fatalf("the store of the old limits is told of %+v, %t", ask.Slots, ok)
	}
	r.Missed(now)
	r.OnWake(func() {})
	now += IdleBeat
	if ask, ok = r.Due(now); !ok || ask.Slots.Max != l.Max.Milliseconds() {
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
		k.Pools().Due(now)
		k.Pools().Missed(now)
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
