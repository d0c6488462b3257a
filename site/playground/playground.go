// Package playground plays one herd against a limiter, for the playground of the documentation: wasm/
// is it for browsers, and element.js shows it. The backend, the clients and the arithmetic are those of
// loadtest/sim; with [Appointments] the limiter is the real shield.Guard.
package playground

import (
	"fmt"
	"math"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// What a limiter sends to rejected clients.
const (
	Fixed        = "fixed"        // Retry-After: 1 to all of them
	Random       = "random"       // Retry-After: 1 to 10, drawn for each
	Appointments = "appointments" // shield
)

// Controls are what a visitor sets.
type Controls struct {
	Clients    int     // 1 to 5,000 come within 100 ms
	Capacity   float64 // requests/s that the backend can serve, and that the limiter lets through: 10 to 1,000
	Obey       float64 // the share of clients that honor Retry-After, 0 to 1
	RetryAfter string  // Fixed, Random or Appointments
}

// An Outcome is what came of a herd.
type Outcome struct {
	Served, GaveUp int
	Until          float64 // seconds until all were served; 0: some never were
	PerClient      float64 // requests

	// Arrived and Done are requests in each Step of so many seconds: at the limiter, and served by the backend.
	Step          float64
	Arrived, Done []int32
}

const (
	step     = 100 * time.Millisecond
	attempts = 6
)

// Play plays a herd. The same Controls have the same Outcome, always.
func Play(c Controls) (Outcome, error) {
	makers := map[string]sim.Maker{
		Fixed: sim.FixedHint(1),
		Random: sim.Telling(func() sim.Rule {
			return func(_, _ time.Duration, r sim.Request) int { return 1 + int(10*r.U) }
		}),
		Appointments: sim.Guard,
	}
	maker := makers[c.RetryAfter]
	switch {
	case maker == nil:
		return Outcome{}, fmt.Errorf("unknown Retry-After %q; use %s, %s or %s", c.RetryAfter, Fixed, Random, Appointments)
	case c.Clients < 1 || c.Clients > 5000:
		return Outcome{}, fmt.Errorf("clients is %d; use 1 to 5000", c.Clients)
	case !(c.Capacity >= 10 && c.Capacity <= 1000):
		return Outcome{}, fmt.Errorf("capacity is %v; use 10 to 1000", c.Capacity)
	case !(c.Obey >= 0 && c.Obey <= 1):
		return Outcome{}, fmt.Errorf("obey is %v; use 0 to 1", c.Obey)
	}
	workers := int(math.Ceil(c.Capacity / 10))
	r, err := sim.Run(sim.Scenario{
		Seed: 1, Clients: c.Clients, Within: 100 * time.Millisecond, Mix: mix(c.Obey),
		Warmup: step, // nobody comes before the herd
		Delay:  5 * time.Millisecond, Timeout: 5 * time.Second,
		Service: sim.Service{Mean: time.Duration(float64(workers) / c.Capacity * float64(time.Second))},
		Plant:   &plant.Config{Workers: workers},
		Config:  shield.Config{Capacity: limiter.Config{Rate: c.Capacity}},
		Until:   time.Hour, Bin: step,
	}, maker)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Served: r.Served, GaveUp: r.Clients - r.Served, PerClient: float64(r.Requests) / float64(r.Clients), Step: step.Seconds()}
	if r.Served == r.Clients {
		out.Until = r.Drained.Seconds()
	}
	for i, b := range r.Series[1:] { // behind the Warmup
		if b.Herd.Came > 0 || b.Served > 0 {
			out.Arrived = append(out.Arrived, make([]int32, i+1-len(out.Arrived))...)
			out.Done = append(out.Done, make([]int32, i+1-len(out.Done))...)
			out.Arrived[i], out.Done[i] = b.Herd.Came, b.Served
		}
	}
	return out, nil
}

// mix returns clients of which a share obeys. All of them try six times at most, as curl --retry 5 does. Those that do
// not read Retry-After have the backoff of most libraries instead: 1, 2, 4, 8 and 16 s, of which up to a half is random.
func mix(obey float64) (p clients.Population) {
	client := clients.Client{
		On: clients.Lost | clients.Server | clients.S408 | clients.S429, Attempts: attempts,
		Own: clients.EqualJitter(time.Second, time.Minute),
	}
	if obey < 1 {
		p = append(p, clients.Share{Weight: 1 - obey, Policy: client})
	}
	client.Reads, client.Obeys = clients.Seconds, clients.S429|clients.S503
	if obey > 0 {
		p = append(p, clients.Share{Weight: obey, Policy: client})
	}
	return p
}
