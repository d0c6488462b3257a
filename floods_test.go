package shield

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/pushback"
)

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
