package shield

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
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
