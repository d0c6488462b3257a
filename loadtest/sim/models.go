package sim

import (
	"math"
	"net/http"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// Models of what others tell refused clients. All of them admit by a token
// bucket with the Config's Capacity, answer 429, and differ in the Retry-After alone.

// A rule returns what a refused client is told: whole seconds, 0 for nothing.
// wait is how long until there is a token.
type rule func(now, wait time.Duration, r Request) int

// bucket admits while there are tokens, and tells by a rule.
type bucket struct {
	limiter.Bucket
	limit limiter.Limit
	fresh func() rule
	rule  rule
}

// with returns the Maker of a bucket whose rule is what fresh returns when it starts.
func with(fresh func() rule) Maker {
	return func(c shield.Config) (Server, error) {
		b := &bucket{fresh: fresh}
		return b, b.Change(c, true)
	}
}

func (b *bucket) Arrive(now time.Duration, r Request) Answer {
	wait := b.Take(b.limit, now, 1)
	if wait == 0 {
		return Answer{Admit: true}
	}
	return Answer{Hint: wholeSeconds(time.Duration(b.rule(now, wait, r)) * time.Second), Status: http.StatusTooManyRequests}
}

// wholeSeconds is the Hint of a Retry-After, rounded up.
func wholeSeconds(wait time.Duration) pushback.Hint {
	s := int((wait + time.Second - 1) / time.Second)
	return pushback.Hint{Seconds: s, Ms: 1000 * s}
}

func (*bucket) Finish(time.Duration, int32, End) {}

func (b *bucket) Change(c shield.Config, restart bool) (err error) {
	if restart {
		b.Bucket, b.rule = limiter.Bucket{}, b.fresh()
	}
	b.limit, err = limiter.NewCapacity(c.Capacity)
	return err
}

// stateless returns the Maker of a bucket with a rule that remembers nothing.
func stateless(r rule) Maker { return with(func() rule { return r }) }

// NoHint refuses without Retry-After, as most servers do by default.
var NoHint = stateless(func(time.Duration, time.Duration, Request) int { return 0 })

// FixedHint tells all clients the same: a constant in a config file, the most common of all.
func FixedHint(seconds int) Maker {
	return stateless(func(time.Duration, time.Duration, Request) int { return seconds })
}

// NextToken tells all clients when there will be a token, rounded up: what libraries with a
// generic cell rate algorithm tell (redis-cell, throttled).
var NextToken = stateless(func(_, wait time.Duration, _ Request) int {
	return wholeSeconds(wait).Seconds
})

// Mimir tells 6 s, doubled with each attempt that the client says it has made, ±50 %, from 6
// to 96 s: Grafana Mimir's distributor with its Retry-After turned on.
var Mimir = stateless(func(_, _ time.Duration, r Request) int {
	s := min(96, 6*math.Exp2(float64(r.Attempt-1)))
	return int(min(96, max(6, s*(0.5+r.U))))
})

// Kubernetes tells all clients a shared number of seconds, from 1 to 32, which is looked at
// when the first request of a second is refused: doubled if the last that many seconds saw
// three or more refusals per second on average and it was not doubled meanwhile; otherwise
// one less if they saw fewer than one per second. That is dropped_requests_tracker.go of
// k8s.io/apiserver (API Priority and Fairness); its queues are not modelled.
var Kubernetes = with(func() rule {
	const most = 32
	var (
		retryAfter = 1
		second     = -1          // of the last refusal
		doubledAt  = -most       // the second of the last doubling
		refused    [most + 1]int // per second, by the second modulo its length
	)
	return func(now, _ time.Duration, _ Request) int {
		if s := int(now / time.Second); s != second {
			for t := max(second+1, s-most); t <= s; t++ {
				refused[t%len(refused)] = 0
			}
			second = s
			recent := 0
			for t := max(0, s-retryAfter); t < s; t++ {
				recent += refused[t%len(refused)]
			}
			switch {
			case s-doubledAt >= retryAfter && recent >= 3*retryAfter:
				retryAfter, doubledAt = min(most, 2*retryAfter), s
			case recent < retryAfter && retryAfter > 1:
				retryAfter--
			}
		}
		refused[second%len(refused)]++
		return retryAfter
	}
})

// A Limiter says how many requests may be in flight.
type Limiter interface {
	Limit() int

	// Done tells that a request has ended that took so long. inFlight counts it, too.
	Done(now, took time.Duration, inFlight int, outcome shield.Outcome)
}

// Limited returns the Maker of a server without a config that lets in as many requests at a
// time as a Limiter says, and tells refused clients nothing.
func Limited(fresh func() Limiter) Maker {
	return func(shield.Config) (Server, error) {
		return &limited{Limiter: fresh(), fresh: fresh, since: slots[time.Duration]{of: make([]time.Duration, 1)}}, nil
	}
}

type limited struct {
	Limiter
	fresh    func() Limiter
	inFlight int
	since    slots[time.Duration] // by ticket: when it was admitted
}

func (l *limited) Arrive(now time.Duration, _ Request) Answer {
	if l.inFlight >= l.Limit() {
		return Answer{Status: http.StatusTooManyRequests}
	}
	l.inFlight++
	return Answer{Admit: true, Ticket: l.since.put(now)}
}

func (l *limited) Finish(now time.Duration, ticket int32, e End) {
	l.since.drop(ticket)
	l.Done(now, now-l.since.of[ticket], l.inFlight, e.Outcome)
	l.inFlight--
}

// Change implements Server. A restart forgets all but what is in flight.
func (l *limited) Change(_ shield.Config, restart bool) error {
	if restart {
		l.Limiter = l.fresh()
	}
	return nil
}

// Gradient2 is the limiter of the same name of Netflix/concurrency-limits: the limit follows
// the ratio of a long mean of the latency, times a tolerance of 1.5, to that of the latest
// window, of at least a second and ten requests. Its limits go from 1 to 1000, as shield's:
// its default of 200 would hide that they drift.
var Gradient2 = Limited(func() Limiter { return &gradient2{limit: 20} })

type gradient2 struct {
	limit float64

	long    float64 // seconds: a mean over 600 windows
	warming int     // windows; the mean of the first 10 is a plain one

	window struct {
		ends time.Duration
		n    int
		sum  float64
		most int // in flight
	}
}

func (g *gradient2) Limit() int { return int(g.limit) }

func (g *gradient2) Done(now, took time.Duration, inFlight int, outcome shield.Outcome) {
	w := &g.window
	w.most = max(w.most, inFlight)
	if outcome == shield.Detached {
		return
	}
	w.n++
	w.sum += took.Seconds()
	if now < w.ends || w.n < 10 {
		return
	}
	g.update(w.sum/float64(w.n), w.most)
	w.n, w.sum, w.most, w.ends = 0, 0, 0, now+time.Second
}

func (g *gradient2) update(short float64, inFlight int) {
	const (
		tolerance   = 1.5
		queue       = 4
		smoothing   = 0.2
		least, most = 1, 1000
	)
	if g.warming < 10 {
		g.long = (g.long*float64(g.warming) + short) / float64(g.warming+1)
		g.warming++
	} else {
		g.long += 2. / 601 * (short - g.long)
	}
	if g.long/short > 2 {
		g.long *= .95
	}
	if float64(inFlight) < g.limit/2 {
		return // not used
	}
	gradient := max(.5, min(1, tolerance*g.long/short))
	g.limit = max(least, min(most, g.limit*(1-smoothing)+(g.limit*gradient+queue)*smoothing))
}
