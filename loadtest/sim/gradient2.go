package sim

import (
	"net/http"
	"time"

	"github.com/herdshield/shield"
)

// A GradientLimiter is the Gradient2 of Netflix/concurrency-limits: the limit
// follows the ratio of a long mean of the latency, times a tolerance of 1.5, to that
// of the latest window, of at least a second and ten requests. Its limits go from 1
// to 1000, as shield's: its default of 200 would hide that they drift.
type GradientLimiter struct {
	limit    float64
	inFlight int

	long    float64 // seconds: a mean over 600 windows
	warming int     // windows; the mean of the first 10 is a plain one

	window struct {
		ends time.Duration
		n    int
		sum  float64
		most int // in flight
	}
}

// NewGradientLimiter returns one that begins with a limit of 20, its default.
func NewGradientLimiter() *GradientLimiter { return &GradientLimiter{limit: 20} }

// Limit returns how many requests may be in flight.
func (g *GradientLimiter) Limit() int { return int(g.limit) }

// Enter lets one more in, unless the limit is reached.
func (g *GradientLimiter) Enter() bool {
	if g.inFlight >= int(g.limit) {
		return false
	}
	g.inFlight++
	return true
}

// Leave tells that a request has ended, took after it entered; counts is false for
// one that says nothing.
func (g *GradientLimiter) Leave(now, took time.Duration, counts bool) {
	w := &g.window
	w.most = max(w.most, g.inFlight)
	g.inFlight--
	if !counts {
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

func (g *GradientLimiter) update(short float64, inFlight int) {
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

// forget begins anew, but for what is in flight.
func (g *GradientLimiter) forget() { *g = GradientLimiter{limit: 20, inFlight: g.inFlight} }

// Gradient2 is the Maker of a server that limits what is in flight by a
// GradientLimiter, and tells refused clients nothing.
func Gradient2(shield.Config) (Server, error) {
	return &gradient2{GradientLimiter: NewGradientLimiter(), since: make([]time.Duration, 1)}, nil
}

type gradient2 struct {
	*GradientLimiter
	since []time.Duration // by ticket: when it was admitted
	free  []int32
}

func (g *gradient2) Arrive(now time.Duration, _ Request) Answer {
	if !g.Enter() {
		return Answer{Status: http.StatusTooManyRequests}
	}
	var t int32
	if n := len(g.free); n > 0 {
		t, g.free = g.free[n-1], g.free[:n-1]
	} else {
		t = int32(len(g.since))
		g.since = append(g.since, 0)
	}
	g.since[t] = now
	return Answer{Admit: true, Ticket: t}
}

func (g *gradient2) Finish(now time.Duration, ticket int32, e End) {
	g.free = append(g.free, ticket)
	g.Leave(now, now-g.since[ticket], e.Outcome != shield.Detached)
}

// Change implements Server: there is no config.
func (g *gradient2) Change(_ shield.Config, restart bool) error {
	if restart {
		g.forget()
	}
	return nil
}
