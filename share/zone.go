package share

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/limiter"
)

// MaxKeys is how many keys of a zone one exchange is about at most.
const MaxKeys = 500

// A Zone is one replica's share of a zone: it exchanges the tokens of hot keys in an Escrow with a store. It is
// safe for concurrent use.
type Zone struct {
	Holder
	Escrow *limiter.Escrow // its keys
	told   []limiter.Held
}

// NewZone returns the share that a replica has of a zone whose keys are in e. The name is random and different
// in each process.
func NewZone(name string, e *limiter.Escrow) *Zone {
	z := &Zone{Escrow: e}
	z.init(name, z, e.Replicas())
	e.Wake = z.Wake
	return z
}

// Ask returns a channel that is closed when the store has responded, for a request whose key has no token here.
// It returns nil if the store is gone.
func (z *Zone) Ask(now time.Duration, key limiter.Key) <-chan struct{} {
	return z.await(now, func() bool { return z.Escrow.Asked(now, key) })
}

// keyDigits is the length of the name of a key, in hexadecimal digits.
const keyDigits = 16

func keyName(k limiter.Key) string { return fmt.Sprintf("%0*x", keyDigits, uint64(k)) }

// follow implements sharer.
func (z *Zone) follow(now time.Duration) { z.Escrow.Follow(now, z.term) }

// tell implements sharer.
func (z *Zone) tell(now time.Duration, a *LeaseAsk) {
	if z.told = z.told[:0]; a.Alone || a.Leaves {
		return
	}
	limit, cost := z.Escrow.Limit()
	a.Of = []PoolKind{{Rate: limit.Rate() / 1000, Cap: float64(limit.Burst()), Parts: 2, Cost: float64(cost), Debt: limit.Debt(), Stay: z.Escrow.Stay().Milliseconds()}}
	z.told = z.Escrow.Collect(now, MaxKeys, z.told)
	var notes strings.Builder
	for _, h := range z.told {
		a.Keys = append(a.Keys, keyName(h.Key))
		a.Pools = append(a.Pools, [5]float64{1, h.Held, h.Gave, float64(h.Want), float64(h.Need)})
		if h.Note {
			notes.WriteString(keyName(h.Key))
		}
	}
	a.Notes = notes.String()
}

// hear implements sharer. A replica that was not there from the beginning does not know what clients have used before.
func (z *Zone) hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	if ask.Heard == 0 && !a.New {
		z.Escrow.Begin(now)
	}
	for i, g := range a.Pools {
		z.Escrow.Grant(now, z.told[i].Key, int(g.Got), g.Left)
	}
	for _, text := range a.News {
		for n := 0; len(text) >= keyDigits && n < MaxKeys; n, text = n+1, text[keyDigits:] {
			if key, err := strconv.ParseUint(text[:keyDigits], 16, 64); err == nil && key != 0 {
				z.Escrow.Learn(now, limiter.Key(key))
			}
		}
	}
}

// untell implements sharer.
func (z *Zone) untell(now time.Duration) {
	for _, h := range z.told {
		z.Escrow.Missed(now, h.Key)
	}
	z.told = z.told[:0]
}

// hurry implements sharer.
func (z *Zone) hurry(now time.Duration) time.Duration {
	if z.Escrow.Queued() > 0 {
		return now
	}
	return never
}
