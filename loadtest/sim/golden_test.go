package sim

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

var update = flag.Bool("update", false, "write the golden file of decisions anew")

// decisions hashes what a Guard decides, in the order in which it does.
type decisions struct {
	n    int
	hash uint64
}

func (s *decisions) add(d shield.Decision) {
	h := fnv.New64a()
	write := func(v int64) { _ = binary.Write(h, binary.LittleEndian, v) }
	write(int64(s.hash))
	if d.Admit {
		write(1)
	}
	for _, v := range []int64{
		int64(d.Reason), int64(d.Zone), int64(d.Wait), int64(d.Hint.Seconds), int64(d.Hint.Ms),
		int64(d.Hold), int64(d.Window), int64(d.Backlog), int64(d.Class),
	} {
		write(v)
	}
	if d.Hint.Never {
		write(2)
	}
	s.n++
	s.hash = h.Sum64()
}

// watched is the Maker of the real Guard whose decisions s sees.
func (s *decisions) watched(c shield.Config) (Server, error) {
	g, err := Guard(c)
	if err == nil {
		g.(*Guarded).Decided = s.add
	}
	return g, err
}

// TestGoldenDecisions compares every decision of the named scenarios, of some drawn
// at random, and of requests that use all options of a Guard with what was decided
// when the golden file was written, one line for each. A change of the code that
// decides the same changes no line; -update writes the file anew.
func TestGoldenDecisions(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: a run is one goroutine, and ten times slower with it")
	}
	var out strings.Builder
	line := func(name string, s decisions) { fmt.Fprintf(&out, "%016x %7d %s\n", s.hash, s.n, name) }
	var scenarios []Scenario
	for _, group := range [][]Scenario{Herds(), Cheats()} {
		for _, s := range group {
			if s.Clients <= 5000 {
				s.MaxRequests = 30_000
				scenarios = append(scenarios, s)
			}
		}
	}
	for i := range scenarios {
		scenarios[i].Seed = uint64(i)
	}
	for seed := range uint64(60) {
		scenarios = append(scenarios, anything(1000+seed))
	}
	for _, s := range scenarios {
		var seen decisions
		if _, err := Run(s, seen.watched); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		line(s.Name, seen)
	}
	for seed := range uint64(40) {
		line(fmt.Sprint("all options ", seed), allOptions(t, seed))
	}

	const file = "testdata/decisions.golden"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, is := strings.Split(string(was), "\n"), strings.Split(out.String(), "\n")
	if len(want) != len(is) {
		t.Fatalf("%d scenarios, and %d in %s; see -update", len(is), len(want), file)
	}
	for i := range is {
		if is[i] != want[i] {
			t.Errorf("decides differently:\n was %s\n  is %s", want[i], is[i])
		}
	}
}

// allOptions plays random requests against a Guard whose configuration, drawn
// at random too, uses what a Scenario has no word for: several zones, costs, lenient
// and observing modes, agents, precise clients, routes, aborts and pauses. The memory for
// clients is so large that none is forgotten for want of it: which one would be depends on
// a zone's salt, which differs between processes.
func allOptions(t *testing.T, seed uint64) (seen decisions) {
	r := rand.New(rand.NewPCG(seed, 1))
	chance := func(p float64) bool { return r.Float64() < p }
	c := shield.Config{
		Observe: chance(0.1),
		Pushback: pushback.AnswerConfig{
			Min: time.Duration(1+r.IntN(3)) * time.Second, Max: time.Duration(10+r.IntN(50)) * time.Second, NoDither: chance(0.3),
		},
		Retries:     shield.Retries{Lenient: chance(0.2), MaxClients: 1 << 16},
		IgnoreHerds: chance(0.3),
	}
	for i := range r.IntN(4) {
		c.Zones = append(c.Zones, shield.Zone{
			Name: string(rune('d' - i)), Limit: limiter.Config{Rate: 0.2 + 2*r.Float64(), Burst: 2 + r.IntN(5)}, Cost: 1 + r.IntN(2),
		})
	}
	if chance(0.6) {
		c.Capacity = limiter.Config{Rate: 20 + 40*r.Float64(), Burst: 1 + r.IntN(20)}
	}
	switch r.IntN(3) {
	case 0:
		c.Adaptive = &loadshed.AdaptiveConfig{}
	case 1:
		c.Concurrency = 2 + r.IntN(10)
		if chance(0.6) {
			c.Queue = shield.Queue{Size: 1 + r.IntN(20), Timeout: time.Duration(20+r.IntN(200)) * time.Millisecond}
		}
	}
	if c.Adaptive != nil || c.Concurrency > 0 {
		if chance(0.6) {
			c.Classes = []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}, {Name: loadshed.Sheddable}}
		}
		if chance(0.5) {
			c.PerClient = 1 + r.IntN(3)
		}
	}
	s := new(shield.State)
	g, err := shield.New(c, s)
	if err != nil {
		t.Fatal(err)
	}
	type open struct {
		d       *shield.Decision
		r       shield.Request
		by      *shield.Guard
		ends    time.Duration
		outcome shield.Outcome
	}
	var served, waiting []open
	admitted := func(now time.Duration, o open) {
		seen.add(*o.d)
		if o.d.Hold > 0 && !o.d.Admit {
			o.d.Sent()
		}
		if o.d.Admit {
			o.ends = now + time.Duration(r.ExpFloat64()*float64(150*time.Millisecond))
			o.outcome = []shield.Outcome{shield.Served, shield.Served, shield.Served, shield.Served, shield.Detached, shield.Aborted, shield.TimedOut, shield.Overloaded}[r.IntN(8)]
			served = append(served, o)
		}
	}
	settle := func(now time.Duration) {
		for i := 0; i < len(waiting); i++ {
			o := waiting[i]
			if len(o.d.Verdict()) == 0 {
				continue
			}
			waiting = append(waiting[:i], waiting[i+1:]...)
			o.by.Settle(now, o.r, o.d, <-o.d.Verdict())
			admitted(now, o)
			i = -1
		}
	}
	agents := []string{"curl/8", "Go-http-client/2.0", "Mozilla/5.0", ""}
	now := time.Minute
	for i := range 4000 {
		step := 30 * time.Millisecond
		if i/500%2 == 0 { // a herd, and a lull
			step = 4 * time.Millisecond
		}
		now += time.Duration(r.ExpFloat64() * float64(step))
		for k := 0; k < len(served); k++ {
			if o := served[k]; o.ends <= now {
				served = append(served[:k], served[k+1:]...)
				o.d.Done(now, o.outcome)
				if o.outcome == shield.Overloaded && chance(0.3) {
					o.by.Pause(now, time.Second)
				}
				k--
			}
		}
		settle(now)
		g.Sweep(now)
		settle(now)
		if len(waiting) > 0 && chance(0.02) {
			waiting[0].by.Abandon(now, waiting[0].d)
			waiting = waiting[1:]
			settle(now)
		}
		if i%1000 == 999 { // a reload, which changes what it changes
			c.Pushback.Max = time.Duration(10+r.IntN(50)) * time.Second
			if c.Concurrency > 0 {
				c.Concurrency = 2 + r.IntN(10)
			}
			if g, err = shield.New(c, s); err != nil {
				t.Fatal(err)
			}
		}
		who := limiter.Key(1 + r.IntN(400))
		q := shield.Request{
			Client: who, Fingerprint: who + limiter.Key(r.IntN(3)), InFlightKey: who % 50, Retry: chance(0.1), Precise: chance(0.1),
			Agent: agents[who%4], Class: uint8(r.IntN(4)), Route: uint8(r.IntN(3)),
		}
		if chance(0.05) {
			q.Client = shield.NoKey
		}
		if chance(0.2) {
			q.Deadline = now + time.Duration(r.IntN(int(2*time.Second)))
		}
		for z := range c.Zones {
			q.Keys = append(q.Keys, who%limiter.Key(10*(z+1)))
		}
		d := g.Admit(now, q)
		o := open{d: &d, r: q, by: g}
		if d.Queued() {
			waiting = append(waiting, o)
			settle(now)
			continue
		}
		admitted(now, o)
	}
	return seen
}
