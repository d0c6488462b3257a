package share_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// quotaTime is for how long quotas are played: 20 s are those of the tables.
var quotaTime = flag.Duration("quotas", 4*time.Second, "")

// quotaSim plays replicas that share a zone: their requests, and what goes wrong.
type quotaSim struct {
	world
	limit    limiter.Limit
	cost     int
	trip     time.Duration
	guess    int // what replicas assume until the store has told: how many there are
	replicas []*quotaReplica
	gone     func(now time.Duration, replica int) bool // what it sends, and is sent, is lost
	slow     func() time.Duration                      // a trip; nil: all take as long
	freezes  func(now time.Duration) (until time.Duration)

	requests, admitted, ideal, waited, vain int
	below, belowWaited                      int // requests of keys that have had less than their rate
	one, strict                             map[int]*oneBucket
	worst                                   float64 // most tokens that a key has had beyond burst + rate × t
}

// oneBucket is the law: a bucket for all replicas.
type oneBucket struct{ level, at float64 }

func (b *oneBucket) earn(now, rate, burst float64) {
	b.level, b.at = math.Min(burst, b.level+rate*(now-b.at)), now
}

type quotaReplica struct {
	peer
	escrow *limiter.Escrow
	zone   *share.Zone
}

func newQuotaSim(t testing.TB, rate float64, per time.Duration, burst, cost, replicas int) *quotaSim {
	return newQuotaSimOf(t, must(limiter.New(limiter.Config{Rate: rate, Per: per, Burst: burst})), cost, replicas)
}

func newQuotaSimOf(t testing.TB, limit limiter.Limit, cost, replicas int) *quotaSim {
	t.Helper()
	s := &quotaSim{
		world: world{store: newStore(t)}, limit: limit, cost: cost, trip: time.Millisecond, one: map[int]*oneBucket{}, strict: map[int]*oneBucket{},
	}
	for i := range replicas {
		s.start(i)
	}
	s.run(2 * time.Second)
	return s
}

// start begins a replica, in the place of one that is killed.
func (s *quotaSim) start(i int) {
	r := &quotaReplica{escrow: limiter.NewEscrow(new(limiter.Table), s.limit, s.cost, 200_000, s.guess)}
	r.zone = share.NewZone(fmt.Sprintf("replica %d since %v", i, s.now), r.escrow)
	r.peer = peer{world: &s.world, link: r.zone, trip: func() (time.Duration, bool) {
		trip := s.trip
		if s.slow != nil {
			trip = s.slow()
		}
		way := trip / 2
		if s.freezes != nil {
			way = max(way, s.freezes(s.now+way)-s.now)
		}
		return way, s.gone == nil || !s.gone(s.now, i)
	}}
	r.begin(s.now + time.Duration(i)*time.Millisecond*7)
	if i < len(s.replicas) {
		s.replicas[i].dead = true
		s.replicas[i] = r
	} else {
		s.replicas = append(s.replicas, r)
	}
}

// request is one request for a key at a replica.
func (s *quotaSim) request(index int, key limiter.Key, replica int) {
	now, rate, burst := s.now.Seconds(), s.limit.Rate(), float64(s.limit.Burst())
	if s.one[index] == nil {
		s.one[index], s.strict[index] = &oneBucket{burst, now}, &oneBucket{burst, now}
	}
	s.requests++
	b := s.one[index]
	b.earn(now, rate, burst)
	below := b.level >= burst/2
	if b.level >= float64(s.cost) {
		b.level -= float64(s.cost)
		s.ideal++
	}
	r := s.replicas[replica]
	if s.now < r.frozen {
		return
	}
	ends := s.decide(index, key, r, true)
	if below {
		s.below++
	}
	if ends == nil {
		return
	}
	s.waited++
	if below {
		s.belowWaited++
	}
	deadline := s.now + share.MaxTrip
	var wait func()
	wait = func() {
		select {
		case <-ends:
		default:
			if s.now < deadline {
				s.at(s.now+100*time.Microsecond, wait)
				return
			}
		}
		s.decide(index, key, r, false)
	}
	s.at(s.now+100*time.Microsecond, wait)
}

// decide decides on a request, and returns what it waits for.
func (s *quotaSim) decide(index int, key limiter.Key, r *quotaReplica, first bool) (ends <-chan struct{}) {
	r.zone.Use(s.now)
	c, wait, ask := r.escrow.Claim(key, s.now, s.cost)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	if wait == 0 {
		s.admitted++
		b := s.strict[index]
		b.earn(s.now.Seconds(), s.limit.Rate(), float64(s.limit.Burst()))
		b.level -= float64(s.cost)
		s.worst = math.Max(s.worst, -b.level)
	} else if ask && first {
		ends = r.zone.Ask(s.now, key)
	} else if ask {
		s.vain++
	}
	r.look()
	return ends
}

// A quotaLoad is how requests come.
type quotaLoad struct {
	keys    int
	zipf    float64
	rate    float64
	length  time.Duration
	balance string
}

func (s *quotaSim) play(l quotaLoad) {
	rng := rand.New(rand.NewPCG(1, 2))
	cdf, names, sum := make([]float64, l.keys), make([]limiter.Key, l.keys), 0.0
	for i := range cdf {
		sum += 1 / math.Pow(float64(i+1), l.zipf)
		cdf[i], names[i] = sum, limiter.Key(max(1, rng.Uint64()))
	}
	begun := s.now
	for t := 0.0; ; {
		t += rng.ExpFloat64() / l.rate
		at := begun + time.Duration(t*1e9)
		if at > begun+l.length {
			break
		}
		s.run(at)
		i := sort.SearchFloat64s(cdf, rng.Float64()*sum)
		s.request(i, names[i], l.replica(rng, i, at-begun, len(s.replicas)))
	}
	s.run(s.now + 100*time.Millisecond)
}

// replica returns which of n a request is sent to.
func (l *quotaLoad) replica(rng *rand.Rand, key int, at time.Duration, n int) int {
	switch l.balance {
	case "sticky":
		return key % n
	case "90% to one":
		if n > 1 && rng.Float64() > 0.9 {
			return 1 + rng.IntN(n-1)
		}
		return 0
	case "moving":
		return (key + int(at/(3*time.Second))) % n
	}
	return rng.IntN(n)
}

func (s *quotaSim) String() string {
	per, exchanges, keys := 1000/float64(s.requests), 0, 0
	for _, r := range s.replicas {
		exchanges, keys = exchanges+r.exchanges, keys+r.keys
	}
	return fmt.Sprintf("%.3f of one bucket's; worst excess %.3f of %d; per 1,000 requests %.0f commands, %.0f trips; waited %.2f%% (in vain %.2f%%), below half of the quota %.2f%%",
		s.share(), s.worst, s.limit.Burst(), float64(keys)*per, float64(exchanges)*per,
		float64(s.waited)*per/10, float64(s.vain)*per/10, 100*float64(s.belowWaited)/float64(max(1, s.below)))
}

func (s *quotaSim) share() float64 { return float64(s.admitted) / float64(max(1, s.ideal)) }
