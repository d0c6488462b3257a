package shield

import (
	"fmt"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// askClosed sends a request that the backend answers with 503 and Retry-After, if it
// gets there.
func (s *stage) askClosed(now time.Duration, r Request, asked *int) {
	decided := func(now time.Duration, d Decision) {
		if d.Admit {
			*asked++
			s.at(now+2*ms, func(now time.Duration) {
				d.Done(now, Overloaded)
				d.Pause(now, time.Minute)
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
	for name, config := range map[string]Config{
		"concurrency 64": {Concurrency: 64}, "adaptive": {Adaptive: &loadshed.AdaptiveConfig{}}, "capacity 500/s": {Capacity: perSecond(500, 100)},
	} {
		for _, p := range []struct {
			addresses int // that ask for the page, together 50 times per second
			rate      float64
			least     float64 // share of the others that are served at the first try
		}{
			{1, 1, .9}, {1, 5, .99}, {100, 1, .9}, {100, 5, .99},
		} {
			served, asked, pauses, closed := 0, 0, uint64(0), 0
			for seed := range uint64(20) {
				s := newStage(t, config, 1000, 50*ms, seed)
				const begin, end = time.Hour, time.Hour + 60*time.Second
				s.often(begin, end, 50, func(now time.Duration) {
					s.askClosed(now, Request{Client: limiter.Key(100 + s.random.IntN(p.addresses))}, &closed)
				})
				s.often(begin, end, p.rate, func(now time.Duration) {
					asked++
					s.ask(now, Request{Client: limiter.Key(1000 + asked)}, func(time.Duration) { served++ }, func(time.Duration, Decision) {})
				})
				s.play(end + time.Second)
				_, n := s.g.backend.Paused(end)
				pauses += n
			}
			name := fmt.Sprintf("%s, %d addresses, %v/s", name, p.addresses, p.rate)
			t.Logf("%s: %d of %d at the first try, %d pauses", name, served, asked, pauses)
			if float64(served) < p.least*float64(asked) {
				t.Errorf("%s: %d of %d at the first try, want %v of them", name, served, asked, p.least)
			}
		}
	}
}

// A backend that drains is left alone after six seconds, but for one request per second.
func TestDrainPauses(t *testing.T) {
	for _, clients := range []int{1, 5, 5000} {
		const begin = time.Hour
		s := newStage(t, Config{Concurrency: 64}, 1000, 5*ms, 1)
		early, late := 0, 0
		for i, asked := range []*int{&early, &late} {
			from := begin + time.Duration(i)*7*time.Second
			s.often(from, from+7*time.Second, 50, func(now time.Duration) {
				s.askClosed(now, Request{Client: limiter.Key(1 + s.random.IntN(clients))}, asked)
			})
		}
		s.play(begin + 14*time.Second)
		if early == 0 || late > 7 {
			t.Errorf("%d clients: the backend gets %d requests in 7 s, and %d in the next 7 s; want one per second", clients, early, late)
		}
	}
}
