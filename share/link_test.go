package share_test

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/virtual"
)

// newLinks returns the Links of some replicas of 100 requests per second, and what exchanges with a store that answers at
// once.
func newLinks(names ...string) (links []*share.Link, clients []*pushback.Appointments, exchange func(now time.Duration, lost int)) {
	l, err := limiter.New(limiter.Config{Rate: 100, Burst: 10})
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		own := new(pushback.Appointments)
		own.Resize(pushback.MinMaxClients)
		clients = append(clients, own)
		links = append(links, share.NewLink(name, share.Shared{Capacity: new(limiter.Bucket), InFlight: new(loadshed.Concurrency), Clients: own},
			share.Limits{Capacity: l, Max: 30 * time.Second, Replicas: len(names)}, time.Second))
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

// News that are told in vain are told again, and heard once.
func TestNewsAreToldUntilTheyArrive(t *testing.T) {
	_, clients, exchange := newLinks("a", "b")
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
		clients[0].Refuse(now, &pushback.Caller{Key: key}, &v, &terms, pushback.Supply{Rate: 100}, &d)
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
		known += clients[1].Client(now, 1000+key).Promises + clients[1].Client(now, 2000+key).Promises
	}
	if known != 40 {
		t.Errorf("the other replica knows of %d promises of 40", known)
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
	inFlight.Use(plan, true)
	now := time.Hour
	k := share.NewLink("r", share.Shared{Capacity: new(limiter.Bucket), InFlight: inFlight, Clients: clients}, share.Limits{InFlight: 10, Replicas: 1}, now)
	store := virtual.New()
	for range 3 {
		ask, ok := k.Due(now)
		if !ok {
			t.Fatal("nothing is due")
		}
		k.Heard(now+ms, now, store.Do(int64(now/ms), ask))
		now += share.IdleBeat
	}
	ask, ok := k.Due(now)
	k.Unlink(now)
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
		var place loadshed.Place
		if is, _ := inFlight.Enter(now, plan, &loadshed.Entrant{}, &place); is != loadshed.Entered {
			t.Fatalf("%v after the end: %v", 30*time.Second-(end-now), is)
		}
		place.Leave(now, loadshed.Served)
	}
	if bye, ok := k.Bye(now); !ok || !bye.Leaves || bye.Me != "r" {
		t.Errorf("the others are told %+v, %v", bye, ok)
	}
}
