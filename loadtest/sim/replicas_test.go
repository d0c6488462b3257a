package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// replicated is a herd of 1,000 before a backend that takes 100 per second.
func replicated(seed uint64, replicas int, balance Balance) Scenario {
	s := Scenario{
		Seed: seed, Clients: 1000, Within: 100 * time.Millisecond, Mix: clients.All(clients.Exact{}), Until: 200 * time.Second,
		Config:   shield.Config{Capacity: limiter.Config{Rate: 100, Burst: 10}, Pushback: pushback.AnswerConfig{Max: 59 * time.Second}},
		Replicas: replicas, Balance: balance,
	}
	if replicas > 1 {
		s.Store = &Store{}
		s.Config.Shared, s.Config.Secret = true, []byte("0123456789abcdef")
	}
	return s
}

func TestReplicasShareOneCalendar(t *testing.T) {
	one, err := Run(replicated(1, 1, ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("one: %v, %.2f", one.Drained, float64(one.Requests)/float64(one.Served))
	for _, n := range []int{2, 4, 8} {
		for _, balance := range []Balance{BalanceRandom, BalanceOther, BalanceSkewed, BalanceMoving} {
			s := replicated(1, n, balance)
			r, err := newRun(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.play(); err != nil {
				t.Fatal(err)
			}
			res := r.result()
			t.Logf("%d %-8s: %v (%.2f), %.2f requests, broken %d, served %d, exchanges %d", n, balance, res.Drained, res.Drained.Seconds()/one.Drained.Seconds(), float64(res.Requests)/float64(res.Served), res.Broken, res.Served, r.store.asked)
		}
	}
}
