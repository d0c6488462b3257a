package share_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// faultSeeds is how many random series of faults are played: the tables have 150.
var faultSeeds = flag.Int("faults", 2, "")

// Asks and answers are lost or late; replicas are killed, frozen, cut off and new; the store is gone for all, flushed, or
// begins anew. No client ever has more than its limit and one token for each replica; one request,
// where the part of a replica is less than that.
func TestQuotasInAnyFault(t *testing.T) {
	worst, used := 0.0, 0.0
	for seed := range *faultSeeds {
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		replicas := 2 + seed*4%15
		burst := []int{1, 4, 10, 20, 60, 200}[r.IntN(6)]
		s := newQuotaSim(t, 10, time.Second, burst, 1+r.IntN(min(burst, 3)), replicas)
		s.guess = replicas
		log := fmt.Sprintf("%d replicas, burst %d, cost %d:", replicas, burst, s.cost)
		cut, frozen := make([]time.Duration, replicas), make([]time.Duration, replicas)
		most := float64(replicas)
		if burst/(2*replicas) < s.cost {
			most *= float64(s.cost)
		}
		storeGone, chaos := time.Duration(0), []float64{0, 0.02, 0.2}[r.IntN(3)]
		s.gone = func(now time.Duration, i int) bool { return now < storeGone || now < cut[i] || r.Float64() < chaos/2 }
		s.slow = func() time.Duration {
			if r.Float64() < chaos {
				return time.Duration(r.IntN(300)) * time.Millisecond
			}
			return time.Millisecond
		}
		load := quotaLoad{keys: 40, zipf: 0.9, rate: 300, balance: []string{"even", "sticky", "90% to one", "moving"}[r.IntN(4)]}
		for range 20 {
			i, d := r.IntN(replicas), time.Duration(r.IntN(8000))*time.Millisecond
			event := "nothing"
			switch r.IntN(9) {
			case 0:
				s.start(i)
				event = fmt.Sprintf("%d is killed", i)
			case 1:
				cut[i] = s.now + d
				event = fmt.Sprintf("%d is cut off for %v", i, d)
			case 2:
				frozen[i] = s.now + d
				s.replicas[i].frozen = frozen[i]
				event = fmt.Sprintf("%d is frozen for %v", i, d)
			case 3:
				storeGone = s.now + d
				event = fmt.Sprintf("gone for %v", d)
			case 4:
				s.store.Flush()
				event = "flushed"
			case 5:
				load.rate = 100 + 2000*r.Float64()*r.Float64()
				event = fmt.Sprintf("%.0f/s", load.rate)
			}
			log += fmt.Sprintf(" %v %s;", s.now, event)
			load.length = time.Duration(500+r.IntN(1500)) * time.Millisecond
			s.play(load)
			if s.worst > most {
				break
			}
		}
		t.Logf("%s\n%s", log, s)
		worst, used = max(worst, s.worst/float64(s.cost)/float64(replicas)), used+s.share()/float64(*faultSeeds)
		if s.worst > most {
			t.Errorf("seed %d: %.2f tokens beyond the limit of a client, want %v at most\n%s now %v", seed, s.worst, most, log, s.now)
		}
	}
	t.Logf("the worst is %.2f requests for each replica; %.3f is used on average", worst, used)
}
