package sim

import (
	"time"

	"github.com/herdshield/shield/limiter"
)

// bins counts requests per 100 ms, from a second after the herd has begun.
type bins struct {
	bin           int64
	all, returns  int
	most, mostRet int
}

// count counts a request that comes at since, the time since the last moment at
// which clients of the herd begin.
func (b *bins) count(since int64, isReturn bool) {
	if since < int64(time.Second) {
		return
	}
	if bin := since / int64(100*time.Millisecond); bin != b.bin {
		b.bin, b.all, b.returns = bin, 0, 0
	}
	b.all++
	b.most = max(b.most, b.all)
	if isReturn {
		b.returns++
		b.mostRet = max(b.mostRet, b.returns)
	}
}

// series is the run in Bins from its first moment.
type series []Bin

// at returns the given bin.
func (s *series) at(bin int64) *Bin {
	for int64(len(*s)) <= bin {
		*s = append(*s, Bin{})
	}
	return &(*s)[bin]
}

// door returns the bin's Door for the herd or the strangers.
func (b *Bin) door(herd bool) *Door {
	if herd {
		return &b.Herd
	}
	return &b.Strangers
}

// level is a second opinion on the capacity's bucket, from what the server
// admits alone. It counts tokens, as textbooks do.
type level struct {
	limit, next limit
	tokens      float64
	at          int64

	overflowed float64 // tokens, since the herd came
	idle       int     // refusals by a full bucket
	excess     float64 // the most tokens that were admitted without being there
}

// limit is a limiter.Config in tokens per second; the zero limit is none.
type limit struct{ rate, burst float64 }

// follow changes the limit, from the next decision on: what has been earned
// since the last one was earned under the old limit, as a limiter.Bucket has it.
// What is owed stays owed; a restart fills the bucket.
func (l *level) follow(c limiter.Config, restart bool) {
	l.next = limit{}
	if c.Rate > 0 {
		checked, err := limiter.New(c) // for the defaults
		if err != nil {
			return // the server has said so
		}
		burst := float64(checked.Burst())
		l.next = limit{burst / checked.Refill().Seconds(), burst}
	}
	if restart {
		l.limit, l.tokens = l.next, l.next.burst
	}
}

// decided takes note of a decision. It must be called for each, in order.
func (l *level) decided(at, herdAt int64, admit bool) {
	l.tokens += float64(at-l.at) / float64(time.Second) * l.limit.rate
	l.at = at
	if over := l.tokens - l.limit.burst; over > 0 {
		l.tokens = l.limit.burst
		if at > herdAt {
			l.overflowed += over
		}
	}
	l.tokens += l.next.burst - l.limit.burst
	if l.limit = l.next; l.limit.rate == 0 {
		return
	}
	const noise = 1e-6
	switch {
	case admit:
		l.tokens--
		l.excess = max(l.excess, -l.tokens-noise)
	case l.tokens >= l.limit.burst-noise:
		l.idle++
	}
}
