package overload

import (
	"math"
	"math/rand/v2"
	"time"
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

// A Plant is a backend: workers that take requests first come, first served, and
// a queue without bound before them.
type Plant struct {
	Workers int

	// Coherency is by what share the time of service grows with each request that
	// waits: the β of Gunther's universal scalability law, as locks and caches
	// have it. Default 0.
	Coherency float64

	// Slow multiplies times of service that begin from then on. Default 1.
	Slow Steps

	// Delay is latency in seconds that occupies nothing, as a network's. Default 0.
	Delay Steps

	// Outage stops the workers between two instants: what they do goes on
	// afterwards. With Refuses they answer at once with an error instead, and
	// RetryAfter is what they say with it.
	Outage     [2]time.Duration
	Refuses    bool
	RetryAfter time.Duration

	// Notices: a request whose client has gone is taken out of the queue.
	Notices bool
}

type plant struct {
	Plant
	w     *World
	busy  int
	queue []*call
	head  int
}

// A call is one request at the backend.
type call struct {
	service time.Duration
	gone    bool
	answer  func(Answer)
}

// An Answer is how the backend answers.
type Answer struct {
	Refused    bool // as a 503 does
	RetryAfter time.Duration
}

func (p *plant) down() bool { return p.w.now >= p.Outage[0] && p.w.now < p.Outage[1] }

func (p *plant) submit(c *call) {
	switch {
	case p.Refuses && p.down():
		p.reply(c, Answer{Refused: true, RetryAfter: p.RetryAfter})
	case p.busy < p.Workers:
		p.start(c)
	default:
		p.queue = append(p.queue, c)
	}
}

func (p *plant) waiting() int { return len(p.queue) - p.head }

func (p *plant) start(c *call) {
	p.busy++
	takes := float64(c.service) * p.Slow.at(p.w.now, 1)
	takes *= 1 + p.Coherency*float64(p.waiting())
	p.finish(c, time.Duration(takes))
}

// finish ends a call that still takes so long, not counting an outage.
func (p *plant) finish(c *call, takes time.Duration) {
	end := p.w.now + takes
	if o := p.Outage; !p.Refuses && p.w.now < o[1] && end > o[0] {
		end += o[1] - max(o[0], p.w.now)
	}
	p.w.At(end, func() {
		p.busy--
		p.reply(c, Answer{})
		for p.waiting() > 0 && p.busy < p.Workers {
			next := p.queue[p.head]
			p.queue[p.head] = nil
			if p.head++; p.head > 1024 && p.head > len(p.queue)/2 {
				p.queue = p.queue[:copy(p.queue, p.queue[p.head:])]
				p.head = 0
			}
			if p.Notices && next.gone {
				continue
			}
			p.start(next)
		}
	})
}

func (p *plant) reply(c *call, a Answer) {
	delay := time.Duration(p.Delay.at(p.w.now, 0) * float64(time.Second))
	p.w.After(delay, func() { c.answer(a) })
}
