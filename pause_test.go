package shield

import (
	"fmt"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// A closedPage is a site with one page whose answer is always 503 with Retry-After, and
// with others whose answer is not.
type closedPage struct {
	name      string
	attackers int           // addresses that ask for the page, together 50 times per second
	routes    int           // under which they do so
	same      bool          // the other pages are of the same route
	gateway   bool          // all requests come from one address
	rate      float64       // of honest requests
	service   time.Duration // that those take
}

// play returns how many of the honest requests are served at the first try, and how many
// pauses there were.
func (p closedPage) play(t *testing.T, c Config, seed uint64) (first, of int, pauses uint64) {
	s := newStage(t, c, 1000, p.service, seed)
	const begin, end = time.Hour, time.Hour + 60*time.Second
	key := func(is int) limiter.Key {
		if p.gateway {
			return 1
		}
		return limiter.Key(is)
	}
	s.often(begin, end, 50, func(now time.Duration) {
		a := s.random.IntN(p.attackers)
		r := Request{Client: key(100 + a), Route: uint8(9 + s.random.IntN(p.routes))}
		s.askClosed(now, r, func(d Decision, now time.Duration) { d.Pause(now, time.Minute) })
	})
	s.often(begin, end, p.rate, func(now time.Duration) {
		of++
		r := Request{Client: key(1000 + of), Route: uint8(of % 5)}
		if p.same {
			r.Route = 9
		}
		s.ask(now, r, func(time.Duration) { first++ }, func(time.Duration, Decision) {})
	})
	s.play(end + time.Second)
	_, pauses = s.g.backend.Paused(end)
	return first, of, pauses
}

// askClosed sends a request that the backend answers with 503 and Retry-After, if it
// gets there. Then told is to tell the Guard.
func (s *stage) askClosed(now time.Duration, r Request, told func(d Decision, now time.Duration)) {
	decided := func(now time.Duration, d Decision) {
		if d.Admit {
			s.at(now+2*ms, func(now time.Duration) {
				d.Done(now, Overloaded)
				told(d, now)
			})
		}
	}
	if d := s.g.Admit(now, r); d.Queued() {
		s.queued = append(s.queued, &inQueue{r, d, decided})
	} else {
		decided(now, d)
	}
}

// A page that always says that the backend wants to be left alone closes no other page,
// whatever addresses ask for it.
func TestClosedPageClosesNoOther(t *testing.T) {
	for _, c := range []struct {
		name   string
		config Config
		least  float64 // share of the others that is served at the first try
	}{
		{"concurrency 64", Config{Concurrency: 64}, .98},
		{"adaptive", Config{Adaptive: &loadshed.AdaptiveConfig{}}, .94}, // it begins at half after each pause
		{"capacity 500/s", Config{Capacity: perSecond(500, 100)}, .98},
	} {
		for _, p := range []closedPage{
			{"one address", 1, 1, false, false, 0, 5 * ms},
			{"one address, slow pages", 1, 1, false, false, 0, 200 * ms},
			{"one address, one route", 1, 1, true, false, 0, 5 * ms},
			{"one address, one route, slow pages", 1, 1, true, false, 0, 200 * ms},
			{"one address, many closed routes", 1, 20, false, false, 0, 5 * ms},
			{"5 addresses", 5, 1, false, false, 0, 5 * ms},
			{"100 addresses", 100, 1, false, false, 0, 200 * ms},
			{"5 addresses, one route", 5, 1, true, false, 0, 5 * ms},
			{"5 addresses, many closed routes", 5, 20, false, false, 0, 5 * ms},
			{"a gateway", 1, 1, false, true, 0, 200 * ms},
		} {
			for _, p.rate = range []float64{1, 5} {
				served, asked, pauses := 0, 0, uint64(0)
				for seed := range uint64(5) {
					first, of, n := p.play(t, c.config, seed)
					served, asked, pauses = served+first, asked+of, pauses+n
				}
				name := fmt.Sprintf("%s, %s, %v/s", c.name, p.name, p.rate)
				t.Logf("%s: %d of %d at the first try, %d pauses", name, served, asked, pauses)
				if float64(served) < c.least*float64(asked) {
					t.Errorf("%s: %d of %d at the first try, want %v of them", name, served, asked, c.least)
				}
			}
		}
	}
}

// A backend that drains is left alone as soon as ever, though it may serve other routes
// and clients than those that it has refused first.
func TestDrainPausesAtOnce(t *testing.T) {
	for _, c := range []struct {
		story           string
		clients, routes int
		rate            float64
	}{
		{"a shop", 5000, 10, 50},
		{"a busy shop", 5000, 10, 500},
		{"one route", 5000, 1, 50},
		{"few clients", 5, 10, 50},
		{"a gateway", 1, 10, 50},
		{"one client, one route", 1, 1, 50},
	} {
		var asked [2]int
		for i := range asked {
			const begin, end = time.Hour, time.Hour + 10*time.Second
			s := newStage(t, Config{Concurrency: 64}, 1000, 5*ms, 1)
			told := func(d Decision, now time.Duration) { d.Pause(now, time.Minute) }
			if i == 0 { // by any client: nothing else is known
				told = func(_ Decision, now time.Duration) { s.g.Pause(now, time.Minute) }
			}
			s.often(begin, end, c.rate, func(now time.Duration) {
				r := Request{Client: limiter.Key(1 + s.random.IntN(c.clients)), Route: uint8(s.random.IntN(c.routes))}
				s.askClosed(now, r, func(d Decision, at time.Duration) {
					asked[i]++
					told(d, at)
				})
			})
			s.play(end)
		}
		t.Logf("%s: the backend gets %d requests in 10 s, %d if all are for one", c.story, asked[1], asked[0])
		if asked[1] > asked[0]+c.routes+10 {
			t.Errorf("%s: the backend gets %d requests in 10 s, want %d", c.story, asked[1], asked[0])
		}
	}
}
