package sim

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// NewClients come at the rate of the step that is under way, and requests of a share
// take as long as its Service says.
func TestRatesAndServices(t *testing.T) {
	s := Scenario{
		Seed: 5, Background: 50, Rates: plant.Steps{{From: 10 * time.Second, Value: 0}, {From: 20 * time.Second, Value: 400}},
		Warmup: 10 * time.Second, Until: 30 * time.Second, Bin: time.Second, Timeout: time.Minute,
		Mix:      clients.Population{{Weight: 3, Policy: clients.GiveUp{}}, {Weight: 1, Policy: clients.GiveUp{}}},
		Services: []Service{{Mean: 10 * ms}, {Mean: 40 * ms, Lognormal: 2}},
		Plant:    &plant.Config{Workers: 1000},
	}
	var count, sum, squares [2]float64
	s.Ended = func(e Ended) {
		if e.How != Answered || e.Herd || e.Attempt != 1 {
			t.Fatalf("%+v; want an answer to a new client's first request", e)
		}
		took := e.Took.Seconds()
		count[e.Share]++
		sum[e.Share] += took
		squares[e.Share] += took * took
	}
	r, err := Run(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	came := func(from, to int) (n float64) {
		for _, b := range r.Series[from:to] {
			n += float64(b.NewClients.Came)
		}
		return n
	}
	for _, w := range []struct {
		from, to int
		want     float64
	}{{0, 20, 1000}, {20, 30, 0}, {30, 40, 4000}} {
		if n := came(w.from, w.to); math.Abs(n-w.want) > 4*math.Sqrt(w.want) {
			t.Errorf("%.0f came from second %d to %d, want about %.0f", n, w.from, w.to, w.want)
		}
	}
	if n := int(count[0] + count[1]); n != r.Answered || r.Answered+r.Open != r.Decided {
		t.Errorf("%d were said to be answered, %d were, and %d were open of %d", n, r.Answered, r.Open, r.Decided)
	}
	if share := count[1] / (count[0] + count[1]); math.Abs(share-0.25) > 0.03 {
		t.Errorf("%.3f were of the second share, want a quarter", share)
	}
	mean := [2]float64{sum[0] / count[0], sum[1] / count[1]}
	spread := math.Sqrt(squares[1]/count[1]-mean[1]*mean[1]) / mean[1]
	if math.Abs(mean[0]-0.01) > 1e-9 || math.Abs(mean[1]-0.04) > 0.008 || spread < 1.2 || spread > 3 {
		t.Errorf("they took %.4f and %.4f s on average, the latter ± %.1f times; want 0.01, 0.04 and 2", mean[0], mean[1], spread)
	}
}
