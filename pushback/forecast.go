package pushback

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// If trusted or more of the promises to Untried clients are kept, slots are left for all
	// further ones; if doubted or fewer are, for none: see planned.
	trusted = 0.65
	doubted = 0.5

	// keptWindow is over how many returns, seen or expected, the share of kept promises is
	// averaged: over more promises where fewer are kept.
	keptWindow = 100

	// keptForgetTime is the time constant of forget. Ours: a minute after a load test
	// from which no client came back, the next crowd should be trusted again.
	keptForgetTime = 12 * time.Second

	// keptPrior is how many kept promises are assumed at the beginning, and keptPriorFade
	// after how many promises that is forgotten.
	keptPrior     = 3
	keptPriorFade = 25

	// surgeWindow is over how many buckets it is averaged how many newcomers are usual, and
	// surgeFade what is left of what was learned after each one more. Of 0.99 to 0.9, with
	// 0.9 a herd during a simulated flood finds the fewest promises broken.
	surgeWindow = 4
	surgeFade   = 0.9
)

// minKept bounds overbooking: no slot is promised to more than so many clients.
var minKept = [trusts]float64{Untried: 1. / 200, Proven: 1. / 4}

// A forecast is what is known of those who come: how many requests come anyway, and how
// many clients come back when they are told to. It is guarded by the Calendar's lock.
type forecast struct {
	base  baseLoad
	kept  [trusts]keptPromises
	surge surge
	doubt atomic.Int64 // in thousandths
}

// share returns the share of promises that are kept.
func (f *forecast) share(t Trust) float64 { return f.kept[t].share(t) }

// planned returns for which share of newcomers slots are left: 1, if they come back when
// they are told. If few of them do, as in a flood of new addresses, they get only what
// clients that do come back leave. Mail servers call that greylisting (RFC 6647).
func (f *forecast) planned() float64 {
	return min(max(0, (f.share(Untried)-doubted)/(trusted-doubted)), 1)
}

func (f *forecast) judge() { f.doubt.Store(int64(1000 * (1 - f.planned()))) }

// Doubt returns how little newcomers are trusted to come back: 0 to 1. It costs one
// atomic load.
func (f *forecast) Doubt() float64 { return float64(f.doubt.Load()) / 1000 }

// anyway returns how many requests per second come anyway, as far as they are planned for.
func (f *forecast) anyway() float64 { return f.base.rate * f.planned() }

// forget is for a time in which no client waits: the next crowd need not be like the
// last one.
func (f *forecast) forget(d time.Duration) {
	for t := range f.kept {
		f.kept[t].fade(math.Exp(-d.Seconds() / keptForgetTime.Seconds()))
	}
}

// newcomer tells that a client is refused that has not come back yet. More than the usual
// ones need not be like them, so what was learned is forgotten: a herd during a flood comes
// back, and the first clients of a flood are believed as if they were a herd.
func (f *forecast) newcomer(now time.Duration) {
	if f.surge.more(now) {
		f.kept[Untried].fade(surgeFade)
	}
}

// keptPromises measures the share of promises that clients come back for. A client that
// comes late counts when it comes. Without a backlog the share goes back to 1: the next
// crowd is trusted.
type keptPromises struct {
	made, kept float64
	ratio      float64 // as of the last change; 0: nothing is known
}

func (k *keptPromises) add(made, kept float64) {
	if made+kept == 0 {
		return
	}
	fade := math.Exp(-max(kept, made*k.share(Untried)) / keptWindow)
	k.made = k.made*fade + made
	k.kept = k.kept*fade + kept // may be above made: a neighbour's
	k.reckon()
}

func (k *keptPromises) fade(by float64) {
	k.made *= by
	k.kept *= by
	if k.made+k.kept < 1e-18 { // forgotten; smaller numbers are slow
		*k = keptPromises{}
		return
	}
	k.reckon()
}

func (k *keptPromises) addLate() {
	k.kept = max(k.kept, min(k.kept+1, k.made))
	k.reckon()
}

func (k *keptPromises) reckon() {
	prior := keptPrior * math.Exp(-k.made/keptPriorFade)
	k.ratio = (k.kept + prior) / max(k.made+prior, math.SmallestNonzeroFloat64)
}

// share returns the share, from minKept to 1.
func (k *keptPromises) share(t Trust) float64 {
	if k.made == 0 {
		return 1
	}
	return min(max(minKept[t], k.ratio), 1)
}

// A surge is newcomers that come at more than the usual rate.
type surge struct {
	number int64   // of the bucket of the last newcomer
	came   float64 // in it
	usual  float64 // in one, on average
}

// more reports whether a newcomer at now is one more than usual.
func (s *surge) more(now time.Duration) bool {
	if n := int64(now / SlotWidth); n > s.number {
		s.usual += (s.came - s.usual) / surgeWindow
		s.usual *= math.Exp(-float64(n-s.number-1) / surgeWindow)
		s.number, s.came = n, 0
	}
	s.came++
	return s.came > 2*s.usual+10
}
