package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// An openLoop is a stream of new clients before eight workers, and what became of them.
type openLoop struct {
	Scenario
	from, to time.Duration // since the run's first moment: what is counted

	asked, rejected int
	work            float64 // seconds of work whose answer came in time
}

func (o *openLoop) play(t *testing.T, seed uint64) {
	t.Helper()
	o.asked, o.rejected, o.work = 0, 0, 0
	o.Seed, o.Bin = seed, time.Second
	o.Ended = func(e Ended) {
		if e.At < o.from || e.At >= o.to {
			return
		}
		o.asked++
		switch e.How {
		case Rejected:
			o.rejected++
		case Answered:
			service := o.service(uint8(e.Share))
			o.work += service.Mean.Seconds()
		}
	}
	if _, err := Run(o.Scenario, nil); err != nil {
		t.Fatal(err)
	}
}

// A backend that is dead for ten seconds is used again within five of its return: clients
// that try again do not keep it down, as they do where nothing is before it, and no limit
// stays low.
func TestDeadUpstreamReturns(t *testing.T) {
	const dead, back, load = 20 * time.Second, 30 * time.Second, 0.6
	hangs := plant.Config{Workers: 8, Outage: [2]time.Duration{dead, back}}
	unreachable := plant.Config{Workers: 8, Restart: [2]time.Duration{dead, back}}
	drains := plant.Config{Workers: 8, Outage: [2]time.Duration{dead, back}, Rejects: true, RetryAfter: 5 * time.Second}
	adaptive := shield.Config{Adaptive: &loadshed.AdaptiveConfig{}}
	for _, c := range []struct {
		name        string
		config      shield.Config
		plant       plant.Config
		least, most float64 // of what comes, served from 5 to 15 s after its return
	}{
		{"nothing, hangs", shield.Config{}, hangs, 0, .1},
		{"concurrency 12, hangs", shield.Config{Concurrency: 12}, hangs, .95, 2},
		{"concurrency 12, cannot be reached", shield.Config{Concurrency: 12}, unreachable, .95, 2},
		{"adaptive, hangs", adaptive, hangs, .95, 2},
		{"adaptive, cannot be reached", adaptive, unreachable, .95, 2},
		{"adaptive, asks to be left alone", adaptive, drains, .95, 2},
	} {
		seeds := seedsOf(10, 2)
		served := 0.
		for _, seed := range seeds {
			o := openLoop{from: back + 6*time.Second, to: back + 16*time.Second}
			o.Mix = clients.All(clients.MaxAttempts{N: 4, Policy: clients.Ignore{}})
			o.Clients, o.Warmup, o.Until, o.Timeout = 1, time.Second, back+16*time.Second, 2*time.Second
			o.Service, o.Background = Service{Mean: 50 * ms, Exponential: true}, load*160
			o.Plant, o.Config = &c.plant, c.config
			o.play(t, seed)
			served += o.work / 10 / 8 / load / float64(len(seeds))
		}
		t.Logf("%s: %.2f of what comes is served 5 to 15 s after its return", c.name, served)
		if served < c.least || served > c.most {
			t.Errorf("%s: %.2f of what comes is served 5 to 15 s after its return, want %v to %v", c.name, served, c.least, c.most)
		}
	}
}
