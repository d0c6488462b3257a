package shield

import (
	"cmp"
	"slices"
	"sync"

	"github.com/herdshield/shield/limiter"
)

const (
	// lastCosts is how many costs of a key are remembered. The highest of eight is exceeded by one request in nine.
	lastCosts = 8

	// learnedKeys is how many keys have their costs remembered, in 384 KiB for each zone.
	learnedKeys = 1 << 13
)

// A learner says what a request will cost before that is known: the highest of the last costs of its key, or of all keys if nothing
// is known of that. The zero learner knows nothing. It is safe for concurrent use.
type learner struct {
	mu   sync.Mutex
	all  recentCosts   // guarded by mu, like what follows
	peak float32       // the highest cost, less a thousandth for each one since
	keys []recentCosts // a newer key takes the place of an older one
}

type recentCosts struct {
	key  limiter.Key
	next uint8              // the place of the next cost
	last [lastCosts]float32 // 0: there is none; below 0: a doubt
}

func (c *recentCosts) add(cost float64) {
	c.last[c.next%lastCosts] = float32(cost)
	c.next++
}

// of returns what is known of a key, nil if nothing is.
func (l *learner) of(key limiter.Key) *recentCosts {
	if l.keys == nil || l.keys[key%learnedKeys].key != key {
		return nil
	}
	return &l.keys[key%learnedKeys]
}

// typical returns the median of a key's last costs, 0 if none is known. Unlike reserve it believes nothing but what responses have told, as
// others pay for it if it is too much: neither what other keys cost, nor doubt.
func (l *learner) typical(key limiter.Key) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.of(key); c != nil {
		last := c.last
		slices.Sort(last[:])
		if i := slices.IndexFunc(last[:], func(cost float32) bool { return cost > 0 }); i >= 0 {
			return float64(last[(i+lastCosts)/2])
		}
	}
	return 0
}

// reserve returns what a request of a key will cost, unknown as long as there is no cost at all.
func (l *learner) reserve(key limiter.Key, unknown float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		return unknown
	}
	most := float32(0)
	for _, cost := range cmp.Or(l.of(key), &l.all).last {
		most = max(most, cost, -cost)
	}
	return float64(most)
}

// doubt has the next requests of a key take as much as the costliest request of any key lately: one of its own was cut off before
// it told its cost. Whoever hangs up before that each time would else pay for the cheapest.
func (l *learner) doubt(key limiter.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.of(key); c != nil {
		c.add(-float64(l.peak))
	}
}

// learn notes what a request of a key has cost.
func (l *learner) learn(key limiter.Key, cost float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = make([]recentCosts, learnedKeys)
	}
	l.all.add(cost)
	l.peak = max(float32(cost), l.peak*0.999)
	c := l.of(key)
	if c == nil {
		c = &l.keys[key%learnedKeys]
		*c = recentCosts{key: key}
	}
	c.add(cost)
}
