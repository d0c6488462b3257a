package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
)

// Replicas that share a concurrency limit never have more in flight than it, and use it: as
// much as one replica does of the same demand, which is six times what there is permit
// for. Demand is everywhere, or in one replica and moves each 3 s. Where nine tenths are in
// one, the others keep what their demand may need in the next moment.
func TestReplicasShareConcurrency(t *testing.T) {
	t.Parallel()
	const service, demand = 100 * time.Millisecond, 6
	n, lasts := 12, 3*time.Second
	if *full {
		n, lasts = 48, 20*time.Second
	}
	play := func(seed uint64, replicas int, balance string) (served float64, most int) {
		s := Scenario{
			Seed: seed, Clients: 1, Mix: clients.All(clients.GiveUp{}), Warmup: lasts, Until: lasts, Bin: 100 * time.Millisecond,
			Background: demand * float64(n) / service.Seconds(), Service: Service{Mean: service},
			Config: shield.Config{Concurrency: n}, Replicas: replicas, Balance: balances(balance, replicas),
		}
		if replicas > 1 {
			s.Store = &Store{}
		}
		admitted := 0
		var r *run
		r, err := newRun(s, func(c shield.Config) (Server, error) {
			server, err := Guard(c)
			if err == nil {
				server.(*Guarded).Decided = func(d shield.Decision) {
					if d.Admit {
						most = max(most, r.backend.Busy()+r.backend.Waiting()+1)
						if d.At() > lasts/2 {
							admitted++
						}
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
		return float64(admitted) * service.Seconds() / (lasts * 3 / 2).Seconds() / float64(n), most
	}
	seeds := uint64(1)
	if *full {
		seeds = 5
	}
	for seed := range seeds {
		one, _ := play(seed, 1, "random")
		for _, replicas := range []int{2, 4, 8} {
			for _, balance := range []string{"random", "skewed", "moving"} {
				if (replicas != 4 || balance != "moving") && !*full {
					continue
				}
				used, most := play(seed, replicas, balance)
				t.Logf("%d replicas, balance %q: %.3f of the limit used, one replica %.3f; at most %d in flight", replicas, balance, used, one, most)
				least := .95
				if balance == "skewed" {
					least = .9
				}
				if most > n || used < least*one {
					t.Errorf("want at most %d in flight, and %v of one replica's", n, least)
				}
			}
		}
	}
}
