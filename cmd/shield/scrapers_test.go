package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// The config at the top of docs/guides/scrapers.md does what its comments say: crawlers that name themselves get
// what visitors leave free, and visitors need not wait. Without their class, all wait alike.
func TestScrapersWaitForVisitors(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindStringSubmatch(read(t, "../../docs/guides/scrapers.md"))
	config := shields(t, "Caddyfile", block[1])[0].Config
	play := func(class string) (visitors sim.PolicyResult, crawlers int) {
		s := sim.Scenario{ // the backend takes 50/s; for a minute 30/s visitors and 60/s crawlers come
			Seed: 1, Clients: 5400, Within: time.Minute, Warmup: time.Second, Until: time.Minute,
			Mix:     clients.Population{{Weight: 1, Policy: clients.Exact{}}, {Weight: 2, Policy: clients.Exact{}}},
			Classes: []string{"", class},
			Service: sim.Service{Mean: 200 * time.Millisecond, Exponential: true}, Plant: &plant.Config{Workers: 10},
			Config: config,
		}
		out, err := sim.Run(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out.Policies[0], out.Policies[1].Served
	}
	alike, before := play("")
	first, after := play("crawlers")
	if first.Waits[500] > time.Second/2 || first.Waits[900] > time.Second || alike.Waits[500] < 10*time.Second {
		t.Errorf("visitors wait %v, one in ten %v; want a second at most, and ten and more without classes: %v", first.Waits[500], first.Waits[900], alike.Waits[500])
	}
	if float64(after) > .75*float64(before) || after < 1000 {
		t.Errorf("%d crawlers are served in their class, and %d without; want less than three quarters, and not nothing", after, before)
	}
}
