package sim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
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

	// Plant is the backend: workers and a queue. A request then takes what Service
	// says by itself, all attempts of one client the same. nil means a backend that
	// works on all requests at once.
	Plant *plant.Config

	// Timeout is how long a client waits for the answer to an attempt, Patience how
	// long after its first attempt it begins another. 0 means for ever.
	Timeout, Patience time.Duration

	// SaysTimeout: all requests tell the server their Timeout. SaysRetry: all that are
	// retries say so. A Share may say that its own do.
	SaysTimeout, SaysRetry bool

	// Classes names the class of the requests of each share of the Mix; "" or a
	// class that the server does not know means its default. nil means all the default.
	Classes []string

	Config  shield.Config // the server's
	Changes []Change      // in the order of their times

	// Replicas is how many servers there are before the backend, each with the same
	// Config, at most maxReplicas. Each request goes to one of them at random. 0
	// means 1.
	Replicas int

	// Until ends the run if the herd is not served before. 0 means ten times
	// what it takes at best. So do MaxRequests that have been decided on: a
	// million clients who come back every second are more than anybody waits
	// for. 0 means no end.
	Until       time.Duration
	MaxRequests int

	// Bin, if not 0, asks for a Series of so long Bins, at most maxBins. The run
	// then goes on to Until, though nobody waits any more.
	Bin time.Duration

	// Progress, if set, is called about once per virtual second with the time since
	// the run's first moment, and when the run is to end at the latest.
	Progress func(now, end time.Duration)

	// Stop, if closed, ends the run with what it has so far.
	Stop <-chan struct{}
}

// Varied is a Policy whose clients ask for something else at each attempt, so that
// a server cannot tell that it is one. The Policy says when they come back.
type Varied struct{ clients.Policy }

func (v Varied) String() string { return fmt.Sprintf("%v, varied", v.Policy) }

// A Service is how long the backend takes by itself: exactly Mean, or
// exponentially distributed around it.
type Service struct {
	Mean        time.Duration
	Exponential bool
}

// A Change happens to the server at a time: a reload with Config. With Restart
// nothing is remembered, and the connections of those in the queue break. Replica is
// to which of several replicas it happens: 1 is the first; 0 means all of them.
type Change struct {
	At      time.Duration
	Config  shield.Config
	Restart bool
	Replica int
}

const (
	maxClients    = 1 << 30
	defaultWarmup = 2 * time.Minute

	// maxBins bounds what a Series may take, 1.6 MB. Ours: almost three hours of
	// tenths of a second.
	maxBins = 100_000

	// maxReplicas bounds the memory of what each of them remembers. Ours: more
	// than anybody puts before one backend that needs protection.
	maxReplicas = 64
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
	}{{"within", s.Within}, {"warmup", s.Warmup}, {"delay", s.Delay}, {"service", s.Service.Mean}, {"until", s.Until}, {"bin", s.Bin}, {"timeout", s.Timeout}, {"patience", s.Patience}} {
		if d.is < 0 || d.is > 1000*time.Hour {
			bad("%s is %v; want 0 to 1000h", d.name, d.is)
		}
	}
	errs = append(errs, s.Mix.Check())
	if s.Replicas < 0 || s.Replicas > maxReplicas {
		bad("%d replicas; want 1 to %d", s.Replicas, maxReplicas)
	}
	if n := int64(s.Clients) * int64(s.Replicas); n > maxClients {
		bad("%d clients of %d replicas; want their product to be at most %d", s.Clients, s.Replicas, maxClients)
	}
	if s.Plant != nil {
		if err := s.Plant.Check(); err != nil {
			bad("plant: %w", err)
		}
		if s.Service.Mean == 0 {
			bad("service is 0, with a plant; want how long its workers take")
		}
	}
	if s.Classes != nil && len(s.Classes) != len(s.Mix) {
		bad("%d classes for a mix of %d; want one each", len(s.Classes), len(s.Mix))
	}
	if s.SaysTimeout && s.Timeout == 0 {
		bad("clients say their timeout, but there is none")
	}
	before := time.Duration(0)
	for i, c := range s.Changes {
		if c.At < before {
			bad("change %d is at %v; want %v or later", i, c.At, before)
		}
		if c.Replica < 0 || c.Replica > max(1, s.Replicas) {
			bad("change %d is of replica %d; want 1 to %d, or 0 for all", i, c.Replica, max(1, s.Replicas))
		}
		before = max(before, c.At)
	}
	if s.Until == 0 && errors.Join(errs...) == nil && s.optimum(s.Clients) > 100*time.Hour {
		bad("the herd is never served, or very late; want Until")
	}
	return errors.Join(errs...)
}

// rate returns what the servers let through to the backend per second, each with
// its config of these, or what the backend does if that is less.
func (s *Scenario) rate(configs []shield.Config) float64 {
	sum := 0.0
	for _, c := range configs {
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
		sum += rate
	}
	if s.Plant != nil && s.Service.Mean > 0 {
		sum = min(sum, float64(s.Plant.Workers)/s.Service.Mean.Seconds())
	}
	return sum
}

// optimum returns how long it takes to serve n clients of the herd as a fluid
// that is there at once, and for which there is the rate that the strangers
// leave: the least possible, but for bursts, and with a Plant that is always well.
func (s *Scenario) optimum(n int) time.Duration {
	configs := make([]shield.Config, max(1, s.Replicas))
	for i := range configs {
		configs[i] = s.Config
	}
	left, at, rate := float64(n), 0.0, s.rate(configs)-s.Background
	for _, c := range s.Changes {
		next := c.At.Seconds()
		if rate > 0 && left <= rate*(next-at) {
			break
		}
		left -= max(0, rate) * (next - at)
		for i := range configs {
			if c.hits(i) {
				configs[i] = c.Config
			}
		}
		at, rate = next, s.rate(configs)-s.Background
	}
	const forever = 1e9
	if left > 0 {
		if at += left / max(0, rate); !(at < forever) {
			at = forever
		}
	}
	return time.Duration(at * float64(time.Second))
}

// hits reports whether the change happens to the i-th replica, from 0.
func (c *Change) hits(i int) bool { return c.Replica == 0 || c.Replica == i+1 }
