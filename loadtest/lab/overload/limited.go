package overload

import (
	"net/http"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/sim"
)

// A Limiter says how many requests may be in flight.
type Limiter interface {
	Limit() int

	// Done tells that a request has ended that took so long. inFlight counts it, too.
	Done(now, took time.Duration, inFlight int, outcome shield.Outcome)
}

// Limited returns the Maker of a server without a config that lets in as many requests at a
// time as a Limiter says, and tells rejected clients nothing.
func Limited(fresh func() Limiter) sim.Maker {
	return func(shield.Config) (sim.Server, error) {
		return &limited{Limiter: fresh(), fresh: fresh, since: map[int32]time.Duration{}}, nil
	}
}

type limited struct {
	Limiter
	fresh    func() Limiter
	inFlight int
	tickets  int32
	since    map[int32]time.Duration // by ticket: when it was admitted
}

func (l *limited) Arrive(now time.Duration, _ sim.Request) sim.Answer {
	if l.inFlight >= l.Limit() {
		return sim.Answer{Status: http.StatusTooManyRequests}
	}
	l.inFlight++
	l.tickets++
	l.since[l.tickets] = now
	return sim.Answer{Admit: true, Ticket: l.tickets}
}

func (l *limited) Finish(now time.Duration, ticket int32, e sim.End) {
	l.Done(now, now-l.since[ticket], l.inFlight, e.Outcome)
	delete(l.since, ticket)
	l.inFlight--
}

// Change implements sim.Server. A restart forgets all but what is in flight.
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
