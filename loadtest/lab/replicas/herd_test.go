package replicas

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/share/redis/testserver"
)

// A herd is what comes to a fleet.
type herd struct {
	clients    int
	rate       int     // the capacity, per second
	burst      int     // of the capacity
	background float64 // other clients per second
}

var (
	long  = herd{clients: 1000, rate: 100, burst: 10, background: 30}
	short = herd{clients: 120, rate: 60, burst: 10}
)

// obedient clients come back when they were told. Where no replica is any more, they are at
// another at once, as behind a balancer that tries the next.
type obedient struct {
	clients.Exact
	attempts int // after which they give up; 0: they never do
}

func (o obedient) Next(r clients.Refused) (time.Duration, bool) {
	if r.Attempt == o.attempts {
		return 0, false
	}
	if r.Status == clients.NoConnection {
		return 0, true
	}
	return o.Exact.Next(r)
}

// balancers say which of r replicas gets attempt n, from 1 on, of a client.
var balancers = map[string]func(r int) func(client, n int) int{
	"other":  func(r int) func(client, n int) int { return func(client, n int) int { return (client + n) % r } },
	"random": func(r int) func(client, n int) int { return func(int, int) int { return rand.IntN(r) } },
	"skew": func(r int) func(client, n int) int { // nine tenths to one, any to another
		return func(int, int) int {
			if rand.IntN(10) > 0 {
				return 0
			}
			return 1 + rand.IntN(r-1)
		}
	},
}

// A fault is what goes wrong. Times are since the herd.
type fault struct {
	name string        // "": nothing
	way  bool          // whether it needs a way of each replica to the store, which can be made slow and cut
	at   time.Duration // 0: 3 s; negative: before the herd
	do   func(*fleet)
	ends time.Duration // if there is an undo
	undo func(*fleet)
}

var gone = fault{name: "store gone", at: -3 * time.Second, do: func(f *fleet) { f.store.Kill() }}

var faults = []fault{
	gone,
	{name: "store gone to 6 s", do: func(f *fleet) { f.store.Kill() }, ends: 6 * time.Second, undo: func(f *fleet) { f.store.Restart() }},
	{name: "store frozen to 5 s", do: func(f *fleet) { f.store.Freeze() }, ends: 5 * time.Second, undo: func(f *fleet) { f.store.Thaw() }},
	{name: "store flushed", do: func(f *fleet) { f.store.Do("FLUSHALL") }},
	{name: "store 100 ms away", way: true, do: func(f *fleet) { f.delay(100 * time.Millisecond) }},
	{name: "store 1 s away", way: true, do: func(f *fleet) { f.delay(time.Second) }},
	{name: "replica cut off", way: true, do: func(f *fleet) { f.ways[0].Cut(true) }},
	{name: "replica killed", do: func(f *fleet) { f.replicas[1].Process.Kill() }},
	{
		name: "replica frozen to 5 s", do: func(f *fleet) { f.replicas[1].Process.Signal(syscall.SIGSTOP) },
		ends: 5 * time.Second, undo: func(f *fleet) { f.replicas[1].Process.Signal(syscall.SIGCONT) },
	},
}

func (f *fleet) delay(d time.Duration) {
	for _, way := range f.ways {
		way.Delay(d)
	}
}

// A run is one herd before one fleet.
type run struct {
	replicas int
	balancer string
	fault    fault
	longest  float64 // that it may take with -full, of one process' time; 0: any
	attempts int     // of a client; 0: any number
}

func (r run) name() string {
	name := fmt.Sprintf("%d/%s", r.replicas, r.balancer)
	if r.fault.name != "" {
		name += "/" + r.fault.name
	}
	if r.attempts > 0 {
		name += fmt.Sprintf("/%d attempts", r.attempts)
	}
	return name
}

// The live rows of a herd: see the package's comment.
func TestHerd(t *testing.T) {
	if !*full {
		t.Parallel()
		testserver.Each(t, func(t *testing.T, program string) {
			got := run{replicas: 2, balancer: "other"}.play(t, short, program)
			t.Logf("%+v", got)
			got.obeys(t, 2)
		})
		return
	}
	program := testserver.Programs(t)[0]
	one := run{replicas: 1, balancer: "other"}.play(t, long, "")
	fmt.Printf("| replicas | balancer | fault | served | time, s | of one process' | requests each | busiest second | most above %d + %d/s |\n|---|---|---|---|---|---|---|---|---|\n",
		long.burst, long.rate)
	one.print("1 | | no store", one)
	one.obeys(t, 1)
	none := fault{}
	runs := []run{
		{2, "other", none, 1.15, 0}, {4, "other", none, 1.15, 0}, {4, "random", none, 1.15, 0}, {4, "skew", none, 1.15, 0}, {8, "other", none, 1.15, 0},
		{4, "random", none, 1.15, 4}, {4, "skew", none, 1.15, 4},
		{4, "random", gone, 1.4, 0},
	}
	for _, f := range faults {
		runs = append(runs, run{4, "other", f, 0, 0})
	}
	for _, r := range runs {
		t.Run(r.name(), func(t *testing.T) {
			got := r.play(t, long, program)
			what := r.fault.name
			if r.attempts > 0 {
				what = fmt.Sprintf("%d attempts each", r.attempts)
			}
			got.print(fmt.Sprintf("%d | %s | %s", r.replicas, r.balancer, what), one)
			if r.attempts > 0 && got.served >= patientServed {
				got.served = got.clients
			}
			got.obeys(t, r.replicas)
			got.meets(t, r, one)
		})
	}
}

// An outcome is what became of a herd.
type outcome struct {
	clients, served int
	took            time.Duration // until the last was served
	each            float64       // requests of a client, that reached a replica
	busiest         int           // requests at the backend, in a second
	excess          float64       // see backend.excess
}

func (o outcome) print(what string, one outcome) {
	fmt.Printf("| %s | %d of %d | %.2f | %.2f | %.2f | %d | %.1f |\n",
		what, o.served, o.clients, o.took.Seconds(), o.took.Seconds()/one.took.Seconds(), o.each, o.busiest, o.excess)
}

// obeys checks what holds on a machine however busy.
func (o outcome) obeys(t *testing.T, replicas int) {
	t.Helper()
	if o.served != o.clients {
		t.Errorf("%d of %d are served", o.served, o.clients)
	}
	if o.excess > float64(replicas) {
		t.Errorf("the backend gets %.1f more than burst + rate * time; want at most one for each of %d replicas", o.excess, replicas)
	}
}

// These bounds are those of a herd in which nothing goes wrong.
const (
	mostEach      = 2.2
	mostBusiest   = 112 // requests at the backend
	patientServed = 998 // of 1,000 that give up after a few attempts
)

// meets checks what holds on a machine that has nothing else to do, beside what one process
// took in the same minutes.
func (o outcome) meets(t *testing.T, r run, one outcome) {
	t.Helper()
	if is := o.took.Seconds() / one.took.Seconds(); r.longest > 0 && is > r.longest {
		t.Errorf("the herd takes %.2f s, %.2f of the %.2f s of one process; want at most %.2f", o.took.Seconds(), is, one.took.Seconds(), r.longest)
	}
	if r.fault.name != "" {
		return
	}
	if o.each > mostEach {
		t.Errorf("%.2f requests each, want at most %v", o.each, mostEach)
	}
	if o.busiest > mostBusiest {
		t.Errorf("%d requests come to the backend in a second, want at most %d", o.busiest, mostBusiest)
	}
}

func (r run) play(t *testing.T, h herd, program string) outcome {
	t.Helper()
	f := start(t, r.replicas, fmt.Sprintf("capacity %d/s burst %d", h.rate, h.burst), program, r.fault.way)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	balance := balancers[r.balancer](r.replicas)
	if h.background > 0 {
		others := f.load(t, "10.2.0.0", func(c *live.LoadConfig) {
			c.Rate, c.Duration, c.Balance = h.background, live.MaxDuration, balance
		})
		go others.Run(ctx)
		time.Sleep(5 * time.Second)
	}
	if r.fault.at < 0 {
		r.fault.do(f)
		time.Sleep(-r.fault.at)
	} else if r.fault.do != nil {
		go r.fault.happen(ctx, f)
	}
	came := time.Now()
	result := f.load(t, "10.1.0.0", func(c *live.LoadConfig) {
		c.Herd, c.Within, c.Balance = h.clients, 100*time.Millisecond, balance
	}).Run(ctx)
	o := outcome{
		clients: h.clients, served: result.Herd.Served, took: result.Herd.LastServed,
		each:    float64(result.Herd.Requests-result.Herd.Unreachable) / float64(h.clients),
		busiest: f.backend.busiest(came),
	}
	o.excess = f.backend.excess(float64(h.rate), float64(h.burst))
	return o
}

// happen lets the fault happen, unless ctx ends before.
func (x fault) happen(ctx context.Context, f *fleet) {
	after := func(d time.Duration, do func(*fleet)) {
		select {
		case <-time.After(d):
			do(f)
		case <-ctx.Done():
		}
	}
	at := cmp.Or(x.at, 3*time.Second)
	after(at, x.do)
	if x.undo != nil {
		after(x.ends-at, x.undo)
	}
}
