package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

var update = flag.Bool("update", false, "write testdata/traces anew")

// A traced scenario is a page that shows what a law of the core does.
type traced struct {
	file, about string
	Scenario
}

// mostLines is how long the page of a trace is at most.
const mostLines = 60

// small is a herd of n clients within 0.1 s, before a capacity of 4/s with a burst of 4.
func small(n int) Scenario {
	return Scenario{
		Seed: 1, Clients: n, Within: 100 * time.Millisecond, Mix: clients.All(clients.Exact{}),
		Warmup: time.Minute, Until: 30 * time.Second,
		Config: shield.Config{Capacity: limiter.Config{Rate: 4, Burst: 4}},
	}
}

// some is a herd of n clients of which a share has another policy.
func some(n int, share float64, p clients.Policy) Scenario {
	s := small(n)
	s.Mix = clients.Population{{Weight: 1 - share, Policy: clients.Exact{}}, {Weight: share, Policy: p}}
	return s
}

// halving is a Policy that comes back after half of the wait that it is told, twice, and then
// obeys.
type halving struct{}

func (halving) Next(r clients.Rejected) (time.Duration, bool) {
	wait, again := clients.Exact{}.Next(r)
	if r.Attempt <= 2 {
		wait /= 2
	}
	return wait, again
}

func traces() []traced {
	slower := small(24)
	slower.Changes = []Change{{At: 2 * time.Second, Config: shield.Config{Capacity: limiter.Config{Rate: 2, Burst: 4}}}}
	over := small(9)
	over.Addresses = 2
	over.Config.Capacity = limiter.Config{Rate: 50}
	over.Config.Zones = []shield.Zone{{Name: "each", Limit: limiter.Config{Rate: 1, Burst: 2}}}
	nat := small(20)
	nat.Addresses, nat.Background = 1, 1
	hammers := some(12, 0.15, clients.Hammer{Gap: 300 * time.Millisecond})
	hammers.Background = 2
	queue := small(14)
	queue.Config = shield.Config{Concurrency: 2, Queue: loadshed.QueueConfig{Size: 3, Timeout: 200 * time.Millisecond}}
	queue.Service, queue.Plant = Service{Mean: 150 * time.Millisecond}, &plant.Config{Workers: 2}
	drain := small(0)
	drain.Background, drain.Until = 3, 12*time.Second
	drain.Config = shield.Config{Concurrency: 20}
	drain.Service = Service{Mean: 50 * time.Millisecond}
	drain.Plant = &plant.Config{Workers: 20, Outage: [2]time.Duration{200 * time.Millisecond, 9 * time.Second}, Rejects: true, RetryAfter: 5 * time.Second}
	reload := some(16, 0.2, clients.Hammer{Gap: 700 * time.Millisecond})
	reload.Changes = []Change{{At: time.Second, Config: shield.Config{Capacity: limiter.Config{Rate: 8, Burst: 8}}}}
	return []traced{
		{file: "herd", about: "24 clients at once, capacity 4/s burst 4: each is told a time of its own.", Scenario: small(24)},
		{file: "early", about: "18 clients at once; some come back after half of the time that they were told.", Scenario: some(18, 0.15, halving{})},
		{file: "due", about: "24 clients at once; after 2 s the capacity falls from 4/s to 2/s, so clients that are due are rejected.", Scenario: slower},
		{file: "noshows", about: "26 clients at once, of which 30% never return.", Scenario: some(26, 0.3, clients.GiveUp{})},
		{file: "quota", about: "9 clients behind two addresses, with a quota of 1/s burst 2 for each address and capacity to spare.", Scenario: over},
		{file: "nat", about: "20 clients behind one address, and new clients with addresses of their own.", Scenario: nat},
		{file: "hammering", about: "12 clients at once beside an ordinary load of half of the capacity; some ask again each 300 ms, whatever they are told.", Scenario: hammers},
		{file: "queue", about: "14 clients at once before concurrency 2 and a queue of 3; a request takes 150 ms.", Scenario: queue},
		{file: "pause", about: "The backend drains from 0.2 s to 9 s: it answers 503 with a Retry-After of 5 s.", Scenario: drain},
		{file: "reload", about: "16 clients at once, some of which ask again each 700 ms; after 1 s a reload doubles the capacity.", Scenario: reload},
	}
}

// TestTraces compares what the Guard decides in ten small scenarios with the pages in
// testdata/traces, so that a change of the core is seen in what clients are told. Each page
// has one line for each decision: when it was made, since the herd came; which client, and
// its which attempt; whether its appointment has come; and the response, with when its
// appointment is, what Retry-After says, and for how long the response is held back. -update
// writes the pages anew.
func TestTraces(t *testing.T) {
	for _, s := range traces() {
		t.Run(s.file, func(t *testing.T) {
			is := s.play(t)
			if n := strings.Count(is, "\n"); n > mostLines {
				t.Errorf("%d lines, want at most %d", n, mostLines)
			}
			file := filepath.Join("testdata/traces", s.file+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(is), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			was, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(was) != is {
				t.Errorf("%s decides differently; see -update and git diff\n%s", file, is)
			}
		})
	}
}

// play returns the page of a scenario.
func (s traced) play(t *testing.T) string {
	tr := &tracer{due: map[uint32]time.Duration{}, open: map[int32]uint32{}}
	r, err := newRun(s.Scenario, func(c shield.Config) (Server, error) {
		server, err := Guard(c)
		if err != nil {
			return nil, err
		}
		tr.Guarded = server.(*Guarded)
		tr.Decided = func(d shield.Decision) { tr.last = d }
		return tr, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.run = r
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	const others = 3 // lines: what it is about, what is left out, the sum
	lines := tr.lines
	if more := len(lines) - (mostLines - others); more > 0 {
		lines = append(lines[:mostLines-others], fmt.Sprintf("... and %d lines more", more))
	}
	sum := fmt.Sprintf("In all %d requests, of which %d were rejected.", tr.requests, tr.rejected)
	if r.Clients > 0 {
		end := r.result()
		sum += fmt.Sprintf(" Of the herd %d of %d were served, the last after %.2f s.", end.Served, end.Clients, end.Drained.Seconds())
	}
	return s.about + "\n" + strings.Join(lines, "\n") + "\n" + sum + "\n"
}

// A tracer is a Guarded that writes down what it decides.
type tracer struct {
	*Guarded
	run   *run
	lines []string

	requests, rejected int // since the herd came

	first uint32 // the first new client that is shown
	last  shield.Decision
	due   map[uint32]time.Duration // the appointment of each client, as an instant
	open  map[int32]uint32         // whose tickets these are
}

func (tr *tracer) Arrive(now time.Duration, r Request) Answer {
	who := uint32(0)
	for _, v := range tr.run.visits.of {
		if v.stage == comes {
			who = v.who
		}
	}
	if now >= tr.run.Warmup {
		tr.requests++
	}
	a := tr.Guarded.Arrive(now, r)
	tr.write(now, who, a)
	return a
}

func (tr *tracer) Settled(now time.Duration) (ticket int32, a Answer, ok bool) {
	if ticket, a, ok = tr.Guarded.Settled(now); ok {
		tr.write(now, tr.open[ticket], a)
	}
	return ticket, a, ok
}

func (tr *tracer) Finish(now time.Duration, ticket int32, e End) {
	if e.RetryAfter > 0 {
		n := len(tr.lines) - 1 // of its admission: this backend answers at once
		tr.lines[n] += fmt.Sprintf(": the backend answers 503, Retry-After %.0f", e.RetryAfter.Seconds())
	}
	tr.Guarded.Finish(now, ticket, e)
}

func (tr *tracer) Change(c shield.Config, restart bool) error {
	at := tr.run.Changes[tr.run.changed-1].At
	tr.lines = append(tr.lines, fmt.Sprintf("%8.3f s  reload     capacity %v/s burst %d", at.Seconds(), c.Capacity.Rate, c.Capacity.Burst))
	return tr.Guarded.Change(c, restart)
}

// write adds the line of a response.
func (tr *tracer) write(now time.Duration, who uint32, a Answer) {
	tr.open[a.Ticket] = who
	came := "new"
	if due, told := tr.due[who]; told {
		if came = "due"; now < due-time.Millisecond {
			came = fmt.Sprintf("%.2f s early", (due - now).Seconds())
		}
	}
	switch d := tr.last; {
	case a.Queued:
		tr.line(now, who, came, "queued")
	case a.Admit:
		tr.line(now, who, came, "200")
	default:
		if now >= tr.run.Warmup {
			tr.rejected++
		}
		tr.line(now, who, came, fmt.Sprintf("%d %-12s come back in %.2f s (told %d, held %.2f)", a.Status, d.Reason, d.Wait.Seconds(), a.Hint.Seconds, a.Hold.Seconds()))
		tr.due[who] = now + d.Wait
	}
}

func (tr *tracer) line(now time.Duration, who uint32, came, answer string) {
	if now < tr.run.Warmup {
		return
	}
	name := fmt.Sprintf("client %d", 1+who)
	if int(who) >= tr.run.Clients {
		if tr.first == 0 {
			tr.first = who
		}
		name = fmt.Sprintf("other %d", 1+who-tr.first)
	}
	tr.lines = append(tr.lines, fmt.Sprintf("%8.3f s  %-9s  try %d  %-12s  %s", (now-tr.run.Warmup).Seconds(), name, tr.run.clients[who].attempts, came, answer))
}
