package redis

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Four replicas with a limit of 16 in flight never have more, and use it, whether all have
// demand or one has; with a queue, so that a place is not idle until the next request.
func TestFleetSharesPlaces(t *testing.T) {
	t.Parallel()
	const places, service = 16, 40 * time.Millisecond
	server := testserver.Start(t, testserver.Programs(t)[0])
	f := &fleet{T: t, machine: testserver.Watch(t)}
	for i := range 4 {
		guard, err := shield.New(shield.Config{
			Concurrency: places, Queue: shield.Queue{Size: 64, Timeout: time.Second}, Shared: true,
			Replica: fmt.Sprint("replica", i), Replicas: 4, Secret: []byte("of this test, and of no other"),
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := Open(Options{Addresses: []string{server.Addr}}, Shell{Now: shield.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		f.guards, f.clients = append(f.guards, guard), append(f.clients, client)
		f.ends = append(f.ends, client.Serve(guard.Link(shield.Now()), Backend, "places", "concurrency 16"))
	}
	f.until("all know of each other", f.together)

	var inFlight, most, served, only atomic.Int64 // only: 1 + the replica that all requests go to, or 0
	var stop atomic.Bool
	var all sync.WaitGroup
	for range 3 * places {
		all.Go(func() {
			for !stop.Load() {
				to := int(only.Load()) - 1
				if to < 0 {
					to = rand.IntN(len(f.guards))
				}
				d := f.guards[to].Enter(t.Context(), shield.Now(), shield.Request{Client: limiter.Key(rand.Uint64())})
				if !d.Admit {
					time.Sleep(5 * time.Millisecond)
					continue
				}
				for n := inFlight.Add(1); n > most.Load(); {
					most.CompareAndSwap(most.Load(), n)
				}
				time.Sleep(service)
				inFlight.Add(-1)
				served.Add(1)
				d.Done(shield.Now(), shield.Served)
			}
		})
	}
	prompt := true
	for name, to := range map[string]int64{"all": 0, "one": 1, "another": 3} {
		only.Store(to)
		time.Sleep(time.Second / 2)
		prompt = f.machine.Lap() && prompt
		before, at, cpu := served.Load(), time.Now(), server.CPU()
		time.Sleep(3 * time.Second / 2)
		used := float64(served.Load()-before) * service.Seconds() / time.Since(at).Seconds() / places
		is := f.machine.Lap()
		prompt = prompt && is
		t.Logf("%-8s %.3f of the limit used, at most %d in flight, the server took %.1f%% of a core; the machine is prompt: %v",
			name, used, most.Load(), 100*(server.CPU()-cpu).Seconds()/time.Since(at).Seconds(), is)
		if is && used < .85 { // timers and other tests take their part of the time
			t.Errorf("%s: %.3f of the limit is used, want 0.85", name, used)
		}
	}
	stop.Store(true)
	all.Wait()
	// A replica that the machine stops for longer than its lease has requests in flight, and
	// no places.
	if most.Load() > places && (prompt || most.Load() > 2*places) {
		t.Errorf("%d in flight, want at most %d", most.Load(), places)
	}
}
