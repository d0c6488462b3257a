package sim

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/pushback"
)

// probe is a Server whose answers a test decides on, and that writes down who
// came when.
type probe struct {
	t      *testing.T
	answer func(now time.Duration, r Request) Answer
	log    []arrival
	now    time.Duration
	tick   int32
	open   map[int32]time.Duration // when each ticket is to be finished
	hold   time.Duration           // at most: then clients hang up
}

type arrival struct {
	at time.Duration
	Request
}

func (p *probe) Arrive(now time.Duration, r Request) Answer {
	p.advance(now)
	p.log = append(p.log, arrival{now, r})
	a := p.answer(now, r)
	if a.Admit || a.Hold > 0 {
		p.tick++
		a.Ticket = p.tick
		if p.open[a.Ticket] = now; !a.Admit {
			p.open[a.Ticket] += min(a.Hold, p.hold)
		}
	}
	return a
}

func (p *probe) Change(shield.Config, bool) error { return nil }

func (p *probe) Finish(now time.Duration, ticket int32, _ End) {
	p.advance(now)
	due, ok := p.open[ticket]
	if !ok {
		p.t.Errorf("ticket %d is finished twice, or was never given", ticket)
	}
	if now < due {
		p.t.Errorf("ticket %d is finished at %v, want %v", ticket, now, due)
	}
	delete(p.open, ticket)
}

func (p *probe) advance(now time.Duration) {
	if now < p.now {
		p.t.Errorf("time goes back from %v to %v", p.now, now)
	}
	p.now = now
}

// play runs s against a probe, and checks that every ticket is finished.
func play(t *testing.T, s Scenario, answer func(now time.Duration, r Request) Answer) (Result, []arrival) {
	t.Helper()
	p := &probe{t: t, answer: answer, open: map[int32]time.Duration{}, hold: time.Hour}
	if s.Timeout > 0 {
		p.hold = s.Timeout
	}
	out, err := Run(s, func(shield.Config) (Server, error) { return p, nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(p.open) > 0 {
		t.Errorf("%d tickets are not finished", len(p.open))
	}
	return out, p.log
}

func hint(seconds int) pushback.Hint { return pushback.Hint{Seconds: seconds, Ms: 1000 * seconds} }

// lone is one client who waits exactly what it is told, and whose times are
// since the herd's moment.
func lone() Scenario {
	return Scenario{Clients: 1, Mix: clients.All(clients.Fixed{Gap: 7 * time.Second}), Warmup: time.Second, Config: config(100, 0)}
}

// A client waits from when it has read the answer: after the hold and the
// network, there and back.
func TestWhenAClientReturns(t *testing.T) {
	s := lone()
	s.Delay = 3 * time.Millisecond
	out, log := play(t, s, func(_ time.Duration, r Request) Answer {
		return Answer{Admit: r.Attempt == 3, Hint: hint(7), Hold: time.Duration(r.Attempt) * 100 * time.Millisecond}
	})
	var at []time.Duration
	for _, a := range log {
		at = append(at, a.at-time.Second)
	}
	want := []time.Duration{0, 7106 * time.Millisecond, (7106 + 7206) * time.Millisecond}
	if !reflect.DeepEqual(at, want) {
		t.Errorf("requests at %v, want %v", at, want)
	}
	if out.Served != 1 || out.Requests != 3 || out.MostAttempts != 3 || out.Drained != want[2] || out.MostHeld != 1 || out.Broken != 1 {
		t.Errorf("result: %+v", out)
	}
	if p, wait := out.Policies[0], want[2]+2*s.Delay; p.P50 != wait || p.P99 != wait || p.Served != 1 || p.Requests != 3 {
		t.Errorf("its policy: %+v", p)
	}
}

// A promise is broken if the client came between the milliseconds that it was
// told and 50 ms after the seconds.
func TestBrokenPromises(t *testing.T) {
	for _, c := range []struct {
		told   pushback.Hint
		broken int
	}{
		{pushback.Hint{Seconds: 7, Ms: 7000}, 1},
		{pushback.Hint{Seconds: 7, Ms: 6001}, 1},
		{pushback.Hint{Seconds: 8, Ms: 7000}, 1},
		{pushback.Hint{Seconds: 8, Ms: 7001}, 0}, // came early
		{pushback.Hint{Seconds: 6, Ms: 6000}, 0}, // came late
		{pushback.Hint{}, 0},
		{pushback.Hint{Never: true}, 0},
	} {
		out, _ := play(t, lone(), func(_ time.Duration, r Request) Answer {
			return Answer{Admit: r.Attempt == 3, Hint: c.told}
		})
		// The second request is refused after the first hint, the third is not.
		if out.Broken != c.broken {
			t.Errorf("told %+v, came after 7s: %d promises broken, want %d", c.told, out.Broken, c.broken)
		}
	}
}

// The clients and their instants are the same whatever the server does: the strangers, the
// herd's first requests, and all policies.
func TestTheSameHerdForAll(t *testing.T) {
	s := Scenario{
		Seed: 5, Clients: 200, Within: time.Second, Background: 20, Warmup: 10 * time.Second, Until: 20 * time.Second,
		Mix: clients.Population{{Weight: 1, Policy: clients.Exact{}}, {Weight: 1, Policy: clients.Ignore{}, Precise: true}}, Config: config(100, 0),
	}
	first := func(log []arrival) (out []arrival) {
		for _, a := range log {
			if a.U = 0; a.Attempt == 1 && a.at < 11*time.Second {
				out = append(out, a)
			}
		}
		return out
	}
	_, some := play(t, s, func(_ time.Duration, r Request) Answer { return Answer{Admit: r.U < 0.5, Hint: hint(1)} })
	_, none := play(t, s, func(time.Duration, Request) Answer { return Answer{Hint: hint(9)} })
	if a, b := first(some), first(none); len(a) < 300 || !reflect.DeepEqual(a, b) {
		t.Errorf("%d first requests to one server, %d to another; want the same", len(a), len(b))
	}
	s.Seed++
	_, other := play(t, s, func(time.Duration, Request) Answer { return Answer{Hint: hint(9)} })
	if first(none)[1].at == first(other)[1].at { // strangers: the herd comes after 10 s
		t.Error("another seed brings the same strangers")
	}
	if first(none)[1].at > 9*time.Second {
		t.Error("no strangers before the herd")
	}
}

// Every client has keys of its own, and keeps them; none is NoKey.
func TestKeys(t *testing.T) {
	s := Scenario{
		Clients: 3000, Background: 100, Warmup: time.Second, Until: 10 * time.Second,
		Mix: clients.All(clients.Fixed{Gap: 2 * time.Second}), Config: config(100, 0),
	}
	out, log := play(t, s, func(_ time.Duration, r Request) Answer { return Answer{Hint: hint(1), Hold: 900 * time.Millisecond} })
	requests := map[limiter.Key]int{}
	kind := map[limiter.Key]limiter.Key{}
	for _, a := range log {
		requests[a.Client]++
		if a.Attempt != requests[a.Client] {
			t.Fatalf("request %d of client %x says that it is number %d", requests[a.Client], a.Client, a.Attempt)
		}
		if k, ok := kind[a.Client]; ok && k != a.Kind {
			t.Fatalf("client %x has two kinds of request", a.Client)
		}
		kind[a.Client] = a.Kind
		if a.Client == shield.NoKey || a.Kind == shield.NoKey || a.Client == a.Kind {
			t.Fatalf("keys %x and %x", a.Client, a.Kind)
		}
	}
	if len(requests) < 3900 || len(requests) > 4300 { // 3,000 and 11 s of strangers
		t.Errorf("%d clients, want about 4,100", len(requests))
	}
	if out.Waiting != 3000 || out.Drained != 10*time.Second || out.Served != 0 || out.Ratio() < 1000 {
		t.Errorf("no client was served: %+v", out)
	}
}

// Varied clients ask for something else at each attempt, and do what their Policy
// does; the others of the herd do not.
func TestVaried(t *testing.T) {
	gap := clients.Fixed{Gap: 2 * time.Second}
	s := Scenario{
		Clients: 100, Until: 19 * time.Second, Config: config(100, 0),
		Mix: clients.Population{{Weight: 1, Policy: gap}, {Weight: 1, Policy: Varied{gap}}},
	}
	out, log := play(t, s, func(time.Duration, Request) Answer { return Answer{Hint: hint(1)} })
	kinds := map[limiter.Key]map[limiter.Key]bool{}
	for _, a := range log {
		if kinds[a.Client] == nil {
			kinds[a.Client] = map[limiter.Key]bool{}
		}
		kinds[a.Client][a.Kind] = true
	}
	count := map[int]int{}
	for _, k := range kinds {
		count[len(k)]++
	}
	if same, varied := out.Policies[0].Clients, out.Policies[1].Clients; count[1] != same || count[10] != varied || same == 0 || varied == 0 {
		t.Errorf("clients by how many things they asked for in 10 attempts: %v; want %d with 1, %d with 10", count, same, varied)
	}
}

func TestStrangers(t *testing.T) {
	s := Scenario{Background: 200, Warmup: 10 * time.Second, Until: 105 * time.Second, Mix: clients.All(clients.Fixed{Gap: time.Second}), Config: config(100, 0)}
	odd := 0
	out, log := play(t, s, func(now time.Duration, r Request) Answer {
		if r.Attempt == 1 {
			odd++
		}
		return Answer{Admit: r.Attempt > 1 || odd%2 == 0, Hint: hint(1)}
	})
	// A Poisson process: 200 ± 4.5 · sqrt(200/100) per second over 100 s.
	if g := out.Strangers; g.Came < 19_300 || g.Came > 20_700 || g.AtOnce < g.Came/2-1 || g.AtOnce > g.Came/2+1 || g.Unserved != 0 || g.P95 != time.Second {
		t.Errorf("strangers: %+v", g)
	}
	// Gaps of a Poisson process are exponential: their mean is their deviation.
	var n, sum, squares float64
	last := time.Duration(-1)
	for _, a := range log {
		if a.Attempt == 1 {
			if last >= 0 {
				gap := (a.at - last).Seconds()
				n, sum, squares = n+1, sum+gap, squares+gap*gap
			}
			last = a.at
		}
	}
	if ratio := squares * n / (sum * sum); ratio < 1.9 || ratio > 2.1 {
		t.Errorf("mean of the squared gaps is %.2f times the square of their mean, want 2", ratio)
	}
}

// A server that lets all strangers wait for the herd drains it sooner than the
// optimum. That must show: they are served twice as late as the herd, and no
// sooner than the optimum.
func TestStrangersWhoWaitForTheHerdAreSeen(t *testing.T) {
	s := Scenario{Clients: 1000, Mix: clients.All(clients.Fixed{Gap: 100 * time.Millisecond}), Background: 50, Warmup: time.Second, Config: config(100, 0)}
	var free time.Duration // when the backend is
	herd, left := map[limiter.Key]bool{}, 1000
	out, _ := play(t, s, func(now time.Duration, r Request) Answer {
		if now == s.Warmup {
			herd[r.Client] = true
		}
		if now < s.Warmup || now >= free && (herd[r.Client] || left == 0) {
			if free = max(free, now-time.Second) + 10*time.Millisecond; herd[r.Client] {
				left--
			}
			return Answer{Admit: true}
		}
		return Answer{Hint: hint(1)}
	})
	if out.Served != 1000 || out.Ratio() > 0.6 || out.ClearedRatio() < 0.9 || out.ClearedRatio() > 1.3 {
		t.Errorf("the herd took %.3f times the optimum, and all %.3f times; want half and once", out.Ratio(), out.ClearedRatio())
	}
	if g := out.Strangers; g.AtOnce != 0 || g.Unserved != g.Came || g.Came < 150 || g.P95 < 4*time.Second {
		t.Errorf("strangers: %+v; want all to wait", g)
	}
}

func TestGivingUp(t *testing.T) {
	s := Scenario{
		Clients: 1000, Mix: clients.Population{
			{Weight: 1, Policy: clients.MaxAttempts{N: 3, Policy: clients.Fixed{Gap: time.Second}}},
			{Weight: 1, Policy: clients.GiveUp{}},
		}, Config: config(100, 0),
	}
	out, _ := play(t, s, func(time.Duration, Request) Answer { return Answer{Hint: hint(1)} })
	if all, _ := play(t, s, func(time.Duration, Request) Answer { return Answer{Admit: true} }); all.Served != 1000 || all.Optimum != time.Duration(all.Reachable)*10*time.Millisecond {
		t.Errorf("all served at once, %d that would have come back: %d, at best in %v", all.Reachable, all.Served, all.Optimum)
	}
	n := out.Policies[0].Clients
	if n < 400 || n > 600 || out.Reachable != n || out.GaveUp != n || out.Waiting != 0 || out.Requests != 1000+2*n || out.Drained != 2*time.Second {
		t.Errorf("of %d who come back: %+v", n, out)
	}
}

// crowd is the Guard, and counts who is in flight.
type crowd struct {
	*Guarded
	in   map[int32]bool
	most int
}

func (c *crowd) Arrive(now time.Duration, r Request) Answer {
	a := c.Guarded.Arrive(now, r)
	if a.Admit {
		c.in[a.Ticket] = true
		c.most = max(c.most, len(c.in))
	}
	return a
}

func (c *crowd) Finish(now time.Duration, ticket int32, e End) {
	delete(c.in, ticket)
	c.Guarded.Finish(now, ticket, e)
}

// A backend that takes its time holds places, and no more than there are. At
// best it takes what Little's law says.
func TestConcurrency(t *testing.T) {
	for _, exponential := range []bool{false, true} {
		s := Scenario{
			Clients: 500, Mix: clients.All(clients.Ignore{}), Until: time.Hour,
			Service: Service{Mean: 100 * time.Millisecond, Exponential: exponential},
			Config:  shield.Config{Concurrency: 20},
		}
		c := &crowd{in: map[int32]bool{}}
		out, err := Run(s, func(config shield.Config) (Server, error) {
			g, err := Guard(config)
			c.Guarded, _ = g.(*Guarded)
			return c, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if out.Served != 500 || out.Optimum != 2500*time.Millisecond || out.Ratio() < 0.8 {
			t.Errorf("exponential %v: %d served in %v, at best %v", exponential, out.Served, out.Drained, out.Optimum)
		}
		if c.most != 20 || len(c.in) != 0 {
			t.Errorf("%d requests were in flight at most, and %d at the end; want 20 and 0", c.most, len(c.in))
		}
		if n := c.State.Backend.Stats(time.Hour).InFlight; n != 0 {
			t.Errorf("the Guard has %d in flight at the end", n)
		}
		if len(c.open.free) != len(c.open.of)-1 {
			t.Errorf("%d of %d tickets are free at the end", len(c.open.free), len(c.open.of)-1)
		}
	}
}

func TestChanges(t *testing.T) {
	r := Herd("", 1000, 0)
	r.Mix, r.Background = clients.All(clients.Hammer{Gap: 100 * time.Millisecond}), 0
	drained := map[string]time.Duration{}
	for _, c := range []struct {
		name    string
		changes []Change
		optimum time.Duration
	}{
		{"none", nil, 10 * time.Second},
		{"reload", []Change{{At: 5 * time.Second, Config: config(rate, 0)}}, 10 * time.Second},
		{"restart", []Change{{At: 5 * time.Second, Config: config(rate, 0), Restart: true}}, 10 * time.Second},
		{"half", []Change{{At: 5 * time.Second, Config: config(rate/2, 0)}}, 15 * time.Second},
		{"half for 3 s", []Change{{At: 5 * time.Second, Config: config(rate/2, 0)}, {At: 8 * time.Second, Config: config(rate, 0)}}, 11500 * time.Millisecond},
		{"nothing for 3 s", []Change{{At: 5 * time.Second, Config: config(0.001, 0)}, {At: 8 * time.Second, Config: config(rate, 0)}}, 13 * time.Second},
		{"too late", []Change{{At: 50 * time.Second, Config: config(rate/2, 0)}}, 10 * time.Second},
	} {
		r.Changes = c.changes
		out, err := runLeveled(r, FixedHint(1)) // which lets those who poll have all that there is
		if err != nil {
			t.Fatal(err)
		}
		if (out.Optimum - c.optimum).Abs() > 10*time.Millisecond {
			t.Errorf("%s: the optimum is %v, want %v", c.name, out.Optimum, c.optimum)
		}
		// Sooner by what 10 tokens of burst are worth, at a restart once more.
		if d := out.Drained - c.optimum; d < -250*time.Millisecond || d > 100*time.Millisecond || out.Excess > 0 {
			t.Errorf("%s: took %v, at best %v; %v tokens too many", c.name, out.Drained, c.optimum, out.Excess)
		}
		drained[c.name] = out.Drained

		// The same with the real one, where polling does not pay.
		out, err = runLeveled(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if out.Served != 1000 || out.Excess > 0 {
			t.Errorf("%s: the Guard has served %d of 1000 in %v; %v tokens too many", c.name, out.Served, out.Drained, out.Excess)
		}
	}
	if d := drained["reload"] - drained["restart"]; d < 50*time.Millisecond || drained["none"] != drained["reload"] {
		t.Errorf("took %v without changes, %v with a reload, and %v with a restart, which fills the bucket",
			drained["none"], drained["reload"], drained["restart"])
	}
	for name, server := range map[string]Maker{"the Guard": Guard, "a model": NoHint} {
		r.Changes = []Change{{At: time.Second, Config: shield.Config{Capacity: limiter.Config{Rate: -1}}}}
		if _, err := Run(r, server); err == nil || !strings.Contains(err.Error(), "change at 1s") {
			t.Errorf("%s changed to a bad config: error %v", name, err)
		}
	}
}

// Kubernetes' rule by hand: what is told in each second, given how many are
// refused in it.
func TestKubernetes(t *testing.T) {
	c := config(rate, 0)
	c.Capacity.Rate, c.Capacity.Burst = 1e-3, 1
	s, err := Kubernetes(c)
	if err != nil {
		t.Fatal(err)
	}
	s.Arrive(0, Request{})
	for _, second := range []struct{ at, refused, told int }{
		{0, 1, 1},    // the first
		{1, 2, 1},    // 1 refused in the second before: enough to stay
		{2, 9, 1},    // 2 refused: fewer than 3
		{3, 1, 2},    // 9 refused
		{4, 1, 2},    // 10 in two seconds, but it was doubled a second ago
		{5, 11, 2},   // 2 in two seconds: enough to stay
		{6, 1, 4},    // 12 in two seconds
		{9, 1, 4},    // 12 in four seconds, but it was doubled three seconds ago
		{10, 1, 3},   // 2 in four seconds
		{200, 1, 2},  // long ago counts nothing
		{201, 99, 1}, // 1 in two seconds
		{202, 99, 2},
		{204, 99, 4},
		{208, 99, 8},
		{216, 99, 16},
		{232, 99, 32},
		{264, 99, 32}, // and no more
	} {
		told := 0
		for range second.refused {
			told = s.Arrive(time.Duration(second.at)*time.Second, Request{}).Hint.Seconds
		}
		if told != second.told {
			t.Errorf("second %d: told %d, want %d", second.at, told, second.told)
		}
	}
}

func TestMimir(t *testing.T) {
	c := config(rate, 0)
	s, err := Mimir(c)
	if err != nil {
		t.Fatal(err)
	}
	for range c.Capacity.Burst {
		s.Arrive(0, Request{})
	}
	for _, r := range []struct {
		attempt int
		u       float64
		told    int
	}{{1, 0, 6}, {1, 0.5, 6}, {1, 0.99, 8}, {2, 0, 6}, {2, 0.99, 17}, {3, 0, 12}, {5, 0, 48}, {5, 0.9, 96}, {500, 0.25, 72}} {
		if told := s.Arrive(0, Request{Attempt: r.attempt, U: r.u}).Hint.Seconds; told != r.told {
			t.Errorf("attempt %d, draw %v: told %d s, want %d", r.attempt, r.u, told, r.told)
		}
	}
}

func TestOptimum(t *testing.T) {
	s := Scenario{Background: 50, Config: config(100, 0), Changes: []Change{
		{At: 10 * time.Second, Config: config(20, 0)}, // less than the strangers want
		{At: 30 * time.Second, Config: shield.Config{Capacity: limiter.Config{Rate: 6600, Per: time.Minute}}},
	}}
	for n, want := range map[int]time.Duration{0: 0, 250: 5 * time.Second, 500: 10 * time.Second, 560: 31 * time.Second} {
		if got := s.optimum(n); got != want {
			t.Errorf("%d clients: %v, want %v", n, got, want)
		}
	}
	s.Changes = s.Changes[:1]
	if got := s.optimum(501); got < 24*time.Hour {
		t.Errorf("more clients than there is room for: %v", got)
	}
}

func TestReturns(t *testing.T) {
	var r returns
	at := func(d time.Duration, n int) {
		for range n {
			r.count(int64(d))
		}
	}
	at(-time.Second, 99)
	at(999*time.Millisecond, 99)
	at(time.Second, 3)
	at(1099*time.Millisecond, 5)
	at(1100*time.Millisecond, 4)
	at(1350*time.Millisecond, 1)
	if r.most != 8 {
		t.Errorf("at most %d returns per 100 ms, want 8", r.most)
	}
}

// A Series is who came when, and who was admitted, of the herd and of the
// strangers apart.
func TestSeries(t *testing.T) {
	r := Herd("", 300, 0)
	r.Background, r.Warmup, r.Until, r.Within, r.Bin = 0.5, 2500*time.Millisecond, 40*time.Second, 0, time.Second
	admit := func(r Request) bool { return r.Attempt == 3 || r.Client%4 == 0 }
	answer := func(_ time.Duration, r Request) Answer { return Answer{Admit: admit(r), Hint: hint(2)} }
	out, log := play(t, r, answer)
	var want []Bin
	herd := map[limiter.Key]bool{}
	for _, a := range log {
		if a.at == r.Warmup { // in one moment: no stranger comes at just that
			herd[a.Client] = true
		}
		for len(want) <= int(a.at/r.Bin) {
			want = append(want, Bin{})
		}
		b := &want[a.at/r.Bin]
		d := b.Door(herd[a.Client])
		if d.Came++; admit(a.Request) {
			d.Admitted++
			b.Served++
		}
		if a.Attempt > 1 {
			b.Retries++
		}
	}
	if !slices.Equal(out.Series, want) {
		t.Errorf("got %v, want %v", out.Series, want)
	}
	if len(herd) != 300 || len(want) < 7 || want[2].Herd.Came != 300 || out.Cleared > 30*time.Second {
		t.Errorf("a herd of %d, cleared in %v, in %v: the test looks in the wrong place", len(herd), out.Cleared, want)
	}
	if last := log[len(log)-1].at; last < r.Warmup+r.Until-5*time.Second {
		t.Errorf("the last request is at %v; the run does not go on", last)
	}

	// It changes nothing else. (The probe lets strangers wait after the herd, too.)
	r.Bin = 0
	without, _ := play(t, r, answer)
	if without.Series != nil || without.Drained != out.Drained || without.Cleared != out.Cleared || without.Requests != out.Requests {
		t.Errorf("without a series: %+v\nwith: %+v", without, out)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	good := Herd("", 10, 0)
	good.Warmup = time.Second
	for name, change := range map[string]func(*Scenario){
		"clients":     func(s *Scenario) { s.Clients = -1 },
		"background":  func(s *Scenario) { s.Background = -1 },
		"within":      func(s *Scenario) { s.Within = -1 },
		"warmup":      func(s *Scenario) { s.Warmup = -1 },
		"delay":       func(s *Scenario) { s.Delay = -1 },
		"service":     func(s *Scenario) { s.Service.Mean = -1 },
		"services":    func(s *Scenario) { s.Services = make([]Service, 1+len(s.Mix)) },
		"log-normal":  func(s *Scenario) { s.Service.Lognormal = -1 },
		"rates":       func(s *Scenario) { s.Rates = plant.Steps{{Value: -1}} },
		"until":       func(s *Scenario) { s.Until = -1 },
		"bin":         func(s *Scenario) { s.Bin = -1 },
		"bins":        func(s *Scenario) { s.Bin = (s.Warmup + s.Until) / maxBins },
		"population":  func(s *Scenario) { s.Mix = nil },
		"weight":      func(s *Scenario) { s.Mix = clients.Population{{Weight: -1, Policy: clients.Exact{}}} },
		"change 1":    func(s *Scenario) { s.Changes = []Change{{At: 2}, {At: 1}} },
		"Until":       func(s *Scenario) { s.Until, s.Background = 0, 100 },
		"capacity":    func(s *Scenario) { s.Config.Capacity.Rate = -1 },
		"timeout":     func(s *Scenario) { s.Timeout = -1 },
		"patience":    func(s *Scenario) { s.Patience = -1 },
		"replicas":    func(s *Scenario) { s.Replicas = maxReplicas + 1 },
		"product":     func(s *Scenario) { s.Clients, s.Replicas = maxClients/2, 3 },
		"the replica": func(s *Scenario) { s.Replicas, s.Changes = 2, []Change{{Replica: 3}} },
		"classes":     func(s *Scenario) { s.Classes = []string{"a", "b"} },
		"workers":     func(s *Scenario) { s.Plant = &plant.Config{} },
		"service is":  func(s *Scenario) { s.Plant = &plant.Config{Workers: 1} },
	} {
		s := good
		change(&s)
		if _, err := Run(s, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
	if _, err := Run(good, nil); err != nil {
		t.Error(err)
	}
}

func TestMaxRequests(t *testing.T) {
	r := Herd("", 1000, 0)
	r.MaxRequests = 1500 + int(2*60*background) // the strangers of the warm-up too
	out, err := Run(r, nil)
	if err != nil || out.Decided != r.MaxRequests || out.Waiting == 0 {
		t.Errorf("error %v; decided on %d, %d wait; want %d and some", err, out.Decided, out.Waiting, r.MaxRequests)
	}
}

// BenchmarkRun is what one request costs, with everything around it.
func BenchmarkRun(b *testing.B) {
	r := Herd("", 100_000, 0)
	r.MaxRequests = max(b.N, 1)
	b.ReportAllocs()
	if out, err := Run(r, nil); err != nil || out.Decided > b.N {
		b.Fatal(err, out.Decided)
	}
}
