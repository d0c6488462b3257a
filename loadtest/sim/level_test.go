package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// An outcome is a Result and what the levels of its servers say: the sum over the
// replicas, and the most Excess.
type outcome struct {
	Result
	Overflow float64 // tokens lost since the herd came
	Excess   float64 // tokens taken that were not there
	Idle     int     // refusals while the bucket was full
}

// Ratio is Drained in terms of the least possible.
func (r *Result) Ratio() float64 { return float64(r.Drained) / float64(max(1, r.Optimum)) }

// ClearedRatio is Cleared in terms of the least possible.
func (r *Result) ClearedRatio() float64 { return float64(r.Cleared) / float64(max(1, r.Optimum)) }

// runLeveled is Run with a level for each server that maker makes.
func runLeveled(s Scenario, maker Maker) (outcome, error) {
	if maker == nil {
		maker = Guard
	}
	herdAt := s.Warmup
	if herdAt == 0 {
		herdAt = defaultWarmup
	}
	var servers []*leveled
	r, err := Run(s, func(c shield.Config) (Server, error) {
		server, err := maker(c)
		l := &leveled{Server: server, herdAt: int64(herdAt)}
		l.follow(c.Capacity, true)
		servers = append(servers, l)
		return l, err
	})
	out := outcome{Result: r}
	for _, l := range servers {
		out.Overflow, out.Idle, out.Excess = out.Overflow+l.overflowed, out.Idle+l.idle, max(out.Excess, l.excess)
	}
	return out, err
}

// leveled is a Server whose level sees each decision.
type leveled struct {
	Server
	level
	herdAt int64
}

func (l *leveled) Arrive(now time.Duration, r Request) Answer {
	a := l.Server.Arrive(now, r)
	if !a.Queued {
		l.decided(int64(now), l.herdAt, a.Admit)
	}
	return a
}

func (l *leveled) Settled(now time.Duration) (ticket int32, a Answer, ok bool) {
	if ticket, a, ok = l.Server.(Queuer).Settled(now); ok {
		l.decided(int64(now), l.herdAt, a.Admit)
	}
	return ticket, a, ok
}

func (l *leveled) Sweep(now time.Duration)                 { l.Server.(Queuer).Sweep(now) }
func (l *leveled) Abandon(now time.Duration, ticket int32) { l.Server.(Queuer).Abandon(now, ticket) }

func (l *leveled) Change(c shield.Config, restart bool) error {
	err := l.Server.Change(c, restart)
	if err == nil {
		l.follow(c.Capacity, restart)
	}
	return err
}

func (l *leveled) Limit() int {
	if g, ok := l.Server.(Gauge); ok {
		return g.Limit()
	}
	return 0
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
// Debt stays; a restart fills the bucket.
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

// The level is a second opinion: it must find what is wrong.
func TestLevel(t *testing.T) {
	var l level
	l.follow(limiter.Config{Rate: 10, Burst: 2}, true)
	at := func(d time.Duration, admit bool) { l.decided(int64(d), -1, admit) }
	at(0, true)
	at(0, true)
	if l.excess != 0 || l.overflowed != 0 || l.idle != 0 {
		t.Fatalf("after the burst: %+v", l)
	}
	at(50*time.Millisecond, true)
	if l.excess < 0.49 || l.excess > 0.5 {
		t.Errorf("half a token too many was taken; it is said to be %v", l.excess)
	}
	at(10*time.Second, false)
	if l.idle != 1 || l.overflowed < 97 || l.overflowed > 98 {
		t.Errorf("refused %d times by a full bucket, %v tokens lost; want 1 and 97.5", l.idle, l.overflowed)
	}
	at(10*time.Second, true)
	l.follow(limiter.Config{Rate: 100, Burst: 5}, false)
	at(10*time.Second+10*time.Millisecond, false)
	if l.tokens < 4.09 || l.tokens > 4.11 {
		t.Errorf("0.9 tokens are owed of 5, and there are %v", l.tokens)
	}
	at(10*time.Second+15*time.Millisecond, false)
	if l.tokens < 4.59 || l.tokens > 4.61 {
		t.Errorf("0.4 tokens are owed of 5, and there are %v", l.tokens)
	}
	l.follow(limiter.Config{Rate: 1, Burst: 3}, true)
	if l.tokens != 3 {
		t.Errorf("after a restart there are %v tokens of 3", l.tokens)
	}
}

// A server that admits more than its config allows is found out, one that does not is not.
func TestLeveled(t *testing.T) {
	s := Herd("", 1000, 0)
	s.Background = 0
	for _, c := range []struct {
		admits float64
		excess bool
	}{{rate, false}, {2 * rate, true}} {
		out, err := runLeveled(s, func(has shield.Config) (Server, error) {
			has.Capacity.Rate = c.admits
			return FixedHint(1)(has)
		})
		if err != nil {
			t.Fatal(err)
		}
		if out.Excess > 0 != c.excess {
			t.Errorf("a server that admits %v per second of %d: %v tokens too many", c.admits, rate, out.Excess)
		}
	}
}
