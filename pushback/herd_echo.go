package pushback

import (
	"math"
	"time"
)

// HerdLags are the intervals at which a Herd looks for refused clients that come again:
// the usual waits between attempts of clients that ignore what they are told.
var HerdLags = [...]time.Duration{
	time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second,
	8 * time.Second, 10 * time.Second, 30 * time.Second,
}

const (
	// echoBins holds the refusals of the longest lag, and of a few bins around. A power
	// of two, so that the ring needs no division.
	echoBins = 512

	// echoKeep is the weight of a second after the next: exp(-1/256). An echo of clients
	// that are not in step is faint; clients in step are a pulse, and found as one.
	echoKeep = 0.996101369470117534

	// echoAlarm is the q above which there is an echo. It ends below the share echoClear
	// of that. Without an echo, q is about half a chi-square of one degree of freedom,
	// which is above 20 once in 4e9 looks; in the weeks of TestHerdIsSilent it stayed
	// below 12.
	echoAlarm = 20
	echoClear = 0.6

	// echoShare is the share of refused clients that must come again for an alarm.
	echoShare = 0.1
)

// echoes measures the share of refused clients that comes again after a fixed time.
//
// For every lag, arrivals are multiplied by the refusals one lag before, less those a
// little before and after. Bursts, which are wider than that, cancel, and only an echo
// of the same shape remains. The products of every second are added up and compared
// with their own squares, as in pulse.
type echoes struct {
	refused [echoBins]uint16 // in each of the last bins; at most 65535
	next    uint16
	idle    uint16 // bins since the last refusal, up to echoBins
	mean    float64
	rate    float64
	lag     [len(HerdLags)]echo
}

type echo struct {
	product, square float64 // of the second that has begun
	sumProducts     float64
	sumSquares      float64 // of the seconds' products
	sumRefused      float64 // squared differences of refusals
	alarm           bool
}

// add takes one bin.
func (e *echoes) add(arrivals float64, refused int) {
	const minute = float64(time.Minute / herdTick)
	e.mean += (arrivals - e.mean) / minute
	e.rate += (float64(refused) - e.rate) / minute
	if refused > 0 {
		e.idle = 0
	} else if e.idle < echoBins {
		e.idle++
	}
	e.refused[e.next%echoBins] = uint16(min(max(refused, 0), math.MaxUint16))
	if e.idle < echoBins {
		above := arrivals - e.mean
		for i, lag := range HerdLags {
			// A client that comes again takes a round trip longer than the interval, so
			// the echo is in this bin or in the next. The bins to compare with leave two
			// free on either side.
			sent := e.next - uint16(lag/herdTick)
			at := func(back uint16) float64 { return float64(e.refused[(sent-back)%echoBins]) }
			edge := at(0) + at(1) - at(4) - at(^uint16(2)) // back 4 and forth 3
			l := &e.lag[i]
			l.product += above * edge
			l.square += edge * edge
		}
	}
	e.next++
}

// endSecond adds the second to those before.
func (e *echoes) endSecond() {
	if e.idle == echoBins { // no refused client is left that could come again
		e.lag = [len(HerdLags)]echo{}
		return
	}
	for i := range e.lag {
		l := &e.lag[i]
		l.sumProducts = l.sumProducts*echoKeep + l.product
		l.sumSquares = l.sumSquares*echoKeep + l.product*l.product
		l.sumRefused = l.sumRefused*echoKeep + l.square
		l.product, l.square = 0, 0
		q := l.q()
		if l.alarm {
			l.alarm = q >= echoClear*echoAlarm
		} else {
			l.alarm = q > echoAlarm && l.regression() > echoShare
		}
	}
}

// q is how certain the echo is; 0 if there are fewer arrivals than usual.
func (l *echo) q() float64 {
	if l.sumProducts <= 0 {
		return 0
	}
	return l.sumProducts * l.sumProducts / l.sumSquares
}

// regression is the share of refused clients that comes again: the products are those of
// one bin's refusals, the squares those of four.
func (l *echo) regression() float64 {
	if l.sumRefused == 0 {
		return 0
	}
	return 4 * l.sumProducts / l.sumRefused
}

// loudest returns the shortest lag with an alarm, or -1. Clients that repeat more than
// once also show at its multiples.
func (e *echoes) loudest() int {
	for i := range e.lag {
		if e.lag[i].alarm {
			return i
		}
	}
	return -1
}

// size returns how many refused clients come again after a lag with an alarm.
func (e *echoes) size(i int) float64 {
	return min(1, e.lag[i].regression()) * e.rate * float64(HerdLags[i]/herdTick)
}
