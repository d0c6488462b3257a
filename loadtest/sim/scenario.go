package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// A Scenario is one herd, and what is around it. Times are since the herd's first moment. What plays
// users' scenarios, as shield simulate, checks that their numbers make sense.
type Scenario struct {
	Name string
	Seed uint64

	// The herd: Clients that begin at random within Within, up to 2^30.
	Clients int
	Within  time.Duration
	Mix     clients.Population // the herd's policies, and the new clients'

	// NewClients arrive at Background per second, as a Poisson process, since Warmup before
	// the herd; 0 means 2 minutes. From each step of Rates on, its value is the rate instead.
	Background float64
	Rates      plant.Steps
	Warmup     time.Duration

	// NewClientsMix has the new clients' policies; nil means the Mix. Its shares are counted
	// after those of the Mix.
	NewClientsMix clients.Population

	// Addresses is how many addresses the herd's clients share, NewClientsAddresses how many
	// the new clients do: a server takes the clients of one address for one. 0: each has its
	// own.
	Addresses, NewClientsAddresses int

	// Calls is how many requests a client wants to be served, one after the other: a task. It is
	// served when all are, and goes away when it gives one of them up. At most 255; 0 means 1.
	// What a Result says of one client's requests is then of its last call.
	Calls int

	Delay time.Duration // of the network, each way

	// Service is how long the backend takes for a request. Services, if not nil, says it for
	// each share of the mixes instead.
	Service  Service
	Services []Service

	// Plant is the backend: Service is then what a request takes when it is alone, all
	// attempts of a call the same. nil means a backend that works on all at once.
	Plant *plant.Config

	// Timeout is how long a client waits for the answer to an attempt, Patience how long
	// after its first attempt it begins another. 0: for ever.
	Timeout, Patience time.Duration

	// Classes names the class of the requests of each share of the mixes. nil, "" or a class
	// that the server does not know means its default.
	Classes []string

	// Cost is what requests that are served cost on average in zones that settle that, exponentially distributed. 0: it is not
	// told, and what was taken is the cost.
	Cost float64

	Config  shield.Config // the server's
	Changes []Change      // in the order of their times

	// Replicas is how many servers there are before the backend, at most 256; 0
	// means 1. Each request goes to the one that Balance says, by the time since the herd came,
	// the number of its client and of the attempt, from 1 on; nil means any of them.
	Replicas int
	Balance  func(now time.Duration, client, attempt int) int

	// Store joins the replicas: they share all that a Config can share. nil: they know nothing
	// of each other.
	Store *Store

	// Until ends the run if the herd is not served before; 0 means ten times what it takes
	// at best. So do MaxRequests that have been decided on; 0 means no end.
	Until       time.Duration
	MaxRequests int

	// Bin, if not 0, asks for a Series of so long Bins. The run then goes on
	// to Until, though no client waits any more.
	Bin time.Duration

	// Ended, if set, is told how each request has ended for its client. Calls are not in the
	// order of their instants: a rejection that is held back is told when it is decided.
	Ended func(Ended)

	// Progress, if set, is called about once per virtual second with the time since the
	// run's first moment, and when the run is to end at the latest.
	Progress func(now, end time.Duration)
}

// A Service is the distribution of how long a worker takes that has nothing else to
// do: exactly Mean, Exponential around it, or log-normal.
type Service struct {
	Mean        time.Duration
	Exponential bool
	Lognormal   float64 // the coefficient of variation of log-normal times, at most 100; 0: none
}

// at returns the time that a share u of all times is below.
func (s Service) at(u float64) time.Duration {
	switch {
	case s.Exponential:
		return time.Duration(-math.Log1p(-u) * float64(s.Mean))
	case s.Lognormal > 0:
		variance := math.Log1p(s.Lognormal * s.Lognormal)
		normal := math.Sqrt2 * math.Erfinv(max(2*u-1, -1+1e-15))
		return time.Duration(math.Exp(math.Sqrt(variance)*normal-variance/2) * float64(s.Mean))
	}
	return s.Mean
}

func (s *Scenario) service(share uint8) Service {
	if len(s.Services) > 0 {
		return s.Services[share]
	}
	return s.Service
}

// mixes returns the shares of the herd, and then those of the new clients if they have others.
func (s *Scenario) mixes() clients.Population { return slices.Concat(s.Mix, s.NewClientsMix) }

func (s *Scenario) meanService() time.Duration {
	if s.Services == nil {
		return s.Service.Mean
	}
	sum, weights := 0.0, 0.0
	for i, of := range s.Mix {
		sum += of.Weight * float64(s.Services[i].Mean)
		weights += of.Weight
	}
	return time.Duration(sum / weights)
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

const defaultWarmup = 2 * time.Minute

// rate returns what the servers let through to the backend per second at an instant, or
// what the backend does if that is less.
func (s *Scenario) rate(at time.Duration) float64 {
	service := s.meanService().Seconds()
	sum := 0.0
	for i := range max(1, s.Replicas) {
		config := &s.Config
		for j := range s.Changes {
			if c := &s.Changes[j]; c.At <= at && c.hits(i) {
				config = &c.Config
			}
		}
		rate := math.Inf(1)
		if capacity := config.Capacity; capacity.Rate > 0 {
			rate = capacity.Rate / cmp.Or(capacity.Per, time.Second).Seconds()
		}
		if config.Concurrency > 0 && service > 0 {
			rate = min(rate, float64(config.Concurrency)/service)
		}
		if s.Store != nil { // they have one limit
			sum = max(sum, rate)
		} else {
			sum += rate
		}
	}
	if s.Plant != nil && service > 0 {
		sum = min(sum, float64(s.Plant.Workers)/service)
	}
	return sum
}

// optimum returns how long it takes to serve n clients of the herd as a fluid that is there
// at once, at the rate that the new clients leave: the least possible, but for bursts, and
// with a Plant that is always well.
func (s *Scenario) optimum(n int) time.Duration {
	const never = 1e9 * time.Second
	instants := []time.Duration{0, never} // at which anything changes
	for _, c := range s.Changes {
		instants = append(instants, c.At)
	}
	for _, step := range s.Rates {
		instants = append(instants, max(0, step.From))
	}
	slices.Sort(instants)
	instants = slices.Compact(instants)
	if n == 0 {
		return 0
	}
	left := float64(n)
	for i, at := range instants[:len(instants)-1] {
		rate := s.rate(at) - s.Rates.At(at, s.Background)
		could := rate * (instants[i+1] - at).Seconds()
		if rate > 0 && left <= could {
			return at + time.Duration(left/rate*float64(time.Second))
		}
		left -= max(0, could)
	}
	return never
}

func (c *Change) hits(i int) bool { return c.Replica == 0 || c.Replica == i+1 }
