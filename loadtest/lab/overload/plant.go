package overload

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
)

// A Service is a distribution of times of service.
type Service func(r *rand.Rand) time.Duration

// Exponential times have the coefficient of variation 1.
func Exponential(mean time.Duration) Service {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) }
}

// Deterministic times are all the same.
func Deterministic(mean time.Duration) Service {
	return func(*rand.Rand) time.Duration { return mean }
}

// Lognormal times have a heavy tail: cv is their standard deviation over their
// mean.
func Lognormal(mean time.Duration, cv float64) Service {
	variance := math.Log(1 + cv*cv)
	mu := math.Log(float64(mean)) - variance/2
	return func(r *rand.Rand) time.Duration {
		return time.Duration(math.Exp(mu + math.Sqrt(variance)*r.NormFloat64()))
	}
}

// A Plant is a backend: see plant.Config. Its instants are since the run began.
type Plant = plant.Config

// backend is a Plant in a World.
type backend struct {
	*plant.Plant[*call]
	w    *World
	open []*call // in work or waiting, if there is a Restart to lose them
}

// A call is one request at the backend.
type call struct {
	service time.Duration
	gone    bool
	lost    bool // in a Restart
	index   int  // in backend.open
	answer  func(Answer)
}

// An Answer is how the backend answers.
type Answer struct {
	Refused    bool // as a 503 does, or because there is nobody to connect to
	RetryAfter time.Duration
}

func newBackend(c Plant, w *World) *backend {
	b := &backend{Plant: plant.New(c, func(c *call) bool { return c.gone }), w: w}
	if c.Restarts() {
		w.At(c.Restart[0], b.restart)
	}
	return b
}

func (b *backend) submit(c *call) {
	switch fate, end := b.Submit(b.w.now, c, c.service); fate {
	case plant.Unavailable:
		b.reply(c, Answer{Refused: true, RetryAfter: b.RetryAfter})
	case plant.NoRoom:
		b.reply(c, Answer{Refused: true})
	case plant.Begun:
		b.enter(c)
		b.finishAt(end, c)
	default:
		b.enter(c)
	}
}

func (b *backend) finishAt(end time.Duration, c *call) {
	b.w.At(end, func() {
		if c.lost {
			return
		}
		b.leave(c)
		b.Done()
		b.reply(c, Answer{})
		for {
			next, end, ok := b.Next(b.w.now, b.leave)
			if !ok {
				break
			}
			b.finishAt(end, next)
		}
	})
}

func (b *backend) reply(c *call, a Answer) {
	b.w.After(b.Latency(b.w.now), func() { c.answer(a) })
}

func (b *backend) enter(c *call) {
	if b.Restarts() {
		c.index = len(b.open)
		b.open = append(b.open, c)
	}
}

func (b *backend) leave(c *call) {
	if b.Restarts() {
		last := b.open[len(b.open)-1]
		b.open[c.index], last.index = last, c.index
		b.open = b.open[:len(b.open)-1]
	}
}

// restart loses everything, and says so to whoever waits for an answer.
func (b *backend) restart() {
	lost := b.open
	b.open = nil
	b.Lose()
	for _, c := range lost {
		c.lost = true
		c.answer(Answer{Refused: true})
	}
}
