package shield

import (
	"encoding/base64"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/share"
)

// A liar is a store that says anything. Not plausible: no number of it is one that a store
// could say.
type liar struct {
	*rand.Rand
	plausible bool
	keys      []limiter.Key
}

func (r liar) integer() int64 {
	if r.plausible && r.IntN(2) == 0 {
		return []int64{0, 1, 2, 7, 1000, r.Int64N(100), 1_795_000_000_000 + r.Int64N(60_000)}[r.IntN(7)]
	}
	return []int64{-1, math.MinInt64, math.MinInt64 + 1, math.MaxInt64, 1 << 62, -r.Int64() - 1}[r.IntN(6)]
}

func (r liar) float() float64 {
	if r.plausible && r.IntN(2) == 0 {
		return []float64{0, 0.5, 1, 3, 1000 * r.Float64()}[r.IntN(5)]
	}
	return []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1e308, 1e308, -1}[r.IntN(6)]
}

func (r liar) text() string {
	switch r.IntN(3) {
	case 0:
		return fmt.Sprintf("%016x", uint64(r.keys[r.IntN(len(r.keys))]))
	case 1:
		return "0000000000000000"
	}
	b := make([]byte, 8+26*r.IntN(4)) // a batch of news
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return base64.StdEncoding.EncodeToString(b)
}

// fill fills a response.
func (r liar) fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(r.integer())
	case reflect.Float64:
		v.SetFloat(r.float())
	case reflect.Bool:
		v.SetBool(r.IntN(20) == 0)
	case reflect.String:
		v.SetString(r.text())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.fill(v.Elem())
	case reflect.Array:
		for i := range v.Len() {
			r.fill(v.Index(i))
		}
	case reflect.Slice:
		n := r.IntN(4)
		if r.IntN(100) == 0 {
			n = 600
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			r.fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			r.fill(v.Field(i))
		}
	}
}

// lease answers about as many pools as it was asked about, and counts the tokens that it could have been asked for.
func (r liar) lease(ask share.LeaseAsk, given *int) (a share.LeaseAnswer) {
	r.fill(reflect.ValueOf(&a).Elem())
	a.Pools = make([]share.PoolAnswer, len(ask.Pools))
	for i := range a.Pools {
		r.fill(reflect.ValueOf(&a.Pools[i]).Elem())
		if got := a.Pools[i].Got; got > 0 && got <= ask.Pools[i][3] {
			*given += int(got)
		}
	}
	return a
}

// Whatever a store says, a replica admits no more than its part of a limit, as without the
// store, and what the store could give of what it was asked for. It tells its clients times
// that it could have told them without.
func TestAStoreThatLiesAdmitsNoMore(t *testing.T) {
	const (
		rate, burst, permits, replicas = 10, 20, 20, 4
		length                         = 20 * time.Second
		longest                        = limiter.MaxReplicas*time.Second/rate + 2*time.Second // a token of the least part
	)
	keys := []limiter.Key{limiter.KeyOf("a"), limiter.KeyOf("b"), limiter.KeyOf("c")}
	for _, c := range []struct {
		name   string
		config Config
		keys   int
	}{
		{"a zone", Config{Zones: []Zone{{Name: "each", Shared: true, Limit: perSecond(rate, burst)}}}, len(keys)},
		{"the capacity", Config{Capacity: perSecond(rate, burst), Shared: true}, 1},
		{"requests in flight", Config{Concurrency: permits, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Shared: true}, 0},
	} {
		for seed := range uint64(30) {
			store := liar{rand.New(rand.NewPCG(seed, 1)), seed%2 == 1, keys}
			t.Run(fmt.Sprintf("%s, seed %d, plausible %v", c.name, seed, store.plausible), func(t *testing.T) {
				c.config.Secret, c.config.Replicas, c.config.Replica = make([]byte, 16), replicas, "a"
				g := mustNew(t, c.config, nil)
				const began = time.Second
				admitted, given, inFlight, most := 0, 0, []Decision{}, 0
				for now := began; now < began+length; now += 5 * ms {
					carryLies(g, now, store, &given)
					key := keys[store.IntN(len(keys))]
					d := g.Admit(now, Request{Keys: []limiter.Key{key}, Client: key})
					if d.Queued() {
						carryLies(g, now, store, &given)
						g.Settle(now, Request{Keys: []limiter.Key{key}, Client: key}, &d, 0)
					}
					if d.Admit {
						admitted++
						inFlight = append(inFlight, d)
					} else if d.Wait < 0 || d.Hint.Seconds < 1 || max(d.Wait, time.Duration(d.Hint.Seconds)*time.Second) > longest {
						t.Fatalf("at %v: rejected for %v, told %v, %d s", now, d.Reason, d.Wait, d.Hint.Seconds)
					}
					for most = max(most, len(inFlight)); len(inFlight) > 0 && inFlight[0].At() <= now-400*ms; inFlight = inFlight[1:] {
						inFlight[0].Done(now, Served)
					}
				}
				parts := replicas // that limits are divided by
				if store.plausible {
					parts = 1
				}
				limit := float64(burst/parts) + rate/float64(parts)*(length+2*time.Second).Seconds() + 1
				if limit = limit*float64(c.keys) + float64(given); c.keys > 0 && float64(admitted) > limit {
					t.Errorf("%d are admitted, of which %d could be given; want %v at most", admitted, given, limit)
				}
				for _, z := range g.Zones(began + length) {
					if z != nil && z.Escrow().Hot() > len(keys) {
						t.Errorf("%d keys are hot, want %d at most", z.Escrow().Hot(), len(keys))
					}
				}
				if c.keys == 0 && most > permits/parts {
					t.Errorf("%d are in flight, want %d at most", most, permits/parts)
				}
			})
		}
	}
}

// carryLies carries what a Guard has to tell the store. Each tenth answer gets lost.
func carryLies(g *Guard, now time.Duration, store liar, given *int) {
	for _, s := range sharers(g, now) {
		if ask, ok := s.Due(now); ok && store.IntN(10) > 0 {
			s.Heard(now, now, store.lease(ask, given))
		} else if ok {
			s.Missed(now)
		}
	}
}

// A sharer is what a Guard shares with other replicas.
type sharer interface {
	Due(now time.Duration) (share.LeaseAsk, bool)
	Heard(now, asked time.Duration, a share.LeaseAnswer)
	Missed(now time.Duration)
}

func sharers(g *Guard, now time.Duration) (all []sharer) {
	if l := g.Link(now); l != nil {
		all = append(all, l)
	}
	for _, z := range g.Zones(now) {
		if z != nil {
			all = append(all, z)
		}
	}
	return all
}
