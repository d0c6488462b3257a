package overload

import (
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
)

// A World is the clock and the agenda of one run. There is one goroutine: what
// is called at an instant runs to its end before the next.
type World struct {
	// Advance, if a Limiter sets it, is told of each new instant before anything
	// happens at it. Code that reads the clock of the operating system can be
	// played in a synctest bubble by sleeping here.
	Advance func(now time.Duration)

	now    time.Duration
	agenda []event
	order  uint64
}

type event struct {
	at    time.Duration
	order uint64 // events of one instant happen in the order that they were asked for
	do    func()
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.order < o.order
}

// Now returns the time since the run began.
func (w *World) Now() time.Duration { return w.now }

// At calls do at an instant, or now if that is over.
func (w *World) At(at time.Duration, do func()) {
	w.order++
	w.agenda = append(w.agenda, event{max(at, w.now), w.order, do})
	for i := len(w.agenda) - 1; i > 0; {
		parent := (i - 1) / 2
		if !w.agenda[i].before(&w.agenda[parent]) {
			break
		}
		w.agenda[i], w.agenda[parent] = w.agenda[parent], w.agenda[i]
		i = parent
	}
}

// After calls do in d.
func (w *World) After(d time.Duration, do func()) { w.At(w.now+d, do) }

// run plays everything that happens before end.
func (w *World) run(end time.Duration) {
	for len(w.agenda) > 0 && w.agenda[0].at < end {
		e := w.next()
		if e.at > w.now {
			w.now = e.at
			if w.Advance != nil {
				w.Advance(w.now)
			}
		}
		e.do()
	}
}

func (w *World) next() event {
	first, last := w.agenda[0], len(w.agenda)-1
	w.agenda[0] = w.agenda[last]
	w.agenda[last] = event{}
	w.agenda = w.agenda[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && w.agenda[child+1].before(&w.agenda[child]) {
			child++
		}
		if !w.agenda[child].before(&w.agenda[i]) {
			break
		}
		w.agenda[i], w.agenda[child] = w.agenda[child], w.agenda[i]
		i = child
	}
	return first
}

// A Step is a value from an instant on.
type Step = plant.Step

// Steps is a value that changes at given instants, in order of time.
type Steps = plant.Steps

// stream returns random numbers that depend on nothing but the seed and what
// they are for, so that different limiters face the same requests.
func stream(seed uint64, what uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, what)) }
