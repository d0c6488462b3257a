package loadshed

import (
	"strings"
	"testing"
	"time"
)

func mustLaw(t testing.TB, c AdaptiveConfig) law {
	t.Helper()
	l, err := newLaw(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNewLaw(t *testing.T) {
	for _, test := range []struct {
		c       AdaptiveConfig
		want    string // part of the error; "": none
		initial int
	}{
		{AdaptiveConfig{}, "", 20},
		{AdaptiveConfig{Max: 10}, "", 10},
		{AdaptiveConfig{Max: 1}, "", 1},
		{AdaptiveConfig{Min: 50}, "", 50},
		{AdaptiveConfig{Min: 5, Max: 50, Initial: 7}, "", 7},
		{AdaptiveConfig{Min: 5000}, "", 5000},
		{AdaptiveConfig{Target: time.Second}, "", 20},
		{AdaptiveConfig{Min: -1}, "min is -1; use 1 to 100000", 0},
		{AdaptiveConfig{Max: MaxLimit + 1}, "max is 100001", 0},
		{AdaptiveConfig{Min: 5, Max: 4}, "min is 5 and max is 4; min must be at most max", 0},
		{AdaptiveConfig{Initial: 3, Max: 2}, "initial is 3; use 2 to 2", 0},
		{AdaptiveConfig{Initial: 1}, "initial is 1; use 2 to 1000", 0},
		{AdaptiveConfig{Target: -1}, "target", 0},
		{AdaptiveConfig{Target: time.Hour}, "target is 1h0m0s; use 1ms to 1m0s", 0},
	} {
		l, err := newLaw(test.c)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: error %v, want %q", test.c, err, test.want)
			}
			continue
		}
		var a adaptive
		if err != nil || a.Limit(l) != test.initial {
			t.Errorf("%+v: limit %d and error %v, want %d at first", test.c, a.Limit(l), err, test.initial)
		}
	}
}

// steady plays a backend of which every request takes latency, with inFlight of
// them at a time: what Little's law makes of the two. refused is how many are
// refused for each that is served.
type steady struct {
	a    adaptive
	l    law
	now  time.Duration
	last Change
	all  []Change
}

func (s *steady) serve(t testing.TB, lasts time.Duration, inFlight int, latency time.Duration, o Outcome, refused int) {
	t.Helper()
	for end := s.now + lasts; s.now < end; {
		s.now += latency / time.Duration(inFlight)
		for range refused {
			s.a.limitHits.Add(1)
			s.a.rejected.Add(1)
		}
		s.a.Done(s.now, latency, 0, o, inFlight, 1, s.l)
		if n := s.a.Limit(s.l); n < s.l.Min || n > s.l.Max {
			t.Fatalf("limit %d", n)
		}
		if s.a.last != s.last {
			s.all, s.last = append(s.all, s.a.last), s.a.last
		}
	}
}

func (s *steady) reasons() map[Reason]int {
	m := map[Reason]int{}
	for _, c := range s.all {
		m[c.Reason]++
	}
	return m
}

// The clients of a slow page do not wait for it, whether they are impatient or want to do harm: the limit stays high enough
// for all requests. It falls if next to nobody waits.
func TestClientsThatDoNotWait(t *testing.T) {
	for _, told := range []bool{false, true} { // is the backend told, and the permit given back at once?
		s := steady{l: mustLaw(t, AdaptiveConfig{})}
		play := func(inFlight, gone int) {
			for i := range 10_000 {
				took, patience, o := 20*time.Millisecond, time.Duration(0), Served
				if i%10 == 0 {
					took = 500 * time.Millisecond
				}
				if i%10 < gone {
					if patience = 300 * time.Millisecond; told {
						took, patience, o = patience, 0, Aborted
					}
				}
				s.now += 5 * time.Millisecond
				s.a.limitHits.Add(int64(inFlight / 20))
				s.a.Done(s.now, took, patience, o, inFlight, 1, s.l)
			}
		}
		play(14, 1)
		play(20, 1)
		if n := s.a.Limit(s.l); n < 14 {
			t.Errorf("told %v: limit %d, and 14 requests are in flight on average", told, n)
		}
		before := s.a.Limit(s.l) // what clients do that are slow to send or to read says nothing
		if s.serve(t, time.Minute, 20, 5*time.Second, Detached, 1); s.a.Limit(s.l) != before {
			t.Errorf("told %v: limit %d after a minute of slow clients, %d before", told, s.a.Limit(s.l), before)
		}
		if play(20, 10); s.a.Limit(s.l) != s.l.Min {
			t.Errorf("told %v: limit %d, though nobody is served", told, s.a.Limit(s.l))
		}
	}
}

// A reload applies at once, to what was learned under the old one.
func TestLawIsNotKept(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{})}
	s.serve(t, 20*time.Second, 10, 50*time.Millisecond, Served, 0)
	if n := s.a.Limit(mustLaw(t, AdaptiveConfig{Max: 5})); n != 5 {
		t.Errorf("limit %d with max 5", n)
	}
	if n := s.a.Limit(mustLaw(t, AdaptiveConfig{Min: 300})); n != 300 {
		t.Errorf("limit %d with min 300", n)
	}
	if n := s.a.Limit(s.l); n != 20 {
		t.Errorf("limit %d, want what it was", n)
	}
}

// A limit that is not used does not grow, and one that is far above the use comes down.
func TestUnusedLimitDoesNotGrow(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{Initial: 30})}
	s.serve(t, time.Minute, 5, 20*time.Millisecond, Served, 0)
	if n := s.a.Limit(s.l); n != 30 {
		t.Errorf("limit %d after a minute of 5 in flight, want 30", n)
	}
	s.a.limit.Store(500)
	s.a.control.limit = 500
	s.serve(t, time.Minute, 5, 20*time.Millisecond, Served, 0)
	if n := s.a.Limit(s.l); n != 30 || s.last.Reason != unused {
		t.Errorf("limit %d for %v, want 30 again", n, s.last.Reason)
	}
}

// Latency rises for good, without a queue. Cuts bring no lower latency, so they are
// taken back.
func TestCutThatDoesNotPayIsTakenBack(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{})}
	s.serve(t, 20*time.Second, 10, 50*time.Millisecond, Served, 0)
	before := s.a.Limit(s.l)
	for range 300 { // the backend takes 200 ms, however many it has
		s.serve(t, 100*time.Millisecond, s.a.Limit(s.l), 200*time.Millisecond, Served, 1)
	}
	if s.reasons()[rebased] == 0 {
		t.Errorf("no cut was taken back: %v", s.reasons())
	}
	if n := s.a.Limit(s.l); n < before {
		t.Errorf("limit %d, want %d or more: latency is the backend's own", n, before)
	}
	if b := s.last.Baseline; b < 150*time.Millisecond {
		t.Errorf("baseline %v, want about 200ms", b)
	}
}

// queueing plays a backend of c workers with work of 50 ms for each: latency is what
// the queue makes of the limit.
func (s *steady) queueing(t testing.TB, lasts time.Duration, c int) {
	for end := s.now + lasts; s.now < end; {
		n := s.a.Limit(s.l)
		latency := 50 * time.Millisecond * time.Duration(max(n, c)) / time.Duration(c)
		s.serve(t, 50*time.Millisecond, n, latency, Served, 2)
	}
}

// Half an hour of overload does not make the limit drift.
func TestLimitDoesNotDrift(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{})}
	s.serve(t, 20*time.Second, 4, 50*time.Millisecond, Served, 0)
	s.queueing(t, 2*time.Minute, 8)
	early := s.a.Limit(s.l)
	s.queueing(t, 30*time.Minute, 8)
	if late := s.a.Limit(s.l); late < 8 || late > 16 || early < 4 || early > 16 {
		t.Errorf("limit %d after 2 min and %d after 32 min of overload, want 8 workers and some more", early, late)
	}
	if s.reasons()[Probed] == 0 {
		t.Error("the baseline was never verified")
	}
}

// A cold start into overload learns the latency of the queue as its baseline: only
// probes tell.
func TestProbeFindsTheQueue(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{Initial: 60})}
	s.queueing(t, 3*time.Minute, 8)
	if n := s.a.Limit(s.l); n > 16 || s.reasons()[Probed] == 0 {
		t.Errorf("limit %d, want at most 16: %v", n, s.reasons())
	}
}

// Timeouts lower the limit, but never raise the baseline. The limit is back soon
// after.
func TestTimeOuts(t *testing.T) {
	// Of 20; with 19 the limit is always used up, so that the usual demand is not known.
	for _, inFlight := range []int{15, 19} {
		s := steady{l: mustLaw(t, AdaptiveConfig{})}
		s.serve(t, 20*time.Second, inFlight, 50*time.Millisecond, Served, 0)
		baseline := s.last.Baseline
		s.serve(t, 10*time.Second, 20, time.Second, TimedOut, 1)
		if n := s.a.Limit(s.l); n > 8 || s.reasons()[Failed] == 0 {
			t.Errorf("limit %d after 10 s of nothing but timeouts: %v", n, s.reasons())
		}
		low := s.now
		for s.a.Limit(s.l) < 15 && s.now < low+time.Minute {
			s.serve(t, 50*time.Millisecond, s.a.Limit(s.l), 50*time.Millisecond, Served, 1)
		}
		if s.now > low+10*time.Second {
			t.Errorf("%v until the limit was back", s.now-low)
		}
		if b := s.last.Baseline; b > 2*max(baseline, 50*time.Millisecond) {
			t.Errorf("baseline %v after timeouts, %v before", b, baseline)
		}
	}
}

// At one request every two seconds the limit still moves, and does not mistake
// chance for overload.
func TestLowTraffic(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{})}
	for i := range 200 {
		s.now += 2 * time.Second
		s.a.Done(s.now, time.Duration(20+i%7*20)*time.Millisecond, 0, Served, 1, 1, s.l)
	}
	if n := s.a.Limit(s.l); n != 20 {
		t.Errorf("limit %d", n)
	}
	if b := s.a.control.baseline; b < .06 || b > .1 {
		t.Errorf("baseline %v s of requests that take 80 ms", b)
	}
}

// A backend that refuses lowers the limit once per window, and not because of one refusal.
func TestRefusingBackend(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{})}
	s.serve(t, 10*time.Second, 10, 50*time.Millisecond, Served, 0)
	s.a.Done(s.now, time.Millisecond, 0, Overloaded, 10, 1, s.l)
	if n := s.a.Limit(s.l); n != 20 {
		t.Errorf("limit %d after one refusal", n)
	}
	s.all = nil
	s.serve(t, time.Second, 10, 10*time.Millisecond, Overloaded, 0)
	if n := s.reasons()[refusing]; n < 3 || n > 4 {
		t.Errorf("%d cuts in a second, want one each 250 ms", n)
	}
	s.serve(t, 10*time.Second, 10, 10*time.Millisecond, Overloaded, 0)
	if n := s.a.Limit(s.l); n != 2 {
		t.Errorf("limit %d after 10 s of refusals, want 2", n)
	}
}

var outcomes = [...]Outcome{Served, TimedOut, Overloaded, Detached}

// Clients that hang up at once, in a flood, don't move the limit, even if the backend is told and their permits are free again.
func TestClientsThatHangUpAtOnce(t *testing.T) {
	var limits [2]int
	for i, flood := range []int{0, 20} {
		p := mustPlan(t, PlanConfig{Adaptive: &AdaptiveConfig{}, Queue: QueueConfig{Size: NoQueue}})
		var c Concurrency
		c.Use(p, true)
		enter := func(now time.Duration) (pl Permit) { c.Enter(now, p, &Entrant{}, &pl); return pl }
		ends := map[time.Duration][]*Permit{}
		for now := time.Minute; now < 3*time.Minute; now += 500 * time.Microsecond {
			for _, pl := range ends[now] {
				pl.Leave(now, Served)
			}
			delete(ends, now)
			if pl := enter(now); pl.Held() { // one of 2,000/s. The backend takes 30 at once, for 20 ms
				slower := time.Duration(max(30, c.InFlight()))
				end := (now + 20*time.Millisecond*slower/30).Truncate(500 * time.Microsecond)
				ends[end] = append(ends[end], &pl)
			}
			for range flood {
				pl := enter(now)
				pl.Leave(now+100*time.Microsecond, Aborted)
			}
			c.Tick(now, 0, 0, p, true)
		}
		limits[i] = c.Limit(p)
	}
	if limits[0] > 60 || limits[1] > 60 {
		t.Errorf("limits are %v, without and with the flood; want at most 60", limits)
	}
}

// Whatever comes, the limit stays within its bounds and the baseline is a number.
func FuzzAdaptive(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		var a adaptive
		l := mustLaw(t, AdaptiveConfig{Min: 3, Max: 50})
		now := time.Duration(0)
		for i := 0; i+2 < len(data); i += 3 {
			now += time.Duration(data[i]) * time.Millisecond * 5
			took := time.Duration(data[i+1]) * time.Duration(data[i+1]) * time.Millisecond
			if data[i+2]&8 > 0 {
				a.limitHits.Add(1)
				a.rejected.Add(1)
			}
			a.Done(now, took, 0, outcomes[data[i+2]%4], int(data[i+1])%60, 1, l)
			if data[i+2] == 255 {
				a.Restart(now, l)
			}
			if n := a.Limit(l); n < 3 || n > 50 {
				t.Fatalf("limit %d", n)
			}
			if c := &a.control; c.limit != c.limit || c.baseline != c.baseline {
				t.Fatalf("%+v", c)
			}
		}
	})
}

// One of three upstreams is dead, and no limit changes that: the others are not throttled for it.
func TestDeadUpstream(t *testing.T) {
	s := steady{l: mustLaw(t, AdaptiveConfig{})}
	var low, all float64 // seconds
	for s.now < time.Minute {
		n := s.a.Limit(s.l)
		for _, o := range []Outcome{Served, Served, Overloaded} {
			s.serve(t, 1, n, 50*time.Millisecond, o, 1)
		}
		if s.now > 20*time.Second {
			if all += .15; n < defaultInitial {
				low += .15
			}
		}
	}
	if low > .05*all { // but for probes
		t.Errorf("the limit is below the initial one for %.1f of %.0f s, though two of three requests are served: %v", low, all, s.reasons())
	}
}
