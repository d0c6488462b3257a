package live

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// HerdConfig describes a herd: many clients that want one answer each, and retry as most
// programs do. They obey Retry-After exactly, and wait a fixed time where there is none.
type HerdConfig struct {
	URL     string        // of every request, a GET over HTTP/1.1
	Clients int           // 1 to 20000; each may hold one socket here
	Window  time.Duration // the time within which the clients start, evenly spaced: 0 to 1m

	// Seed, unless it is 0, starts the clients at random times in Window instead: a
	// Poisson process, given how many come. It makes background traffic of a herd.
	Seed uint64

	// FirstAddress gives each client an address in X-Forwarded-For, counting from
	// this one. IPv4; the zero Addr sends none.
	FirstAddress netip.Addr

	// Connected opens the connections of first attempts before the run starts, so
	// that many can come within a moment.
	Connected bool

	Timeout    time.Duration // of one attempt: more than 0, at most 10m
	RetryDelay time.Duration // after a failure without Retry-After; the same for all clients and attempts
	Attempts   int           // of one client at most: 1 to 1000

	// Patience is how long after its first attempt a client may still begin another:
	// 0 to 1h. Every run ends within Window + Patience + Timeout, and with Connected
	// within one Timeout more.
	Patience time.Duration
}

// plain is the policy of a herd. It adds no jitter of its own: that is the worst case
// for the server.
type plain struct{ delay time.Duration }

func (p plain) Next(r clients.Refused) (time.Duration, bool) {
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	return p.delay, true
}

// A Herd is a [Load] that comes together, once. It is safe for concurrent use, except that
// Run must be called only once.
type Herd struct{ load *Load }

// Result is what the clients of a Herd have met with so far.
//
// Served + GaveUp + Trying() = Clients at every moment, and
// Attempts = TimedOut + Unreachable + all Answers.
type Result struct {
	Clients     int
	Served      int           // clients that got a 2xx
	GaveUp      int           // clients that went away without
	Attempts    int           // requests that ended; one cut off by the end of Run's context is not counted
	Answers     map[int]int   // attempts by HTTP status
	TimedOut    int           // attempts without a complete answer in time
	Unreachable int           // attempts whose connection was refused or broken
	Sent        []int         // requests begun in each tenth of a second of the run
	LastCame    time.Duration // from the start of the run until the last client so far had sent its first request
	LastServed  time.Duration // from the start of the run until the last client so far was served
}

// Drained returns the time until the last client was served. It is false if one
// was not: the time of the last success would flatter a backend that died early.
func (r Result) Drained() (time.Duration, bool) { return r.LastServed, r.Served == r.Clients }

// PerSuccess returns how many requests were sent for each client served: 0 if
// none was.
func (r Result) PerSuccess() float64 {
	return (&Tally{Requests: r.Attempts, Served: r.Served}).PerSuccess()
}

// Trying returns how many clients are neither served nor have given up. After
// Run it is 0 unless the context ended first.
func (r Result) Trying() int { return r.Clients - r.Served - r.GaveUp }

// NewHerd returns a herd that is ready to Run.
func NewHerd(c HerdConfig) (*Herd, error) {
	target, err := NewTarget(context.Background(), c.URL, true)
	if err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	load, err := NewLoad(LoadConfig{
		Target: target, Connected: c.Connected, Herd: c.Clients, Within: c.Window, Even: c.Seed == 0, Seed: c.Seed,
		Mix: clients.All(plain{c.RetryDelay}), Timeout: c.Timeout, Patience: c.Patience, Attempts: c.Attempts,
		FirstAddress: c.FirstAddress, Requests: MaxRequests,
	})
	if err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	return &Herd{load}, nil
}

// Run starts the clients and returns when each of them is served or has given
// up, or when ctx ends. All its goroutines have ended then.
func (h *Herd) Run(ctx context.Context) Result {
	h.load.Run(ctx)
	return h.Result()
}

// Result returns a copy of the counts so far, for use while Run is on.
func (h *Herd) Result() Result {
	r := h.load.Result()
	all := r.All
	answers := map[int]int{}
	for label, n := range all.Answers {
		status, _ := strconv.Atoi(label) // a number, as HTTP's are
		answers[status] = n
	}
	return Result{
		Clients: h.load.cfg.Herd, Served: all.Served, GaveUp: all.GaveUp, Attempts: all.Requests - all.CutOff,
		Answers: answers, TimedOut: all.TimedOut, Unreachable: all.Unreachable,
		Sent: r.Tenths, LastCame: r.HerdCame, LastServed: all.LastServed,
	}
}
