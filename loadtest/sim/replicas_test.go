package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share/virtual"
)

// balances returns what spreads requests over n replicas: random to any, other never to the one that
// rejected the client before, skewed nine tenths to the first, moving all to one for 3 s, and then to
// the next.
func balances(name string, n int) func(now time.Duration, client, attempt int) int {
	return map[string]func(now time.Duration, client, attempt int) int{
		"other": func(_ time.Duration, client, attempt int) int { return (client + attempt) % n },
		"skewed": func(_ time.Duration, client, attempt int) int {
			if draw := int(key(uint64(client)<<8+uint64(attempt)) >> 8); draw%10 == 0 {
				return 1 + draw/10%(n-1)
			}
			return 0
		},
		"moving": func(now time.Duration, _, _ int) int { return int(now/(3*time.Second)+1<<20) % n },
	}[name]
}

// replicated is a herd before a backend that takes 100 per second.
func replicated(seed uint64, herd, replicas int, balance string) Scenario {
	s := Scenario{
		Seed: seed, Clients: herd, Within: 100 * time.Millisecond, Mix: clients.All(clients.Exact{}), Until: 400 * time.Second,
		Config:   shield.Config{Capacity: limiter.Config{Rate: 100, Burst: 10}, Pushback: pushback.ResponseConfig{Max: 59 * time.Second}},
		Replicas: replicas, Balance: balances(balance, replicas),
	}
	if s.Warmup = defaultWarmup; !*full {
		s.Warmup = 5 * time.Second // most exchanges with the store are of quiet replicas
	}
	if replicas > 1 {
		s.Store = &Store{New: func() Unit { return virtual.New() }}
	}
	return s
}

// A shareRun is what a run says of its replicas.
type shareRun struct {
	Result
	refused uint64  // of the clients that came when they were told to
	busiest int     // admitted in one second since the herd began
	excess  float64 // the most that were admitted beyond burst + rate * time
}

func playReplicas(t *testing.T, s Scenario) shareRun {
	t.Helper()
	var admitted []time.Duration
	var state *shield.State // of the last replica
	r, err := newRun(s, func(c shield.Config) (Server, error) {
		server, err := Guard(c)
		if err == nil {
			state = server.(*Guarded).State
			server.(*Guarded).Decided = func(d shield.Decision) {
				if d.Admit {
					admitted = append(admitted, d.At())
				}
			}
		}
		return server, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	p := shareRun{Result: r.result(), refused: state.Backend.Stats(s.Warmup + s.Until).Broken}
	slices.Sort(admitted)
	first, level, last := 0, float64(s.Config.Capacity.Burst), time.Duration(0)
	for i, at := range admitted {
		level = min(float64(s.Config.Capacity.Burst), level+(at-last).Seconds()*s.Config.Capacity.Rate) - 1
		last = at
		p.excess = max(p.excess, -level)
		for admitted[first] <= at-time.Second {
			first++
		}
		if at >= s.Warmup {
			p.busiest = max(p.busiest, i-first+1)
		}
	}
	return p
}

func TestReplicasShareOneLine(t *testing.T) {
	t.Parallel()
	seeds := uint64(1)
	if *full {
		seeds = 10
	}
	for _, herd := range []int{1000, 5000} {
		for _, background := range []float64{0, 30} {
			if (herd == 5000 || background == 0) && !*full {
				continue
			}
			var one []shareRun
			for seed := range seeds {
				s := replicated(seed+1, herd, 1, "")
				s.Background = background
				one = append(one, playReplicas(t, s))
			}
			t.Logf("%d and %v/s, one replica: %v, %.2f requests, %d in one second", herd, background, one[0].Drained, one[0].PerSuccess(), one[0].busiest)
			for _, n := range []int{2, 4, 8} {
				for _, balance := range []string{"random", "other", "skewed", "moving"} {
					if !*full && (n != 8 || balance != "other") && (n != 2 || balance != "moving") {
						continue // faults have four replicas
					}
					worst, most, busiest, lost, attempts := 0.0, 0.0, 0, 0, 0
					for seed := range seeds {
						s := replicated(seed+1, herd, n, balance)
						s.Background = background
						p := playReplicas(t, s)
						worst = max(worst, p.Drained.Seconds()/one[seed].Drained.Seconds())
						most, busiest = max(most, p.PerSuccess()), max(busiest, p.busiest)
						lost, attempts = max(lost, herd-p.Served), max(attempts, p.MostAttempts)
					}
					is := fmt.Sprintf("%d and %v/s, %d replicas, %q: %.3f of one replica's time, %.2f requests, %d in one second, %d not served, %d attempts of one client",
						herd, background, n, balance, worst, most, busiest, lost, attempts)
					t.Log(is)
					bound, requests := 1.03, 2.1
					if balance == "moving" {
						bound = 1.1
					}
					switch {
					case background > 0 && herd == 5000: // it does not fit into the horizon then
						bound, requests = 1.15, 3.2
					case background > 0:
						// In one of ten seeds one straggler makes it 1.071 and 1.080, where
						// clients never come back to the same of 4 and of 8 replicas.
						bound = 1.1
					}
					if worst > bound || most > requests || busiest > 110+n || lost > 0 || background == 0 && attempts > 4 {
						t.Error("want at most", bound, requests, "requests,", 110+n, "in one second, and all served:", is)
					}
				}
			}
		}
	}
}

// A replica that has a store to itself, which answers at once, serves as one without: as many, as soon, with as few requests, and their
// appointments are kept as well.
func TestOneReplicaIsAsGoodAsNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]shield.Config{
		"capacity": {Capacity: limiter.Config{Rate: 160, Burst: 16}},
		"adaptive": {Adaptive: &loadshed.AdaptiveConfig{}},
		"limit":    {Concurrency: 12, Queue: loadshed.QueueConfig{Size: 20}},
	} {
		for _, addresses := range []int{0, 1} {
			var of [2]shareRun
			for i := range of {
				s := replicated(1, 3600, 1, "")
				s.Within, s.Until, s.Config, s.Addresses = 15*time.Second, time.Minute, c, addresses
				s.Plant, s.Service = &plant.Config{Workers: 8}, Service{Mean: 50 * ms, Exponential: true}
				if i == 1 {
					s.Store = &Store{Trip: time.Microsecond, New: func() Unit { return virtual.New() }}
				}
				of[i] = playReplicas(t, s)
			}
			is := fmt.Sprintf("%s, %d addresses: with a store %d are served in %v, %.2f requests each, %d refused when they were due; without %d in %v, %.2f, %d", name, addresses,
				of[1].Served, of[1].Drained, of[1].PerSuccess(), of[1].refused, of[0].Served, of[0].Drained, of[0].PerSuccess(), of[0].refused)
			if t.Log(is); of[1].Served < 3600 || of[1].PerSuccess() > 1.08*of[0].PerSuccess() || of[1].Drained > of[0].Drained*11/10 || of[1].refused > of[0].refused+180 {
				t.Error(is)
			}
		}
	}
}

// A token for which a client that is due waits is nobody else's: new clients don't get it at another replica either, and the limit holds.
func TestReplicasKeepAppointments(t *testing.T) {
	t.Parallel()
	for n, balance := range map[int]string{2: "other", 4: "skewed", 16: "other"} {
		s := replicated(1, 1800, n, balance)
		s.Within, s.Config.Capacity = 7500*ms, limiter.Config{Rate: 160, Burst: 16} // half as many again as there are tokens
		if p := playReplicas(t, s); p.Broken > 5 || p.excess > float64(min(n, 8)) || p.Served < 1800 {
			t.Errorf("%d replicas, %q: %d appointments broken, %.1f more than the limit, %d served; want at most 5, %d, and all", n, balance, p.Broken, p.excess, p.Served, min(n, 8))
		}
	}
}

// However small the capacity, and however often the store is late, what is admitted beyond the limit doesn't grow with time.
func TestReplicasOfASmallCapacity(t *testing.T) {
	t.Parallel()
	late := []Fault{}
	for at := time.Duration(0); at < 50*time.Second; at += time.Second {
		late = append(late, Fault{From: at, To: at + 500*ms, Trip: 100 * ms})
	}
	for _, c := range []struct {
		rate        float64
		burst, n    int
		faults      []Fault
		most, least int // served in two minutes
	}{
		{rate: 0.1, burst: 1, n: 16, most: 13 + 16, least: 8},
		{rate: 1, burst: 3, n: 4, faults: late, most: 123 + 4, least: 100},
	} {
		s := replicated(1, 300, c.n, "other")
		s.Within, s.Until, s.Mix = 10*time.Second, 2*time.Minute, clients.All(clients.Hammer{Gap: 500 * ms})
		s.Config.Capacity = limiter.Config{Rate: c.rate, Burst: c.burst}
		s.Store.Faults = c.faults
		if p := playReplicas(t, s); p.excess > float64(c.n) || p.Served > c.most || p.Served < c.least {
			t.Errorf("%v/s, %d replicas: %d served, %.1f more than the limit; want %d to %d, and %d", c.rate, c.n, p.Served, p.excess, c.least, c.most, c.n)
		}
	}
}

// In the store each zone and the backend has an account of its own: a second zone with the same limit admits as many.
func TestZonesShareNoAccount(t *testing.T) {
	t.Parallel()
	served := func(zones ...string) int {
		s := replicated(1, 1, 2, "other")
		s.Clients, s.Mix, s.Until, s.Background, s.Addresses = 200, clients.All(clients.Hammer{Gap: time.Second}), 20*time.Second, 0, 1
		s.Config.Capacity = limiter.Config{}
		for _, name := range zones {
			s.Config.Zones = append(s.Config.Zones, shield.Zone{Name: name, Limit: limiter.Config{Rate: 5, Burst: 20}})
		}
		return playReplicas(t, s).Served
	}
	if one, two := served("a"), served("a", "b"); one < 100 || two != one {
		t.Errorf("with one zone %d are served, with two %d; want as many", one, two)
	}
}

// Clients that were given a number while the store was gone keep it when the store is back.
func TestNumbersOutliveTheStore(t *testing.T) {
	t.Parallel()
	n, horizon := 900, 3*time.Second
	if *full {
		n, horizon = 3000, 10*time.Second
	}
	s := replicated(1, n, 4, "random")
	s.Config.Pushback.Max, s.Background = horizon, 30
	s.Store.Faults = []Fault{{From: 50 * time.Millisecond, To: horizon / 2}}
	if p := playReplicas(t, s); p.Drained > 57*horizon/10 || p.MostAttempts > 9 || p.Served < n {
		t.Errorf("%d of %d are served in %v, one of them at attempt %d; want all in %v, and 9", p.Served, n, p.Drained, p.MostAttempts, 57*horizon/10)
	}
}

func TestReplicasInFaults(t *testing.T) {
	t.Parallel()
	const s = time.Second
	gone := func(from, to time.Duration) []Fault { return []Fault{{From: from, To: to}} }
	seeds := uint64(1)
	if *full {
		seeds = 10
	}
	type single struct {
		seed   uint64
		others float64
	}
	ones := map[single]time.Duration{} // when the herd of one replica was done
	for _, tt := range []struct {
		name           string
		faults         []Fault
		background     float64 // others per second
		restart        time.Duration
		random, skewed float64 // most of one replica's time
		excess         float64
		long           bool // it is played with -full only: another row is much like it
	}{
		{name: "none", random: 1.03, skewed: 1.03, excess: 4, long: true},
		{name: "gone before the herd", faults: gone(-20*s, 400*s), random: 1.45, skewed: 4, excess: 4},
		{name: "gone 50 ms into it", faults: gone(50*time.Millisecond, 400*s), random: 1.45, skewed: 4, excess: 4, long: true},
		{name: "gone from 3 s to 6 s", faults: gone(3*s, 6*s), random: 1.35, skewed: 2, excess: 4},
		{name: "20 ms away", faults: []Fault{{From: -20 * s, To: 400 * s, Trip: 20 * time.Millisecond}}, random: 1.35, skewed: 1.7, excess: 4},
		{name: "100 ms slow", faults: []Fault{{From: -20 * s, To: 400 * s, Trip: 100 * time.Millisecond}}, random: 1.5, skewed: 4, excess: 4, long: true},
		{name: "1 s slow", faults: []Fault{{From: -20 * s, To: 400 * s, Trip: time.Second}}, random: 1.45, skewed: 4, excess: 4, long: true},
		{name: "100 ms slow from 3 s to 6 s", faults: []Fault{{From: 3 * s, To: 6 * s, Trip: 100 * time.Millisecond}}, random: 1.35, skewed: 2, excess: 4, long: true},
		{name: "120 ms slow for 200 ms", faults: []Fault{{To: 200 * time.Millisecond, Trip: 120 * time.Millisecond}}, random: 1.2, skewed: 3.5, excess: 4},
		{name: "one cut off from 3 s on", faults: []Fault{{From: 3 * s, To: 400 * s, Replica: 1}}, random: 1.3, skewed: 3.5, excess: 4, long: true},
		{name: "one cut off from 3 s to 8 s", faults: []Fault{{From: 3 * s, To: 8 * s, Replica: 1}}, random: 1.3, skewed: 2.4, excess: 4},
		{name: "flushed after 30 ms", faults: []Fault{{From: 30 * time.Millisecond, Flush: true}}, random: 1.2, skewed: 1.25, excess: 4, long: true},
		{name: "flushed after 3 s", faults: []Fault{{From: 3 * s, Flush: true}}, random: 1.2, skewed: 1.25, excess: 4, long: true},
		{name: "flushed after 3 s, beside others", faults: []Fault{{From: 3 * s, Flush: true}}, background: 30, random: 1.1, skewed: 1.1, excess: 4},
		{name: "one killed after 3 s", restart: 3 * s, random: 1.3, skewed: 1.3, excess: 4},
	} {
		for _, balance := range []string{"random", "skewed"} {
			if (tt.long || balance == "random") && !*full {
				continue
			}
			worst, most, busiest, excess, lost := 0.0, 0.0, 0, 0.0, 0
			for seed := range seeds {
				one := ones[single{seed, tt.background}]
				if one == 0 {
					alone := replicated(seed+1, 1000, 1, "")
					alone.Background = tt.background
					one = playReplicas(t, alone).Drained
					ones[single{seed, tt.background}] = one
				}
				s := replicated(seed+1, 1000, 4, balance)
				s.Background = tt.background
				s.Store.Faults = tt.faults
				if tt.restart > 0 {
					s.Changes = []Change{{At: tt.restart, Config: s.Config, Restart: true, Replica: 1}}
				}
				p := playReplicas(t, s)
				worst, most = max(worst, p.Drained.Seconds()/one.Seconds()), max(most, p.PerSuccess())
				busiest, excess, lost = max(busiest, p.busiest), max(excess, p.excess), max(lost, 1000-p.Served)
			}
			is := fmt.Sprintf("%s, %q: %.2f of one replica's time, %.2f requests, %d in one second, excess %.1f, %d not served", tt.name, balance, worst, most, busiest, excess, lost)
			t.Log(is)
			bound := tt.random
			if balance == "skewed" {
				bound = tt.skewed
			}
			if worst > bound || excess > tt.excess || lost > 0 {
				t.Error("want at most", bound, "and an excess of", tt.excess, "and all served:", is)
			}
		}
	}
}

// A crowd behind one address is one for all replicas, and none of its members loses its
// appointment to where it comes back.
func TestReplicasShareCrowds(t *testing.T) {
	t.Parallel()
	play := func(replicas, addresses int, balance string) shareRun {
		s := replicated(1, 1000, replicas, balance)
		s.Background, s.Addresses = 60, addresses
		return playReplicas(t, s)
	}
	for _, addresses := range []int{1, 10} {
		if addresses == 10 && !*full {
			continue
		}
		one := play(1, addresses, "")
		for _, balance := range []string{"random", "skewed"} {
			if balance == "random" && !*full {
				continue
			}
			p := play(4, addresses, balance)
			is := fmt.Sprintf("%d addresses, %q: %.2f of one replica's time, %.2f requests, %d broken", addresses, balance, p.Drained.Seconds()/one.Drained.Seconds(), p.PerSuccess(), p.Broken)
			if t.Log(is); p.Served < 1000 || p.Drained > one.Drained*105/100 || p.PerSuccess() > 2.1 {
				t.Error("want all served, at most 1.05, and 2.1 requests:", is)
			}
		}
	}
}

// Known clients at one replica do not keep the others' clients waiting: 600 addresses that ask for one and a half times what the backend can do, and never
// come when they are told to, leave those who do as short a line before three replicas as before one, nearly.
func TestReplicasAmongPollers(t *testing.T) {
	t.Parallel()
	play := func(replicas int, balance string) shareRun {
		s := replicated(1, 500, replicas, balance)
		s.Within, s.Warmup, s.Background, s.NewClientsAddresses = 20*time.Second, time.Minute, 150, 600
		s.NewClientsMix = clients.All(clients.GiveUp{})
		return playReplicas(t, s)
	}
	one, p := play(1, ""), play(3, "random")
	is := fmt.Sprintf("%d served in %v, %v before one replica, %.2f requests", p.Served, p.Drained, one.Drained, p.PerSuccess())
	if t.Log(is); p.Served < 500 || p.Drained > 3*one.Drained/2 {
		t.Error("want all, and one and a half times as long:", is)
	}
}
