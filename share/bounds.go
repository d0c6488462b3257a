package share

import (
	"math"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A store may be damaged, or be written to by others. The methods below bound what it says
// by what was asked, so that no number of it overflows, or lets more in than the replica has
// asked for. A number with a nearest sense gets that; one that gives tokens, slots or places,
// and is none that could be asked for, gives nothing.

const (
	// mostTime is the latest instant of a store's clock, in milliseconds: in 2096. Ours: with
	// any uptime added it is less than a Duration holds.
	mostTime = 4_000_000_000_000

	mostRate    = 1e9     // per second, as in limiter.Config
	maxTexts    = 64      // news in one answer, and units
	mostNumbers = 1 << 53 // of the queue: above, a float64 does not count one by one
)

// clamp returns the number between two that is nearest to x; the least one for NaN.
func clamp(x, least, most float64) float64 {
	if x >= least {
		return min(x, most)
	}
	return least
}

// upTo returns the number of milliseconds nearest to ms that is not below 0 or above most.
func upTo(ms int64, most float64) int64 { return max(0, min(ms, int64(math.Ceil(most)))) }

// knownReplicas returns how many replicas a store knows of, 0 if it does not say so.
func knownReplicas(n int) int { return min(max(0, n), limiter.MaxReplicas) }

// boundSlots bounds what a store that shows now says of slots.
func boundSlots(s *pushback.SlotsAnswer, ask *pushback.SlotsAsk, now int64) {
	s.Rate, s.Base = clamp(s.Rate, 0, mostRate), clamp(s.Base, 0, mostRate)
	s.Issued = clamp(s.Issued, 0, mostNumbers)
	s.Served = clamp(s.Served, 0, s.Issued)
	times := s.Times[:0]
	for _, at := range s.Times[:min(len(s.Times), ask.Want)] {
		if at >= now && at <= now+ask.Max {
			times = append(times, at)
		}
	}
	s.Times = times
}

// boundNote bounds what another replica has told, in the store's time.
func boundNote(n *pushback.Note) {
	n.At, n.Told = max(0, min(n.At, mostTime*time.Millisecond)), max(0, min(n.Told, mostTime*time.Millisecond))
	n.Number, n.Trust = clamp(n.Number, 0, mostNumbers), min(n.Trust, pushback.Proven)
}

// Bound bounds the answer to an ask. No number of replicas, as all numbers below one, means that the store does not say.
// Tokens are at most those that were asked for, and places at most those of the limit.
func (a *LeaseAnswer) Bound(ask *LeaseAsk) {
	a.Now, a.Born, a.After = upTo(a.Now, mostTime), upTo(a.Born, mostTime), max(0, a.After)
	a.N = knownReplicas(a.N)
	a.Rank = min(max(0, a.Rank), max(0, a.N-1))
	a.News = a.News[:min(len(a.News), maxTexts)]
	a.Others = a.Others[:min(len(a.Others), maxTexts)]
	a.Pools = a.Pools[:min(len(a.Pools), len(ask.Pools))]
	switch {
	case ask.Slots == nil:
		a.Slots = nil
	case a.Slots != nil:
		boundSlots(a.Slots, ask.Slots, a.Now)
	}
	for i := range a.Pools {
		p, of := &a.Pools[i], ask.Of[int(ask.Pools[i][0])-1]
		most := of.Cap
		if of.Rate > 0 {
			most = min(ask.Pools[i][3], of.Cap)
		}
		if !(p.Got >= 0 && p.Got <= most) {
			p.Got = 0
		}
		p.Got, p.Left = math.Floor(p.Got), clamp(p.Left, -of.Cap, of.Cap)
	}
}
