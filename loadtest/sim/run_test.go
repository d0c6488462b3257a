package sim

import (
	"reflect"
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

// A client waits from when it has read the response: after the hold and the
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
	if out.Served != 1 || out.Requests != 3 || out.MostAttempts != 3 || out.Drained != want[2] || out.Broken != 1 {
		t.Errorf("result: %+v", out)
	}
	if p, wait := out.Policies[0], want[2]+2*s.Delay; p.P50 != wait || p.P99 != wait || p.Served != 1 || p.Requests != 3 {
		t.Errorf("its policy: %+v", p)
	}
}

// An appointment is broken if the client came between the milliseconds that it was
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
		// The second request is rejected after the first hint, the third is not.
		if out.Broken != c.broken {
			t.Errorf("told %+v, came after 7s: %d appointments broken, want %d", c.told, out.Broken, c.broken)
		}
	}
}

// The clients and their instants are the same whatever the server does: the new clients, the
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
	if first(none)[1].at == first(other)[1].at { // new clients: the herd comes after 10 s
		t.Error("another seed brings the same new clients")
	}
	if first(none)[1].at > 9*time.Second {
		t.Error("no new clients before the herd")
	}
}

// Every client has a key of its own, and keeps it; none is NoKey.
func TestKeys(t *testing.T) {
	s := Scenario{
		Clients: 3000, Background: 100, Warmup: time.Second, Until: 10 * time.Second, Config: config(100, 0), Mix: clients.All(clients.Fixed{Gap: 2 * time.Second}),
	}
	out, log := play(t, s, func(_ time.Duration, r Request) Answer { return Answer{Hint: hint(1), Hold: 900 * time.Millisecond} })
	requests := map[limiter.Key]int{}
	for _, a := range log {
		requests[a.Client]++
		if a.Attempt != requests[a.Client] {
			t.Fatalf("request %d of client %x says that it is number %d", requests[a.Client], a.Client, a.Attempt)
		}
		if a.Client == shield.NoKey {
			t.Fatal("a client has no key")
		}
	}
	if len(requests) < 3900 || len(requests) > 4300 { // 3,000 and 11 s of new clients
		t.Errorf("%d clients, want about 4,100", len(requests))
	}
	if out.Waiting != 3000 || out.Drained != 10*time.Second || out.Served != 0 || out.Ratio() < 1000 {
		t.Errorf("no client was served: %+v", out)
	}
}

func TestNewClients(t *testing.T) {
	s := Scenario{Background: 200, Warmup: 10 * time.Second, Until: 105 * time.Second, Mix: clients.All(clients.Fixed{Gap: time.Second}), Config: config(100, 0)}
	odd := 0
	out, log := play(t, s, func(now time.Duration, r Request) Answer {
		if r.Attempt == 1 {
			odd++
		}
		return Answer{Admit: r.Attempt > 1 || odd%2 == 0, Hint: hint(1)}
	})
	// A Poisson process: 200 ± 4.5 · sqrt(200/100) per second over 100 s.
	if g := out.NewClients; g.Came < 19_300 || g.Came > 20_700 || g.AtOnce < g.Came/2-1 || g.AtOnce > g.Came/2+1 || g.Unserved != 0 || g.P95 != time.Second {
		t.Errorf("new clients: %+v", g)
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

// A server that lets all new clients wait for the herd drains it sooner than the
// optimum. That must show: they are served twice as late as the herd, and no
// sooner than the optimum.
func TestNewClientsWhoWaitForTheHerdAreSeen(t *testing.T) {
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
	if g := out.NewClients; g.AtOnce != 0 || g.Unserved != g.Came || g.Came < 150 || g.P95 < 4*time.Second {
		t.Errorf("new clients: %+v; want all to wait", g)
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
	if n < 400 || n > 600 || out.Reachable != n || out.GaveUp != n || out.Waiting != 0 || out.Requests != 1000+2*n || out.Drained != 2*time.Second || out.PeakReturns != n {
		t.Errorf("of %d who come back: %+v", n, out)
	}
}

// The optimum follows the changes of the config, the rates of new clients, the plant and the replicas.
func TestOptimum(t *testing.T) {
	const sec = time.Second
	changes := []Change{
		{At: 10 * sec, Config: config(20, 0)}, // less than the new clients want
		{At: 30 * sec, Config: shield.Config{Capacity: limiter.Config{Rate: 6600, Per: time.Minute}}},
	}
	rates := plant.Steps{{From: 10 * sec, Value: 0}, {From: 20 * sec, Value: 90}}
	workers, tenth := &plant.Config{Workers: 10}, Service{Mean: 100 * ms}
	for _, c := range []struct {
		Scenario
		n    int
		want time.Duration
	}{
		{Scenario{Config: config(100, 0), Changes: changes}, 0, 0},
		{Scenario{Config: config(100, 0), Changes: changes}, 250, 5 * sec},
		{Scenario{Config: config(100, 0), Changes: changes}, 500, 10 * sec},
		{Scenario{Config: config(100, 0), Changes: changes}, 560, 31 * sec},
		{Scenario{Config: config(100, 0), Changes: changes[:1]}, 501, 1e9 * sec}, // there is no room for them
		{Scenario{Config: config(100, 0), Rates: rates}, 500, 10 * sec},
		{Scenario{Config: config(100, 0), Rates: rates}, 1500, 20 * sec},
		{Scenario{Config: config(100, 0), Rates: rates}, 1600, 30 * sec},
		{Scenario{Config: config(200, 0), Service: tenth, Plant: workers}, 500, 10 * sec}, // whatever servers would let in
		{Scenario{Config: config(40, 0), Service: tenth, Plant: workers, Replicas: 2}, 300, 10 * sec},
		{Scenario{Config: config(100, 0), Replicas: 3, Store: &Store{}}, 500, 10 * sec},
		{Scenario{Config: config(100, 0), Replicas: 3, Changes: []Change{{At: sec, Config: config(50, 0), Replica: 1}}}, 250 + 400, 3 * sec},
	} {
		c.Background = 50
		if got := c.optimum(c.n); got != c.want {
			t.Errorf("%d clients: %v, want %v, in %+v", c.n, got, c.want, c.Scenario)
		}
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	good := Herd("", 10, 0)
	good.Warmup = time.Second
	for name, change := range map[string]func(*Scenario){
		"mixes have 0 shares":   func(s *Scenario) { s.Mix = nil },
		"mixes have 257 shares": func(s *Scenario) { s.NewClientsMix = make(clients.Population, 256) },
		"change at 1s": func(s *Scenario) {
			s.Bin, s.Changes = time.Second, []Change{{At: time.Second, Config: shield.Config{Capacity: limiter.Config{Rate: -1}}}}
		},
		"capacity": func(s *Scenario) { s.Config.Capacity.Rate = -1 },
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
