package shield

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

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
