package shield

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/share/virtual"
)

// explainers are Configs that between them reject for every reason.
func explainers(observe bool) map[string]Config {
	two := []Zone{{Name: "b", Limit: perSecond(3, 6)}, {Name: "a", Limit: perSecond(40, 40), Cost: 7}}
	return map[string]Config{
		"zones":       {Observe: observe, Zones: two, Capacity: perSecond(200, 20)},
		"quota":       {Observe: observe, Zones: []Zone{{Name: "a", Limit: perSecond(1, 2)}}},
		"capacity":    {Observe: observe, Capacity: perSecond(30, 6)},
		"scarce":      {Observe: observe, Capacity: perSecond(2, 1)},
		"lenient":     {Observe: observe, Capacity: perSecond(20, 4), Retries: Retries{Lenient: true}},
		"concurrency": {Observe: observe, Zones: two, Concurrency: 6, PerClient: 2},
		"queue": {
			Observe: observe, Concurrency: 4, Queue: loadshed.QueueConfig{Size: 6, Timeout: 300 * time.Millisecond},
			Classes: []loadshed.Class{{Name: "critical"}, {Name: "sheddable"}},
		},
		"adaptive": {Observe: observe, Adaptive: &loadshed.AdaptiveConfig{Max: 8, Initial: 4}, Capacity: perSecond(60, 30)},
	}
}

// A rider is a request that is on its way.
type rider struct {
	r    Request
	d    Decision
	done time.Duration
}

// ride plays random traffic against a Guard and returns all its decisions. If explains, Explain is
// asked before each, and has to say the same.
func ride(t *testing.T, seed uint64, c Config, explains bool, seen map[string]bool) (told []string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	g := mustNew(t, c, nil)
	var riding []*rider
	now := time.Hour
	back := map[limiter.Key]time.Duration{}
	for range 1500 {
		now += time.Duration(rng.ExpFloat64() * float64(12*time.Millisecond))
		if rng.IntN(200) == 0 {
			now += 3 * time.Second
		}
		client := limiter.Key(1 + rng.Uint64N(60)*0x9e3779b97f4a7c15)
		if at, ok := back[client]; ok && rng.IntN(3) > 0 && at > now && rng.IntN(3) == 0 {
			now = at // it comes when it was told
		}
		g.Tick(now)
		riding = slices.DeleteFunc(riding, func(w *rider) bool {
			if w.d.Queued() {
				select {
				case v := <-w.d.Verdict():
					g.Settle(now, w.r, &w.d, v)
					told = append(told, fmt.Sprint("settled ", w.d.Admit, w.d.Reason))
				default:
					if now < w.d.Until() {
						return false
					}
					g.Settle(now, w.r, &w.d, 0)
				}
			}
			if w.d.Admit && w.done <= now {
				o := Served
				if rng.IntN(8) == 0 {
					o = Aborted
				}
				w.d.Done(now, o)
			}
			return !w.d.Admit || w.done <= now
		})
		if rng.IntN(300) == 0 {
			for range loadshed.RefusalsToPause + 1 {
				asksForPause(g, now, 2*time.Second)
				now += loadshed.RefusalsSpan / 8
			}
			g.Tick(now)
		}
		if rng.IntN(100) == 0 {
			_ = g.Block(now, client, now+200*time.Millisecond)
		}
		r := Request{
			Client: client, InFlightKey: client, Retry: rng.IntN(3) == 0,
			Class: uint8(rng.IntN(3)), Agent: "curl/8",
		}
		for range c.Zones {
			r.Keys = append(r.Keys, client)
		}
		if rng.IntN(10) == 0 && len(r.Keys) > 0 {
			r.Keys[0] = NoKey
		}
		var e Explanation
		if explains {
			e = g.Explain(now, r)
		}
		d := g.Admit(now, r)
		told = append(told, fmt.Sprint(d.Admit, d.Queued(), d.Reason, d.Zone, d.Class, d.Hint, d.Wait, d.Hold))
		seen[d.Reason.String()], seen[fmt.Sprint("queued ", d.Queued())] = true, true
		if explains && !r.Retry { // it is explained as a first attempt
			compareExplained(t, g, &e, &d)
		}
		if d.Hold > 0 {
			d.Sent()
		}
		if !d.Admit && !d.Queued() {
			back[client] = now + d.Wait
		}
		if d.Admit || d.Queued() {
			riding = append(riding, &rider{r, d, now + time.Duration(rng.ExpFloat64()*float64(120*time.Millisecond))})
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	return told
}

func compareExplained(t *testing.T, g *Guard, e *Explanation, d *Decision) {
	t.Helper()
	if e.Admit != d.Admit || e.Queued != d.Queued() || e.Reason != d.Reason || e.Zone != d.Zone || e.Class != g.plan.Classes[d.Class].Name {
		t.Errorf("explained as %+v, decided %+v", *e, *d)
		return
	}
	if d.Admit || d.Queued() {
		return
	}
	after := time.Duration(d.Hint.Seconds) * time.Second
	if d.Hint.Never {
		after = 0
	}
	if e.RetryAfter != after || e.Status != g.Responses().Status(d.Rejection()) {
		t.Errorf("explained as %v with %d, told %v", e.RetryAfter, e.Status, after)
	}
}

// Admit does right after what Explain has said, and a run with explanations is the same as
// one without.
func TestExplain(t *testing.T) {
	seen := map[string]bool{}
	for _, observe := range []bool{false, true} {
		for name, c := range explainers(observe) {
			for seed := range seedsOf(20, 2) {
				t.Run(fmt.Sprintf("%s observe %v seed %d", name, observe, seed), func(t *testing.T) {
					explained, plain := ride(t, seed, c, true, seen), ride(t, seed, c, false, seen)
					for i := range explained {
						if explained[i] != plain[i] {
							t.Fatalf("decision %d is %s with explanations, %s without", i, explained[i], plain[i])
						}
					}
				})
			}
		}
	}
	for _, reason := range Reasons {
		if !seen[reason.String()] {
			t.Errorf("no request was rejected for %v", reason)
		}
	}
	if !seen["queued true"] {
		t.Error("no request was queued")
	}
}

func TestForgive(t *testing.T) {
	c := Config{Zones: []Zone{{Name: "slow", Limit: limiter.Config{Rate: 1, Burst: 2}}}, Capacity: perSecond(4, 4)}
	g := mustNew(t, c, nil)
	const now = time.Hour
	of := func(client limiter.Key) Request {
		return Request{Keys: []limiter.Key{client}, Client: client}
	}
	for client := range limiter.Key(12) { // the backend has room for four of them
		g.Admit(now, of(client+1))
	}
	g.Admit(now, of(1))
	g.Admit(now, of(1)) // over its quota
	late, over := g.Explain(now, of(12)), g.Explain(now, of(1))
	if late.Client.Promises != 1 || late.Client.Due <= now || over.Zones[0].Tokens == 2 {
		t.Fatalf("before: %+v, %+v", late, over)
	}
	if f := g.Forgive(now, of(12)); f.Promises != 1 || len(f.Zones) != 0 {
		t.Errorf("a client with an appointment is forgiven %+v", f)
	}
	if f := g.Forgive(now, of(1)); !slices.Equal(f.Zones, []string{"slow"}) {
		t.Errorf("a client over its quota is forgiven %+v", f)
	}
	for _, client := range []limiter.Key{1, 12} {
		e := g.Explain(now, of(client))
		if e.Client.Promises != 0 || e.Zones[0].Tokens != 2 || e.Reason != Capacity {
			t.Errorf("client %d after it was forgiven: %+v", client, e)
		}
	}
	if e := g.Explain(now, of(6)); e.Client.Promises != 1 {
		t.Errorf("another client's appointment is gone: %+v", e)
	}
	if e := g.Explain(now, of(2)); e.Zones[0].Tokens != 1 {
		t.Errorf("another client's quota is full: %+v", e)
	}
	if f := g.Forgive(now, of(1)); len(f.Zones) != 0 {
		t.Errorf("a client is forgiven twice: %+v", f)
	}
	due, waiting := g.Explain(now, of(6)).Client.Due, func() int { return g.Backend().Stats(now).AppointmentStats.Waiting }
	if before := waiting(); g.Forgive(due-50*time.Millisecond, of(6)).Promises != 1 || waiting() != before-1 {
		t.Errorf("%d wait after one of %d was forgiven, just before its time", waiting(), before)
	}
	// The slot that client 12 had is the first one that is free.
	if d := g.Admit(now, of(13)); now+d.Wait > late.Client.Due+250*time.Millisecond {
		t.Errorf("the next client is told to come at %v, with a slot free at %v", now+d.Wait, late.Client.Due)
	}

	// Appointments for the end of a quota are explained and forgiven alike.
	g = mustNew(t, Config{Zones: c.Zones}, nil)
	for range 5 { // three over its quota
		g.Admit(now, of(1))
	}
	e := g.Explain(now, of(1))
	if z := e.Zones[0]; z.Client.Promises != 3 || z.Wait != time.Second || z.Client.Due < now+z.Wait || e.RetryAfter < 4*z.Wait {
		t.Errorf("explained as %+v; want 3 appointments, and a time after them", e)
	}
	if f := g.Forgive(now, of(1)); f.Promises != 3 {
		t.Errorf("forgiven %+v; want 3 appointments", f)
	}
	if e := g.Explain(now, of(1)); !e.Admit || e.Zones[0].Client.Promises != 0 {
		t.Errorf("after it was forgiven: %+v", e)
	}
}

// Who is forgiven gives back the slots that it has, and no others: appointments for the end of a quota have none. What a calendar has
// renewed is not forgiven.
func TestForgiveGivesBackWhatThereIs(t *testing.T) {
	zones := []Zone{{Name: "slow", Limit: limiter.Config{Rate: 1, Burst: 2}}}
	g, now := mustNew(t, Config{Zones: zones, Capacity: perSecond(4, 4)}, nil), time.Hour
	of := func(client limiter.Key) Request { return Request{Keys: []limiter.Key{client}, Client: client} }
	for range 5 {
		g.Admit(now, of(1))
	}
	for i := range limiter.Key(40) {
		g.Admit(now, of(100+i))
	}
	before := g.Backend().Stats(now).AppointmentStats.Waiting
	f := g.Forgive(now, of(1))
	if after := g.Backend().Stats(now).AppointmentStats.Waiting; f.Promises != 3 || after != before || before == 0 {
		t.Errorf("forgiven %+v; of %d that wait, %d are left", f, before, after)
	}

	zones[0].Calendar, zones[0].Limit = new(Calendar), limiter.Config{Rate: 5, Per: 24 * time.Hour}
	g, now = mustNew(t, Config{Zones: zones}, nil), Now()
	g.Admit(now, of(1))
	if f := g.Forgive(now+48*time.Hour, of(1)); len(f.Zones) != 0 {
		t.Errorf("two days later its quota is whole, but %+v is forgiven", f)
	}
	g.Admit(now, of(2))
	if f := g.Forgive(now, of(2)); len(f.Zones) != 1 {
		t.Errorf("forgiven %+v, want the zone", f)
	}
}

// Of a quota that replicas share, a client that is forgiven has this replica's part again, though its tokens are in the store.
func TestForgiveASharedQuota(t *testing.T) {
	g := mustNew(t, Config{Secret: make([]byte, 16), Zones: []Zone{{Name: "z", Limit: limiter.Config{Rate: 10, Per: time.Hour, Burst: 10}, Shared: true}}}, nil)
	r := &replica{Guard: g, now: time.Hour, store: virtual.New()}
	q := Request{Keys: []limiter.Key{77 << 40}, Client: 9}
	admits := func() (n int) {
		for range 30 {
			r.exchange()
			d := r.Admit(r.now, q)
			if d.Queued() {
				r.exchange()
				r.Settle(r.now, q, &d, 0)
			}
			if d.Admit {
				n++
			}
		}
		return n
	}
	if n := admits(); n < 7 || n > 10 {
		t.Errorf("%d are admitted of a burst of 10", n)
	}
	if f := r.Forgive(r.now, q); len(f.Zones) != 1 {
		t.Errorf("forgiven %+v, want the zone", f)
	}
	if n := admits(); n != 5 {
		t.Errorf("then %d are admitted, want the part of one replica, half of the burst", n)
	}
}
