package pushback

import (
	"math"
	"time"
)

// What a Line learns: which share of its promises is kept, by new clients and by proven ones, and how many new clients come
// anyway.

const (
	// lateAfter is how long after its time a client still counts as one that kept it. Clients
	// that wait for whole seconds come within milliseconds, those that add a backoff later. To
	// wait longer would mean to plan for as much longer with the wrong share of clients.
	lateAfter = time.Second

	// keptMemory is over how many returns, seen or expected, the kept share is averaged: with
	// 100 it is right to a tenth, and is learned within a second or two of a flood.
	keptMemory = 100

	// priorKept is how many kept promises are assumed at the beginning, so that one client
	// that stays away does not halve the share. After priorFade promises little is left of it.
	priorKept = 3
	priorFade = 25

	// keptRecovery is which part of what was learned is left after a second in which no
	// client waits: a minute after a flood, the next herd is believed again.
	keptRecovery = 0.92

	// surgeWindow is over how many quarters of a second it is averaged how many new clients
	// are usual, and surgeFade what is left of what was learned after each one more than
	// twice that: after 20 of them, a tenth.
	surgeWindow = 4
	surgeFade   = 0.9

	// baseWindow is over how long the base load is averaged, and knownWindow the load of known clients, which goes up and down with
	// the appointments that are kept.
	baseWindow  = 30 * time.Second
	knownWindow = 5 * time.Second
)

// leastKept bounds overbooking by new clients and by proven ones: no slot is promised to
// more than 200 or 4 of them.
var leastKept = [trusts]float64{1. / 200, 1. / 4}

// keep returns the share of promises that are kept.
func (l *Line) keep(t Trust) float64 {
	if l.kept[t] == 0 {
		return 1
	}
	return l.kept[t]
}

// mature learns from the promises for seconds that are over, lateAfter ago.
func (l *Line) mature(n int64) {
	const after = int64(lateAfter / time.Second)
	for m := max(l.second, n-ringSize); m < n; m++ {
		s := &l.ring[(m-after)&(ringSize-1)]
		for t := range l.kept {
			l.learn(Trust(t), float64(s.told[t]), float64(s.came[t]))
		}
		l.waiting.Add(-int64(s.waiting))
		*s = second{}
	}
	forget := 1.0
	if !l.Backlogged(time.Duration(n) * time.Second) {
		forget = math.Pow(keptRecovery, float64(min(n-l.second, ringSize)))
	}
	for t := range l.kept {
		l.forget(Trust(t), forget)
	}
	l.second = n
}

// learn averages what became of the promises for one second. A second that differs by more
// than chance, two standard deviations, forgets those before: all is different now.
func (l *Line) learn(t Trust, made, came float64) {
	expected := made * l.keep(t)
	if d := came - expected; d*d > 4*(expected+1) {
		l.made[t], l.came[t] = 0, 0
	}
	fade := math.Exp(-max(came, expected) / keptMemory)
	l.made[t], l.came[t] = l.made[t]*fade+made, l.came[t]*fade+came
	l.counts.NoShow += uint64(max(0, made-came))
}

// forget leaves a part of what was learned.
func (l *Line) forget(t Trust, part float64) {
	l.made[t], l.came[t] = l.made[t]*part, l.came[t]*part
	prior := priorKept * math.Exp(-l.made[t]/priorFade)
	l.kept[t] = min(max(leastKept[t], (l.came[t]+prior)/max(l.made[t]+prior, 1e-9)), 1)
}

// surges notes a new client, and forgets part of what was learned if more come than usual:
// they need not be like those before. So a herd in a flood is believed.
func (l *Line) surges(now time.Duration) {
	if n := int64(now / quarter); n > l.surge.quarter {
		l.surge.usual += (l.surge.came - l.surge.usual) / surgeWindow
		l.surge.usual *= math.Exp(-float64(n-l.surge.quarter-1) / surgeWindow)
		l.surge.quarter, l.surge.came = n, 0
	}
	if l.surge.came++; l.surge.came > 2*l.surge.usual+10 {
		l.forget(untried, surgeFade)
	}
}

// tick learns the base load: how many new clients are admitted per second. It is to be called
// about once per second. While clients wait the average moves twenty times slower, because a
// herd leaves new clients less than they would have otherwise; and while the backend is full and
// answers with 429, because those that were admitted are not served. beyond: more requests came
// that were over their clients' quotas, so that what is admitted is what those clients may use, and
// not what always comes: nothing is concluded from it in a hurry.
func (l *Line) tick(now time.Duration, beyond, full bool) {
	l.mu.Lock()
	defer l.unlock()
	d, first := now-l.ticked, l.ticked == 0
	fresh, again := l.fresh.Swap(0), l.again.Swap(0)
	if n := int64(now / time.Second); n > l.second {
		l.mature(n)
	}
	l.ticked = now
	if first || d <= 0 {
		return
	}
	l.known += (1 - math.Exp(-d.Seconds()/knownWindow.Seconds())) * (float64(again)/d.Seconds() - l.known)
	gain := 1 - math.Exp(-d.Seconds()/baseWindow.Seconds())
	switch {
	case l.Backlogged(now), full:
		gain /= 20
	case !beyond:
		if l.baseSeen < baseWindow { // a plain average, as long as little is known
			gain = max(gain, d.Seconds()/(l.baseSeen+d).Seconds())
		}
		l.baseSeen = min(l.baseSeen+d, baseWindow)
	}
	l.base += gain * (float64(fresh)/d.Seconds() - l.base)
}

// unwatched excludes a turn from the kept share: its client is not remembered, so its return
// will not be recognised.
func (l *Line) unwatched(t *Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.secondOf(t.At)
	s.told[t.Trust] = max(0, s.told[t.Trust]-1)
}
