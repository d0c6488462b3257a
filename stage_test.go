package shield

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

const slowClient = 1 // whose requests take stage.slow

// A stage plays requests to one Guard in virtual time. Behind it is a backend of workers
// with an exponential time of service and a queue of its own.
type stage struct {
	g       *Guard
	random  *rand.Rand
	events  agenda[func(now time.Duration)]
	workers int
	service time.Duration
	slow    time.Duration // what a request of slowClient takes; 0: as any other
	fixed   bool          // all other requests take exactly service
	work    []*job        // that waits for a worker
	working int
	queued  []*inQueue
	sweeps  bool // the next sweep of the queue is planned
}

// job is an admitted request.
type job struct {
	client limiter.Key
	d      Decision
	served func(now time.Duration)
}

// inQueue is a request in the Guard's queue.
type inQueue struct {
	r       Request
	d       Decision
	decided func(now time.Duration, d Decision)
}

func newStage(t *testing.T, c Config, workers int, service time.Duration, seed uint64) *stage {
	t.Helper()
	return &stage{g: mustNew(t, c, nil), random: rand.New(rand.NewPCG(seed, 14)), workers: workers, service: service}
}

func (s *stage) at(at time.Duration, do func(now time.Duration)) { s.events.push(at, do) }

func (s *stage) play(until time.Duration) {
	for s.events.len() > 0 && s.events.next() <= until {
		now, do := s.events.pop()
		do(now)
		s.settle(now)
	}
}

// settle goes on with the requests that need not wait any longer in the Guard's queue.
func (s *stage) settle(now time.Duration) {
	if len(s.queued) == 0 {
		return
	}
	s.g.Sweep(now)
	for i := 0; i < len(s.queued); {
		q := s.queued[i]
		if len(q.d.Verdict()) == 0 {
			i++
			continue
		}
		s.queued = slices.Delete(s.queued, i, i+1)
		s.g.Settle(now, q.r, &q.d, <-q.d.Verdict())
		q.decided(now, q.d)
	}
	if !s.sweeps && len(s.queued) > 0 {
		s.sweeps = true
		s.at(now+5*time.Millisecond, func(time.Duration) { s.sweeps = false })
	}
}

// often has something done rate times per second, at random, from one instant until
// another.
func (s *stage) often(from, until time.Duration, rate float64, do func(now time.Duration)) {
	var again func(now time.Duration)
	plan := func(now time.Duration) {
		if next := now + time.Duration(s.random.ExpFloat64()/rate*float64(time.Second)); next < until {
			s.at(next, again)
		}
	}
	again = func(now time.Duration) {
		plan(now)
		do(now)
	}
	plan(from)
}

// ask sends a request. Then told is called with the refusal, when it is sent, or served
// when the backend has answered.
func (s *stage) ask(now time.Duration, r Request, served func(now time.Duration), told func(now time.Duration, d Decision)) {
	s.askFor(now, r, time.Hour, served, told)
}

// askFor is ask for a client that leaves if a refusal is held back for longer than its
// patience. Then told is called, too.
func (s *stage) askFor(now time.Duration, r Request, patience time.Duration, served func(now time.Duration), told func(now time.Duration, d Decision)) {
	d, client := s.g.Admit(now, r), r.Client
	if d.Queued() {
		s.queued = append(s.queued, &inQueue{r, d, func(now time.Duration, d Decision) { s.decided(now, client, d, patience, served, told) }})
	} else {
		s.decided(now, client, d, patience, served, told)
	}
}

func (s *stage) decided(now time.Duration, client limiter.Key, d Decision, patience time.Duration, served func(now time.Duration), told func(now time.Duration, d Decision)) {
	if d.Admit {
		s.work = append(s.work, &job{client, d, served})
		s.goOn(now)
		return
	}
	s.at(now+min(d.Hold, patience), func(now time.Duration) {
		if d.Hold > patience {
			d.Lost()
		} else {
			d.Sent()
		}
		told(now, d)
	})
}

// goOn gives a worker the next job, if there are both.
func (s *stage) goOn(now time.Duration) {
	if len(s.work) == 0 || s.working >= s.workers {
		return
	}
	j := s.work[0]
	s.work = s.work[1:]
	s.working++
	takes := time.Duration(s.random.ExpFloat64() * float64(s.service))
	switch {
	case s.slow > 0 && j.client == slowClient:
		takes = s.slow
	case s.fixed:
		takes = s.service
	}
	s.at(now+takes, func(now time.Duration) {
		s.working--
		j.d.Done(now, Served)
		j.served(now)
		s.goOn(now)
	})
}

// A patron obeys: it comes back when it was told, until it has been served.
type patron struct {
	key      limiter.Key
	attempts int // at most; 0: any number
	agent    string
	patience time.Duration // with refusals that are held back; 0: without end
	born     time.Duration
	requests int
	waited   time.Duration // -1 before it is served
	served   func(now time.Duration)
}

func (s *stage) visit(now time.Duration, v *patron) {
	if v.requests++; v.requests == 1 {
		v.born, v.waited = now, -1
	}
	keys := make([]limiter.Key, len(s.g.zones))
	for i := range keys {
		keys[i] = v.key
	}
	patience := cmp.Or(v.patience, time.Hour)
	s.askFor(now, Request{Keys: keys, Client: v.key, Agent: v.agent}, patience, func(now time.Duration) {
		if v.waited = now - v.born; v.served != nil {
			v.served(now)
		}
	}, func(now time.Duration, d Decision) {
		if d.Hold > patience {
			s.at(now+time.Second+time.Duration(s.random.ExpFloat64()*float64(time.Second)), func(now time.Duration) { s.visit(now, v) })
			return
		}
		if v.requests != v.attempts {
			wait := time.Duration(d.Hint.Seconds)*time.Second + time.Duration(s.random.ExpFloat64()*float64(5*time.Millisecond))
			s.at(now+wait, func(now time.Duration) { s.visit(now, v) })
		}
	})
}

// crowd has n visitors come from one instant on, within a time, all of one key or each of
// its own.
func (s *stage) crowd(from, within time.Duration, n, attempts int, oneKey bool) []*patron {
	all := make([]*patron, n)
	for i := range all {
		v := &patron{key: limiter.Key(s.random.Uint64()), attempts: attempts}
		if oneKey {
			v.key = 1
		}
		all[i] = v
		s.at(from+time.Duration(s.random.Float64()*float64(within)), func(now time.Duration) { s.visit(now, v) })
	}
	return all
}

// fate is what became of visitors.
type fate struct {
	served, of    int
	last          time.Duration // served, after from
	requests      float64       // of each that was served
	p50, p90, p99 time.Duration
}

func (f fate) String() string {
	return fmt.Sprintf("%d of %d served, the last after %.1f s, %.2f requests each; waits p50 %.1f p90 %.1f p99 %.1f s",
		f.served, f.of, f.last.Seconds(), f.requests, f.p50.Seconds(), f.p90.Seconds(), f.p99.Seconds())
}

func fateOf(from time.Duration, all []*patron) (f fate) {
	f.of = len(all)
	var waits []time.Duration
	n := 0
	for _, v := range all {
		n += v.requests
		if v.waited >= 0 && v.requests > 0 {
			waits = append(waits, v.waited)
			f.last = max(f.last, v.born+v.waited-from)
		}
	}
	slices.Sort(waits)
	f.served = len(waits)
	f.requests = float64(n) / float64(max(1, len(waits)))
	at := func(q float64) time.Duration {
		if len(waits) == 0 {
			return 0
		}
		return waits[int(q*float64(len(waits)-1))]
	}
	f.p50, f.p90, f.p99 = at(.5), at(.9), at(.99)
	return f
}

var full = flag.Bool("full", false, "play all seeds and cells of the tables: minutes")

// seedsOf returns how many seeds to play: all with -full, and otherwise a few.
func seedsOf(all, few uint64) uint64 {
	if *full {
		return all
	}
	return few
}

// leastGoodput is the least share of what the backend can do that is served in an overload,
// from however many addresses it comes.
const leastGoodput = 0.93

// overload plays an open loop of 160·x requests per second, from so many addresses (0:
// all different) that never come back, against 8 workers of 50 ms. It returns the
// requests that were answered within a second, as a share of the backend's 160/s, their p99
// and the share that was refused, of the second half.
func overload(t *testing.T, c Config, addresses int, x float64, seed uint64) (goodput float64, p99 time.Duration, refused float64) {
	s := newStage(t, c, 8, 50*time.Millisecond, seed)
	const begin, half, end = time.Hour, time.Hour + 15*time.Second, time.Hour + 30*time.Second
	var took []time.Duration
	asked, lost := 0., 0.
	s.often(begin, end, 160*x, func(now time.Duration) {
		r := Request{Client: limiter.Key(s.random.Uint64())}
		if addresses > 0 {
			r.Client = limiter.Key(1 + s.random.IntN(addresses))
		}
		if now > half {
			asked++
		}
		s.ask(now, r, func(at time.Duration) {
			if at-now < time.Second && at > half && at <= end {
				took = append(took, at-now)
			}
		}, func(time.Duration, Decision) {
			if now > half {
				lost++
			}
		})
	})
	s.play(end)
	slices.Sort(took)
	if len(took) > 0 {
		p99 = took[len(took)*99/100]
	}
	return float64(len(took)) / 15 / 160, p99, lost / asked
}

// An overload is served as well from one address as from many: while requests arrive the
// backend works. With -v it prints the goodput for each number of addresses.
func TestOverloadFromFewAddresses(t *testing.T) {
	addresses := []int{1, 10, 50, 1000, 0}
	var table strings.Builder
	fmt.Fprintf(&table, "%-30s %5d %5d %5d %5d   all different", "goodput of 5 x, by addresses", 1, 10, 50, 1000)
	for _, l := range []struct {
		name   string
		config Config
	}{
		{"concurrency 12", Config{Concurrency: 12}},
		{"concurrency 8", Config{Concurrency: 8}}, // as many as there are workers
		{"adaptive", Config{Adaptive: &loadshed.AdaptiveConfig{}}},
		{"capacity 160/s", Config{Capacity: perSecond(160, 16)}},
	} {
		seeds := seedsOf(10, 2)
		if l.config.Capacity.Rate > 0 { // of the backend: the queue before it is a matter of chance
			seeds = seedsOf(10, 6)
		}
		fmt.Fprintf(&table, "\n%-30s", l.name)
		for _, n := range addresses {
			var goodput float64
			var p99 time.Duration
			for seed := range seeds {
				g, p, _ := overload(t, l.config, n, 5, seed)
				goodput, p99 = goodput+g/float64(seeds), p99+p/time.Duration(seeds)
			}
			fmt.Fprintf(&table, " %5.2f", goodput)
			if goodput < leastGoodput || l.config.Adaptive != nil && p99 > 450*ms {
				t.Errorf("%s, %d addresses: goodput %.2f, p99 %v; want %v, and 450ms if adaptive", l.name, n, goodput, p99, leastGoodput)
			}
		}
		if _, _, refused := overload(t, l.config, 1, 0.6, 1); l.config.Adaptive != nil && refused > .003 {
			t.Errorf("%s: %.2f %% refused of 0.6 of what it can do", l.name, 100*refused)
		}
	}
	t.Logf("\n%s", table.String())
}

// mostRequests is how many requests each client of a herd of 5,000 behind one address may
// need.
const mostRequests = 3.5

// A herd behind one address is served as if each client had its own, also while others come
// from that address. With -v it prints means of all seeds, and the fewest that were served.
func TestHerdBehindOneAddress(t *testing.T) {
	capacity, concurrency := Config{Capacity: perSecond(100, 10)}, Config{Concurrency: 12}
	var table strings.Builder
	fmt.Fprintf(&table, "%-36s %7s %7s %9s %9s", "herd", "served", "fewest", "of least", "requests")
	for _, c := range []struct {
		name        string
		config      Config
		n, attempts int
		served      float64 // at least
		ratio       float64 // to the least time
		requests    float64 // of each
	}{
		{"1,000, capacity 100/s", capacity, 1000, 4, 995, 1.20, 2.2},
		{"1,000, concurrency 12", concurrency, 1000, 4, 980, 1.35, 2.8},
		{"2,000, capacity 100/s", capacity, 2000, 4, 1970, 1.25, 2.7},
		{"5,000, capacity 100/s", capacity, 5000, 0, 5000, 1.2, mostRequests}, // with no end of attempts
	} {
		workers, service := 1000, 5*ms
		if c.config.Concurrency > 0 {
			workers, service = 8, 80*ms
		}
		for _, one := range []bool{false, true} {
			var served, ratio, requests float64
			fewest, name := c.n, c.name
			if one {
				name += ", one address"
			}
			seeds := seedsOf(10, 3)
			n := float64(seeds)
			for seed := range seeds {
				s := newStage(t, c.config, workers, service, seed)
				s.often(time.Hour-2*time.Second, time.Hour+100*time.Second, 30, func(now time.Duration) {
					v := &patron{key: limiter.Key(s.random.Uint64()), attempts: 4}
					if one {
						v.key = 1
					}
					s.visit(now, v)
				})
				all := s.crowd(time.Hour, 100*ms, c.n, c.attempts, one)
				s.play(time.Hour + 120*time.Second)
				f := fateOf(time.Hour, all)
				of := f.last.Seconds() * 70 / float64(c.n)
				served, ratio, requests, fewest = served+float64(f.served)/n, ratio+of/n, requests+f.requests/n, min(fewest, f.served)
			}
			fmt.Fprintf(&table, "\n%-36s %7.1f %7d %9.2f %9.2f", name, served, fewest, ratio, requests)
			if served < c.served || ratio > c.ratio || requests > c.requests {
				t.Errorf("%s: %.1f served, in %.2f of the least time with %.2f requests each; want %v, %v and %v", name, served, ratio, requests, c.served, c.ratio, c.requests)
			}
		}
	}
	t.Logf("\n%s", table.String())
}

// A few addresses that send far more than the backend can take are crowds as a NAT is. Half
// of the line is the most that they have in all. Other clients that come at a rate that
// the backend can take are served at once.
func TestCrowdsShareHalfOfTheLine(t *testing.T) {
	for _, c := range []struct {
		addresses int
		rate      float64 // of each
	}{{0, 0}, {1, 200}, {5, 20}, {5, 200}, {20, 50}, {20, 200}} {
		for _, herd := range []bool{true, false} {
			s := newStage(t, Config{Capacity: perSecond(50, 10)}, 1000, 5*ms, 1)
			const begin = time.Hour
			honestAt, got := begin+20*time.Second, 0
			for a := range c.addresses {
				s.often(begin, begin+100*time.Second, c.rate, func(now time.Duration) {
					s.ask(now, Request{Client: limiter.Key(1 + a)}, func(now time.Duration) {
						if now > honestAt && now < honestAt+20*time.Second {
							got++
						}
					}, func(time.Duration, Decision) {})
				})
			}
			var honest []*patron
			if herd {
				honest = s.crowd(honestAt, 100*ms, 600, 0, false)
			} else {
				s.often(honestAt, honestAt+40*time.Second, 40, func(now time.Duration) {
					v := &patron{key: limiter.Key(s.random.Uint64())}
					honest = append(honest, v)
					s.visit(now, v)
				})
			}
			s.play(begin + 100*time.Second)
			f, most := fateOf(honestAt, honest), 100*ms
			if herd {
				most = 25 * time.Second
			}
			t.Logf("%d addresses, %v/s each, herd %v: %v; the attacker gets %.1f/s", c.addresses, c.rate, herd, f, float64(got)/20)
			if f.p50 > most || got > 20*40 {
				t.Errorf("%d addresses, %v/s each, herd %v: %v; the attacker gets %.1f/s; want half within %v, and at most 40/s", c.addresses, c.rate, herd, f, float64(got)/20, most)
			}
		}
	}
}

// A client over its quota books no more than it may use, whatever it asks for, and gains
// nothing: a crowd that comes meanwhile or afterwards is served as if it were not there.
func TestBookingsOverQuota(t *testing.T) {
	const long = 20 * time.Second
	type attack struct {
		name       string
		zone       float64
		addresses  int
		rate       float64
		over       time.Duration
		then       float64 // rate while the crowd waits
		during     bool
		share, got float64 // of the control's: p50 and p99 of the crowd; requests per second for the attacker
	}
	var control fate
	for _, c := range []attack{
		{"control", 5, 1, 4.9, long, 0, false, 0, 1},
		{"one address", 5, 1, 100, long, 0, false, 1.1, 1},
		{"control of five addresses", 5, 5, 4.9, long, 0, false, 0, 1},
		{"five addresses", 5, 5, 100, long, 0, false, 1.15, 1},
		{"control during the crowd", 5, 1, 4.9, 2 * long, 0, true, 0, 6},
		{"during the crowd", 5, 1, 100, 2 * long, 0, true, 1.1, 6},
		{"control of the farm", 30, 1, 2.9, 2 * time.Second, 2.9, false, 0, 4},
		{"farm", 30, 1, 1000, 2 * time.Second, 30, false, 1.15, 7},
	} {
		s := newStage(t, Config{Capacity: perSecond(50, 30), Zones: []Zone{{Name: "z", Limit: perSecond(c.zone, 5)}}}, 1000, 5*ms, 1)
		const begin = time.Hour
		crowdAt := begin + c.over
		if c.during {
			crowdAt = begin + c.over/2
		}
		got := 0
		for a := range c.addresses {
			key := limiter.Key(1 + a)
			ask := func(now time.Duration) {
				s.ask(now, Request{Keys: []limiter.Key{key}, Client: key}, func(now time.Duration) {
					if now > crowdAt && now < crowdAt+12*time.Second {
						got++
					}
				}, func(time.Duration, Decision) {})
			}
			s.often(begin, begin+c.over, c.rate, ask)
			if c.then > 0 {
				s.often(begin+c.over, begin+c.over+40*time.Second, c.then, ask)
			}
		}
		crowd := s.crowd(crowdAt, 100*ms, 600, 0, false)
		s.play(begin + 2*time.Minute)
		f := fateOf(crowdAt, crowd)
		t.Logf("%s: %v; the attacker gets %.1f/s", c.name, f, float64(got)/12)
		if c.share == 0 {
			control = f
			continue
		}
		late := func(is, want time.Duration) bool { return float64(is) > c.share*float64(want) }
		if f.served != 600 || late(f.p50, control.p50) || late(f.p99, control.p99) || float64(got)/12 > c.got {
			t.Errorf("%s: %v; the attacker gets %.1f/s; want %v of the control, and %v/s", c.name, f, float64(got)/12, c.share, c.got)
		}
	}
}
