package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

func TestFewDbg(t *testing.T) {
	s := newStage(t, Config{Concurrency: 8}, 8, 50*time.Millisecond, 1)
	const begin, end = time.Hour, time.Hour + 30*time.Second
	adm, early, other, served := 0, 0, 0, 0
	s.often(begin, end, 800, func(now time.Duration) {
		r := Request{Client: limiter.Key(1 + s.random.IntN(1000)), Fingerprint: 7}
		r.Fingerprint = limiter.Key(s.random.Uint64())
		s.ask(now, r, func(at time.Duration) { served++ }, func(_ time.Duration, d Decision) {
			if d.Reason == Early {
				early++
			} else {
				other++
			}
		})
		adm++
	})
	for at := begin; at < end; at += time.Second {
		s.play(at)
		t.Logf("%v asked %d served %d early %d other %d rate %.0f inflight %d %s", at-begin, adm, served, early, other, s.g.Rate(), s.g.backend.inFlight.InFlight(), s.g.backend.Dump())
		adm, early, other, served = 0, 0, 0, 0
	}
}
