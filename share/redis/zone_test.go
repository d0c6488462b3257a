package redis

import (
	"fmt"
	"math/rand/v2"
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

// Clients of one zone, one far over its limit and some below it, before four replicas: each
// has what one bucket would give, on one server and on a Cluster, under the rights that are
// documented.
func TestZones(t *testing.T) {
	t.Parallel()
	rights := append([]string{"ACL", "SETUSER", "shield", "on", ">secret"}, strings.Fields(Rights(DefaultPrefix))...)
	t.Run("server", func(t *testing.T) {
		server := testserver.Start(t, testserver.Programs(t)[0])
		server.Do(rights...)
		quotas(t, []string{server.Addr})
	})
	t.Run("cluster", func(t *testing.T) {
		servers := testserver.StartCluster(t, testserver.Programs(t)[0])
		for _, server := range servers {
			server.Do(rights...)
		}
		quotas(t, testserver.Addresses(servers))
	})
}

// The quota of a client, the requests per second of one that is over it, and for how long.
const (
	zoneRate  = 10
	zoneBurst = 20
	rush      = 100
	rushTime  = 2 * time.Second
)

func quotas(t *testing.T, addresses []string) {
	machine := testserver.Watch(t)
	var guards []*shield.Guard
	var clients []*Client
	for i := range 4 {
		guard, err := shield.New(shield.Config{
			Capacity: limiter.Config{Rate: 1000, Burst: 100}, Shared: true,
			Zones:   []shield.Zone{{Name: "per_client", Limit: limiter.Config{Rate: zoneRate, Burst: zoneBurst}, Shared: true}},
			Replica: fmt.Sprint("replica", i), Replicas: 4, Secret: []byte("of this test, and of no other"),
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := Open(Options{Addresses: addresses, Username: "shield", Password: "secret"}, Shell{Now: shield.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		client.Serve(guard.Zones(shield.Now())[0], Zone, "per_client", "10/s")
		client.Serve(guard.Link(shield.Now()), Backend, "shop", "1000/s")
		guards, clients = append(guards, guard), append(clients, client)
	}
	(&bench{T: t, Client: clients[3]}).until("all work together", func() bool {
		for _, c := range clients {
			s := c.Status()
			if !s.Up || s.Shared[0].Alone || s.Shared[1].Alone {
				return false
			}
		}
		return true
	})
	// One bucket and a token for each replica is the law; usually it is one bucket.
	for try := 1; ; try++ {
		excess := rushAt(t, guards, clients, machine, try)
		if excess <= 1 {
			return
		}
		if excess > float64(len(guards))+1 || try == 3 {
			t.Fatalf("try %d: %.1f more were admitted of one client than one bucket has", try, excess)
		}
		t.Logf("try %d: %.1f more were admitted of one client than one bucket has", try, excess)
	}
}

// rushAt has clients come for a while, and returns how many more of the first one were
// admitted than one bucket would admit.
func rushAt(t *testing.T, guards []*shield.Guard, clients []*Client, machine *testserver.Machine, try int) (excess float64) {
	var all sync.WaitGroup
	var admitted [8]atomic.Int64 // of the one that is over its limit, and of those that are below it
	var came [8]int64
	var stalls atomic.Int64 // decisions for a time that has passed
	machine.Lap()
	began := time.Now()
	for n, end := 0, time.Now().Add(rushTime); time.Now().Before(end); n++ {
		of := 0
		if n%2 == 1 {
			of = 1 + n/2%7
		}
		came[of]++
		all.Go(func() {
			key := limiter.KeyOf(fmt.Sprint("client", try, of))
			at := shield.Now()
			decision := guards[rand.IntN(len(guards))].Enter(t.Context(), at, shield.Request{Keys: []limiter.Key{key}})
			if shield.Now()-at > 2*share.MaxTrip {
				stalls.Add(1)
			}
			if decision.Admit {
				admitted[of].Add(1)
				decision.Done(shield.Now(), shield.Served)
			}
		})
		time.Sleep(time.Second / (2 * rush))
	}
	all.Wait()
	prompt := machine.Lap()
	ideal := zoneBurst + zoneRate*time.Since(began).Seconds() // not d: a busy machine runs the last of them late
	t.Logf("over its limit: %d of %d, one bucket %.0f; below it: %d of %d; %+v", admitted[0].Load(), came[0], ideal, admitted[1].Load(), came[1], clients[0].Status())
	got := float64(admitted[0].Load())
	if prompt && got < 0.5*ideal { // a store that has just been born has no full buckets
		t.Errorf("%v were admitted of one client, want %v", got, ideal)
	}
	for of := 1; of < len(came); of++ {
		if got := admitted[of].Load(); prompt && float64(came[of]) < ideal && got < came[of]*3/4 {
			t.Errorf("%d of %d were admitted of a client below its limit", got, came[of])
		}
	}
	if s := clients[0].Status().Shared[0]; s.Replicas != 4 {
		t.Errorf("status %+v", s)
	}
	return got - ideal - float64(stalls.Load())
}
