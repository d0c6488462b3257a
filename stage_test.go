package shield

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

var full = flag.Bool("full", false, "play all seeds and cells of the tables: minutes")

// seedsOf returns how many seeds to play: all with -full, and otherwise a few.
func seedsOf(all, few uint64) uint64 {
	if *full {
		return all
	}
	return few
}

// An agenda is what is to come, in order of time; what comes at one instant, in the order in
// which it was planned. It is a heap: container/heap takes a tenth of the time of all tests.
type agenda []event

type event struct {
	at    time.Duration
	order int
	do    func(now time.Duration)
}

func (a agenda) before(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}

func (a *agenda) push(e event) {
	h := append(*a, e)
	for i := len(h) - 1; i > 0 && h.before(i, (i-1)/2); i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
	*a = h
}

func (a *agenda) pop() (first event) {
	h, end := *a, len(*a)-1
	first, h[0] = h[0], h[end]
	h = h[:end]
	for i, next := 0, 1; next < end; next = 2*i + 1 {
		if next+1 < end && h.before(next+1, next) {
			next++
		}
		if !h.before(next, i) {
			break
		}
		h[i], h[next] = h[next], h[i]
		i = next
	}
	*a = h
	return first
}

// A stage plays requests to one Guard in virtual time. Behind it is a backend of workers
// with an exponential time of service and a queue of its own.
type stage struct {
	g       *Guard
	admit   func(now time.Duration, r Request) Decision // that of g, or what watches it
	random  *rand.Rand
	events  agenda
	planned int
	workers int
	service time.Duration
	jitter  time.Duration // mean, of those who come when they were told
	work    []*call       // that waits for a worker
	working int
	full    int     // so many calls in the backend; it answers others with 429 after a millisecond. 0: any number
	limited int     // calls that it has answered with 429
	queued  []*call // by the Guard
	sweeps  bool    // the next sweep of the queue is planned

	admitted func(c *call) // nil: no matter
}

// A call is a request to a stage.
type call struct {
	Request
	takes    time.Duration // in the backend; 0: as any other
	closed   bool          // the backend answers 503, with a Retry-After of a minute
	patience time.Duration // with a rejection that is held back: then its client leaves; 0: without end

	over func(now time.Duration) bool // whether the client is over a quota, which the backend answers with 429 after a millisecond; nil: it has none

	served func(now time.Duration) // the backend has answered; nil: no matter
	denied func(now time.Duration) // it has answered 429; nil: no matter
	told   func(now time.Duration) // a rejection is sent, or lost; nil: no matter

	d Decision
}

// lost reports whether the client of a rejection leaves while it is held back.
func (c *call) lost() bool { return c.patience > 0 && c.d.Hold > c.patience }

func newStage(t *testing.T, c Config, workers int, service time.Duration, seed uint64) *stage {
	t.Helper()
	c.Retries.MaxClients = cmp.Or(c.Retries.MaxClients, 1<<16) // an eighth of the default: the pages of more are cleared for each stage
	g := mustNew(t, c, nil)
	return &stage{g: g, admit: g.Admit, random: rand.New(rand.NewPCG(seed, 14)), workers: workers, service: service, jitter: 5 * ms}
}

func (s *stage) at(at time.Duration, do func(now time.Duration)) {
	s.planned++
	s.events.push(event{at, s.planned, do})
}

func (s *stage) play(until time.Duration) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := s.events.pop()
		e.do(e.at)
		s.settle(e.at)
	}
}

// settle goes on with the requests that need not wait any longer in the Guard's queue.
func (s *stage) settle(now time.Duration) {
	if len(s.queued) == 0 {
		return
	}
	for i := 0; i < len(s.queued); {
		c := s.queued[i]
		var verdict loadshed.Verdict
		select { // of one channel: one of two takes locks, and was 40% of the time of all overloads
		case verdict = <-c.d.Verdict():
		default:
			if now < c.d.Until() {
				i++
				continue
			}
		}
		s.queued = slices.Delete(s.queued, i, i+1)
		if s.g.Settle(now, c.Request, &c.d, verdict); c.d.Queued() {
			s.queued = append(s.queued, c)
		} else {
			s.decided(now, c)
		}
	}
	if !s.sweeps && len(s.queued) > 0 {
		s.sweeps = true
		s.at(now+5*ms, func(time.Duration) { s.sweeps = false })
	}
}

// often has something done rate times per second, at random, from one instant until
// another.
func (s *stage) often(from, until time.Duration, rate float64, do func(now time.Duration)) {
	var again func(now time.Duration)
	plan := func(now time.Duration) {
		if next := now + s.about(time.Duration(float64(time.Second)/rate)); next < until {
			s.at(next, again)
		}
	}
	again = func(now time.Duration) {
		plan(now)
		do(now)
	}
	plan(from)
}

// about draws a time with an exponential distribution.
func (s *stage) about(mean time.Duration) time.Duration {
	return time.Duration(s.random.ExpFloat64() * float64(mean))
}

// client draws one of so many addresses, or of all if there are 0.
func (s *stage) client(addresses int) limiter.Key {
	if addresses > 0 {
		return limiter.Key(1 + s.random.IntN(addresses))
	}
	return limiter.Key(s.random.Uint64())
}

func (s *stage) ask(now time.Duration, c *call) {
	if c.d = s.admit(now, c.Request); c.d.Queued() {
		s.queued = append(s.queued, c)
	} else {
		s.decided(now, c)
	}
}

func (s *stage) decided(now time.Duration, c *call) {
	if c.d.Admit {
		if s.admitted != nil {
			s.admitted(c)
		}
		if s.full > 0 && s.working+len(s.work) >= s.full || c.over != nil && c.over(now) {
			s.limited++
			s.at(now+ms, func(now time.Duration) {
				if c.d.Done(now, Limited); c.denied != nil {
					c.denied(now)
				}
			})
			return
		}
		s.work = append(s.work, c)
		s.goOn(now)
		return
	}
	sent, end := now+c.d.Hold, c.d.Sent
	if c.lost() {
		sent, end = now+c.patience, c.d.Lost
	}
	s.at(sent, func(now time.Duration) {
		if end(); c.told != nil {
			c.told(now)
		}
	})
}

// goOn gives a worker the next request, if there are both.
func (s *stage) goOn(now time.Duration) {
	if len(s.work) == 0 || s.working >= s.workers {
		return
	}
	c := s.work[0]
	s.work = s.work[1:]
	s.working++
	takes := c.takes
	if takes == 0 {
		takes = s.about(s.service)
	}
	s.at(now+takes, func(now time.Duration) {
		s.working--
		if c.closed {
			c.d.Done(now, Overloaded)
			c.d.Pause(now, time.Minute)
		} else {
			c.d.Done(now, Served)
		}
		if c.served != nil {
			c.served(now)
		}
		s.goOn(now)
	})
}

// A patron obeys: it comes back when it was told, until it has been served.
type patron struct {
	key      limiter.Key
	attempts int // at most; 0: any number
	agent    string
	patience time.Duration // see call
	hasty    bool          // it does not obey, and comes back after a second
	born     time.Duration
	requests int
	waited   time.Duration // -1 before it is served
	served   func(now time.Duration)
}

// newcomer returns a patron with a key of its own.
func (s *stage) newcomer(attempts int) *patron { return &patron{key: s.client(0), attempts: attempts} }

func (s *stage) visit(now time.Duration, v *patron) {
	if v.requests++; v.requests == 1 {
		v.born, v.waited = now, -1
	}
	r := Request{Keys: slices.Repeat([]limiter.Key{v.key}, len(s.g.zones)), Client: v.key, Agent: v.agent}
	c := &call{Request: r, patience: v.patience}
	c.served = func(now time.Duration) {
		if v.waited = now - v.born; v.served != nil {
			v.served(now)
		}
	}
	c.told = func(now time.Duration) {
		wait := time.Second
		switch {
		case v.requests == v.attempts:
			return
		case c.lost():
			wait += s.about(time.Second)
		case !v.hasty:
			wait = time.Duration(c.d.Hint.Seconds)*time.Second + s.about(s.jitter)
		}
		s.at(now+wait, func(now time.Duration) { s.visit(now, v) })
	}
	s.ask(now, c)
}

// crowd has n patrons come from one instant on, within a time, all of one key or each of
// its own.
func (s *stage) crowd(from, within time.Duration, n, attempts int, oneKey bool) []*patron {
	all := make([]*patron, n)
	for i := range all {
		v := s.newcomer(attempts)
		if oneKey {
			v.key = 1
		}
		all[i] = v
		s.at(from+time.Duration(s.random.Float64()*float64(within)), func(now time.Duration) { s.visit(now, v) })
	}
	return all
}

// fate is what became of patrons.
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
	var waits []time.Duration
	n := 0
	for _, v := range all {
		n += v.requests
		if v.waited >= 0 && v.requests > 0 {
			waits = append(waits, v.waited)
			f.last = max(f.last, v.born+v.waited-from)
		}
	}
	f.of, f.served = len(all), len(waits)
	f.requests = float64(n) / float64(max(1, f.served))
	f.p50, f.p90, f.p99 = quantile(waits, .5), quantile(waits, .9), quantile(waits, .99)
	return f
}

// quantile sorts times, and returns the one at a quantile, 0 if there are none.
func quantile(of []time.Duration, q float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[int(q*float64(len(of)-1))]
}
