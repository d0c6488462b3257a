package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// A client that comes before its time is let in if the backend would be idle otherwise,
// and only then.
func TestStandbyTakesWhatIsLost(t *testing.T) {
	g := mustNew(t, Config{Capacity: perSecond(100, 10)}, nil)
	now := time.Minute
	for i := range 2000 { // 1990 have a time
		back(now, g.Admit(now, one(1+i)))
	}
	hammer := func(from, until time.Duration) (admitted int) {
		for i, at := 0, from; at < until; i, at = i+1, at+2*ms {
			if d := g.Admit(at, one(101+i%100)); d.Admit { // each five times per second
				admitted++
				d.Done(at, Served)
			} else if d.Hold > 0 {
				d.Sent()
			}
		}
		return admitted
	}
	if n := hammer(now+150*ms, now+time.Second); n > 2 {
		t.Errorf("%d admitted before any other can have come back", n)
	}
	// No other client comes back: nearly all is lost.
	if n := hammer(now+3*time.Second, now+5*time.Second); n < 180 {
		t.Errorf("%d admitted in two seconds, of a backend that does 100 and has nothing else to do", n)
	}
}

// Clients that never come back are not doubted where no others do: they are refused as
// often as by a token bucket, after a rush of them, too.
func TestClientsOfOneRequestAreServed(t *testing.T) {
	for _, load := range []float64{0.7, 0.9, 1.2} {
		s := newStage(t, Config{Capacity: perSecond(100, 20)}, 1000, 5*ms, 1)
		var bucket limiter.Bucket
		l, err := limiter.New(perSecond(100, 20))
		if err != nil {
			t.Fatal(err)
		}
		asked, refused, plain := 0, 0, 0
		ask := func(now time.Duration) {
			claim, wait := bucket.Claim(l, now, 1)
			if wait == 0 {
				claim.Commit()
			}
			claim.Release()
			counts := now > time.Hour+60*time.Second
			if counts {
				asked++
				if wait > 0 {
					plain++
				}
			}
			s.ask(now, Request{Client: limiter.Key(s.random.Uint64()), Fingerprint: 7}, func(time.Duration) {}, func(time.Duration, Decision) {
				if counts {
					refused++
				}
			})
		}
		s.often(time.Hour, time.Hour+5*time.Minute, 100*load, ask)
		for range 200 {
			s.at(time.Hour+30*time.Second+time.Duration(s.random.Float64()*float64(time.Second)), ask)
		}
		s.play(time.Hour + 5*time.Minute)
		t.Logf("load %v: %.1f %% refused, %.1f %% by a token bucket", load, 100*float64(refused)/float64(asked), 100*float64(plain)/float64(asked))
		if float64(refused) > float64(plain)+0.02*float64(asked) {
			t.Errorf("load %v: %d of %d refused, %d by a token bucket", load, refused, asked, plain)
		}
	}
}
