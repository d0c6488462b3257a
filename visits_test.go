package shield

import (
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// Readers of a site: each reads five pages, ten seconds apart, and obeys. Besides come
// strangers that never return, and farmers: they obey, and ask for something else as soon
// as they are served. The capacity is 100/s, burst 10.
type readership struct {
	name              string
	strangers, people float64 // per second
	farmers           int
	pace              time.Duration // from when a farmer is served until it asks again
	first, later      time.Duration // most of the waits (p99) for page 1, and for pages 2 to 5; 0: only printed
	farmed            float64       // most requests per second for a farmer
}

// pages is how long readers waited for the first page and for the others, in order, and
// how many requests per second each farmer got.
type pages struct {
	first, later []time.Duration
	farmed       float64
}

func (r *readership) play(t *testing.T, seed uint64) (p pages) {
	const begin, from, until, end = time.Hour, time.Hour + time.Minute, time.Hour + 150*time.Second, time.Hour + 4*time.Minute
	s := newStage(t, Config{Capacity: perSecond(100, 10)}, 1000, 5*ms, seed)
	if r.strangers > 0 {
		s.often(begin, end, r.strangers, func(now time.Duration) {
			s.visit(now, &patron{key: limiter.Key(s.random.Uint64()), attempts: 1})
		})
	}
	var read func(now time.Duration, key limiter.Key, page int)
	read = func(now time.Duration, key limiter.Key, page int) {
		v := &patron{key: key}
		v.served = func(served time.Duration) {
			switch waited := served - now; {
			case now < from || now > until:
			case page == 1:
				p.first = append(p.first, waited)
			default:
				p.later = append(p.later, waited)
			}
			if page < 5 && served < end {
				s.at(served+10*time.Second, func(now time.Duration) { read(now, key, page+1) })
			}
		}
		s.visit(now, v)
	}
	s.often(begin, end, r.people, func(now time.Duration) { read(now, limiter.Key(s.random.Uint64()), 1) })
	got := 0
	for i := range r.farmers {
		var farm func(now time.Duration)
		farm = func(now time.Duration) {
			v := &patron{key: limiter.Key(1 + i)}
			v.served = func(served time.Duration) {
				if served > from && served < until {
					got++
				}
				if served < end {
					s.at(served+r.pace, farm)
				}
			}
			s.visit(now, v)
		}
		s.at(begin+time.Duration(i)*10*ms, farm)
	}
	s.play(end)
	slices.Sort(p.first)
	slices.Sort(p.later)
	p.farmed = float64(got) / (until - from).Seconds() / float64(max(1, r.farmers))
	return p
}

// A reader that has kept an appointment goes before strangers for a while.
func TestVisits(t *testing.T) {
	at := func(d []time.Duration, q float64) time.Duration {
		if len(d) == 0 {
			return 0
		}
		return d[int(q*float64(len(d)-1))].Round(10 * ms)
	}
	for _, r := range []readership{
		{name: "no flood", people: 2, first: 100 * ms, later: 100 * ms},
		{name: "500/s", strangers: 500, people: 2, first: 2 * time.Second, later: 2 * time.Second},
		{name: "2,000/s", strangers: 2000, people: 2, first: 2 * time.Second, later: 2 * time.Second},
		{name: "500/s, 18 readers/s", strangers: 500, people: 18, first: 2 * time.Second, later: 2 * time.Second},
		{name: "500/s, 20 farmers", strangers: 500, people: 2, farmers: 20, first: 2 * time.Second, later: 2 * time.Second, farmed: 1.1},
		{name: "500/s, 100 farmers", strangers: 500, people: 2, farmers: 100, first: 4 * time.Second, later: 2 * time.Second, farmed: 1},
		{name: "500/s, 100 farmers every 4 s", strangers: 500, people: 2, farmers: 100, pace: 4 * time.Second, first: 2 * time.Second, later: 2 * time.Second, farmed: .26},
		{name: "22 readers/s", people: 22},
		{name: "22 readers/s, 100 farmers", people: 22, farmers: 100, farmed: .13},
		{name: "22 readers/s, 100 farmers every 4 s", people: 22, farmers: 100, pace: 4 * time.Second, farmed: .15},
	} {
		for seed := range uint64(2) {
			p := r.play(t, 7+seed)
			t.Logf("%s: page 1 p50 %v p90 %v p99 %v; pages 2 to 5 p50 %v p90 %v p99 %v; %.2f/s for each farmer", r.name,
				at(p.first, .5), at(p.first, .9), at(p.first, .99), at(p.later, .5), at(p.later, .9), at(p.later, .99), p.farmed)
			if r.later > 0 && (at(p.first, .99) > r.first || at(p.later, .99) > r.later) || p.farmed > r.farmed {
				t.Errorf("%s: p99 %v and %v, %.2f/s; want %v, %v and %v/s", r.name, at(p.first, .99), at(p.later, .99), p.farmed, r.first, r.later, r.farmed)
			}
			if r.strangers > 0 && r.farmers == 0 && at(p.later, .5) > 100*ms {
				t.Errorf("%s: half of the pages 2 to 5 take %v or more", r.name, at(p.later, .5))
			}
		}
	}
}
