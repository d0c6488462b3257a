package share

import (
	"math"
	"time"
)

// The methods below join the requests in flight. A fixed limit is divided by demand; of an
// adaptive one each replica has its part of the most, and finds its own below that.

// Binds tells that a request has found no place, or has taken the last. It costs one
// atomic load unless the store may have more.
func (k *Link) Binds(now time.Duration) {
	if k != nil && int64(now) >= k.binds.Load() {
		k.wakeUp()
	}
}

// AskPlace returns what a request may wait for that finds no place: see Ask.
func (k *Link) AskPlace(now time.Duration) <-chan struct{} {
	if k == nil || k.view.Load().alone || !k.InFlight.MayGrow() {
		return nil
	}
	k.mu.Lock()
	c := k.answers.next()
	k.mu.Unlock()
	k.wakeUp()
	return c
}

// obey bounds what is in flight.
func (k *Link) obey(now time.Duration) {
	l := k.limits
	binds := never
	switch {
	case l.InFlight > 0:
		n, until := k.places.Limit(now, l.InFlight, k.most, k.rank)
		k.InFlight.Grant(now, n, k.places.Free(k.most), until)
		if at, ok := k.places.Asks(l.InFlight, k.most); ok && !k.flying && !k.view.Load().alone {
			binds = at
		}
	case l.Adaptive > 0:
		k.InFlight.Grant(now, max(1, l.Adaptive/k.most), 0, math.MaxInt64)
	default:
		k.InFlight.Ungrant()
	}
	k.binds.Store(int64(binds))
}

// askPlaces returns what to tell of places, which may be nothing.
func (k *Link) askPlaces(now time.Duration) *PlacesAsk {
	if k.limits.InFlight == 0 {
		return nil
	}
	return k.places.Ask(now, k.limits.InFlight, k.InFlight.Usage())
}

// placesAt returns when an exchange about places is of use before the beat, and when to
// look again whether one is.
func (k *Link) placesAt(now time.Duration) (at, look time.Duration) {
	if k.limits.InFlight == 0 || k.view.Load().alone {
		return never, never
	}
	at, ok := k.places.Hurry(now, k.limits.InFlight, k.most, k.InFlight.Usage())
	switch {
	case ok:
		return at, max(at, now)
	case k.places.Contended():
		return never, now + placesRetry
	}
	return never, never
}
