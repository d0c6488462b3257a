package sim

import (
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// The setting of this project's own scenarios.
const (
	rate       = 100 // of the backend, per second
	burst      = 10
	background = 50 // new clients per second

	fifth      = 200 * time.Millisecond
	halfMinute = 30 * time.Second
	longest    = 59 * time.Second

	fits    = "2,500, max 59s" // the herd that is served within the longest Retry-After
	noShows = "30% never return"
)

// config is the server's, with the longest Retry-After; 0 means the default of
// 30 s.
func config(rate float64, max time.Duration) shield.Config {
	return shield.Config{
		Capacity: limiter.Config{Rate: rate, Burst: burst},
		Pushback: pushback.ResponseConfig{Max: max},
	}
}

// Herd returns the scenario that all others are variations of: n clients within
// 0.1 s, who honor whole seconds exactly. The backend does 100 per second, with a
// burst of 10, and 50 new clients come per second. max is the longest Retry-After; 0
// means the default of 30 s.
func Herd(name string, n int, max time.Duration) Scenario {
	return Scenario{
		Name: name, Clients: n, Within: 100 * time.Millisecond, Mix: clients.All(clients.Exact{}),
		Background: background, Config: config(rate, max),
	}
}

// Herds returns the scenarios that this project makes appointments about, but for
// those with cheats.
func Herds() []Scenario {
	late := Herd("70% exact, 20% late, 10% ignore", 5000, 0)
	late.Mix = clients.Population{
		{Weight: 0.7, Policy: clients.Exact{}},
		{Weight: 0.2, Policy: clients.Late{By: 0.2}},
		{Weight: 0.1, Policy: clients.Ignore{}},
	}
	never := Herd(noShows, 5000, 0)
	never.Mix = clients.Population{
		{Weight: 0.6, Policy: clients.Exact{}},
		{Weight: 0.1, Policy: clients.Late{By: 0.2}},
		{Weight: 0.3, Policy: clients.GiveUp{}},
	}
	slow := Herd("over 5 s", 5000, 0)
	slow.Within = 5 * time.Second
	less := Herd("capacity -25% at 30 s", 5000, 0)
	less.Changes = []Change{{At: 30 * time.Second, Config: config(0.75*rate, 0)}}
	restart := Herd("restart at 30 s", 5000, 0)
	restart.Changes = []Change{{At: 30 * time.Second, Config: restart.Config, Restart: true}}
	reload := Herd("reload at 30 s", 5000, 0)
	reload.Changes = []Change{{At: 30 * time.Second, Config: reload.Config}}
	four := Herd("2,500 who try 4 times, max 59s", 2500, longest)
	four.Mix = clients.All(clients.MaxAttempts{N: 4, Policy: clients.Exact{}})
	return []Scenario{
		Herd(fits, 2500, longest),
		Herd("5,000, max 59s", 5000, longest),
		Herd("5,000, max 30s", 5000, halfMinute),
		late, never, slow, less, restart, reload, four,
		Herd("20,000, max 59s", 20_000, longest),
		Herd("20,000, max 30s", 20_000, halfMinute),
	}
}

// Cheats returns the scenarios in which a share of the herd of 5,000 comes back at a rate
// of its own, whatever it is told; of the last two, it also asks for something else each
// time, so as not to be known for it. Its Mix is the honest share, and theirs.
func Cheats() []Scenario {
	var out []Scenario
	for _, c := range []struct {
		name   string
		share  float64
		policy clients.Policy
	}{
		{"10% hammer every 1s", 0.1, clients.Hammer{Gap: time.Second}},
		{"10% hammer every 200ms", 0.1, clients.Hammer{Gap: fifth}},
		{"50% hammer every 1s", 0.5, clients.Hammer{Gap: time.Second}},
		{"50% hammer every 200ms", 0.5, clients.Hammer{Gap: fifth}},
		{"2% hammer every 200ms", 0.02, clients.Hammer{Gap: fifth}},
	} {
		out = append(out, cheat(c.name, c.share, c.policy))
	}
	return out
}

// cheat is one of Cheats.
func cheat(name string, share float64, p clients.Policy) Scenario {
	s := Herd(name, 5000, 0)
	s.Mix = clients.Population{{Weight: 1 - share, Policy: clients.Exact{}}, {Weight: share, Policy: p}}
	return s
}
