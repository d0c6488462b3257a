package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

const ms = time.Millisecond

// clerk is a Policy by which a test sees what a client knew: it waits as long as it
// was told, or else a time of its own for each way to fail.
type clerk struct{}

func (clerk) Next(r clients.Rejected) (time.Duration, bool) {
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	switch r.Status {
	case clients.NoAnswer:
		return time.Second, true
	case clients.NoConnection:
		return 4 * time.Second, true
	case http.StatusBadGateway:
		return 5 * time.Second, true
	}
	return 7 * time.Second, true
}

// ends is a Server that admits all requests and writes down how it ended.
type ends struct {
	ends map[End]int
	tick int32
}

func (e *ends) Arrive(time.Duration, Request) Answer {
	e.tick++
	return Answer{Admit: true, Ticket: e.tick}
}
func (e *ends) Finish(_ time.Duration, _ int32, end End) { e.ends[end]++ }
func (e *ends) Change(shield.Config, bool) error         { return nil }

// Every fault of a backend, of one worker that takes 100 ms for each of three
// clients who come at once, by hand. Each time is since they came.
func TestPlant(t *testing.T) {
	for _, c := range []struct {
		name           string
		clients        int
		scenario       func(*Scenario)
		last           time.Duration // served
		decided        int
		timedOut       int
		failed, wasted int
		ends           map[End]int
	}{
		{"in turn", 3, func(*Scenario) {}, 300 * ms, 3, 0, 0, 0, map[End]int{{}: 3}},
		{"two workers", 3, func(s *Scenario) { s.Plant.Workers = 2 }, 200 * ms, 3, 0, 0, 0, map[End]int{{}: 3}},
		{"latency", 3, func(s *Scenario) { s.Plant.Delay = plant.Steps{{From: 0, Value: 0.05}} }, 350 * ms, 3, 0, 0, 0, map[End]int{{}: 3}},
		{"slow", 3, func(s *Scenario) { s.Plant.Slow = plant.Steps{{From: 150 * ms, Value: 4}} }, 600 * ms, 3, 0, 0, 0, map[End]int{{}: 3}},
		// The first takes 100 ms, the second 1.5 times as long as the third waits.
		{"coherency", 3, func(s *Scenario) { s.Plant.Coherency = 0.5 }, 350 * ms, 3, 0, 0, 0, map[End]int{{}: 3}},
		{"outage", 3, func(s *Scenario) { s.Plant.Outage = [2]time.Duration{50 * ms, time.Second} }, 1250 * ms, 3, 0, 0, 0, map[End]int{{}: 3}},
		{"in an outage", 1, func(s *Scenario) { s.Plant.Outage = [2]time.Duration{-500 * ms, time.Second} }, 1100 * ms, 1, 0, 0, 0, map[End]int{{}: 1}},
		// All are told 2 s.
		{"rejecting outage", 3, func(s *Scenario) {
			s.Plant.Outage, s.Plant.Rejects, s.Plant.RetryAfter = [2]time.Duration{0, time.Second}, true, 1500*ms
		}, 2300 * ms, 6, 0, 3, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded, RetryAfter: 1500 * ms}: 3}},
		// Untold they come back 7 s later.
		{"rejecting outage without a time", 3, func(s *Scenario) {
			s.Plant.Outage, s.Plant.Rejects = [2]time.Duration{0, time.Second}, true
		}, 7300 * ms, 6, 0, 3, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 3}},
		// Two are lost at 150 ms, and are back 5 s later.
		{"restart", 3, func(s *Scenario) { s.Plant.Restart = [2]time.Duration{150 * ms, 150 * ms} },
			5350 * ms, 5, 0, 2, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 2}},
		// They find the backend down at 5,150 ms, and come at 10,150 ms.
		{"long restart", 3, func(s *Scenario) { s.Plant.Restart = [2]time.Duration{150 * ms, 6 * time.Second} },
			10350 * ms, 7, 0, 4, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 4}},
		{"full", 3, func(s *Scenario) { s.Plant.Queue = 1 }, 5100 * ms, 4, 0, 1, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 1}},
		// The second and third give up at 150 ms, and what is done for them is wasted, at
		// 200 and 300 ms. At 1,150 ms they come again; the one that waits gives up at
		// 1,300 ms, while it is worked on, and is served alone at 2,400 ms.
		{"impatient", 3, func(s *Scenario) { s.Timeout = 150 * ms }, 2400 * ms, 6, 3, 0, 3, map[End]int{{}: 3, {Outcome: shield.Aborted}: 3}},
		// The response leaves in time, and comes too late: at 100 ms, where 80 would do. It
		// comes back at 1,100 ms for nothing again, 1 s after the timeout.
		{"network", 1, func(s *Scenario) { s.Timeout, s.Delay, s.Until = 120*ms, 20*ms, 1200*ms }, 0, 2, 1, 0, 1, map[End]int{{}: 1, {Outcome: shield.Detached}: 1}},
	} {
		s := Scenario{
			Clients: c.clients, Mix: clients.All(clerk{}), Warmup: time.Second, Until: 20 * time.Second,
			Service: Service{Mean: 100 * ms}, Plant: &plant.Config{Workers: 1},
		}
		c.scenario(&s)
		e := &ends{ends: map[End]int{}}
		out, err := Run(s, func(shield.Config) (Server, error) { return e, nil })
		if err != nil {
			t.Fatal(err)
		}
		conserved(t, c.name, out)
		last := out.Drained
		if out.Waiting > 0 {
			last = 0
		}
		if (last-c.last).Abs() > ms || out.Decided != c.decided || out.TimedOut != c.timedOut || out.Failed != c.failed || out.Wasted != c.wasted {
			t.Errorf("%s: the last is served after %v; %d requests, %d timed out, %d failed, %d wasted; want %v; %d, %d, %d, %d",
				c.name, last, out.Decided, out.TimedOut, out.Failed, out.Wasted, c.last, c.decided, c.timedOut, c.failed, c.wasted)
		}
		if !reflect.DeepEqual(e.ends, c.ends) {
			t.Errorf("%s: requests have ended as %v, want %v", c.name, e.ends, c.ends)
		}
	}
}

// conserved wants that every request has ended once.
func conserved(t *testing.T, name string, r Result) {
	t.Helper()
	if sum := r.Answered + r.Rejected + r.TimedOut + r.Failed + r.Open; sum != r.Decided {
		t.Errorf("%s: of %d requests %d were answered, %d rejected, %d timed out, %d failed, and %d are open: %d in all",
			name, r.Decided, r.Answered, r.Rejected, r.TimedOut, r.Failed, r.Open, sum)
	}
}

// A client that waits too long for a rejection that is held back, or for a backend
// that is none of ours, hangs up.
func TestTimeoutWithoutAPlant(t *testing.T) {
	s := lone()
	s.Timeout, s.Mix = 500*ms, clients.All(clerk{})
	out, log := play(t, s, func(now time.Duration, r Request) Answer {
		return Answer{Admit: r.Attempt == 3, Hint: hint(3), Hold: time.Duration(r.Attempt) * 400 * ms}
	})
	// Told at 400 ms to wait 3 s; then held for 800 ms, so it has gone after 500.
	if want := []time.Duration{0, 3400 * ms, 4900 * ms}; len(log) != 3 || log[1].at-time.Second != want[1] || log[2].at-time.Second != want[2] {
		t.Errorf("requests at %v, want %v", log, want)
	}
	if out.TimedOut != 1 || out.Rejected != 1 || out.Answered != 1 {
		t.Errorf("%+v", out)
	}
	s.Service.Mean = 600 * ms
	s.Until = 10 * time.Second
	out, log = play(t, s, func(time.Duration, Request) Answer { return Answer{Admit: true} })
	conserved(t, "service longer than the timeout", out)
	if out.TimedOut != 7 || out.Wasted != 7 || len(log) != 7 { // one each 1.5 s
		t.Errorf("%d requests, %d timed out, %d wasted; want 7 each", len(log), out.TimedOut, out.Wasted)
	}
}

func TestPatience(t *testing.T) {
	s := lone()
	s.Mix, s.Patience = clients.All(clients.Fixed{Gap: time.Second}), 3500*ms
	s.Bin = time.Second
	out, log := play(t, s, func(time.Duration, Request) Answer { return Answer{} })
	if len(log) != 4 || out.GaveUp != 1 || out.Waiting != 0 || out.Policies[0].GaveUp != 1 || out.Drained != 3*time.Second {
		t.Errorf("%d requests in %v, %d gave up; want 4 in 3 s, 1", len(log), out.Drained, out.GaveUp)
	}
	if b := out.Series[4]; b.GaveUp != 1 || b.Retries != 1 {
		t.Errorf("the last bin is %+v", b)
	}
}

// The Guard's queue: one permit, one who waits for it, one who is rejected.
func TestGuardQueue(t *testing.T) {
	s := Scenario{
		Clients: 3, Mix: clients.All(clients.GiveUp{}), Warmup: time.Second, Until: 3 * time.Second, Bin: 50 * ms,
		Service: Service{Mean: 100 * ms}, Plant: &plant.Config{Workers: 1},
		Config: shield.Config{Concurrency: 1, Queue: loadshed.QueueConfig{Size: 1, Timeout: time.Second}},
	}
	out, err := Run(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, "queue", out)
	if out.Answered != 2 || out.Rejected != 1 || out.Policies[0].P50 != 200*ms {
		t.Errorf("%d answered, %d rejected, the later after %v; want 2, 1, 200 ms", out.Answered, out.Rejected, out.Policies[0].P50)
	}
	for i, want := range []Bin{
		{Herd: Door{3, 1}, GaveUp: 1, InFlight: 1, Queued: 1, Limit: 1},
		{InFlight: 1, Queued: 1, Limit: 1},
		{Herd: Door{0, 1}, Served: 1, InFlight: 1, Limit: 1},
		{InFlight: 1, Limit: 1},
		{Served: 1, Limit: 1},
	} {
		if got := out.Series[20+i]; got != want {
			t.Errorf("bin %d: %+v, want %+v", i, got, want)
		}
	}

	// Waiting requests expire.
	s.Config.Queue.Timeout = 40 * ms
	if out, _ = Run(s, nil); out.Answered != 1 || out.Rejected != 2 {
		t.Errorf("with little time in the queue %d answered, %d rejected; want 1, 2", out.Answered, out.Rejected)
	}
	// Waiting clients hang up: together with the one in work.
	s.Config.Queue.Timeout, s.Timeout = time.Second, 60*ms
	if out, _ = Run(s, nil); out.Answered != 0 || out.Rejected != 1 || out.TimedOut != 2 || out.Open != 0 || out.Wasted == 0 {
		t.Errorf("with 60 ms of patience: %+v", out)
	}
	// The server knows for how long there is time for it to wait.
	s.Timeout, s.Mix[0].SaysTimeout = 150*ms, true
	s.Background, s.Warmup = 1, time.Minute // it knows how long one takes
	if out, _ = Run(s, nil); out.Series[1200].Queued != 1 || out.Series[1201].Queued != 0 {
		t.Errorf("one that has 150 ms, of which the backend needs 100, waits: %+v, then %+v", out.Series[1200], out.Series[1201])
	}
	// A restart breaks the connections of those who wait.
	s.Mix[0].SaysTimeout, s.Timeout, s.Background = false, 0, 0
	s.Changes = []Change{{At: 50 * ms, Config: s.Config, Restart: true}}
	if out, _ = Run(s, nil); out.Answered != 1 || out.Failed != 1 || out.Rejected != 1 {
		t.Errorf("at a restart: %+v", out)
	}
	// A reload does not.
	s.Changes[0].Restart = false
	if out, _ = Run(s, nil); out.Answered != 2 || out.Rejected != 1 {
		t.Errorf("at a reload: %+v", out)
	}
}

// A retry that says so, and a client that says how long it waits, are known to
// the server, and nothing of either otherwise.
func TestWhatRequestsSay(t *testing.T) {
	s := lone()
	s.Timeout, s.Mix[0].SaysRetry, s.Mix[0].SaysTimeout = 2*time.Second, true, true
	_, log := play(t, s, func(_ time.Duration, r Request) Answer { return Answer{Admit: r.Attempt == 2} })
	if len(log) != 2 || log[0].Retry || !log[1].Retry || log[1].Deadline != log[1].at+2*time.Second {
		t.Errorf("they say %+v", log)
	}
	s.Mix[0].SaysRetry, s.Mix[0].SaysTimeout = false, false
	_, log = play(t, s, func(_ time.Duration, r Request) Answer { return Answer{Admit: r.Attempt == 2} })
	if len(log) != 2 || log[1].Retry || log[1].Deadline != 0 {
		t.Errorf("they say %+v", log)
	}
}

// budget is a Policy that retries for a third of all requests of its share.
type budget struct{}

func (budget) Next(r clients.Rejected) (time.Duration, bool) {
	return time.Second, 3*r.Retries < r.Requests
}

func TestBudgetsAreCounted(t *testing.T) {
	s := Scenario{Clients: 900, Mix: clients.All(budget{}), Warmup: time.Second, Until: time.Minute}
	out, log := play(t, s, func(time.Duration, Request) Answer { return Answer{Status: http.StatusTooManyRequests} })
	retries := 0
	for _, a := range log {
		if a.Attempt > 1 {
			retries++
		}
	}
	// All 900 fail at once, with no retry before them.
	if n := float64(retries) / float64(len(log)); out.Requests != len(log) || n < 0.33 || n > 0.6 {
		t.Errorf("%d retries of %d requests", retries, len(log))
	}
}

func TestMaxRequests(t *testing.T) {
	s := Herd("", 5000, 0)
	s.Warmup, s.MaxRequests = 10*time.Second, 1500
	if out, err := Run(s, nil); err != nil || out.Decided != s.MaxRequests || out.Waiting == 0 {
		t.Errorf("error %v; decided on %d, %d wait; want %d and some", err, out.Decided, out.Waiting, s.MaxRequests)
	}
}

// bounded is the Guard, and checks that it never lets in more than its limit. It
// does not know requests in flight from before a restart.
type bounded struct {
	*Guarded
	t          *testing.T
	in, before map[int32]bool // tickets in flight, and those from before a restart
}

func (b *bounded) check(a Answer) Answer {
	if a.Admit {
		b.in[a.Ticket] = true
		if limit := b.Limit(); limit > 0 && len(b.in) > limit {
			b.t.Errorf("%d are in flight, and the limit is %d", len(b.in), limit)
		}
	}
	return a
}

func (b *bounded) Finish(now time.Duration, ticket int32, e End) {
	delete(b.before, ticket)
	delete(b.in, ticket)
	b.Guarded.Finish(now, ticket, e)
}

func (b *bounded) Change(c shield.Config, restart bool) error {
	if restart {
		maps.Copy(b.before, b.in)
		clear(b.in)
	}
	return b.Guarded.Change(c, restart)
}

func (b *bounded) Arrive(now time.Duration, r Request) Answer {
	return b.check(b.Guarded.Arrive(now, r))
}

func (b *bounded) Settled(now time.Duration) (int32, Answer, bool) {
	ticket, a, ok := b.Guarded.Settled(now)
	return ticket, b.check(a), ok
}

// anything is a Scenario drawn at random, with everything that there is.
func anything(seed uint64) Scenario {
	r := rand.New(rand.NewPCG(seed, 77))
	chance := func(p float64) bool { return r.Float64() < p }
	seconds := func(most float64) time.Duration { return time.Duration(r.Float64() * most * float64(time.Second)) }
	s := Scenario{
		Name: fmt.Sprint("anything ", seed), Seed: seed, Clients: r.IntN(1500), Within: seconds(3),
		Mix: clients.Population{
			{Weight: 1, Policy: clients.Exact{}},
			{Weight: 1, Policy: clients.MaxAttempts{N: 3, Policy: clients.Ignore{}}, Precise: chance(0.5)},
			{Weight: 0.3, Policy: clients.GiveUp{}},
			{Weight: 0.3, Policy: clients.Hammer{Gap: 200 * ms}},
		},
		Background: r.Float64() * 100, Warmup: time.Second + seconds(9), Until: 5*time.Second + seconds(20),
		Service:  Service{Mean: 5*ms + seconds(0.1), Exponential: chance(0.5)},
		Replicas: r.IntN(4), Bin: 500 * ms,
	}
	saysRetry, saysTimeout := chance(0.5), false
	if chance(0.5) {
		s.Delay = seconds(0.05)
	}
	if chance(0.7) {
		s.Timeout, saysTimeout = 20*ms+seconds(2), chance(0.5)
	}
	for i := range s.Mix {
		s.Mix[i].SaysRetry, s.Mix[i].SaysTimeout = saysRetry, saysTimeout
	}
	if chance(0.3) {
		s.Patience = seconds(20)
	}
	switch r.IntN(4) {
	case 0:
		s.Config.Concurrency = 1 + r.IntN(30)
		if chance(0.5) {
			s.Config.Queue = loadshed.QueueConfig{Size: 1 + r.IntN(50), Timeout: 10*ms + seconds(1)}
		}
	case 1:
		s.Config.Adaptive = &loadshed.AdaptiveConfig{}
	case 2:
		s.Config.Adaptive = &loadshed.AdaptiveConfig{Target: 50*ms + seconds(0.4)}
		s.Config.Classes, s.Classes = []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}}, []string{loadshed.Critical, loadshed.Default, "", loadshed.Critical}
	}
	if chance(0.4) {
		s.Config.Capacity = limiter.Config{Rate: 20 + 200*r.Float64(), Burst: 10}
	}
	if chance(0.3) {
		s.Config.PerClient = 1
	}
	if chance(0.3) {
		s.Config.Zones = []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Burst: 2}}}
	}
	if chance(0.5) {
		s.Changes = append(s.Changes, Change{At: seconds(5), Config: s.Config, Restart: chance(0.5), Replica: r.IntN(max(1, s.Replicas) + 1)})
	}
	if chance(0.8) {
		s.Plant = &plant.Config{Workers: 1 + r.IntN(12)}
		p := s.Plant
		if chance(0.3) {
			p.Queue = 1 + r.IntN(50)
		}
		if chance(0.3) {
			p.Coherency = 0.02
		}
		if chance(0.3) {
			p.Delay = plant.Steps{{From: seconds(5), Value: 0.05}}
		}
		if chance(0.3) {
			p.Slow = plant.Steps{{From: seconds(5), Value: 5}, {From: 6 * time.Second, Value: 1}}
		}
		if chance(0.4) {
			p.Outage = [2]time.Duration{seconds(3), 3*time.Second + seconds(4)}
			if p.Rejects = chance(0.6); p.Rejects && chance(0.7) {
				p.RetryAfter = seconds(5)
			}
		}
		if chance(0.4) {
			at := seconds(6)
			p.Restart = [2]time.Duration{at, at + seconds(2)}
		}
	}
	return s
}

// Whatever happens: every request ends once and is told so, no more are in flight than may be,
// at the end nothing is held, waits or is in flight, and a second run has the same result.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	n := uint64(40)
	switch {
	case *full:
		n = 1000
	case testing.Short() || raceEnabled:
		n = 25
	}
	ended := map[string]int{}
	for seed := range n {
		s := anything(seed)
		var servers []*bounded
		var told [4]int
		s.Ended = func(e Ended) {
			told[e.How]++
			if e.Attempt < 1 || e.Share >= len(s.Mix) || e.Took < 0 {
				t.Errorf("%s: %+v", s.Name, e)
			}
		}
		out, err := Run(s, func(c shield.Config) (Server, error) {
			g, err := Guard(c)
			if err != nil {
				return nil, err
			}
			b := &bounded{g.(*Guarded), t, map[int32]bool{}, map[int32]bool{}}
			servers = append(servers, b)
			return b, nil
		})
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		conserved(t, s.Name, out)
		if want := [4]int{out.Answered, out.Rejected, out.TimedOut, out.Failed}; told != want {
			t.Errorf("%s: %v are said to have ended, want %v", s.Name, told, want)
		}
		if seed < 12 {
			if again, _ := Run(anything(seed), nil); !reflect.DeepEqual(out, again) {
				t.Errorf("%s has two results", s.Name)
			}
		}
		ended["answered"] += out.Answered
		ended["rejected"] += out.Rejected
		ended["timed out"] += out.TimedOut
		ended["failed"] += out.Failed
		ended["open"] += out.Open
		ended["wasted"] += out.Wasted
		var bins Bin
		came := int32(0)
		for _, b := range out.Series {
			came += b.Herd.Came + b.NewClients.Came
			bins.Served += b.Served
			bins.TimedOut += b.TimedOut
			bins.Wasted += b.Wasted
			ended["queued"] += int(b.Queued)
		}
		if int(came) != out.Decided || int(bins.Served) != out.Answered || int(bins.TimedOut) != out.TimedOut || int(bins.Wasted) != out.Wasted {
			t.Errorf("%s: the bins have %d requests, %+v; want %+v", s.Name, came, bins, out)
		}
		known := out.Waiting
		for i, p := range out.Policies {
			if i != 2 { // those who never come back
				known += p.Served + p.GaveUp
			}
		}
		if known != out.Reachable {
			t.Errorf("%s: %d of %d clients are accounted for", s.Name, known, out.Reachable)
		}
		for i, b := range servers {
			if len(b.in)+len(b.before) > 0 || len(b.open.free) != len(b.open.of)-1 || len(b.waiting) > 0 {
				t.Errorf("%s: of replica %d, %d are in flight at the end, %d of %d tickets are free, %d wait",
					s.Name, i, len(b.in)+len(b.before), len(b.open.free), len(b.open.of)-1, len(b.waiting))
			}
			if stats := b.State.Backend.Stats(s.Warmup + s.Until + time.Hour); stats.InFlight != 0 || stats.Held != 0 {
				t.Errorf("%s: replica %d has %d in flight at the end, and holds %d", s.Name, i, stats.InFlight, stats.Held)
			}
		}
	}
	t.Log(ended)
	for what, n := range ended {
		if n == 0 {
			t.Errorf("nothing was %s: the test looks in the wrong place", what)
		}
	}
}

// Once warm a run allocates nothing for a request, also not with a plant, a limit that
// adapts, and a queue.
func TestNoGarbage(t *testing.T) {
	mallocs := func(until time.Duration) (requests, n uint64) {
		s := Scenario{
			Clients: 20_000, Within: time.Second, Background: 80, Warmup: time.Minute, Until: until,
			Mix: clients.Population{{Weight: 1, Policy: clients.Exact{}, SaysTimeout: true}}, Timeout: time.Second,
			Service: Service{Mean: 50 * ms, Exponential: true}, Plant: &plant.Config{Workers: 8},
			Config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}},
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, err := Run(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return uint64(out.Decided), after.Mallocs - before.Mallocs
	}
	short, a := mallocs(20 * time.Second)
	long, b := mallocs(80 * time.Second)
	t.Logf("%d allocations for %d requests, %d for %d", a, short, b, long)
	if per := float64(b-min(a, b)) / float64(long-short); per > 0.02 && !raceEnabled {
		t.Errorf("%.3f allocations per request", per)
	}
}

// Two clients come at once, each of whom wants three requests to be served, to a worker that takes
// 100 ms for each. The network takes 10 ms each way. Each calls again when it has the answer; the third call
// of the first is rejected twice, and it then gives up.
func TestCalls(t *testing.T) {
	answered := map[limiter.Key]int{}
	p := &probe{t: t, open: map[int32]time.Duration{}}
	var first limiter.Key
	p.answer = func(_ time.Duration, r Request) Answer {
		if first == 0 {
			first = r.Client
		}
		if r.Client == first && answered[first] == 2 {
			return Answer{}
		}
		answered[r.Client]++
		return Answer{Admit: true}
	}
	type end struct {
		at            time.Duration
		how           Ending
		call, attempt int
	}
	var got []end
	r, err := Run(Scenario{
		Clients: 2, Calls: 3, Mix: clients.All(clients.MaxAttempts{N: 2, Policy: clients.Fixed{Gap: 50 * ms}}), Delay: 10 * ms, Warmup: time.Nanosecond,
		Service: Service{Mean: 100 * ms}, Plant: &plant.Config{Workers: 1},
		Ended: func(e Ended) { got = append(got, end{e.At.Round(ms), e.How, e.Call, e.Attempt}) },
	}, func(shield.Config) (Server, error) { return p, nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []end{
		{100 * ms, Answered, 1, 1}, {200 * ms, Answered, 1, 1}, // the second waits for the worker
		{300 * ms, Answered, 2, 1}, {320 * ms, Rejected, 3, 1}, {390 * ms, Rejected, 3, 2}, // 320 ms + 2 · 10 ms + 50 ms
		{400 * ms, Answered, 2, 1}, {520 * ms, Answered, 3, 1}, // 20 ms on the way
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests ended as %v, want %v", got, want)
	}
	if r.Served != 1 || r.GaveUp != 1 || r.Answered != 5 {
		t.Errorf("%d tasks served, %d given up, %d requests answered; want 1, 1, 5", r.Served, r.GaveUp, r.Answered)
	}
	if _, err := Run(Scenario{Clients: 1, Calls: 256, Mix: clients.All(clients.GiveUp{})}, nil); err == nil {
		t.Error("256 calls: no error")
	}
}
