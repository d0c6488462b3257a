package share_test

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/virtual"
)

// Replicas that become idle leave the burst to the one that is not, whenever it wants it.
func TestIdleReplicasLeaveTheBurst(t *testing.T) {
	for n, burst := range map[int]int{2: 100, 4: 10} {
		limit := must(limiter.New(limiter.Config{Rate: 5, Burst: burst}))
		for _, idle := range []time.Duration{9 * time.Second, 10400 * ms, 10600 * ms, 12 * time.Second} {
			if n == 4 && idle != 10400*ms && *quotaTime < 20*time.Second {
				continue
			}
			f := newFleet(t, n, n)
			f.limit = limit
			for _, r := range f.of {
				r.Link.Set(f.now+r.ahead, share.Limits{Capacity: limit, Replicas: 2})
			}
			ticks := 0
			seldom := func(i int) int { // one per second, to the first replica
				if ticks++; i > 0 || ticks%(1000*n) != 1 {
					return 0
				}
				return 1
			}
			f.run(60*time.Second, seldom)
			f.run(ms, func(i int) int { return min(i, 1) })
			f.run(idle, seldom)
			before := len(f.took)
			f.run(300*ms, func(i int) int { return 1 - min(i, 1) })
			if got := len(f.took) - before; got < burst || f.excess() > float64(n) {
				t.Errorf("%d replicas, %v after a request at the others: %d of a burst of %d are admitted, %.1f more than the limit", n, idle, got, burst, f.excess())
			}
		}
	}
}

// A request may ask what it waits for when the exchange that tells its key is under way already.
func TestAnswerEndsTheWait(t *testing.T) {
	limit := must(limiter.New(limiter.Config{Rate: 10, Burst: 4}))
	e := limiter.NewEscrow(new(limiter.Table), limit, 1, 200_000, 2)
	z, store, now := share.NewZone("a", e), virtual.New(), time.Hour
	store.Do(simStart+now.Milliseconds(), share.LeaseAsk{Me: "b", Seq: 1, Life: 1, N: 2, Alone: true})
	for range 100 {
		if ask, ok := z.Due(now); ok {
			z.Heard(now+ms, now, store.Do(simStart+now.Milliseconds(), ask))
		}
		now += 10 * ms
	}
	const key = 7
	for asks := false; !asks; now += ms {
		z.Use(now)
		c, wait, ask := e.Claim(key, now, 1)
		if asks = ask; wait == 0 {
			c.Commit()
		}
		c.Release()
	}
	ask, ok := z.Due(now)
	if !ok || len(ask.Pools) != 1 {
		t.Fatalf("%v %+v, want an exchange about the key", ok, ask)
	}
	ends := z.Ask(now, key)
	z.Heard(now+ms, now, store.Do(simStart+now.Milliseconds(), ask))
	select {
	case <-ends:
	default:
		t.Error("the request waits for another exchange")
	}
}
