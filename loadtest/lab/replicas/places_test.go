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

// A room is a limit in flight, and who wants it.
type room struct {
	replicas, places int
	service          time.Duration
	lasts            time.Duration // of each phase
	moves            int           // how often demand moves in the last
}

// The live rows of places: see the package's comment.
func TestPlaces(t *testing.T) {
	if !*full {
		t.Parallel()
		testserver.Each(t, func(t *testing.T, program string) {
			room{2, 8, 50 * time.Millisecond, 500 * time.Millisecond, 2}.play(t, program, "")
		})
		return
	}
	program := testserver.Programs(t)[0]
	fmt.Printf("| replicas | places | queue | demand | used | most in flight until then |\n|---|---|---|---|---|---|\n")
	for _, queue := range []string{"queue 64", ""} {
		for _, r := range []int{2, 4} {
			t.Run(fmt.Sprintf("%d/%s", r, queue), func(t *testing.T) {
				room{r, 32, 100 * time.Millisecond, 5 * time.Second, 4}.play(t, program, queue)
			})
		}
	}
}

func (r room) play(t *testing.T, program, queue string) {
	t.Helper()
	limit := fmt.Sprintf("concurrency %d\n\t\t%s\n\t\tretries {\n\t\t\tenforce off\n\t\t}", r.places, queue)
	f := start(t, r.replicas, limit, program, false)
	f.backend.service = r.service
	for _, phase := range []struct {
		name  string
		parts [][]int // the replicas that have demand, one part after the other
		least float64 // of the places that must be used, on a machine that has nothing else to do
	}{
		{"all", [][]int{r.all()}, 0.95},
		{"one", [][]int{{0}}, 0.95},
		{"moves", r.each(), 0},
	} {
		for i, part := range phase.parts {
			lasts := r.lasts
			if i == 0 { // until the places are where the demand is
				settles := min(time.Second, r.lasts/2)
				lasts += settles
				time.AfterFunc(settles, func() { f.backend.take() })
			}
			f.crowd(t, r, part, lasts)
		}
		mean, most := f.backend.take()
		used := mean / float64(r.places)
		if !*full {
			t.Logf("%s: %.3f used, at most %d in flight until now", phase.name, used, most)
		} else if fmt.Printf("| %d | %d | %s | %s | %.3f | %d |\n", r.replicas, r.places, queue, phase.name, used, most); used < phase.least {
			t.Errorf("%s: %.3f of the places are used, want at least %v", phase.name, used, phase.least)
		}
		if most > r.places {
			t.Errorf("%s: %d are in flight at the backend, want at most %d", phase.name, most, r.places)
		}
	}
	if len(f.backend.came) < r.places {
		t.Errorf("%d requests reached the backend", len(f.backend.came))
	}
}

// crowd sends three times as many clients as can be served, for a time, evenly to some
// replicas, and returns when no more come.
func (f *fleet) crowd(t *testing.T, r room, replicas []int, lasts time.Duration) {
	t.Helper()
	var all sync.WaitGroup
	for _, i := range replicas {
		l := f.load(t, "10.1.0.0", func(c *live.LoadConfig) {
			// Connections are kept for each of the targets, which are one replica each.
			c.Target.Addresses, c.KeepAlive = c.Target.Addresses[i:i+1], true
			c.Rate, c.Duration = 3*float64(r.places)/r.service.Seconds()/float64(len(replicas)), lasts
			c.Even, c.Mix, c.Patience, c.Identities = true, impatient, 0, 3*r.places
		})
		all.Go(func() { l.Run(t.Context()) })
	}
	time.Sleep(lasts)
	t.Cleanup(all.Wait)
}

func (r room) all() (all []int) {
	for i := range r.replicas {
		all = append(all, i)
	}
	return all
}

// each returns parts in which demand is at one replica, then at another.
func (r room) each() (parts [][]int) {
	for i := range r.moves {
		parts = append(parts, []int{(i + 1) % r.replicas})
	}
	return parts
}
