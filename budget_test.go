package shield

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/meter"
)

// tokensZone is a zone of tokens that responses report in the header X-Cost.
func tokensZone(t testing.TB, z Zone) Zone {
	source, err := meter.Parse("header X-Cost")
	if err != nil {
		t.Fatal(err)
	}
	z.Name, z.Unit, z.Settle = "tokens", "tokens", &source
	return z
}

// finish ends a request that has really cost so much.
func (g *Guard) finish(now time.Duration, d *Decision, cost float64) {
	g.settle(now, d.charges, Served, meter.End{Status: http.StatusOK, Header: http.Header{"X-Cost": {fmt.Sprint(cost)}}, Complete: true})
	d.charges = nil
	d.Done(now, Served)
}

// A key of 100 tokens a minute has 20 workers that send requests of 5 to 60 tokens, and wait as long as they are told. The tokens
// that limiters charge after the response let 663 pass in a minute (BerriAI/litellm#18730). Here it is what the bucket allows, and
// nearly all of it. With a guess of a tenth 33 requests pass at once, and the
// key has a debt, which it pays in the next six minutes: what it gets in all is the same.
func TestTokensKeepToTheRate(t *testing.T) {
	for _, c := range []struct {
		name string
		zone Zone
	}{
		{"learned", Zone{AutoCost: true}},
		{"a tenth", Zone{Cost: 3}},
		{"ten times", Zone{Cost: 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(10) {
				z := tokensZone(t, c.zone)
				z.Limit = limiter.Config{Rate: 100, Per: time.Minute}
				s := newStage(t, Config{Zones: []Zone{z}}, 0, 0, seed)
				g, rng := s.g, s.random
				used := make([]float64, 11) // by the minute
				rejected := 0
				var send func(now time.Duration)
				send = func(now time.Duration) {
					d := g.Admit(now, Request{Keys: []limiter.Key{1}, Client: 1, Agent: "python-httpx"})
					if !d.Admit {
						rejected++
						s.at(now+d.Hold+time.Duration(d.Hint.Ms)*time.Millisecond, send)
						return
					}
					cost, took := 5+rng.IntN(56), time.Duration((0.5+2.5*rng.Float64())*float64(time.Second))
					s.at(now+took, func(now time.Duration) {
						used[min(10, now/time.Minute)] += float64(cost)
						g.finish(now, &d, float64(cost))
						send(now)
					})
				}
				for range 20 {
					s.at(time.Duration(rng.IntN(1e9)), send)
				}
				s.play(10*time.Minute - 1)
				first, sum := used[0], 0.
				for _, n := range used[1:10] {
					sum += n
				}
				t.Logf("seed %d: %v in the first minute, %v in the next nine, %d rejections", seed, first, sum, rejected)
				if late := sum < 0.9*900; sum > 1.1*900 || late && c.name != "a tenth" || first+sum < 0.9*1100 || first+sum > 1.1*1100 {
					t.Errorf("seed %d: %v tokens in the first minute, and %v in the next nine; want 810 to 990 there, and 990 to 1210 in all", seed, first, sum)
				}
			}
		})
	}
}
