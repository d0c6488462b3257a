package replicas

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/share/redis/testserver"
)

// impatient clients do not come back when they were told: one with the same address comes soon.
var impatient = clients.All(clients.GiveUp{})

// Demand that is everywhere, at one replica, and then at one after the other finds permits, and never has
// more in flight at the backend than the limit.
func TestPermits(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		const replicas, permits = 2, 8
		f := start(t, replicas, fmt.Sprintf("concurrency %d\n\t\tretries {\n\t\t\tenforce off\n\t\t}", permits), program)
		f.backend.service = 50 * time.Millisecond
		for _, demand := range [][]int{{0, 1}, {0}, {1}, {0}} { // replicas that have some
			f.crowd(t, permits, demand, 500*time.Millisecond)
			used, most := f.backend.take()
			t.Logf("%v: %.1f used, at most %d in flight until now", demand, used, most)
			if most > permits {
				t.Errorf("%v: %d are in flight at the backend, want at most %d", demand, most, permits)
			}
		}
		if len(f.backend.sent) < permits {
			t.Errorf("%d requests reached the backend", len(f.backend.sent))
		}
	})
}

// crowd sends three times as many clients as can be served, for a time, evenly to some
// replicas, and returns when no more come.
func (f *fleet) crowd(t *testing.T, permits int, replicas []int, lasts time.Duration) {
	t.Helper()
	var all sync.WaitGroup
	for _, i := range replicas {
		l := f.load(t, "10.1.0.0", func(c *live.LoadConfig) {
			// Connections are kept for each of the targets, which are one replica each.
			c.Target.Addresses, c.KeepAlive = c.Target.Addresses[i:i+1], true
			c.Rate, c.Duration = 3*float64(permits)/f.backend.service.Seconds()/float64(len(replicas)), lasts
			c.Even, c.Mix, c.Patience, c.Identities = true, impatient, 0, 3*permits
		})
		all.Go(func() { l.Run(t.Context()) })
	}
	time.Sleep(lasts)
	t.Cleanup(all.Wait)
}
