package share_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// A permitsWorld is replicas before one backend that share a limit in flight: the real Concurrency and Link of each.
type permitsWorld struct {
	world
	r       *rand.Rand
	plan    *loadshed.Plan
	n       int
	service time.Duration // mean, exponential
	chaos   float64       // share of trips that are lost, and of those that are late
	gone    bool          // the store
	all     []*permitsReplica

	inFlight, most int           // at the backend
	area           time.Duration // of inFlight
	since          time.Duration
	over           int // most that all might use, above n
	heavy          int // permits that every fourth request takes; 0: none takes several
}

type permitsReplica struct {
	peer
	w    *permitsWorld
	born time.Duration
	name string
	c    loadshed.Concurrency
	b    *share.Link
	rate float64 // requests per second
	real int     // in flight at the backend
}

func newPermitsWorld(t *testing.T, seed uint64, n, replicas int) *permitsWorld {
	t.Helper()
	plan := must(loadshed.NewPlan(loadshed.PlanConfig{Limit: n, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}}))
	w := &permitsWorld{world: world{now: time.Minute, store: newStore(t)}, since: time.Minute, r: rand.New(rand.NewPCG(seed, 5)), plan: plan, n: n, service: 50 * time.Millisecond}
	w.passes = func(to time.Duration) {
		w.check()
		w.area += time.Duration(w.inFlight) * (to - w.now)
	}
	for range replicas {
		w.start(replicas)
	}
	return w
}

// used returns which share of the limit was in use since the last call.
func (w *permitsWorld) used() float64 {
	u := float64(w.area) / float64(w.now-w.since) / float64(w.n)
	w.area, w.since = 0, w.now
	return u
}

// check adds up what each replica may use or uses.
func (w *permitsWorld) check() {
	sum := 0
	for _, x := range w.all {
		may := x.b.MayUse(w.now)
		if x.dead {
			may = 0
		}
		sum += max(may, x.real)
	}
	w.most, w.over = max(w.most, w.inFlight), max(w.over, sum-w.n)
}

func (w *permitsWorld) start(replicas int) *permitsReplica {
	x := &permitsReplica{w: w, born: w.now, name: fmt.Sprintf("%04x", w.r.IntN(1<<16))}
	x.c.Use(w.plan, true)
	x.b = share.NewLink(x.name, share.Shared{Capacity: new(limiter.Bucket), InFlight: &x.c, Clients: new(pushback.Appointments)},
		share.Limits{InFlight: w.n, Replicas: replicas}, w.now)
	x.peer = peer{world: &w.world, link: x.b, trip: x.trip, twice: func() bool { return w.r.Float64() < w.chaos }}
	w.all = append(w.all, x)
	x.begin(w.now)
	x.arrive()
	return x
}

func (x *permitsReplica) trip() (way time.Duration, arrives bool) {
	w, d := x.w, 500*time.Microsecond
	if w.now-x.born < 2*time.Second {
		return d, !w.gone
	}
	if w.r.Float64() < w.chaos {
		d = time.Duration(w.r.IntN(int(300 * time.Millisecond)))
	}
	return d, w.r.Float64() >= w.chaos && !w.gone
}

// arrive has requests come at random.
func (x *permitsReplica) arrive() {
	gap := 10 * time.Millisecond
	if x.rate > 0 {
		gap = time.Duration(x.w.r.ExpFloat64() / x.rate * 1e9)
	}
	x.on(min(gap, 10*time.Millisecond), func() {
		if gap <= 10*time.Millisecond && x.rate > 0 {
			x.enter()
		}
		x.arrive()
	})
}

func (x *permitsReplica) enter() {
	w, pl := x.w, new(loadshed.Permit)
	x.b.Look(w.now)
	var e loadshed.Entrant
	if w.heavy > 0 && w.r.IntN(4) == 0 {
		e.Weight = w.heavy
	}
	before := x.c.InFlight()
	is, _ := x.c.Enter(w.now, w.plan, &e, pl)
	if is == loadshed.Entered {
		n := x.c.InFlight() - before // as many as the replica has, if that is less
		w.inFlight += n
		x.real += n
		d := min(time.Duration(w.r.ExpFloat64()*float64(w.service)), 4*time.Second)
		w.at(w.now+d, func() { w.inFlight -= n; x.real -= n })
		x.on(d, func() {
			pl.Leave(w.now, loadshed.Served)
		})
	} else {
		x.b.Lacks()
	}
	x.look()
}

// Where all replicas have demand, or one has, 0.95 of the limit is used. Demand that moves
// from one to another gets permits within one or two beats.
func TestPermitsAreUsed(t *testing.T) {
	for _, n := range []int{8, 64, 200} {
		for _, replicas := range []int{2, 4, 8} {
			if (n == 200 || n == 64 && replicas != 4 || n == 8 && replicas != 2) && *quotaTime < 20*time.Second {
				continue // as in the tables of -quotas 20s only
			}
			w := newPermitsWorld(t, 1, n, replicas)
			demand := float64(3*n+300) / w.service.Seconds()
			each := demand / float64(replicas)
			for _, x := range w.all {
				x.rate = each
			}
			w.run(w.now + 2*time.Second)
			w.used()
			w.run(w.now + 5*time.Second)
			all := w.used()
			exchanges := 0
			for _, x := range w.all {
				exchanges += x.exchanges
			}
			for _, x := range w.all[1:] {
				x.rate = 0
			}
			w.all[0].rate *= float64(replicas)
			w.run(w.now + time.Second)
			first := w.used()
			w.run(w.now + 5*time.Second)
			one := w.used()
			shifting := 0.0
			for i := range 6 {
				w.all[i%replicas].rate, w.all[(i+1)%replicas].rate = 0, demand
				w.run(w.now + 5*time.Second)
				shifting += w.used() / 6
			}
			t.Logf("n %3d, R %d: all %.3f, one %.3f (first second %.3f), moves each 5 s %.3f; most %d; %.0f exchanges/s each of all", n, replicas, all, one, first, shifting, w.most, float64(exchanges)/7/float64(replicas))
			if least := .95; all < least || one < least || shifting < least || w.over > 0 || w.most > n {
				t.Errorf("want %.2f used, and never more than %d: %d above", least, n, w.over)
			}
		}
	}
}

// Where one of eight replicas has nine tenths of the demand, it gets what the others leave.
func TestPermitsGoWhereTheDemandIs(t *testing.T) {
	const n, replicas = 48, 8
	w := newPermitsWorld(t, 1, n, replicas)
	for i, x := range w.all {
		x.rate = 2 * n / w.service.Seconds() / 10 / (replicas - 1)
		if i == 0 {
			x.rate *= 9 * (replicas - 1)
		}
	}
	w.settlesAt(t, .95)
}

// settlesAt checks how many of the permits are used after 3 s, and that there are never more.
func (w *permitsWorld) settlesAt(t *testing.T, least float64) {
	t.Helper()
	w.run(w.now + 3*time.Second)
	w.used()
	w.run(w.now + 20*time.Second)
	if is := w.used(); is < least || w.over > 0 {
		t.Errorf("%.3f of %d permits are used, and %d above; want %v and none", is, w.n, w.over, least)
	}
}

// Where there is one permit for each replica, and all have the same demand, each keeps its own: it would be asked for again soon.
func TestLastPermitsStay(t *testing.T) {
	const n = 8
	w := newPermitsWorld(t, 1, n, n)
	for _, x := range w.all {
		x.rate = 2 / w.service.Seconds()
	}
	w.settlesAt(t, .62)
}

// Asks and answers are lost, late or sent twice; replicas are killed, frozen and new; the
// store is gone for all, or flushed. All that replicas may use and use is never more than
// the limit, also where requests take several permits.
func TestPermitsAreNeverTooMany(t *testing.T) {
	seeds := uint64(4)
	if *quotaTime >= 20*time.Second {
		seeds = 12
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 77))
		replicas := 2 + r.IntN(6)
		n := 16 + r.IntN(40)
		w := newPermitsWorld(t, seed, n, replicas)
		w.service, w.heavy = time.Duration(10+r.IntN(150))*time.Millisecond, []int{0, 10}[seed/2%2]
		w.chaos = []float64{0, .02, .1, .3}[r.IntN(4)]
		log := fmt.Sprintf("n %d, %d replicas, chaos %v:", n, replicas, w.chaos)
		note := func(format string, args ...any) {
			log += fmt.Sprintf(" %v ", w.now-time.Minute) + fmt.Sprintf(format, args...) + ";"
		}
		pick := func() *permitsReplica { return w.all[r.IntN(len(w.all))] }
		w.run(w.now + time.Second)
		thawed, back := w.now, w.now
		for range 40 {
			for _, x := range w.all {
				if r.IntN(3) == 0 {
					x.rate = float64(r.IntN(4)) * float64(n) / w.service.Seconds() / 2
				}
			}
			switch r.IntN(12) {
			case 0:
				x := pick()
				x.dead = true
				note("%s is killed", x.name)
				if !w.gone {
					w.start(replicas)
					note("%s begins", w.all[len(w.all)-1].name)
				}
			case 1, 2:
				x, d := pick(), time.Duration(r.IntN(30))*time.Second
				if d > 10*time.Second && w.now < back+share.RosterTime {
					continue // it would begin again without a store
				}
				x.frozen = max(x.frozen, w.now+d)
				thawed = max(thawed, x.frozen)
				note("%s is frozen until %v", x.name, x.frozen-time.Minute)
			case 3:
				if by := time.Duration(r.IntN(3)-1) * time.Hour; by == 0 {
					w.store.Flush()
					note("flush")
				} else {
					w.set += by
					note("the clock is set by %v", by)
				}
			case 4:
				d := time.Duration(r.IntN(40)) * time.Second
				if w.now < max(thawed, back)+share.RosterTime {
					continue
				}
				w.gone, back = true, w.now+d
				note("gone")
				w.at(w.now+d, func() { w.gone = false; note("back") })
			}
			w.run(w.now + time.Duration(500+r.IntN(4000))*time.Millisecond)
			if w.over > 0 || w.most > n {
				t.Errorf("seed %d: %d above the limit, %d in flight\n%s now %v", seed, w.over, w.most, log, w.now-time.Minute)
				break
			}
		}
	}
}
