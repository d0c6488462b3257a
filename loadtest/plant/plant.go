// Package plant is a backend, as a pure state machine: it knows no clock, and draws no random
// numbers. An engine, as loadtest/sim, tells a [Plant] what happens at an instant, and is
// told when the work on a request will be done.
//
// A backend is a number of workers with a queue before them, first come, first served, as a
// pool of threads or of connections to a database is. Its [Config]
// says what else is wrong with it.
package plant

import (
	"math"
	"time"
)

// A Config is a backend. Its instants are in the engine's time: in loadtest/sim since
// the herd's first moment.
type Config struct {
	// Workers is how many requests are worked on at once.
	Workers int

	// Queue is how many requests may wait before the workers; more are rejected, as a full
	// backlog of connections does. 0 means no bound.
	Queue int

	// Coherency is by what share the time of service grows with each request that waits:
	// the β of Gunther's universal scalability law, as locks and caches have it. Slowest
	// bounds how many times as long service takes because of that; 0 means no bound.
	Coherency, Slowest float64

	// Slow multiplies times of service that begin from then on. Default 1.
	Slow Steps

	// Delay is latency in seconds that occupies nothing, as a network's. Default 0.
	Delay Steps

	// Outage stops the workers between two instants: what they do goes on afterwards. With
	// Rejects it is a drain: requests that come then are answered at once with an error and
	// RetryAfter, and earlier ones are done as ever.
	Outage     [2]time.Duration
	Rejects    bool
	RetryAfter time.Duration

	// Restart ends the process at its first instant: what is worked on and what waits is
	// lost. Until the second no client can connect. Both 0: never.
	Restart [2]time.Duration
}

func (c *Config) Restarts() bool { return c.Restart != [2]time.Duration{} }

// A Step is a value from an instant on.
type Step struct {
	From  time.Duration
	Value float64
}

// Steps is a value that changes at given instants, in order of time.
type Steps []Step

// At returns the value at an instant, or otherwise before the first step.
func (s Steps) At(now time.Duration, otherwise float64) float64 {
	for _, step := range s {
		if now < step.From {
			break
		}
		otherwise = step.Value
	}
	return otherwise
}

// A Fate is what becomes of a request that comes to the backend.
type Fate uint8

const (
	Begun       Fate = iota // a worker has begun; it will be done at a known instant
	Waits                   // it is in the queue
	Unavailable             // it is answered at once with 503, as in an outage
	NoRoom                  // its connection is rejected: the queue is full, or the process is down
)

// A Plant is a Config and what it is doing. Calls carry the instant, which never
// goes back. T names a request for the engine.
type Plant[T any] struct {
	Config
	busy int
	wait []call[T]
	head int
}

type call[T any] struct {
	name    T
	service time.Duration
}

// New returns an idle backend.
func New[T any](c Config) *Plant[T] { return &Plant[T]{Config: c} }

// Submit brings a request that takes service when it is alone. If it is Begun it will be
// done at end, and the engine must call Done then.
func (p *Plant[T]) Submit(now time.Duration, name T, service time.Duration) (fate Fate, end time.Duration) {
	switch {
	case p.Restarts() && in(now, p.Restart):
		return NoRoom, 0
	case p.Rejects && in(now, p.Outage):
		return Unavailable, 0
	case p.busy < p.Workers:
		return Begun, p.begin(now, service)
	case p.Queue > 0 && p.Waiting() >= p.Queue:
		return NoRoom, 0
	}
	p.wait = append(p.wait, call[T]{name, service})
	return Waits, 0
}

func in(now time.Duration, span [2]time.Duration) bool { return now >= span[0] && now < span[1] }

// begin has a worker begin, and returns when it will be done.
func (p *Plant[T]) begin(now, service time.Duration) time.Duration {
	p.busy++
	crowded := 1 + p.Coherency*float64(p.Waiting())
	if p.Slowest > 0 {
		crowded = min(crowded, p.Slowest)
	}
	takes := float64(service) * p.Slow.At(now, 1) * crowded
	end := now + time.Duration(min(takes, math.MaxInt64/4))
	if o := p.Outage; !p.Rejects && now < o[1] && end > o[0] {
		end += o[1] - max(o[0], now)
	}
	return end
}

// Done ends the work on a request. Then there is a worker for the Next.
func (p *Plant[T]) Done() { p.busy-- }

// Next has an idle worker begin with the request that waits first, and returns its
// name and when it will be done; false if no worker is idle or no request waits. The
// engine must call it after Done until it returns false.
func (p *Plant[T]) Next(now time.Duration) (name T, end time.Duration, ok bool) {
	if p.busy < p.Workers && p.Waiting() > 0 {
		next := p.wait[p.head]
		p.wait[p.head] = call[T]{}
		if p.head++; p.head > 1024 && p.head > len(p.wait)/2 {
			p.wait = p.wait[:copy(p.wait, p.wait[p.head:])]
			p.head = 0
		}
		return next.name, p.begin(now, next.service), true
	}
	return name, 0, false
}

// Latency returns how long a response that leaves at now is on its way to the shield.
func (p *Plant[T]) Latency(now time.Duration) time.Duration {
	return time.Duration(p.Delay.At(now, 0) * float64(time.Second))
}

// Lose forgets all that is worked on and all that waits, as the first instant of a
// Restart does. The engine knows whose these were, and must not call Done for them.
func (p *Plant[T]) Lose() {
	clear(p.wait)
	p.busy, p.head, p.wait = 0, 0, p.wait[:0]
}

func (p *Plant[T]) Busy() int { return p.busy }

// Waiting returns how many requests wait, those too whose clients have gone.
func (p *Plant[T]) Waiting() int { return len(p.wait) - p.head }
