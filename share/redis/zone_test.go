package redis

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/redis/testserver"
)

// The quota of a client, the requests per second of one that is over it, and for how long.
const (
	zoneRate  = 10
	zoneBurst = 20
	rush      = 100
	rushTime  = 2 * time.Second
)

// Clients of one zone, one far over its limit and some below it, before four replicas: each has what one bucket would give, with a Cluster
// and under the rights that are documented.
func TestZones(t *testing.T) {
	t.Parallel()
	servers := testserver.StartCluster(t, testserver.Programs(t)[0], 0)
	for _, server := range servers {
		server.Do(append([]string{"ACL", "SETUSER", "shield", "on", ">secret"}, strings.Fields(Rights(DefaultPrefix))...)...)
	}
	f := newFleet(t, 4, Options{Addresses: testserver.Addresses(servers), Username: "shield", Password: "secret"}, shield.Config{
		Capacity: limiter.Config{Rate: 1000, Burst: 100},
		Zones:    []shield.Zone{{Name: "per_client", Limit: limiter.Config{Rate: zoneRate, Burst: zoneBurst}, Shared: true}},
	}, one)
	f.until("all know of each other", f.together)
	// One bucket and a token for each replica is the law; usually it is one bucket.
	for try := 1; ; try++ {
		excess := f.rush(try)
		if excess <= 1 {
			return
		}
		if excess > float64(len(f.guards))+1 || try == 3 {
			t.Fatalf("try %d: %.1f more were admitted of one client than one bucket has", try, excess)
		}
		t.Logf("try %d: %.1f more were admitted of one client than one bucket has", try, excess)
	}
}

// rush has clients come for a while, and returns how many more of the first one were
// admitted than one bucket would admit.
func (f *fleet) rush(try int) (excess float64) {
	f.Helper()
	var admitted, came [8]atomic.Int64 // of the one that is over its limit, and of those that are below it
	of := func(n int) int { return n % 2 * (1 + n/2%7) }
	f.machine.Lap()
	began, stalls := time.Now(), f.stalls.Load()
	f.come(rushTime, 2*rush, func(n int) shield.Request {
		came[of(n)].Add(1)
		return shield.Request{Keys: []limiter.Key{limiter.KeyOf(fmt.Sprint("client", try, of(n)))}}
	}, func(n int) { admitted[of(n)].Add(1) })
	prompt := f.machine.Lap()
	ideal := zoneBurst + zoneRate*time.Since(began).Seconds() // not d: a busy machine runs the last of them late
	f.Logf("over its limit: %d of %d, one bucket %.0f; below it: %d of %d; %+v", admitted[0].Load(), came[0].Load(), ideal, admitted[1].Load(), came[1].Load(), f.clients[0].Status())
	got := float64(admitted[0].Load())
	if prompt && got < 0.5*ideal { // a store that has just been born has no full buckets
		f.Errorf("%v were admitted of one client, want %v", got, ideal)
	}
	for i := 1; i < len(came); i++ {
		if got, came := admitted[i].Load(), came[i].Load(); prompt && float64(came) < ideal && got < came*3/4 {
			f.Errorf("%d of %d were admitted of a client below its limit", got, came)
		}
	}
	return got - ideal - float64(f.stalls.Load()-stalls)
}
