package shield

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A court is a stage on which each decision is checked.
type court struct {
	*stage
	t        *testing.T
	promised map[limiter.Key]promised
	slots    []time.Duration
	admitted []time.Duration
	spare    float64 // the largest that was
	share    float64 // the least that was
}

// promised is when a client was told to come, which is its time rounded up, and whether that was a slot.
type promised struct {
	at, time time.Duration
	slot     bool
}

func newCourt(t *testing.T, c Config) *court {
	s := &court{stage: newStage(t, c, 1000, 5*ms, 1), t: t, promised: map[limiter.Key]promised{}, share: 1}
	s.admit, s.jitter = s.judge, 0
	return s
}

// judge checks a decision.
func (c *court) judge(now time.Duration, r Request) Decision {
	t, b, limit := c.t, c.g.backend, c.g.capacity
	t.Helper()
	burst, level := limit.Burst(), b.capacity.Level(limit, now)
	told, known := c.promised[r.Client]
	due := known && now >= told.at
	made := b.Stats(0).Promises.Made
	d := c.g.Admit(now, r)
	stats := b.Stats(now)
	c.spare, c.share = max(c.spare, c.g.Spare()), min(c.share, stats.KeptShare)
	if d.Queued() { // for a token that is earned soon: it goes on then
		if !known || now < told.time || d.Until() > now+max(tokenWait, min(limit.Interval(), slowestToken)) {
			t.Errorf("%v: it waits until %v", now, d.Until())
		}
		c.admitted = append(c.admitted, d.Until())
		return d
	}
	if d.Admit {
		if level < 1 {
			t.Errorf("%v: admitted without a token", now)
		}
		c.admitted = append(c.admitted, now)
		return d
	}

	// (2) Only clients that come too early are rejected what is not needed.
	switch {
	case d.Reason == Early && due:
		t.Errorf("%v: a client that comes when it was told is too early: %+v", now, d)
	case d.Reason == Early:
	case d.Reason != Capacity:
		t.Errorf("%v: rejected for %v", now, d.Reason)
	case level >= burst, !known && level > 0, due && level > burst*9/10, due && told.slot && level > 0:
		t.Errorf("%v: rejected although %d tokens of %d are left: %+v %+v", now, level, burst, told, d)
	}

	// (3) The times told.
	lo, hi := c.g.terms.Responses.Bounds()
	seconds := time.Duration(d.Hint.Seconds) * time.Second
	all := d.Hold + seconds
	switch {
	case seconds < max(lo, time.Second) || seconds > min(hi, 99*time.Second):
		t.Errorf("%v: Retry-After %d, want %v to %v", now, d.Hint.Seconds, lo, hi)
	case d.Hint.Ms > d.Hint.Seconds*1000 || d.Hint.Ms <= (d.Hint.Seconds-1)*1000:
		t.Errorf("%v: %d ms in %d s", now, d.Hint.Ms, d.Hint.Seconds)
	case d.Hold < 0 || d.Hold >= time.Second:
		t.Errorf("%v: held for %v", now, d.Hold)
	case d.Hold > 0 && all != d.Wait:
		t.Errorf("%v: held for %v and told %d s, for a slot in %v", now, d.Hold, d.Hint.Seconds, d.Wait)
	case d.Reason != Early && (all < d.Wait || all >= max(lo+1, d.Wait+time.Second)):
		t.Errorf("%v: %v in all, for a slot in %v", now, all, d.Wait)
	}
	slot := stats.Promises.Made > made
	if slot {
		c.slots = append(c.slots, now+d.Wait)
	}
	c.promised[r.Client] = promised{now + all, now + d.Wait, slot}
	return d
}

// excess returns the largest of n − rate·τ over all times τ, n those within.
func excess(at []time.Duration, rate float64) (worst float64) {
	slices.Sort(at)
	least := math.Inf(1)
	for i, t := range at {
		least = min(least, float64(i)-rate*t.Seconds())
		worst = max(worst, float64(i+1)-rate*t.Seconds()-least)
	}
	return worst
}

// Random traffic: herds, trickles, new clients and those who do not listen. Every
// decision keeps the laws.
func TestLawsOfEveryDecision(t *testing.T) {
	for seed := range seedsOf(25, 5) {
		rng := rand.New(rand.NewPCG(seed, 4))
		rate := 20 * math.Pow(10, rng.Float64()*1.2)
		most := time.Duration(5+rng.IntN(55)) * time.Second
		cfg := Config{
			Capacity: perSecond(rate, 1+rng.IntN(int(rate))),
			Pushback: pushback.ResponseConfig{Min: time.Duration(1+rng.IntN(3)) * time.Second, Max: most, NoDither: seed%7 == 6},
			Retries:  Retries{Lenient: seed%5 == 4},
		}
		c := newCourt(t, cfg)
		begin := time.Duration(rng.Int64N(int64(100 * time.Hour)))
		var all []*patron
		for range 1 + rng.IntN(4) { // herds
			at := begin + time.Duration(rng.Int64N(int64(20*time.Second)))
			all = append(all, c.crowd(at, 100*ms, rng.IntN(int(rate*most.Seconds())), 0, false)...)
		}
		for _, v := range all {
			v.hasty = rng.IntN(10) == 0 && seed%2 == 0
		}
		c.often(begin, begin+time.Minute, rate/2, func(now time.Duration) {
			v := c.newcomer(0)
			all = append(all, v)
			c.visit(now, v)
		})
		c.play(begin + time.Hour)
		if f := fateOf(begin, all); f.served < f.of {
			t.Errorf("an hour later %v", f)
		}
		if got := excess(c.admitted, rate); got > float64(cfg.Capacity.Burst)+1e-3 {
			t.Errorf("%.2f were admitted above the rate, want at most the burst of %d", got, cfg.Capacity.Burst)
		}
		// (1) Those who are excused may use what the plan leaves free.
		s := c.spare / 0.98 / c.share
		if got := excess(c.slots, s); got > s/4+2 {
			t.Errorf("%.2f slots above %.4g per second (share %.2f), want at most a bucket of %.2f and one", got, s, c.share, s/4)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, cfg)
		}
	}
}

// A herd of clients that do as they are told: first come, first served; none is
// rejected when it comes; all are served in the time that the rate needs.
func TestHerdIsServedInOrderAndInTime(t *testing.T) {
	for _, test := range []struct {
		n          int
		rate       float64
		burst, max int
		tries      float64 // on the average
	}{
		{2_500, 100, 10, 59, 2.01}, {100, 10, 1, 30, 2.01}, {5_000, 100, 10, 59, 2.3}, {5_000, 100, 10, 30, 2.9},
		{400, 5, 5, 10, 9}, {20_000, 1000, 100, 10, 4}, {3, 0.05, 1, 30, 4},
	} {
		c := newCourt(t, Config{Capacity: perSecond(test.rate, test.burst), Pushback: pushback.ResponseConfig{Max: time.Duration(test.max) * time.Second}})
		const begin = 100 * time.Second
		all := c.crowd(begin, 100*ms, test.n, 0, false)
		c.play(begin + 24*time.Hour)
		f := fateOf(begin, all)
		st := c.g.backend.Stats(begin + f.last)
		if float64(test.n) < c.spare*float64(test.max-2) { // the herd fits into the line
			if !slices.IsSorted(c.slots) {
				t.Errorf("%+v: the slots are not in the order of the rejections", test)
			}
			if st.Broken != 0 || st.KeptShare != 1 {
				t.Errorf("%+v: %d clients were rejected when they came, share %v", test, st.Broken, st.KeptShare)
			}
		}
		fluid := float64(test.n-test.burst) / test.rate
		t.Logf("%+v: %v; %.2f × the optimum; %+v", test, f, f.last.Seconds()/fluid, st.Promises)
		if limit := fluid/0.97 + float64(test.max); f.served < test.n || f.last.Seconds() > limit || f.requests > test.tries {
			t.Errorf("%+v: %v; want all, within N/s and the horizon: %.1f s", test, f, limit)
		}
	}
}
