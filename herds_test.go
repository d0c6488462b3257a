package shield

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A herd behind one address is served as if each client had its own, also while others come
// from that address. With -v it prints means of all seeds, and the fewest that were served.
func TestHerdBehindOneAddress(t *testing.T) {
	t.Parallel()
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
		{"5,000, capacity 100/s", capacity, 5000, 0, 5000, 1.2, 3.5}, // with no end of attempts
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
					v := s.newcomer(4)
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
	t.Parallel()
	for _, c := range []struct {
		addresses int
		rate      float64 // of each
	}{{0, 0}, {1, 200}, {5, 20}, {20, 200}} {
		for _, herd := range []bool{true, false} {
			s := newStage(t, Config{Capacity: perSecond(50, 10)}, 1000, 5*ms, 1)
			const begin, honestAt = time.Hour, time.Hour + 20*time.Second
			got := 0
			for a := range c.addresses {
				s.often(begin, begin+100*time.Second, c.rate, func(now time.Duration) {
					s.ask(now, &call{Request: one(1 + a), served: func(now time.Duration) {
						if now > honestAt && now < honestAt+20*time.Second {
							got++
						}
					}})
				})
			}
			var honest []*patron
			most := 100 * ms
			if herd {
				honest, most = s.crowd(honestAt, 100*ms, 600, 0, false), 25*time.Second
			} else {
				s.often(honestAt, honestAt+40*time.Second, 40, func(now time.Duration) {
					honest = append(honest, s.newcomer(0))
					s.visit(now, honest[len(honest)-1])
				})
			}
			s.play(begin + 100*time.Second)
			f, rate := fateOf(honestAt, honest), float64(got)/20
			t.Logf("%d addresses, %v/s each, herd %v: %v; the attacker gets %.1f/s", c.addresses, c.rate, herd, f, rate)
			if f.p50 > most || rate > 40 {
				t.Errorf("%d addresses, %v/s each, herd %v: %v; the attacker gets %.1f/s; want half within %v, and at most 40/s", c.addresses, c.rate, herd, f, rate, most)
			}
		}
	}
}

// One who asks for nine things, over and over, has a few appointments, and is not taken
// for one that waits alone when the others wait in the queue.
func TestAskingForMuchGainsNothing(t *testing.T) {
	for i := range 16 {
		burst, every := 2+i/4, 250*ms<<(i%4) // of a bucket of one nothing can be left to others
		s := newStage(t, Config{Capacity: limiter.Config{Rate: 1, Per: every, Burst: burst}}, 1000, 5*ms, 1)
		const begin, end = time.Second, 200 * time.Second
		cheat, honest := 0, 0
		for _, v := range s.crowd(begin, time.Second/10, int(end/every)+1, 0, false) {
			v.served = func(time.Duration) { honest++ }
		}
		for at := begin + time.Second; at < end; at += 50 * ms {
			s.at(at, func(now time.Duration) {
				s.ask(now, &call{Request: one(99999), served: func(time.Duration) { cheat++ }})
			})
		}
		s.play(end)
		if 2*cheat > honest {
			t.Errorf("burst %d, 1 per %v: %d for the one who asks for all, %d for all others", burst, every, cheat, honest)
		}
	}
}

// Clients that use up their quotas, and wait as they are told, cost a herd no more than what they are served.
func TestHerdBesideUsedUpQuotas(t *testing.T) {
	const begin, herdAt, n = time.Hour, time.Hour + 30*time.Second, 600
	for _, perSec := range []float64{0, 1, 5} { // clients, each with a second request when its quota is used up
		s := newStage(t, Config{Capacity: perSecond(50, 30), Zones: []Zone{{Name: "z", Limit: perSecond(.1, 1)}}}, 1000, 5*ms, 1)
		if perSec > 0 {
			s.often(begin, herdAt+time.Minute, perSec, func(now time.Duration) {
				v := s.newcomer(0)
				v.served = func(now time.Duration) {
					v.served = nil
					s.visit(now, v)
				}
				s.visit(now, v)
			})
		}
		herd := s.crowd(herdAt, 100*ms, n, 0, false)
		s.play(herdAt + 2*time.Minute)
		f := fateOf(herdAt, herd)
		t.Logf("%v used-up quotas per second: %v", perSec, f)
		if most := 1 + 1.15*n/(.98*50-2*perSec); f.served != n || f.last.Seconds() > most {
			t.Errorf("beside %v used-up quotas per second: %v; want all within %.1f s", perSec, f, most)
		}
	}
}

// A client over its quota books no more than it may use, whatever it asks for, and gains
// nothing: a crowd that comes meanwhile or afterwards is served as if it were not there.
func TestBookingsOverQuota(t *testing.T) {
	const long = 20 * time.Second
	var control fate
	for _, c := range []struct {
		name       string
		zone       float64
		addresses  int
		rate       float64
		over       time.Duration
		then       float64 // rate while the crowd waits
		during     bool
		share, got float64 // of the control's: p50 and p99 of the crowd; requests per second for the attacker
	}{
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
			r := one(1 + a)
			r.Keys = []limiter.Key{r.Client}
			ask := func(now time.Duration) {
				s.ask(now, &call{Request: r, served: func(now time.Duration) {
					if now > crowdAt && now < crowdAt+12*time.Second {
						got++
					}
				}})
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

// A deluge is a minute of new clients that never come back, beside honest clients that obey.
// The capacity is 50/s.
type deluge struct {
	name    string
	burst   int
	honest  float64       // new clients per second, for 110 s
	flood   float64       // new clients per second, from second 20 to 80
	returns bool          // they come back once, and never again
	most    time.Duration // that Retry-After says: pushback { max }. 0: the default
	pulse   int           // new clients in 100 ms, every 10 s
	herdAt  time.Duration // when 1,000 honest clients come; 0: never

	// Most of the waits of those honest clients that came five seconds after the flood
	// began or later, of the attackers' share of what is admitted, and of the share of
	// clients with a slot that come on time and are rejected. Means of the seeds; 0: only
	// printed.
	p50, p99          time.Duration
	attackers, broken float64
}

// Most of the waits beside a flood that returns never: to 1,000/s, and beyond.
const (
	floodP50, floodP99           = 2 * time.Second, 10 * time.Second
	largeFloodP50, largeFloodP99 = 3 * time.Second, 12 * time.Second
)

var deluges = []deluge{
	{name: "none", burst: 10, honest: 40, p50: 50 * ms, p99: 2 * time.Second, broken: .01},
	{name: "50/s", burst: 10, honest: 40, flood: 50, p50: floodP50, p99: floodP99, attackers: .2, broken: .01},
	{name: "200/s", burst: 10, honest: 40, flood: 200, p50: floodP50, p99: floodP99, attackers: .2, broken: .03},
	{name: "1,000/s", burst: 10, honest: 40, flood: 1000, p50: floodP50, p99: floodP99, attackers: .2, broken: .05},
	{name: "5,000/s", burst: 10, honest: 40, flood: 5000, p50: largeFloodP50, p99: largeFloodP99, attackers: .2, broken: .08},
	{name: "200/s, burst 5", burst: 5, honest: 40, flood: 200, p50: floodP50, p99: floodP99, attackers: .2, broken: .03},
	{name: "200/s, burst 2", burst: 2, honest: 40, flood: 200, p50: floodP50, p99: floodP99, attackers: .2, broken: .03},
	{name: "200/s, burst 1", burst: 1, honest: 40, flood: 200, p50: floodP50, p99: floodP99, attackers: .2, broken: .05},
	{name: "200/s, honest 48/s", burst: 10, honest: 48, flood: 200, attackers: .2},
	{name: "50/s that return once", burst: 10, honest: 40, flood: 50, returns: true},
	{name: "200/s that return once", burst: 10, honest: 40, flood: 200, returns: true},
	{name: "50/s that return once, max 3s", burst: 10, honest: 40, flood: 50, returns: true, most: 3 * time.Second, p50: 12 * time.Second},
	{name: "200/s that return once, max 3s", burst: 10, honest: 40, flood: 200, returns: true, most: 3 * time.Second, p50: 20 * time.Second},
	{name: "pulses of 5,000", burst: 10, honest: 40, pulse: 5000, p50: 50 * ms},
	{name: "200/s, pulses of 1,000", burst: 10, honest: 40, flood: 200, pulse: 1000, p50: 2 * time.Second, attackers: .3, broken: .1},
	{name: "herd", burst: 10, honest: 20, herdAt: 40 * time.Second, p50: 50 * ms, broken: .01},
	{name: "1,000/s, herd", burst: 10, honest: 20, flood: 1000, herdAt: 40 * time.Second, p50: 10 * time.Second, p99: 30 * time.Second},
	{name: "1,000/s, herd 5 s after it", burst: 10, honest: 20, flood: 1000, herdAt: 85 * time.Second, p50: 2 * time.Second, p99: 2 * time.Second, broken: .01},
}

// A flood of new addresses that ask once does not make honest clients wait. With -v it prints
// the means of all seeds: three, and twelve with -full.
func TestFloods(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	fmt.Fprintf(&table, "%-32s %7s %7s %9s %9s %9s", "flood", "p50 s", "p99 s", "requests", "attackers", "broken")
	for _, d := range deluges {
		seeds := seedsOf(12, 3)
		n := float64(seeds)
		var p50, p99 time.Duration
		var requests, attackers, broken float64
		for seed := range seeds {
			a := d.play(t, 1+seed)
			p50, p99 = p50+a.honest.p50/time.Duration(seeds), p99+a.honest.p99/time.Duration(seeds)
			requests, attackers, broken = requests+a.honest.requests/n, attackers+a.attackers/n, broken+a.broken/n
			if a.honest.served < a.honest.of || a.herd.served < a.herd.of || a.use < .99 && d.flood >= 200 && d.herdAt == 0 && d.burst >= 5 {
				t.Errorf("%s: use %.3f; %v; %v", d.name, a.use, a.honest, a.herd)
			}
		}
		fmt.Fprintf(&table, "\n%-32s %7.2f %7.2f %9.2f %9.2f %9.3f", d.name, p50.Seconds(), p99.Seconds(), requests, attackers, broken)
		if d.p50 > 0 && p50 > d.p50 || d.p99 > 0 && p99 > d.p99 || d.attackers > 0 && attackers > d.attackers || d.broken > 0 && broken > d.broken {
			t.Errorf("%s: waits p50 %v p99 %v, attackers %.2f, broken %.3f; want %v, %v, %v, %v", d.name, p50, p99, attackers, broken, d.p50, d.p99, d.attackers, d.broken)
		}
	}
	t.Logf("\n%s", table.String())
}

// aftermath is what became of it, from second 30 to 80 and of those who came from 25 to 75.
type aftermath struct {
	honest, herd           fate
	attackers, use, broken float64
}

func (d *deluge) play(t *testing.T, seed uint64) (a aftermath) {
	const begin, from, until = time.Hour, time.Hour + 20*time.Second, time.Hour + 80*time.Second
	s := newStage(t, Config{
		Capacity: perSecond(50, d.burst), Pushback: pushback.ResponseConfig{Max: d.most},
		Retries: Retries{MaxClients: pushback.DefaultMaxClients}, // a flood is as many as the default holds
	}, 1000, 5*ms, seed)
	var watched []*patron
	admitted := map[bool]int{} // by whether they attack
	comes := func(now time.Duration, attempts int) {
		v := s.newcomer(attempts)
		attacks := attempts > 0
		v.served = func(now time.Duration) {
			if now > from+10*time.Second && now < until {
				admitted[attacks]++
			}
		}
		if !attacks && now > from+5*time.Second && now < until-5*time.Second {
			watched = append(watched, v)
		}
		s.visit(now, v)
	}
	s.often(begin, begin+110*time.Second, d.honest, func(now time.Duration) { comes(now, 0) })
	newClient := func(now time.Duration) { comes(now, 1) }
	if d.returns {
		newClient = func(now time.Duration) { comes(now, 2) }
	}
	if d.flood > 0 {
		s.often(from, until, d.flood, newClient)
	}
	for at := from; d.pulse > 0 && at < until; at += 10 * time.Second {
		for range d.pulse {
			s.at(at+time.Duration(s.random.Float64()*float64(100*ms)), newClient)
		}
	}
	var herd []*patron
	if d.herdAt > 0 {
		herd = s.crowd(begin+d.herdAt, 100*ms, 1000, 0, false)
	}
	s.play(from + 10*time.Second)
	before := s.g.backend.Stats(from + 10*time.Second)
	s.play(until)
	after := s.g.backend.Stats(until)
	s.play(begin + 4*time.Minute)
	came := after.Promises.Kept + after.Promises.Late - before.Promises.Kept - before.Promises.Late
	all := admitted[true] + admitted[false]
	return aftermath{
		honest: fateOf(begin, watched), herd: fateOf(begin+d.herdAt, herd),
		attackers: float64(admitted[true]) / float64(max(1, all)), use: float64(all) / 50 / 50,
		broken: float64(after.Broken-before.Broken) / float64(max(1, came)),
	}
}

// Readers of a site: each reads five pages, ten seconds apart, and obeys. Besides come
// new clients that never return, and farmers: they obey, and ask for something else as soon
// as they are served. The capacity is 100/s, burst 10.
type readership struct {
	name               string
	newClients, people float64 // per second
	farmers            int
	pace               time.Duration // from when a farmer is served until it asks again
	first, later       time.Duration // most of the waits (p99) for page 1, and for pages 2 to 5; 0: only printed
	farmed             float64       // most requests per second for a farmer
}

// pages is how long readers waited for the first page and for the others, and how many
// requests per second each farmer got.
type pages struct {
	first, later []time.Duration
	farmed       float64
}

func (r *readership) play(t *testing.T, seed uint64) (p pages) {
	const begin, from, until, end = time.Hour, time.Hour + time.Minute, time.Hour + 150*time.Second, time.Hour + 4*time.Minute
	s := newStage(t, Config{Capacity: perSecond(100, 10)}, 1000, 5*ms, seed)
	if r.newClients > 0 {
		s.often(begin, end, r.newClients, func(now time.Duration) { s.visit(now, s.newcomer(1)) })
	}
	// asks has a client ask for so many things, one after the other, at a pace.
	var asks func(now time.Duration, key limiter.Key, n int, pace time.Duration, served func(asked, now time.Duration, left int))
	asks = func(asked time.Duration, key limiter.Key, n int, pace time.Duration, served func(asked, now time.Duration, left int)) {
		s.visit(asked, &patron{key: key, served: func(now time.Duration) {
			if served(asked, now, n); n > 1 && now < end {
				s.at(now+pace, func(now time.Duration) { asks(now, key, n-1, pace, served) })
			}
		}})
	}
	s.often(begin, end, r.people, func(now time.Duration) {
		asks(now, s.client(0), 5, 10*time.Second, func(asked, now time.Duration, left int) {
			switch {
			case asked < from || asked > until:
			case left == 5:
				p.first = append(p.first, now-asked)
			default:
				p.later = append(p.later, now-asked)
			}
		})
	})
	got := 0
	for i := range r.farmers {
		s.at(begin+time.Duration(i)*10*ms, func(now time.Duration) {
			asks(now, limiter.Key(1+i), math.MaxInt, r.pace, func(_, now time.Duration, _ int) {
				if now > from && now < until {
					got++
				}
			})
		})
	}
	s.play(end)
	p.farmed = float64(got) / (until - from).Seconds() / float64(max(1, r.farmers))
	return p
}

// A reader that has kept an appointment goes before new clients for a while.
func TestVisits(t *testing.T) {
	t.Parallel()
	for _, r := range []readership{
		{name: "no flood", people: 2, first: 100 * ms, later: 100 * ms},
		{name: "500/s", newClients: 500, people: 2, first: 2 * time.Second, later: 2 * time.Second},
		{name: "2,000/s", newClients: 2000, people: 2, first: 2 * time.Second, later: 2 * time.Second},
		{name: "500/s, 18 readers/s", newClients: 500, people: 18, first: 2 * time.Second, later: 2 * time.Second},
		{name: "500/s, 20 farmers", newClients: 500, people: 2, farmers: 20, first: 2 * time.Second, later: 2 * time.Second, farmed: 1.1},
		{name: "500/s, 100 farmers", newClients: 500, people: 2, farmers: 100, first: 4 * time.Second, later: 2 * time.Second, farmed: 1},
		{name: "500/s, 100 farmers every 4 s", newClients: 500, people: 2, farmers: 100, pace: 4 * time.Second, first: 2 * time.Second, later: 2 * time.Second, farmed: .26},
		{name: "22 readers/s", people: 22},
		{name: "22 readers/s, 100 farmers", people: 22, farmers: 100, farmed: .13},
		{name: "22 readers/s, 100 farmers every 4 s", people: 22, farmers: 100, pace: 4 * time.Second, farmed: .15},
	} {
		for seed := range seedsOf(2, 1) {
			p := r.play(t, 7+seed)
			first, later, half := quantile(p.first, .99), quantile(p.later, .99), quantile(p.later, .5)
			t.Logf("%s: page 1 p50 %v p99 %v; pages 2 to 5 p50 %v p99 %v; %.2f/s for each farmer", r.name, quantile(p.first, .5), first, half, later, p.farmed)
			if r.later > 0 && (first > r.first || later > r.later) || p.farmed > r.farmed {
				t.Errorf("%s: p99 %v and %v, %.2f/s; want %v, %v and %v/s", r.name, first, later, p.farmed, r.first, r.later, r.farmed)
			}
			if r.newClients > 0 && r.farmers == 0 && half > 100*ms {
				t.Errorf("%s: half of the pages 2 to 5 take %v or more", r.name, half)
			}
		}
	}
}

// A thousand clients that poll every four seconds, whatever they are told, ask for two and a half times what the backend can do. They are known, and in the way
// of no other: new clients that obey are served all the same.
func TestPollersAreInNobodysWay(t *testing.T) {
	t.Parallel()
	const begin, end = time.Hour, time.Hour + 3*time.Minute
	for _, rate := range []float64{100, 10} {
		s := newStage(t, Config{Capacity: perSecond(rate, int(rate)/10+1)}, 1000, 5*ms, 3)
		for i := range int(10 * rate) {
			var polls func(now time.Duration)
			polls = func(now time.Duration) {
				s.ask(now, &call{Request: Request{Client: limiter.Key(1 + i)}})
				s.at(now+4*time.Second, polls)
			}
			s.at(begin+time.Duration(s.random.Float64()*4e9), polls)
		}
		var waits []time.Duration
		came := 0
		s.often(begin+time.Minute, end-30*time.Second, rate/5, func(now time.Duration) {
			v := s.newcomer(0)
			v.served = func(time.Duration) { waits = append(waits, v.waited) }
			came++
			s.visit(now, v)
		})
		s.play(end)
		half, most := quantile(waits, .5), quantile(waits, .99)
		t.Logf("%v/s: %d of %d new clients served, after %v, p99 %v", rate, len(waits), came, half, most)
		if len(waits) < came || half > 3*time.Second || most > 12*time.Second {
			t.Errorf("%v/s: %d of %d new clients served, after %v, p99 %v; want all, 3s and 12s", rate, len(waits), came, half, most)
		}
	}
}

// A court is a stage on which each decision is checked.
type court struct {
	*stage
	t        *testing.T
	promised map[limiter.Key]promised
	slots    []time.Duration
	admitted []time.Duration
	spare    float64 // the largest that was
	share    float64 // the least that was
}

// promised is when a client was told to come, which is its time rounded up, and whether that was a slot.
type promised struct {
	at, time time.Duration
	slot     bool
}

func newCourt(t *testing.T, c Config) *court {
	s := &court{stage: newStage(t, c, 1000, 5*ms, 1), t: t, promised: map[limiter.Key]promised{}, share: 1}
	s.admit, s.jitter = s.judge, 0
	return s
}

// judge checks a decision.
func (c *court) judge(now time.Duration, r Request) Decision {
	t, b, limit := c.t, c.g.backend, c.g.capacity
	t.Helper()
	burst, level := limit.Burst(), b.capacity.Level(limit, now)
	told, known := c.promised[r.Client]
	due := known && now >= told.at
	made := b.Stats(0).Promises.Made
	d := c.g.Admit(now, r)
	stats := b.Stats(now)
	c.spare, c.share = max(c.spare, c.g.Spare()), min(c.share, stats.KeptShare)
	if d.Queued() { // for a token that is earned soon: it goes on then
		if !known || now < told.time || d.Until() > now+max(tokenWait, min(limit.Interval(), slowestToken)) {
			t.Errorf("%v: it waits until %v", now, d.Until())
		}
		c.admitted = append(c.admitted, d.Until())
		return d
	}
	if d.Admit {
		if level < 1 {
			t.Errorf("%v: admitted without a token", now)
		}
		c.admitted = append(c.admitted, now)
		return d
	}

	// (2) Only clients that come too early are rejected what is not needed.
	switch {
	case d.Reason == Early && due:
		t.Errorf("%v: a client that comes when it was told is too early: %+v", now, d)
	case d.Reason == Early:
	case d.Reason != Capacity:
		t.Errorf("%v: rejected for %v", now, d.Reason)
	case level >= burst, !known && level > 0, due && level > burst*9/10, due && told.slot && level > 0:
		t.Errorf("%v: rejected although %d tokens of %d are left: %+v %+v", now, level, burst, told, d)
	}

	// (3) The times told.
	lo, hi := c.g.terms.Responses.Bounds()
	seconds := time.Duration(d.Hint.Seconds) * time.Second
	all := d.Hold + seconds
	switch {
	case seconds < max(lo, time.Second) || seconds > min(hi, 99*time.Second):
		t.Errorf("%v: Retry-After %d, want %v to %v", now, d.Hint.Seconds, lo, hi)
	case d.Hint.Ms > d.Hint.Seconds*1000 || d.Hint.Ms <= (d.Hint.Seconds-1)*1000:
		t.Errorf("%v: %d ms in %d s", now, d.Hint.Ms, d.Hint.Seconds)
	case d.Hold < 0 || d.Hold >= time.Second:
		t.Errorf("%v: held for %v", now, d.Hold)
	case d.Hold > 0 && all != d.Wait:
		t.Errorf("%v: held for %v and told %d s, for a slot in %v", now, d.Hold, d.Hint.Seconds, d.Wait)
	case d.Reason != Early && (all < d.Wait || all >= max(lo+1, d.Wait+time.Second)):
		t.Errorf("%v: %v in all, for a slot in %v", now, all, d.Wait)
	}
	slot := stats.Promises.Made > made
	if slot {
		c.slots = append(c.slots, now+d.Wait)
	}
	c.promised[r.Client] = promised{now + all, now + d.Wait, slot}
	return d
}

// excess returns the largest of n − rate·τ over all times τ, n those within.
func excess(at []time.Duration, rate float64) (worst float64) {
	slices.Sort(at)
	least := math.Inf(1)
	for i, t := range at {
		least = min(least, float64(i)-rate*t.Seconds())
		worst = max(worst, float64(i+1)-rate*t.Seconds()-least)
	}
	return worst
}

// Random traffic: herds, trickles, new clients and those who do not listen. Every
// decision keeps the laws.
func TestLawsOfEveryDecision(t *testing.T) {
	for seed := range seedsOf(25, 5) {
		rng := rand.New(rand.NewPCG(seed, 4))
		rate := 20 * math.Pow(10, rng.Float64()*1.2)
		most := time.Duration(5+rng.IntN(55)) * time.Second
		cfg := Config{
			Capacity: perSecond(rate, 1+rng.IntN(int(rate))),
			Pushback: pushback.ResponseConfig{Min: time.Duration(1+rng.IntN(3)) * time.Second, Max: most, NoDither: seed%7 == 6},
			Retries:  Retries{Lenient: seed%5 == 4},
		}
		c := newCourt(t, cfg)
		begin := time.Duration(rng.Int64N(int64(100 * time.Hour)))
		var all []*patron
		for range 1 + rng.IntN(4) { // herds
			at := begin + time.Duration(rng.Int64N(int64(20*time.Second)))
			all = append(all, c.crowd(at, 100*ms, rng.IntN(int(rate*most.Seconds())), 0, false)...)
		}
		for _, v := range all {
			v.hasty = rng.IntN(10) == 0 && seed%2 == 0
		}
		c.often(begin, begin+time.Minute, rate/2, func(now time.Duration) {
			v := c.newcomer(0)
			all = append(all, v)
			c.visit(now, v)
		})
		c.play(begin + time.Hour)
		if f := fateOf(begin, all); f.served < f.of {
			t.Errorf("an hour later %v", f)
		}
		if got := excess(c.admitted, rate); got > float64(cfg.Capacity.Burst)+1e-3 {
			t.Errorf("%.2f were admitted above the rate, want at most the burst of %d", got, cfg.Capacity.Burst)
		}
		// (1) Those who are excused may use what the plan leaves free.
		s := c.spare / 0.98 / c.share
		if got := excess(c.slots, s); got > s/4+2 {
			t.Errorf("%.2f slots above %.4g per second (share %.2f), want at most a bucket of %.2f and one", got, s, c.share, s/4)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, cfg)
		}
	}
}

// A herd of clients that do as they are told: first come, first served; none is
// rejected when it comes; all are served in the time that the rate needs.
func TestHerdIsServedInOrderAndInTime(t *testing.T) {
	for _, test := range []struct {
		n          int
		rate       float64
		burst, max int
		tries      float64 // on the average
	}{
		{2_500, 100, 10, 59, 2.01}, {100, 10, 1, 30, 2.01}, {5_000, 100, 10, 59, 2.3}, {5_000, 100, 10, 30, 2.9},
		{400, 5, 5, 10, 9}, {20_000, 1000, 100, 10, 4}, {3, 0.05, 1, 30, 4},
	} {
		c := newCourt(t, Config{Capacity: perSecond(test.rate, test.burst), Pushback: pushback.ResponseConfig{Max: time.Duration(test.max) * time.Second}})
		const begin = 100 * time.Second
		all := c.crowd(begin, 100*ms, test.n, 0, false)
		c.play(begin + 24*time.Hour)
		f := fateOf(begin, all)
		st := c.g.backend.Stats(begin + f.last)
		if float64(test.n) < c.spare*float64(test.max-2) { // the herd fits into the line
			if !slices.IsSorted(c.slots) {
				t.Errorf("%+v: the slots are not in the order of the rejections", test)
			}
			if st.Broken != 0 || st.KeptShare != 1 {
				t.Errorf("%+v: %d clients were rejected when they came, share %v", test, st.Broken, st.KeptShare)
			}
		}
		fluid := float64(test.n-test.burst) / test.rate
		t.Logf("%+v: %v; %.2f × the optimum; %+v", test, f, f.last.Seconds()/fluid, st.Promises)
		if limit := fluid/0.97 + float64(test.max); f.served < test.n || f.last.Seconds() > limit || f.requests > test.tries {
			t.Errorf("%+v: %v; want all, within N/s and the horizon: %.1f s", test, f, limit)
		}
	}
}
