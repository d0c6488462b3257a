package policy

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

const second = time.Second

// Replicas come and go, and others hear of it late: together they never have more than the
// limit, and exactly the limit once they have settled.
func TestSharesNeverSumToMore(t *testing.T) {
	type membership struct {
		at      time.Duration
		members []int // who, in the order of their ranks
	}
	type sight struct {
		at   time.Duration
		what int // index of the membership
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 6))
		// The true memberships, and when they begin.
		var truth []membership
		now, next := time.Duration(0), 0
		var members []int
		for range 2 + r.IntN(30) {
			members = slices.Clone(members)
			for range 1 + r.IntN(3) {
				if len(members) > 0 && r.IntN(2) == 0 {
					i := r.IntN(len(members))
					members = slices.Delete(members, i, i+1)
				} else {
					members = slices.Insert(members, r.IntN(len(members)+1), next) // ranks move
					next++
				}
			}
			truth = append(truth, membership{now, members})
			now += time.Duration(r.Int64N(int64(20*second)) >> r.IntN(8)) // in flocks, too
		}
		// When each replica sees each of them: in order, within less than Settle.
		sights := make([][]sight, next)
		longest := time.Duration(1 + r.Int64N(int64(Settle)))
		for who := range sights {
			last := time.Duration(0)
			for i, m := range truth {
				joined := slices.Contains(m.members, who)
				if joined || len(sights[who]) > 0 {
					last = max(last, m.at+time.Duration(r.Int64N(int64(longest))))
					sights[who] = append(sights[who], sight{last, i})
				}
			}
		}
		times := []time.Duration{}
		for _, list := range sights {
			for _, s := range list {
				times = append(times, s.at-1, s.at, s.at+1, s.at+Settle-1, s.at+Settle, s.at+Settle+1)
			}
		}
		for _, m := range truth {
			times = append(times, m.at)
		}
		slices.Sort(times)
		end := times[len(times)-1] + Settle

		replicas := make([]Division, next)
		for _, at := range append(times, end) {
			for who := range replicas {
				for len(sights[who]) > 0 && sights[who][0].at <= at {
					s := sights[who][0]
					sights[who] = sights[who][1:]
					m := truth[s.what].members
					replicas[who].See(s.at, slices.Index(m, who), len(m))
				}
			}
			i, _ := slices.BinarySearchFunc(truth, at+1, func(m membership, at time.Duration) int { return int(m.at - at) })
			alive := truth[max(0, i-1)].members
			limit, salt := r.IntN(12), r.Uint64()
			sum, fractions, unready := 0, 0.0, 0
			for _, who := range alive {
				d := &replicas[who]
				if !d.seen {
					unready++ // it has not begun to serve
					continue
				}
				sum += d.Share(at, limit, salt)
				if next := d.Next(at); d.Share(at+Settle, limit, salt) > d.Share(at, limit, salt) && (next <= at || next > at+Settle) {
					t.Fatalf("seed %d, at %v: a share grows within %v, and the next look is at %v", seed, at, Settle, next)
				}
				fractions += d.Fraction(at)
				if len(d.past) > maxLooks {
					t.Fatalf("seed %d: %d looks are remembered", seed, len(d.past))
				}
			}
			if sum > limit || fractions > 1+1e-9 {
				t.Fatalf("seed %d, at %v: shares of %d sum to %d, fractions to %v", seed, at, limit, sum, fractions)
			}
			if at == end && len(alive) > 0 && (sum != limit || math.Abs(fractions-1) > 1e-9 || unready > 0) {
				t.Fatalf("seed %d, settled: shares of %d sum to %d, fractions to %v", seed, limit, sum, fractions)
			}
		}
	}
}

func TestDivide(t *testing.T) {
	p := Ingress{Zones: []Zone{{"rate", perSecond(30, 0)}, {"rpm", limiter.Config{Rate: 9, Per: time.Hour}}}, PerClient: 2, Key: "k"}
	s := Service{Capacity: perSecond(500, 0), Concurrency: 64, EndpointConcurrency: 8, Queue: 10}
	var d Division
	d.See(0, 0, 1)
	if !reflect.DeepEqual(p.Divide(0, &d), p) || s.Divide(0, &d) != s {
		t.Error("one replica has less than everything")
	}
	d = Division{}
	d.See(0, 2, 3)
	now := Settle
	wantP := Ingress{Zones: []Zone{{"rate", perSecond(10, 10)}, {"rpm", limiter.Config{Rate: 3, Per: time.Hour, Burst: 3}}}, PerClient: 1, Key: "k"}
	if got := p.Divide(now, &d); !reflect.DeepEqual(got, wantP) {
		t.Errorf("got %+v; want %+v", got, wantP)
	}
	wantS := Service{Capacity: perSecond(500./3, 16), Concurrency: 21, EndpointConcurrency: 8, Queue: 10}
	if got := s.Divide(now, &d); got != wantS {
		t.Errorf("got %+v; want %+v", got, wantS)
	}
	if p.Zones[0].Limit != perSecond(30, 0) {
		t.Error("Divide has changed what it divides")
	}
	p.Local = true
	if got := p.Divide(now, &d); !reflect.DeepEqual(got, p) {
		t.Errorf("local: got %+v; want %+v", got, p)
	}
	adaptive := Service{Adaptive: true}
	if got := adaptive.Divide(now, &d); got != adaptive {
		t.Errorf("adaptive: got %+v", got)
	}

	// A limit of 0 would mean none at all.
	d.See(now, -1, 3)
	got := s.Divide(now, &d)
	if got.Concurrency != 1 || got.Capacity.Burst != 1 || !(got.Capacity.Rate > 0 && got.Capacity.Rate < 1e-6) {
		t.Errorf("without a share: got %+v", got)
	}
	// A rate that could not be slower stays what it was.
	slow := Service{Capacity: limiter.Config{Rate: 1, Per: 31 * 24 * time.Hour, Burst: 1}}
	if got := slow.Divide(now, &d); got != slow {
		t.Errorf("the slowest: got %+v", got)
	}
}
