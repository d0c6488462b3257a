package shield

import (
	"github.com/herdshield/shield/limiter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// 800 clients at capacity 100/s burst 10, 10 % poll every second whatever they are told.
func TestPollers(t *testing.T) {
	var so, sp, so9, sp9 float64
	const seeds = 20
	for seed := range uint64(seeds) {
		s := newStage(t, Config{Capacity: perSecond(100, 10)}, 1000, 5*ms, seed)
		rnd := rand.New(rand.NewPCG(seed, 99))
		var wait [2][]time.Duration
		for i := range 800 {
			key := limiter.Key(s.random.Uint64())
			born := time.Hour + time.Duration(rnd.Float64()*float64(100*ms))
			if i%10 == 0 {
				var poll func(now time.Duration)
				done := false
				poll = func(now time.Duration) {
					if done {
						return
					}
					s.ask(now, Request{Client: key, Fingerprint: 7}, func(at time.Duration) {
						if !done {
							done = true
							wait[1] = append(wait[1], at-born)
						}
					}, func(at time.Duration, d Decision) {
						s.at(at+time.Second+time.Duration(rnd.ExpFloat64()*float64(5*ms)), poll)
					})
				}
				s.at(born, poll)
				continue
			}
			p := &patron{key: key, kind: 7}
			p.served = func(at time.Duration) { wait[0] = append(wait[0], at-born) }
			s.at(born, func(now time.Duration) { s.visit(now, p) })
		}
		s.play(time.Hour + 2*time.Minute)
		for i := range wait {
			slices.Sort(wait[i])
		}
		m := func(i int, q float64) float64 { return wait[i][int(q*float64(len(wait[i])-1))].Seconds() }
		so += m(0, .5) / seeds
		sp += m(1, .5) / seeds
		so9 += m(0, .95) / seeds
		sp9 += m(1, .95) / seeds
	}
	t.Logf("obedient p50 %.2f p95 %.2f; pollers p50 %.2f p95 %.2f", so, so9, sp, sp9)
}
