package overload

import (
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield/loadshed"
)

// A Route is one kind of request.
type Route struct {
	Share   float64 // of all requests, in the end 1
	Service Service
	Class   string // what a Limiter that knows classes may treat it as
}

// A Scenario is a backend, who comes, and what happens. Everything is drawn from
// the seed of the run alone.
type Scenario struct {
	Name  string
	Plant Plant

	// Routes are the kinds of request. Mix, if set, gives their shares at an
	// instant instead of their Share.
	Routes []Route
	Mix    func(now time.Duration) []float64

	// Rate is how many new requests come per second, as a Poisson process that
	// does not wait for answers.
	Rate Steps

	// Lasts is for how long.
	Lasts time.Duration

	// Timeout is how long a client waits for the answer to an attempt.
	Timeout time.Duration

	// Attempts is how often a client tries at most, default once. Backoff is how
	// long it waits after a failed attempt, the first being 0. A client that
	// honours waits as long as it was told instead, if it was.
	Attempts int
	Backoff  func(attempt int, r *rand.Rand) time.Duration
	Honours  bool

	// Capacity is what the backend can serve per second, to compare with.
	Capacity float64
}

// A Request is one attempt of a client. A Limiter answers it by Admit or Refuse,
// once, at once or later.
type Request struct {
	Client  uint64 // the same for all attempts of one client
	Attempt int    // 0 for the first
	Route   int
	Class   string
	Arrived time.Duration
	Gives   time.Duration // the instant at which the client gives up
	Told    time.Duration // the instant that its last refusal gave it; 0: none

	// Token is for the Limiter's own use.
	Token any

	run      *run
	call     call
	answered bool
	gone     bool
	entered  time.Duration
	serviced time.Duration // how long the backend needs for it
}

// A Limiter is what stands before the backend.
type Limiter interface {
	// Admit decides on a request by calling its Enter or Refuse, once, at once or
	// later.
	Admit(r *Request)

	// Gone tells that the client of a request that was neither let in nor refused
	// has given up. Neither must be called any more.
	Gone(r *Request)

	// Done tells that a request that was let in has ended, and how long after it
	// entered. For one that was refused by the backend, retryAfter is what the
	// backend said, 0 for nothing.
	Done(r *Request, took time.Duration, o loadshed.Signal, retryAfter time.Duration)

	// Limit returns how many may be in flight.
	Limit() int
}

type run struct {
	Scenario
	w       *World
	p       *backend
	l       Limiter
	retries *rand.Rand
	result  *Result
}

// Run plays s with the Limiter that build makes. The same arguments give the
// same Result.
func Run(s Scenario, build func(*World) Limiter, seed uint64) *Result {
	w := &World{}
	r := &run{Scenario: s, w: w, p: newBackend(s.Plant, w), retries: stream(seed, 3)}
	r.result = &Result{Seconds: make([]Second, int(s.Lasts/time.Second)+1), Capacity: s.Capacity}
	r.l = build(w)
	r.Attempts = max(1, s.Attempts)

	arrivals, services := stream(seed, 1), stream(seed, 2)
	top := s.Rate.Max(0)
	client := uint64(0)
	var arrive func()
	arrive = func() {
		// Thinning (Lewis and Shedler, 1979): a Poisson process of the highest rate,
		// of which the right share counts.
		if arrivals.Float64() < s.Rate.At(w.now, 0)/top {
			client++
			route := r.route(arrivals)
			r.second().Offered++
			r.try(&Request{Client: client, Route: route, Class: s.Routes[route].Class, serviced: s.Routes[route].Service(services)})
		}
		w.After(time.Duration(arrivals.ExpFloat64()/top*float64(time.Second)), arrive)
	}
	arrive()
	for t := time.Second - 1; t < s.Lasts; t += time.Second {
		w.At(t, func() { r.second().Limit = r.l.Limit() })
	}
	w.run(s.Lasts)
	return r.result
}

func (r *run) route(random *rand.Rand) int {
	u := random.Float64()
	var mix []float64
	if r.Mix != nil {
		mix = r.Mix(r.w.now)
	}
	for i := range r.Routes {
		share := r.Routes[i].Share
		if mix != nil {
			share = mix[i]
		}
		if u < share {
			return i
		}
		u -= share
	}
	return len(r.Routes) - 1
}

func (r *run) second() *Second { return &r.result.Seconds[r.w.now/time.Second] }

func (r *run) try(q *Request) {
	q.run = r
	q.Arrived = r.w.now
	q.Gives = r.w.now + r.Timeout
	r.second().Attempts++
	r.l.Admit(q)
	if !q.answered {
		r.w.At(q.Gives, func() {
			if !q.answered {
				q.answered, q.gone = true, true
				r.second().TimedOut++
				r.l.Gone(q)
				r.again(q, 0)
			}
		})
	}
}

// Enter lets the request in.
func (q *Request) Enter() {
	r := q.run
	if q.answered {
		panic("overload: a request was answered twice")
	}
	q.answered = true
	q.entered = r.w.now
	r.second().Admitted++
	ended := false
	end := func(o loadshed.Signal, retryAfter time.Duration) {
		ended = true
		r.l.Done(q, r.w.now-q.entered, o, retryAfter)
	}
	q.call = call{service: q.serviced, answer: func(a Answer) {
		switch {
		case ended:
			// The client has gone: the work was for nothing.
		case a.Refused:
			r.second().Failed++
			end(loadshed.SignalOverloaded, a.RetryAfter)
			r.again(q, a.RetryAfter)
		default:
			s := r.second()
			s.Good++
			s.Latencies = append(s.Latencies, r.w.now-q.Arrived)
			s.count(q.Class, Count{Good: 1})
			end(loadshed.SignalServed, 0)
		}
	}}
	r.p.submit(&q.call)
	r.w.At(q.Gives, func() {
		if !ended {
			q.call.gone = true
			r.second().TimedOut++
			end(loadshed.SignalTimedOut, 0)
			r.again(q, 0)
		}
	})
}

// Refuse turns the request away. A positive retryAfter is when the client is told
// to come back.
func (q *Request) Refuse(retryAfter time.Duration) {
	r := q.run
	if q.answered {
		panic("overload: a request was answered twice")
	}
	q.answered = true
	s := r.second()
	s.Refused++
	if q.Attempt == 0 {
		s.RefusedFirst++
	}
	s.count(q.Class, Count{Refused: 1})
	r.again(q, retryAfter)
}

// again makes the client of a failed attempt try once more, if it does.
func (r *run) again(q *Request, retryAfter time.Duration) {
	if q.Attempt+1 >= r.Attempts {
		return
	}
	next := &Request{Client: q.Client, Attempt: q.Attempt + 1, Route: q.Route, Class: q.Class, serviced: q.serviced}
	wait := time.Duration(0)
	if r.Backoff != nil {
		wait = r.Backoff(q.Attempt, r.retries)
	}
	if retryAfter > 0 {
		next.Told = r.w.now + retryAfter
		if r.Honours {
			wait = retryAfter
		}
	}
	r.w.After(wait, func() { r.try(next) })
}
