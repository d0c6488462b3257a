package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// A fleet is some replicas of one shield, each with a Guard and a Client of its own.
type fleet struct {
	*testing.T
	guards  []*shield.Guard
	clients []*Client
	ends    []func()

	machine *testserver.Machine
	stalls  atomic.Int64 // decisions that the machine has made late
}

const (
	fleetRate  = 100
	fleetBurst = 40
	mostAsked  = 250 // exchanges a second, of four replicas with twice the load that they may admit
)

// newFleet returns n replicas that share all of a config, or what they define alike: unit says how.
func newFleet(t *testing.T, n int, o Options, config shield.Config, unit func(i int) string) *fleet {
	t.Helper()
	f := &fleet{T: t, machine: testserver.Watch(t)}
	for i := range n {
		config.Shared, config.Replica, config.Replicas, config.Secret = true, fmt.Sprint("replica", i), n, []byte("of this test, and of no other")
		guard, err := shield.New(config, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := Open(o, shield.Now, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		f.guards, f.clients = append(f.guards, guard), append(f.clients, client)
		f.ends = append(f.ends, client.Serve(guard.Link(shield.Now()), Backend, "shop", unit(i)))
		for n, z := range guard.Zones(shield.Now()) {
			f.ends = append(f.ends, client.Serve(z, Zone, config.Zones[n].Name, unit(i)))
		}
	}
	return f
}

func one(int) string { return "the same" }

// capacity is what the fleets of this file share.
var capacity = shield.Config{Capacity: limiter.Config{Rate: fleetRate, Burst: fleetBurst}}

func (f *fleet) until(what string, ok func() bool) {
	f.Helper()
	(&bench{T: f.T, Client: f.clients[0]}).until(what, ok)
}

// together reports whether all work with the store, and know of each other.
func (f *fleet) together() bool {
	return f.all(func(s Status) bool {
		return !slices.ContainsFunc(s.Shared, func(of Shared) bool { return of.Alone || of.Replicas != len(f.clients) })
	})
}

func (f *fleet) all(is func(Status) bool) bool {
	return !slices.ContainsFunc(f.clients, func(c *Client) bool { return !is(c.Status()) })
}

// asked returns how many exchanges all replicas have had, whatever became of them.
func (f *fleet) asked() (n uint64) {
	for _, c := range f.clients {
		for _, outcome := range c.Status().Exchanges {
			n += outcome
		}
	}
	return n
}

// come has requests come for a while, rate of them a second, to any replica. It tells of each that is admitted, and
// returns how long the slowest decision took.
func (f *fleet) come(d time.Duration, rate int, request func(n int) shield.Request, admitted func(n int)) (slowest time.Duration) {
	var all sync.WaitGroup
	var worst atomic.Int64
	for end, n := time.Now().Add(d), 0; time.Now().Before(end); n++ {
		all.Go(func() {
			at := shield.Now()
			decision := f.guards[rand.IntN(len(f.guards))].Enter(f.Context(), at, request(n))
			took := shield.Now() - at
			for int64(took) > worst.Load() {
				worst.CompareAndSwap(worst.Load(), int64(took))
			}
			if took > 2*share.MaxTrip {
				f.stalls.Add(1)
			}
			if decision.Admit {
				admitted(n)
				decision.Done(shield.Now(), shield.Served)
			}
		})
		time.Sleep(time.Second / time.Duration(rate))
	}
	all.Wait()
	return time.Duration(worst.Load())
}

// visit has new clients come for a while, twice as many as there is room for, and returns how
// many were admitted, and how long the slowest decision took.
func (f *fleet) visit(d time.Duration) (admitted int64, slowest time.Duration) {
	var in atomic.Int64
	slowest = f.come(d, 2*fleetRate, func(n int) shield.Request {
		return shield.Request{Client: limiter.KeyOf(fmt.Sprint(f.Name(), n))}
	}, func(int) { in.Add(1) })
	return in.Load(), slowest
}

// Four replicas admit what one would, and never more, while the store goes and comes back empty. loadtest/lab/soak has other faults.
func TestFleet(t *testing.T) { // at once with few others: beside all of them a second's rate was 0.89 once
	testserver.Each(t, func(t *testing.T, program string) {
		server := testserver.Start(t, program)
		f := newFleet(t, 4, Options{Addresses: []string{server.Addr}}, capacity, one)
		f.until("all know of each other", f.together)
		began, admitted := time.Now(), int64(0)
		phase := func(name string, least float64, d time.Duration) {
			t.Helper()
			n, slowest := f.visit(d)
			admitted += n
			is := f.machine.Lap()
			t.Logf("%-6s %.2f of the rate, slowest decision %v, the machine is prompt: %v", name, float64(n)/fleetRate/d.Seconds(), slowest.Round(time.Microsecond), is)
			if is && float64(n) < least*fleetRate*d.Seconds() {
				t.Errorf("%s: %d were admitted within %v, want at least %v of the rate", name, n, d, least)
			}
			// A decision that is made late is made for a time that has passed.
			if most := fleetBurst + fleetRate*time.Since(began).Seconds() + 4 + float64(f.stalls.Load()); float64(admitted) > most {
				t.Errorf("%s: %d were admitted until now, want at most %.0f", name, admitted, most)
			}
		}
		phase("first", 0.7, 3*time.Second/2) // a new store gives nothing at first, or a burst that is missed after
		used, asked, at := server.CPU(), f.asked(), time.Now()
		phase("before", 0.9, time.Second)
		lasted := time.Since(at).Seconds()
		each := float64(f.asked()-asked) / lasted
		t.Logf("the server took %.1f%% of a core for %.0f exchanges a second", 100*(server.CPU()-used).Seconds()/lasted, each)
		if each > mostAsked {
			t.Errorf("%.0f exchanges a second, want at most %d", each, mostAsked)
		}
		server.Kill()
		phase("away", 0.4, time.Second)
		f.until("each knows of the loss", func() bool { return f.all(func(s Status) bool { return !s.Up }) })
		f.machine.Lap()
		server.Restart()
		phase("back", 0.7, time.Second)
		f.until("all are together again", f.together)
		phase("again", 0.9, time.Second)
	})
}

// A failover does not give more than the limit, and a burst at most once more.
func TestFleetInFailover(t *testing.T) {
	t.Parallel()
	sentinel, master, replica := testserver.StartSentinel(t, testserver.Programs(t)[0])
	f := newFleet(t, 4, Options{Addresses: []string{sentinel.Addr}, Sentinel: testserver.Master}, capacity, one)
	f.until("all know of each other", f.together)
	began := time.Now()
	before, _ := f.visit(time.Second / 2)
	master.Kill()
	f.machine.Lap()
	during, slowest := f.visit(2 * time.Second)
	prompt := f.machine.Lap()
	f.until("all are together again", f.together)
	if got := replica.Do("ROLE"); !strings.HasPrefix(got, "master") {
		t.Errorf("role %q", got)
	}
	after, _ := f.visit(time.Second)
	admitted, most := before+during+after, 2*fleetBurst+fleetRate*time.Since(began).Seconds()+4+float64(f.stalls.Load())
	t.Logf("%d were admitted in the half second before, %d in the 2 s from then on, %d in the second after; slowest decision %v", before, during, after, slowest)
	if float64(admitted) > most || prompt && during < fleetRate*2/3 {
		t.Errorf("%d were admitted, want at most %.0f; %d during the failover", admitted, most, during)
	}
}

// Replicas with other limits, or another script, have keys of their own, and know of each other. One that ends is none any more at once.
func TestOtherLimits(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Programs(t)[0])
	f := newFleet(t, 3, Options{Addresses: []string{server.Addr}}, capacity, func(i int) string { return []string{"100/s", "100/s", "50/s"}[i] })
	f.until("all know of others", func() bool {
		return f.all(func(s Status) bool { return len(s.Shared) == 1 && len(s.Shared[0].Others) == 1 })
	})
	if others := f.clients[0].Status().Shared[0].Others; others[0].What != "50/s script "+script.Hash()[:8] {
		t.Errorf("there are %+v", others)
	}
	for _, end := range f.ends {
		end()
	}
	for _, key := range strings.Fields(server.Do("KEYS", "*:roster")) {
		if state := server.Do("HGETALL", key); strings.Contains(state, "replica") {
			t.Errorf("after the end %s has %s", key, state)
		}
	}
	if s := f.clients[0].Status(); len(s.Shared) != 0 {
		t.Errorf("status after the end %+v", s)
	}
}
