package main

import (
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
	"github.com/herdshield/shield/pushback"
)

// config admits so many per second, with the longest Retry-After; 0 means the default.
func config(rate float64, longest time.Duration) shield.Config {
	return shield.Config{Capacity: limiter.Config{Rate: rate, Burst: 10}, Pushback: pushback.ResponseConfig{Max: longest}}
}

// herd returns n clients within 0.1 s, who honor whole seconds exactly, and 50 new clients
// per second besides them, before a backend that can do 100 per second.
func herd(name string, n int, longest time.Duration) sim.Scenario {
	return sim.Scenario{
		Name: name, Clients: n, Within: 100 * time.Millisecond, Mix: clients.All(clients.Exact{}),
		Background: 50, Config: config(capacity, longest),
	}
}

// herds are the scenarios of loadtest/sim/herds_test.go.
func herds() []sim.Scenario {
	const at, second = 30 * time.Second, time.Second
	all := []sim.Scenario{
		herd("2,500, max 59s", 2500, 59*second), herd("5,000, max 59s", 5000, 59*second), herd("5,000, max 30s", 5000, 30*second),
	}
	for _, v := range []struct {
		name    string
		mix     clients.Population
		within  time.Duration
		changes []sim.Change
	}{
		{name: "70% exact, 20% late, 10% ignore", mix: clients.Population{
			{Weight: 0.7, Policy: clients.Exact{}}, {Weight: 0.2, Policy: clients.Late{By: 0.2}}, {Weight: 0.1, Policy: clients.Ignore{}},
		}},
		{name: "30% never return", mix: clients.Population{
			{Weight: 0.6, Policy: clients.Exact{}}, {Weight: 0.1, Policy: clients.Late{By: 0.2}}, {Weight: 0.3, Policy: clients.GiveUp{}},
		}},
		{name: "over 5 s", within: 5 * second},
		{name: "capacity -25% at 30 s", changes: []sim.Change{{At: at, Config: config(0.75*capacity, 0)}}},
		{name: "restart at 30 s", changes: []sim.Change{{At: at, Config: config(capacity, 0), Restart: true}}},
		{name: "reload at 30 s", changes: []sim.Change{{At: at, Config: config(capacity, 0)}}},
	} {
		s := herd(v.name, 5000, 0)
		if v.mix != nil {
			s.Mix = v.mix
		}
		s.Within, s.Changes = max(s.Within, v.within), v.changes
		all = append(all, s)
	}
	four := herd("2,500 who try 4 times, max 59s", 2500, 59*second)
	four.Mix = clients.All(clients.MaxAttempts{N: 4, Policy: clients.Exact{}})
	return append(all, four, herd("20,000, max 59s", 20_000, 59*second), herd("20,000, max 30s", 20_000, 30*second))
}

// cheats are the herds of that file of which a part comes back at a rate of its own.
func cheats() (all []sim.Scenario) {
	hammer := func(gap time.Duration) clients.Policy { return clients.Hammer{Gap: gap} }
	for _, c := range []struct {
		name   string
		share  float64
		policy clients.Policy
	}{
		{"10% hammer every 1s", 0.1, hammer(time.Second)},
		{"10% hammer every 200ms", 0.1, hammer(time.Second / 5)},
		{"50% hammer every 1s", 0.5, hammer(time.Second)},
		{"50% hammer every 200ms", 0.5, hammer(time.Second / 5)},
		{"2% hammer every 200ms", 0.02, hammer(time.Second / 5)},
	} {
		s := herd(c.name, 5000, 0)
		s.Mix = clients.Population{{Weight: 1 - c.share, Policy: clients.Exact{}}, {Weight: c.share, Policy: c.policy}}
		all = append(all, s)
	}
	return all
}
