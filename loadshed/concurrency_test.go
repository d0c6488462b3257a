package loadshed

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// Two requests may be in flight, and one waits for up to 50 ms.
func ExampleConcurrency() {
	plan, err := NewPlan(PlanConfig{Limit: 2, Queue: QueueConfig{Size: 1, Timeout: 50 * time.Millisecond}})
	if err != nil {
		panic(err)
	}
	var c Concurrency
	c.Use(plan, true)
	now := time.Minute // since an epoch of the caller's
	var permits [4]Permit
	for i := range permits {
		is, _ := c.Enter(now, plan, &Entrant{}, &permits[i])
		fmt.Println(i, map[Entry]string{Entered: "enters", Waiting: "waits", Full: "is rejected"}[is])
	}
	permits[0].Leave(now+30*time.Millisecond, Served)
	verdict := <-permits[2].Verdict()
	fmt.Println(2, verdict == Granted && c.Settle(now+30*time.Millisecond, plan, &permits[2], verdict))
	// Output:
	// 0 enters
	// 1 enters
	// 2 waits
	// 3 is rejected
	// 2 true
}

func mustPlan(t testing.TB, c PlanConfig) *Plan {
	t.Helper()
	p, err := NewPlan(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A saturated backend is measured; one that idles is forgotten, and taken for what
// Little's law has of its limit.
func TestThroughput(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10})
	var c Concurrency
	c.Use(p, true)
	if rate := c.Rate(p); rate < 109 || rate > 111 {
		t.Errorf("%v per second of ten permits before anything is known, want 10 each and a tenth more", rate)
	}
	now, admitted, limitHits := time.Minute, uint64(0), uint64(0)
	second := func(served int, saturated bool, ends Outcome) {
		var permits []Permit
		for range 10 {
			var pl Permit
			if is, _ := c.Enter(now, p, &Entrant{}, &pl); is == Entered {
				permits = append(permits, pl)
				admitted++
			}
		}
		if saturated {
			limitHits++
		}
		c.measure(now, admitted, limitHits, p, !saturated)
		for i := range permits {
			permits[i].Leave(now, ends)
		}
		admitted += uint64(served) - uint64(len(permits))
		now += time.Second
	}
	for range 60 {
		second(40, true, Detached)
	}
	if rate := c.Rate(p); rate < 33 || rate > 49 {
		t.Errorf("%v per second of a backend that does 40", rate)
	}
	for range 90 {
		second(10, false, Detached)
	}
	if rate := c.Rate(p); rate < 90 {
		t.Errorf("%v per second a minute and a half after it was saturated, want it forgotten", rate)
	}
	for range 60 {
		second(50, true, Overloaded) // ten of them
	}
	if rate := c.Rate(p); rate < 33 || rate > 49 {
		t.Errorf("%v per second of a backend that does 40 and refuses 10", rate)
	}
	c.pause.until.Store(int64(now))
	if c.resume(now, p); c.Rate(p) < 90 {
		t.Errorf("%v per second after a pause, want what the limit lets expect", c.Rate(p))
	}
	for range 200 {
		c.gate.Took(400 * ms)
	}
	if c.gate.Took(time.Hour); c.gate.Drain() < 400*ms || c.gate.Drain() > 2*time.Second {
		t.Errorf("after 200 requests of 400 ms, and a download of an hour, the next one is expected to take %v", c.gate.Drain())
	}
}

func TestMostInFlight(t *testing.T) {
	var in clientCounts
	if list := in.Most(3); list != nil {
		t.Errorf("an empty one has %v", list)
	}
	for key := range uint64(200) { // the more, the higher
		for range 1 + key/10 {
			in.Add(1+key, 1)
		}
	}
	want := []ClientLoad{{191, 20}, {192, 20}, {193, 20}}
	if list := in.Most(3); !slices.Equal(list, want) {
		t.Errorf("got %v, want %v", list, want)
	}
	if list := in.Most(1000); len(list) != 200 || list[199] != (ClientLoad{10, 1}) {
		t.Errorf("got %d clients, the last is %v", len(list), list[len(list)-1])
	}
}

// A request tells how many its client has in flight with it, by the key that counts them; nothing if it
// is not counted.
func TestClientLoad(t *testing.T) {
	const now = time.Hour
	for name, c := range map[string]struct {
		config PlanConfig
		want   []ClientLoad // of three requests
	}{
		"with a limit for each client": {PlanConfig{PerClient: 3}, []ClientLoad{{7, 1}, {7, 2}, {7, 3}}},
		"with both limits":             {PlanConfig{PerClient: 3, Limit: 2, Queue: QueueConfig{Size: 1}}, []ClientLoad{{7, 1}, {7, 2}, {7, 3}}},
		"in the queue only":            {PlanConfig{Limit: 2, Queue: QueueConfig{Size: 1}}, []ClientLoad{{}, {}, {9, 1}}},
		"not counted":                  {PlanConfig{Limit: 9}, []ClientLoad{{}, {}, {}}},
	} {
		p := mustPlan(t, c.config)
		var conc Concurrency
		conc.Use(p, true)
		for i, want := range c.want {
			var pl Permit
			if is, _ := conc.Enter(now, p, &Entrant{Client: 9, InFlight: 7}, &pl); is == Full || is == ClientFull {
				t.Fatalf("%s: request %d is rejected", name, i)
			}
			if got := pl.ClientLoad(); got != want {
				t.Errorf("%s: request %d: %+v, want %+v", name, i, got, want)
			}
		}
	}
}

// play has first attempts and retries come at these rates per second, and returns
// how many retries per second are let in after half a minute.
func play(b *budget, from time.Duration, seconds, first, retries int, capacity float64) float64 {
	admitted := 0
	for s := range seconds {
		for i := range 1000 {
			now := from + time.Duration(s)*time.Second + time.Duration(i)*ms
			for range (i+1)*first/1000 - i*first/1000 {
				b.first.Add(1)
			}
			for range (i+1)*retries/1000 - i*retries/1000 {
				if b.Take(now, capacity) && s >= seconds/2 {
					admitted++
				}
			}
		}
	}
	return float64(admitted) / float64(seconds-seconds/2)
}

// Retries get what first attempts leave: in the example of HotOS '21, 20 per second
// of 300 with 280.
func TestBudgetIsWhatFirstAttemptsLeave(t *testing.T) {
	for _, c := range []struct {
		first, retries int
		capacity       float64
		least, most    float64
	}{
		{280, 600, 300, 18, 22},
		{280, 10, 300, 10, 10},
		{280, 600, 200, 1, 1}, // never none
		{0, 600, 300, 295, 300},
		{280, 600, math.Inf(1), 600, 600},
		{10, 2000, 1000, 985, 995},
	} {
		var b budget
		if got := play(&b, time.Hour, 60, c.first, c.retries, c.capacity); got < c.least || got > c.most {
			t.Errorf("%+v: %v retries per second", c, got)
		}
	}
}

// In the first second nothing is known of first attempts, and after a change they
// are known within some ten seconds.
func TestBudgetFollows(t *testing.T) {
	var b budget
	play(&b, time.Hour, 30, 50, 600, 300)
	if got := play(&b, time.Hour+30*time.Second, 40, 290, 600, 300); got > 30 {
		t.Errorf("%v retries per second, 20 to 40 s after first attempts have risen to 290 of 300", got)
	}
}

// While permits are short, a client that has a quarter of the limit in flight, or its even share if that is more, gets another
// permit only if less than half of the limit is in use. So others still find one. A client that is alone may have all.
func TestOneClientLeavesHalf(t *testing.T) {
	const now, limit = time.Hour, 24
	for _, c := range []struct{ others, permits, want int }{ // other clients, their permits, and how many one client gets beside them
		{0, 0, limit},
		{1, 1, 12}, // its even share
		{2, 2, 10}, // up to half of the limit
		{2, 12, 8},
		{3, 3, 9},
		{3, 12, 6}, // a quarter
		{9, 12, 6},
	} {
		p := mustPlan(t, PlanConfig{Limit: limit})
		var conc Concurrency
		conc.Use(p, true)
		enter := func(client int) bool {
			is, _ := conc.Enter(now, p, &Entrant{Client: uint64(client)}, new(Permit))
			return is == Entered
		}
		conc.NoteShortage(now)
		for i := range c.permits {
			enter(2 + i%c.others)
		}
		n := 0
		for enter(1) {
			n++
		}
		if n != c.want {
			t.Errorf("beside %d clients with %d permits, one gets %d of %d, want %d", c.others, c.permits, n, limit, c.want)
		}
		if c.others > 0 && !enter(99) {
			t.Errorf("beside %d clients with %d permits, one leaves nothing to the next", c.others, c.permits)
		}
	}
}
