package sim

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
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

func (clerk) Next(r clients.Refused) (time.Duration, bool) {
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
		// All are told 2 s.
		{"refusing outage", 3, func(s *Scenario) {
			s.Plant.Outage, s.Plant.Refuses, s.Plant.RetryAfter = [2]time.Duration{0, time.Second}, true, 1500*ms
		}, 2300 * ms, 6, 0, 3, 0, map[End]int{{}: 3, {shield.Overloaded, 1500 * ms}: 3}},
		// Untold they come back 7 s later.
		{"refusing outage without a time", 3, func(s *Scenario) {
			s.Plant.Outage, s.Plant.Refuses = [2]time.Duration{0, time.Second}, true
		}, 7300 * ms, 6, 0, 3, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 3}},
		// Two are lost at 150 ms, and are back 5 s later.
		{"restart", 3, func(s *Scenario) { s.Plant.Restart = [2]time.Duration{150 * ms, 150 * ms} },
			5350 * ms, 5, 0, 2, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 2}},
		// They find the backend down at 5,150 ms, and come at 10,150 ms.
		{"long restart", 3, func(s *Scenario) { s.Plant.Restart = [2]time.Duration{150 * ms, 6 * time.Second} },
			10350 * ms, 7, 0, 4, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 4}},
		// At 5,150 ms half of the 2 times more are left; 200 ms later 0.96 of them.
		{"cold start", 3, func(s *Scenario) {
			s.Plant.Restart, s.Plant.Cold = [2]time.Duration{150 * ms, 150 * ms}, plant.Cold{Times: 3, For: 10 * time.Second}
		}, 5546 * ms, 5, 0, 2, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 2}},
		{"full", 3, func(s *Scenario) { s.Plant.Queue = 1 }, 5100 * ms, 4, 0, 1, 0, map[End]int{{}: 3, {Outcome: shield.Overloaded}: 1}},
		// The second and third give up at 150 ms, and what is done for them is wasted, at
		// 200 and 300 ms. At 1,150 ms they come again; the one that waits gives up at
		// 1,300 ms, while it is worked on, and is served alone at 2,400 ms.
		{"impatient", 3, func(s *Scenario) { s.Timeout = 150 * ms }, 2400 * ms, 6, 3, 0, 3, map[End]int{{}: 3, {Outcome: shield.Aborted}: 3}},
		// The third is not worked on the first time.
		{"impatient, noticed", 3, func(s *Scenario) { s.Timeout, s.Plant.Notices = 150*ms, true },
			2400 * ms, 6, 3, 0, 2, map[End]int{{}: 3, {Outcome: shield.Aborted}: 3}},
		// The answer leaves in time, and comes too late: at 100 ms, where 80 would do. It
		// comes back at 1,100 ms for nothing again, 1 s after the time-out.
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
	if sum := r.Answered + r.Refused + r.TimedOut + r.Failed + r.Open; sum != r.Decided {
		t.Errorf("%s: of %d requests %d were answered, %d refused, %d timed out, %d failed, and %d are open: %d in all",
			name, r.Decided, r.Answered, r.Refused, r.TimedOut, r.Failed, r.Open, sum)
	}
}

// A client that waits too long for a refusal that is held back, or for a backend
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
	if out.TimedOut != 1 || out.Refused != 1 || out.Answered != 1 {
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

// The Guard's queue: one place, one who waits for it, one who is refused.
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
	if out.Answered != 2 || out.Refused != 1 || out.Policies[0].P50 != 200*ms {
		t.Errorf("%d answered, %d refused, the later after %v; want 2, 1, 200 ms", out.Answered, out.Refused, out.Policies[0].P50)
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
	if out, _ = Run(s, nil); out.Answered != 1 || out.Refused != 2 {
		t.Errorf("with little time in the queue %d answered, %d refused; want 1, 2", out.Answered, out.Refused)
	}
	// Waiting clients hang up: together with the one in work.
	s.Config.Queue.Timeout, s.Timeout = time.Second, 60*ms
	if out, _ = Run(s, nil); out.Answered != 0 || out.Refused != 1 || out.TimedOut != 2 || out.Open != 0 || out.Wasted == 0 {
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
	if out, _ = Run(s, nil); out.Answered != 1 || out.Failed != 1 || out.Refused != 1 {
		t.Errorf("at a restart: %+v", out)
	}
	// A reload does not.
	s.Changes[0].Restart = false
	if out, _ = Run(s, nil); out.Answered != 2 || out.Refused != 1 {
		t.Errorf("at a reload: %+v", out)
	}
}

// The highest class is let in first.
func TestClasses(t *testing.T) {
	s := Scenario{
		Clients: 3000, Within: 30 * time.Second, Warmup: time.Second, Until: 31 * time.Second,
		Mix: clients.Population{
			{Weight: 1, Policy: clients.GiveUp{}}, {Weight: 9, Policy: clients.GiveUp{}},
		},
		Classes: []string{loadshed.Critical, "unknown"},
		Service: Service{Mean: 50 * ms, Exponential: true}, Plant: &plant.Config{Workers: 2},
		Config: shield.Config{Concurrency: 2, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}}, Queue: loadshed.QueueConfig{Size: 4}},
	}
	out, err := Run(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	critical, others := out.Policies[0], out.Policies[1]
	a, b := float64(critical.Served)/float64(critical.Clients), float64(others.Served)/float64(others.Clients)
	if a < 0.9 || b > 0.6 {
		t.Errorf("%.0f %% of the critical and %.0f %% of the others are served", 100*a, 100*b)
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

func (budget) Next(r clients.Refused) (time.Duration, bool) {
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

// Replicas with a part of the capacity each admit about what one does with all of
// it, from each about as many.
func TestReplicas(t *testing.T) {
	admitted := map[int]int{}
	for _, n := range []int{1, 2, 5} {
		s := Herd("", 5000, longest)
		s.Replicas, s.Seed, s.Until, s.Bin = n, 1, 90*time.Second, time.Second
		s.Config.Capacity.Rate, s.Config.Capacity.Burst = rate/float64(n), burst/n
		var servers []*crowd
		out, err := runLeveled(s, func(c shield.Config) (Server, error) {
			g, err := Guard(c)
			servers = append(servers, &crowd{Guarded: g.(*Guarded), in: map[int32]bool{}})
			return servers[len(servers)-1], err
		})
		if err != nil {
			t.Fatal(err)
		}
		conserved(t, fmt.Sprint(n), out.Result)
		for _, b := range out.Series[120:] {
			admitted[n] += int(b.Herd.Admitted + b.Strangers.Admitted)
		}
		for i, c := range servers {
			if got := c.State.Backend.Stats(0).Admitted; math.Abs(float64(got)*float64(n)/float64(out.Answered)-1) > 0.1 {
				t.Errorf("of %d replicas, number %d has admitted %d of %d", n, i, got, out.Answered)
			}
		}
		if len(servers) != n || out.Excess > 0 {
			t.Errorf("%d servers for %d replicas; %v tokens too many", len(servers), n, out.Excess)
		}
		t.Logf("%d replicas: %d admitted in 90 s; %.2f times the optimum of %v", n, admitted[n], out.Ratio(), out.Optimum)
	}
	for n, got := range admitted {
		if got < admitted[1]*92/100 || got > admitted[1]*106/100 {
			t.Errorf("%d replicas have admitted %d, one %d", n, got, admitted[1])
		}
	}
}

// A Change hits all replicas, or the one that it says.
func TestChangesOfReplicas(t *testing.T) {
	s := Herd("", 100, 0)
	s.Replicas, s.Bin, s.Until = 3, time.Second, 5*time.Second
	s.Changes = []Change{
		{At: time.Second, Config: s.Config, Restart: true, Replica: 2}, {At: 2 * time.Second, Config: s.Config}, {At: 3 * time.Second, Config: s.Config, Replica: 3},
	}
	var log []string
	n := 0
	if _, err := Run(s, func(c shield.Config) (Server, error) {
		g, err := Guard(c)
		n++
		return &diary{g.(*Guarded), n, &log}, err
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(log, ", "); got != "2 restarts, 1 reloads, 2 reloads, 3 reloads, 3 reloads" {
		t.Error(got)
	}
	half := s.Config
	half.Capacity.Rate /= 2
	s.Background, s.Changes = 0, []Change{{At: time.Second, Config: half, Replica: 1}}
	if got := s.optimum(300 + 250); got != 2*time.Second {
		t.Errorf("550 take %v at best with 300, and then 250 per second; want 2 s", got)
	}
}

type diary struct {
	*Guarded
	number int
	log    *[]string
}

func (d *diary) Change(c shield.Config, restart bool) error {
	what := "reloads"
	if restart {
		what = "restarts"
	}
	*d.log = append(*d.log, fmt.Sprint(d.number, " ", what))
	return d.Guarded.Change(c, restart)
}

func TestProgressAndStop(t *testing.T) {
	s := Herd("", 5000, 0)
	s.Seed, s.Warmup, s.Until = 1, 10*time.Second, 50*time.Second
	var at []time.Duration
	s.Progress = func(now, end time.Duration) {
		if end != time.Minute {
			t.Errorf("the end is %v", end)
		}
		at = append(at, now)
	}
	whole, err := Run(s, nil)
	if err != nil || whole.Interrupted || len(at) < 59 || len(at) > 61 || !slices.IsSorted(at) {
		t.Errorf("error %v; progress at %v", err, at)
	}
	stop := make(chan struct{})
	s.Stop = stop
	s.Progress = func(now, _ time.Duration) {
		if now >= 20*time.Second && now < 21*time.Second {
			close(stop)
		}
	}
	out, err := Run(s, nil)
	if err != nil || !out.Interrupted || out.Cleared < 10*time.Second || out.Cleared > 20*time.Second {
		t.Errorf("error %v; stopped at %v", err, out.Cleared)
	}
	conserved(t, "stopped", out)
	if out.Served < 300 || out.Served >= whole.Served || out.Waiting == 0 {
		t.Errorf("%d were served until then, of %d in the whole run", out.Served, whole.Served)
	}
	s.Progress = nil // from the first moment
	if out, err = Run(s, nil); err != nil || !out.Interrupted || out.Decided > 0 {
		t.Errorf("error %v; %+v", err, out)
	}
}

// bounded is the Guard, and checks that it never lets in more than its limit. It
// does not know requests in flight from before a restart.
type bounded struct {
	crowd
	t      *testing.T
	before map[int32]bool // a restart
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
	b.crowd.Finish(now, ticket, e)
}

func (b *bounded) Change(c shield.Config, restart bool) error {
	if restart {
		maps.Copy(b.before, b.in)
		clear(b.in)
	}
	return b.crowd.Change(c, restart)
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
		s.Plant = &plant.Config{Workers: 1 + r.IntN(12), Notices: chance(0.5)}
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
			if p.Refuses = chance(0.6); p.Refuses && chance(0.7) {
				p.RetryAfter = seconds(5)
			}
		}
		if chance(0.4) {
			at := seconds(6)
			p.Restart = [2]time.Duration{at, at + seconds(2)}
			if chance(0.5) {
				p.Cold = plant.Cold{Times: 4, For: 3 * time.Second}
			}
		}
	}
	return s
}

// Whatever happens: every request ends once, no more are in flight than may be, and
// at the end nothing is held, waits or is in flight.
func TestNothingIsLost(t *testing.T) {
	n := uint64(150)
	if testing.Short() || raceEnabled {
		n = 25
	}
	ended := map[string]int{}
	for seed := range n {
		s := anything(seed)
		var servers []*bounded
		out, err := Run(s, func(c shield.Config) (Server, error) {
			g, err := Guard(c)
			if err != nil {
				return nil, err
			}
			b := &bounded{crowd{Guarded: g.(*Guarded), in: map[int32]bool{}}, t, map[int32]bool{}}
			servers = append(servers, b)
			return b, nil
		})
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		conserved(t, s.Name, out)
		ended["answered"] += out.Answered
		ended["refused"] += out.Refused
		ended["timed out"] += out.TimedOut
		ended["failed"] += out.Failed
		ended["open"] += out.Open
		ended["wasted"] += out.Wasted
		var bins Bin
		came := int32(0)
		for _, b := range out.Series {
			came += b.Herd.Came + b.Strangers.Came
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
			b.Sweep(s.Warmup + s.Until + time.Hour) // the places kept for those who hung up
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

func TestTheSameAnythingAlways(t *testing.T) {
	for seed := range uint64(12) {
		a, err := Run(anything(seed), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := Run(anything(seed), nil); !reflect.DeepEqual(a, b) {
			t.Errorf("two results of %s", a.Name)
		}
	}
}

// At best a plant does what its workers do, whatever its servers would let in.
func TestOptimumOfAPlant(t *testing.T) {
	s := Scenario{Background: 50, Config: config(200, 0), Service: Service{Mean: 100 * ms}, Plant: &plant.Config{Workers: 10}}
	if got := s.optimum(500); got != 10*time.Second {
		t.Errorf("%v, want 10 s", got)
	}
	s.Replicas, s.Config = 2, config(40, 0)
	if got := s.optimum(300); got != 10*time.Second {
		t.Errorf("%v with two replicas of 40 per second, want 10 s", got)
	}
}

// Every policy that the commands know plays before a backend that fails in every
// way.
func TestCatalog(t *testing.T) {
	for _, e := range clients.Catalog() {
		s := Scenario{
			Seed: 3, Clients: 300, Within: 200 * ms, Mix: clients.All(e.Policy), Warmup: time.Second, Until: time.Minute, Bin: time.Second,
			Timeout: 300 * ms, Delay: 2 * ms, Service: Service{Mean: 50 * ms, Exponential: true},
			Plant:  &plant.Config{Workers: 2, Restart: [2]time.Duration{2 * time.Second, 3 * time.Second}, Outage: [2]time.Duration{5 * time.Second, 6 * time.Second}, Refuses: true},
			Config: shield.Config{Concurrency: 4, Queue: loadshed.QueueConfig{Size: 8}},
		}
		out, err := Run(s, nil)
		if err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		conserved(t, e.Name, out)
		if out.Served == 0 {
			t.Errorf("%s: no client is served", e.Name)
		}
	}
}

// flood is what loadtest/lab/overload's scenario A is: half of what eight workers do,
// then five times as much for two minutes.
func flood() Scenario {
	return Scenario{
		Clients: 720 * 120, Within: 2 * time.Minute, Background: 80, Warmup: time.Minute, Until: 3 * time.Minute, Bin: time.Second,
		Mix: clients.Population{{Weight: 1, Policy: clients.GiveUp{}, SaysTimeout: true}}, Timeout: time.Second,
		Service: Service{Mean: 50 * ms, Exponential: true}, Plant: &plant.Config{Workers: 8},
		Config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}},
	}
}

// Once warm a run allocates nothing for a request, also not with a plant, a limit that
// adapts, and a queue.
func TestNoGarbage(t *testing.T) {
	mallocs := func(until time.Duration) (requests, n uint64) {
		s := flood()
		s.Bin, s.Until = 0, until
		s.Clients, s.Within = 20_000, time.Second
		s.Mix[0].Policy = clients.Exact{}
		s.Timeout = time.Second
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

// A client's wait has the network in it, both ways.
func TestWaitsHaveTheNetwork(t *testing.T) {
	r, err := Run(Scenario{
		Seed: 1, Clients: 10, Mix: clients.All(clients.Exact{}), Delay: 100 * time.Millisecond,
		Service: Service{Mean: 50 * time.Millisecond},
		Config:  shield.Config{Capacity: limiter.Config{Rate: 100, Burst: 10}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Policies[0]; p.P50 != 250*time.Millisecond || p.P99 != 250*time.Millisecond {
		t.Errorf("waits are %v and %v; want 250ms: 50ms of service, 100ms each way", p.P50, p.P99)
	}
}

// The words of clients about themselves depend on their policy.
func TestSharesSayWhatTheyAre(t *testing.T) {
	mix, err := clients.Parse("grpc-go,aws-sdk-go,exact")
	if err != nil {
		t.Fatal(err)
	}
	s := lone()
	s.Clients, s.Timeout = 300, time.Minute
	s.Mix = mix
	retries, deadlines := 0, 0
	_, log := play(t, s, func(now time.Duration, r Request) Answer {
		if r.Retry {
			retries++
			if r.Attempt == 1 {
				t.Error("a first attempt says that it is a retry")
			}
		}
		if r.Deadline > 0 {
			deadlines++
			if r.Deadline != now+time.Minute {
				t.Errorf("a deadline of %v at %v", r.Deadline, now)
			}
		}
		return Answer{Admit: r.Attempt > 1, Hint: hint(1)}
	})
	seconds := 0
	for _, a := range log {
		if a.Attempt > 1 {
			seconds++
		}
	}
	if retries == 0 || retries >= seconds || deadlines == 0 || deadlines >= len(log) {
		t.Errorf("of %d requests, %d of them retries, %d say that they are and %d how long they wait", len(log), seconds, retries, deadlines)
	}
}

// One that waits in the queue is charged to the zones that it was asked in, though a
// reload has dropped them meanwhile: its shell has their keys still.
func TestReloadWhileWaiting(t *testing.T) {
	limits := shield.Config{
		Zones:       []shield.Zone{{Name: "hourly", Limit: limiter.Config{Rate: 1, Per: time.Hour}}},
		Concurrency: 1, Queue: loadshed.QueueConfig{Size: 5, Timeout: time.Minute},
	}
	server, err := Guard(limits)
	if err != nil {
		t.Fatal(err)
	}
	g := server.(*Guarded)
	now := time.Minute
	first := g.Arrive(now, Request{Client: 9})
	for range 2 {
		if a := g.Arrive(now, Request{Client: 1, Attempt: 1}); !a.Queued {
			t.Fatalf("%+v", a)
		}
	}
	limits.Zones = nil
	if err := g.Change(limits, false); err != nil {
		t.Fatal(err)
	}
	admitted := 0
	g.Finish(now+time.Second, first.Ticket, End{})
	for range 10 {
		now += time.Second
		g.Sweep(now)
		for ticket, a, ok := g.Settled(now); ok; ticket, a, ok = g.Settled(now) {
			if a.Admit {
				admitted++
				g.Finish(now, ticket, End{})
			}
		}
	}
	if admitted != 1 {
		t.Errorf("%d of two requests of one client admitted, of which it has one per hour", admitted)
	}
}

// An answer that streams holds its place until it ends, or gives it back when it begins, as
// the operator wants; an adaptive limit learns from the time to the first byte.
func TestStreams(t *testing.T) {
	s := Scenario{
		Clients: 40, Within: time.Second, Mix: clients.All(clerk{}), Warmup: time.Second, FirstByte: 100 * time.Millisecond, Service: Service{Mean: 5 * time.Second},
		Plant: &plant.Config{Workers: 100}, Until: 2 * time.Minute, Bin: 100 * time.Millisecond, Config: shield.Config{Concurrency: 10},
	}
	for streams, want := range map[shield.Streams]func(most int32) bool{
		shield.StreamsHold: func(most int32) bool { return most == 10 },
		shield.StreamsAuto: func(most int32) bool { return most == 10 },
		shield.StreamsFree: func(most int32) bool { return most > 20 },
	} {
		s.Config.Streams = streams
		r, err := Run(s, Guard)
		if err != nil {
			t.Fatal(err)
		}
		most := int32(0)
		for _, b := range r.Series {
			most = max(most, b.InFlight)
		}
		if !want(most) || r.Served != 40 {
			t.Errorf("streams %s: %d in the backend at once, %d of 40 served", streams, most, r.Served)
		}
	}
}
