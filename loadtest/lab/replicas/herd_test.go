package replicas

import (
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/share/redis/testserver"
)

// obedient clients come back when they were told.
type obedient struct{ clients.Exact }

// A herd is served, and what the backend gets is what the limit says, on a machine however busy, and
// while the store is lost.
func TestHerd(t *testing.T) {
	const herd, rate, burst, replicas = 120, 60, 10, 2
	for name, happens := range map[string]func(*fleet){
		"nothing": func(*fleet) {},
		"the store is gone after a second, and back after two more": func(f *fleet) {
			time.Sleep(time.Second)
			f.store.Kill()
			time.Sleep(2 * time.Second)
			f.store.Restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testserver.Each(t, func(t *testing.T, program string) {
				f := start(t, replicas, "capacity 60/s burst 10", program)
				var other sync.WaitGroup
				other.Go(func() { happens(f) })
				result := f.load(t, "10.1.0.0", func(c *live.LoadConfig) {
					c.Herd, c.Within = herd, 100*time.Millisecond
					c.Balance = func(client, n int) int { return (client + n) % replicas } // never the same twice in a row
				}).Run(t.Context())
				other.Wait()
				excess := f.backend.excess(rate, burst)
				t.Logf("%d of %d served within %v, the backend gets %.1f more", result.Herd.Served, herd, result.Herd.LastServed, excess)
				if result.Herd.Served != herd {
					t.Errorf("%d of %d are served", result.Herd.Served, herd)
				}
				if excess > replicas {
					t.Errorf("the backend gets %.1f more than burst + rate * time; want at most one for each replica", excess)
				}
			})
		})
	}
}
