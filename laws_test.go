package shield

import (
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A visitor is a client that comes at a time.
type visitor struct {
	at    time.Duration
	key   limiter.Key
	tries int
	due   bool // it comes when it was told
	slot  bool // what it was told was a slot
	quick bool // it does not do what it is told
}

// A court plays visitors against a Guard in virtual time, and checks the laws of
// each decision.
type court struct {
	t        *testing.T
	c        Config
	s        *State
	g        *Guard
	queue    agenda[visitor]
	slots    []time.Duration
	admitted []time.Duration
	spare    float64 // the largest that was
	share    float64 // the least that was
	served   map[limiter.Key]visitor
}

func newCourt(t *testing.T, c Config) *court {
	s := new(State)
	return &court{t: t, c: c, s: s, g: mustNew(t, c, s), share: 1, served: map[limiter.Key]visitor{}}
}

var wholeSeconds = regexp.MustCompile(`^[1-9][0-9]?$`)

// ask plays one visit.
func (c *court) ask(v visitor) Decision {
	t, b := c.t, c.g.backend
	t.Helper()
	limit := c.g.capacity
	has := func(tokens int) bool {
		claim, wait := b.capacity.Claim(limit, v.at, tokens)
		claim.Release()
		return wait == 0
	}
	burst := limit.Burst()
	all, third := has(burst), has(1+burst*3/10)
	nine, one := has(1+burst*9/10), has(1)
	stranger := v.tries == 0
	v.due = v.due && !stranger
	before := b.Stats(0).Promises
	d := c.g.Admit(v.at, Request{Client: v.key})
	stats := b.Stats(v.at)
	after, share := stats.Promises, stats.KeptShare
	c.spare, c.share = max(c.spare, c.g.Spare()), min(c.share, share)
	if d.Admit {
		if !one {
			t.Errorf("%v: admitted without a token", v.at)
		}
		c.admitted = append(c.admitted, v.at)
		d.Done(v.at, Served)
		return d
	}

	// (2) Only clients that come too early are refused what is not needed.
	switch {
	case d.Reason == Early && v.due:
		t.Errorf("%v: a client that comes when it was told is too early: %+v", v.at, d)
	case d.Reason == Early:
	case d.Reason != Capacity:
		t.Errorf("%v: refused for %v", v.at, d.Reason)
	case all || stranger && third || v.due && nine || v.due && v.slot && one:
		t.Errorf("%v: refused although tokens are left (all %v, 9/10 %v, 3/10 %v, one %v): %+v %+v", v.at, all, nine, third, one, v, d)
	}

	// (3) The times told.
	lo, hi := c.g.terms.Answers.Bounds()
	told := d.Hold + time.Duration(d.Hint.Seconds)*time.Second
	switch {
	case !wholeSeconds.MatchString(strconv.Itoa(d.Hint.Seconds)), time.Duration(d.Hint.Seconds)*time.Second > hi, time.Duration(d.Hint.Seconds)*time.Second < lo:
		t.Errorf("%v: Retry-After %d, want %v to %v", v.at, d.Hint.Seconds, lo, hi)
	case d.Hint.Ms > d.Hint.Seconds*1000 || d.Hint.Ms <= (d.Hint.Seconds-1)*1000:
		t.Errorf("%v: %d ms in %d s", v.at, d.Hint.Ms, d.Hint.Seconds)
	case d.Hold < 0 || d.Hold >= time.Second:
		t.Errorf("%v: held for %v", v.at, d.Hold)
	case d.Hold > 0 && told != d.Wait:
		t.Errorf("%v: held for %v and told %d s, for a slot in %v", v.at, d.Hold, d.Hint.Seconds, d.Wait)
	case d.Reason != Early && (told < d.Wait || told >= max(lo+1, d.Wait+time.Second)):
		t.Errorf("%v: %v in all, for a slot in %v", v.at, told, d.Wait)
	}
	if d.Hold > 0 {
		d.Sent()
	}
	if after.Made > before.Made {
		c.slots = append(c.slots, v.at+d.Wait)
	}
	return d
}

// play lets all visitors come, and come again as they were told, until the end.
// A quick one comes every second.
func (c *court) play(end time.Duration) {
	for c.queue.len() > 0 && c.queue.next() < end && !c.t.Failed() {
		_, v := c.queue.pop()
		before := c.g.backend.Stats(0).Promises
		d := c.ask(v)
		v.tries++
		if d.Admit {
			c.served[v.key] = v
			continue
		}
		after := c.g.backend.Stats(0).Promises
		v.due, v.slot = !v.quick, after.Made > before.Made
		v.at += d.Hold + time.Duration(d.Hint.Seconds)*time.Second
		if v.quick {
			v.at = v.at - time.Duration(d.Hint.Seconds)*time.Second + time.Second
		}
		c.come(v)
	}
}

func (c *court) come(v visitor) { c.queue.push(v.at, v) }

// excess returns the largest of n − rate·τ over all times τ, n those within.
func excess(at []time.Duration, rate float64) (worst float64) {
	at = slices.Sorted(slices.Values(at))
	least := math.Inf(1)
	for i, t := range at {
		least = min(least, float64(i)-rate*t.Seconds())
		worst = max(worst, float64(i+1)-rate*t.Seconds()-least)
	}
	return worst
}

// Random traffic: herds, trickles, strangers and those who do not listen. Every
// decision keeps the laws.
func TestLawsOfEveryDecision(t *testing.T) {
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 4))
		rate := 20 * math.Pow(10, rng.Float64()*1.2)
		most := time.Duration(5+rng.IntN(55)) * time.Second
		cfg := Config{
			Capacity: perSecond(rate, 1+rng.IntN(int(rate))),
			Pushback: pushback.AnswerConfig{Min: time.Duration(1+rng.IntN(3)) * time.Second, Max: most, NoDither: seed%7 == 6},
			Retries:  Retries{Lenient: seed%5 == 4},
		}
		c := newCourt(t, cfg)
		begin := time.Duration(rng.Int64N(int64(100 * time.Hour)))
		key := limiter.Key(1)
		for range 1 + rng.IntN(4) { // herds
			at := begin + time.Duration(rng.Int64N(int64(20*time.Second)))
			for range rng.IntN(int(rate * most.Seconds())) {
				key++
				c.come(visitor{at: at + time.Duration(rng.Int64N(int64(100*ms))), key: key, quick: rng.IntN(10) == 0 && seed%2 == 0})
			}
		}
		for at := begin; at < begin+time.Minute; at += time.Duration(rng.ExpFloat64() * 2 / rate * float64(time.Second)) {
			key++
			c.come(visitor{at: at, key: key})
		}
		c.play(begin + time.Hour)
		if c.queue.len() > 0 || len(c.served) != int(key-1) {
			t.Errorf("%d of %d clients were served, %d still wait after an hour", len(c.served), key-1, c.queue.len())
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
// refused when it comes; all are served in the time that the rate needs.
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
		c := newCourt(t, Config{Capacity: perSecond(test.rate, test.burst), Pushback: pushback.AnswerConfig{Max: time.Duration(test.max) * time.Second}})
		begin := 100 * time.Second
		for i := range test.n {
			c.come(visitor{at: begin + time.Duration(i)*100*ms/time.Duration(test.n), key: limiter.Key(i + 1)})
		}
		c.play(begin + 24*time.Hour)
		var last time.Duration
		tries := 0
		for key := limiter.Key(1); key <= limiter.Key(test.n); key++ {
			v, ok := c.served[key]
			if !ok {
				t.Fatalf("%+v: client %d was not served in a day", test, key)
			}
			tries += v.tries
			last = max(last, v.at-begin)
		}
		st := c.g.backend.Stats(begin + last)
		fits := float64(test.n) < c.spare*float64(test.max-2)
		if fits {
			for i := 1; i < len(c.slots); i++ {
				if c.slots[i] < c.slots[i-1] {
					t.Fatalf("%+v: the slot of refusal %d is %v, the one before it %v", test, i, c.slots[i], c.slots[i-1])
				}
			}
			if st.Broken != 0 || st.KeptShare != 1 {
				t.Errorf("%+v: %d clients were refused when they came, share %v", test, st.Broken, st.KeptShare)
			}
		}
		fluid := float64(test.n-test.burst) / test.rate
		if limit := fluid/0.97 + float64(test.max); last.Seconds() > limit {
			t.Errorf("%+v: the last was served after %v, want N/s and the horizon: %.1f s", test, last, limit)
		}
		mean := float64(tries) / float64(test.n)
		if mean > test.tries {
			t.Errorf("%+v: %.2f requests per client", test, mean)
		}
		t.Logf("%+v: served in %.2f × the optimum with %.3f requests each; %+v", test, last.Seconds()/fluid, mean, st.Promises)
	}
}

// Many at once, while the Config changes: the laws of what is told hold, and the
// counts add up.
func TestReloadsUnderConcurrentUse(t *testing.T) {
	s := new(State)
	cfg := Config{Capacity: perSecond(500, 50), Concurrency: 100, Zones: []Zone{{Name: "z", Limit: perSecond(5, 3)}}}
	guards := []*Guard{mustNew(t, cfg, s)}
	for _, n := range []int{1 << 12, 1 << 15, 1 << 13} {
		cfg.Retries.MaxClients = n
		cfg.Capacity.Rate += 100
		guards = append(guards, mustNew(t, cfg, s))
	}
	var wg sync.WaitGroup
	const workers, each = 8, 3_000
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 6))
			for i := range each {
				g := guards[rng.IntN(len(guards))]
				key := limiter.Key(1 + rng.IntN(2_000))
				now := time.Duration(i) * 2 * ms
				d := g.Admit(now, Request{Keys: []limiter.Key{key}, Client: key})
				switch {
				case d.Admit:
					d.Done(now+ms, Served)
				case d.Hint.Seconds < 1 || d.Hint.Seconds > 30 || d.Hold < 0 || d.Hold >= time.Second:
					t.Errorf("%+v", d)
				case d.Hold > 0:
					d.Sent()
				}
			}
		})
	}
	wg.Go(func() {
		c := cfg
		for i := range 30 {
			c.Retries.MaxClients = 1 << (12 + i%4)
			if _, err := New(c, s); err != nil {
				t.Error(err)
			}
			s.Backend.Clients()
			r := Request{Keys: []limiter.Key{3000}, Client: 3000}
			guards[0].Explain(time.Second, r)
			guards[0].Forgive(time.Second, r)
		}
	})
	wg.Wait()
	st := s.Backend.Stats(each * 2 * ms)
	sum := st.Admitted
	for _, n := range st.Refused {
		sum += n
	}
	if sum != workers*each || st.InFlight != 0 || st.Held != 0 {
		t.Errorf("%d requests: %+v", workers*each, st)
	}
}
