package sim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
)

// A Scenario is one herd, and what is around it. Times are since the herd's
// first moment.
type Scenario struct {
	Name string
	Seed uint64

	// The herd: Clients that begin within Within, up to 2^30.
	Clients int
	Within  time.Duration
	Mix     clients.Population // the herd's policies, and the strangers'

	// Strangers arrive at Background per second, since Warmup before the herd.
	// A Warmup of 0 means 2 minutes.
	Background float64
	Warmup     time.Duration

	Delay   time.Duration // of the network, each way
	Service Service       // how long the backend takes for a request

	Config  shield.Config // the server's; Capacity or Concurrency must be set
	Changes []Change      // in the order of their times

	// Until ends the run if the herd is not served before. 0 means ten times
	// what it takes at best. So do MaxRequests that have been decided on: a
	// million clients who come back every second are more than anybody waits
	// for. 0 means no end.
	Until       time.Duration
	MaxRequests int

	// Bin, if not 0, asks for a Series of so long Bins, at most maxBins. The run
	// then goes on to Until, though nobody waits any more.
	Bin time.Duration
}

// Varied is a Policy whose clients ask for something else at each attempt, so that
// a server cannot tell that it is one. The Policy says when they come back.
type Varied struct{ clients.Policy }

func (v Varied) String() string { return fmt.Sprintf("%v, varied", v.Policy) }

// A Service is how long the backend takes: exactly Mean, or exponentially
// distributed around it.
type Service struct {
	Mean        time.Duration
	Exponential bool
}

// A Change happens to the server at a time: a reload with Config. With Restart
// nothing is remembered.
type Change struct {
	At      time.Duration
	Config  shield.Config
	Restart bool
}

const (
	maxClients    = 1 << 30
	defaultWarmup = 2 * time.Minute

	// maxBins bounds what a Series may take, 1.6 MB. Ours: almost three hours of
	// tenths of a second.
	maxBins = 100_000
)

// check returns an error that names everything that is wrong.
func (s *Scenario) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Clients < 0 || s.Clients > maxClients {
		bad("%d clients; want 0 to %d", s.Clients, maxClients)
	}
	if !(s.Background >= 0 && s.Background <= 1e6) {
		bad("background is %v per second; want 0 to 1e6", s.Background)
	}
	for _, d := range []struct {
		name string
		is   time.Duration
	}{{"within", s.Within}, {"warmup", s.Warmup}, {"delay", s.Delay}, {"service", s.Service.Mean}, {"until", s.Until}, {"bin", s.Bin}} {
		if d.is < 0 || d.is > 1000*time.Hour {
			bad("%s is %v; want 0 to 1000h", d.name, d.is)
		}
	}
	errs = append(errs, s.Mix.Check())
	before := time.Duration(0)
	for i, c := range s.Changes {
		if c.At < before {
			bad("change %d is at %v; want %v or later", i, c.At, before)
		}
		before = max(before, c.At)
	}
	if s.Until == 0 && len(errs) == 1 && errs[0] == nil && s.optimum(s.Clients) > 100*time.Hour {
		bad("the herd is never served, or very late; want Until")
	}
	return errors.Join(errs...)
}

// rate returns what the backend can do per second under c.
func (s *Scenario) rate(c shield.Config) float64 {
	rate := math.Inf(1)
	if c.Capacity.Rate > 0 {
		rate = c.Capacity.Rate
		if c.Capacity.Per > 0 {
			rate /= c.Capacity.Per.Seconds()
		}
	}
	if c.Concurrency > 0 && s.Service.Mean > 0 {
		rate = min(rate, float64(c.Concurrency)/s.Service.Mean.Seconds())
	}
	return rate
}

// optimum returns how long it takes to serve n clients of the herd as a fluid
// that is there at once, and for which there is the rate that the strangers
// leave: the least possible, but for bursts.
func (s *Scenario) optimum(n int) time.Duration {
	left, at, rate := float64(n), 0.0, s.rate(s.Config)-s.Background
	for _, c := range s.Changes {
		next := c.At.Seconds()
		if rate > 0 && left <= rate*(next-at) {
			break
		}
		left -= max(0, rate) * (next - at)
		at, rate = next, s.rate(c.Config)-s.Background
	}
	const forever = 1e9
	if left > 0 {
		if at += left / max(0, rate); !(at < forever) {
			at = forever
		}
	}
	return time.Duration(at * float64(time.Second))
}
