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

// A Zone is one replica's share in one zone: it exchanges the tokens of hot keys in an Escrow with a store. It is
// safe for concurrent use.
type Zone struct {
	*Holder
	escrow *limiter.Escrow
}

// NewZone returns the share of the replica of that name, which is random and different in each process, in a zone whose
// keys are in e.
func NewZone(name string, e *limiter.Escrow) *Zone {
	z := &Zone{escrow: e}
	z.Holder = NewHolder(name, &zone{e: e}, e.Replicas())
	e.Wake = z.Wake
	return z
}

// Escrow returns the keys of the zone.
func (z *Zone) Escrow() *limiter.Escrow { return z.escrow }

// Ask returns what a request may wait for whose key has no token here: a channel that is closed when the store has
// answered. It returns nil if the store is gone.
func (z *Zone) Ask(now time.Duration, key limiter.Key) <-chan struct{} {
	if z.escrow.IsAlone(now) {
		return nil
	}
	return z.Await(func() (queued, sent bool) { return z.escrow.State(now, key) })
}

// A zone is what the Holder of a Zone tells of.
type zone struct {
	e    *limiter.Escrow
	told []limiter.Held
}

// keyDigits is the length of the name of a key, in hexadecimal digits.
const keyDigits = 16

func keyName(k limiter.Key) string { return fmt.Sprintf("%0*x", keyDigits, uint64(k)) }

// Tell implements Sharer.
func (z *zone) Tell(now time.Duration, a *LeaseAsk, probe bool) {
	if z.told = z.told[:0]; a.Alone || probe {
		return
	}
	limit, cost := z.e.Limit()
	a.Of = []PoolKind{{Rate: limit.Rate() / 1000, Cap: float64(limit.Burst()), Parts: 2, Cost: float64(cost), Stay: z.e.Stay().Milliseconds()}}
	z.told = z.e.Collect(now, MaxKeys, z.told)
	var notes strings.Builder
	for _, h := range z.told {
		a.Keys = append(a.Keys, keyName(h.Key))
		a.Pools = append(a.Pools, [4]float64{1, h.Held, h.Gave, float64(h.Want)})
		if h.Note {
			notes.WriteString(keyName(h.Key))
		}
	}
	a.Notes = notes.String()
}

// Hear implements Sharer.
func (z *zone) Hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	for i, g := range a.Pools {
		wait := max(0, (ask.Of[0].Cost-g.Left)/ask.Of[0].Rate) // milliseconds
		z.e.Grant(now, z.told[i].Key, limiter.Grant{Got: int(g.Got), Wait: time.Duration(wait * float64(time.Millisecond))})
	}
	for _, text := range a.News {
		for n := 0; len(text) >= keyDigits && n < MaxKeys; n, text = n+1, text[keyDigits:] {
			if key, err := strconv.ParseUint(text[:keyDigits], 16, 64); err == nil && key != 0 {
				z.e.Learn(now, limiter.Key(key))
			}
		}
	}
}

// Miss implements Sharer.
func (z *zone) Miss(now time.Duration, _ bool) {
	for _, h := range z.told {
		z.e.Missed(now, h.Key)
	}
	z.told = z.told[:0]
}

// Leave implements Sharer.
func (z *zone) Leave(time.Duration, *LeaseAsk) {}

// Hurry implements Sharer. Tokens that were not needed are given back where there are few.
func (z *zone) Hurry(now time.Duration) time.Duration {
	returns, ok := z.e.Returns()
	if ok && now >= returns {
		z.e.Return(now)
		returns, ok = z.e.Returns()
	}
	switch {
	case z.e.Queued() > 0:
		return now
	case ok:
		return returns
	}
	return never
}

// Idles implements Sharer.
func (z *zone) Idles(now time.Duration) bool { return now-z.e.LastClaim() > IdleTime }

// Lives implements Sharer.
func (z *zone) Lives(now time.Duration) { z.e.Live(now) }

// Paid implements Sharer.
func (z *zone) Paid(_, until time.Duration) { z.e.Paid(until) }

// AloneFrom implements Sharer.
func (z *zone) AloneFrom(at time.Duration) { z.e.AloneFrom(at) }

// Count implements Sharer. A replica that was not there from the beginning does not know what clients have used
// before.
func (z *zone) Count(now time.Duration, n, _ int, begins bool) {
	z.e.Divide(now, n)
	if begins {
		z.e.Begin(now)
	}
}
