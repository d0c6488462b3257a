package loadshed

import (
	"slices"
	"testing"
	"time"
)

// due removes the orphans that are due, and counts them.
func (g *Orphans) due(now time.Duration) (n int) {
	for {
		if _, due := g.Due(now); !due {
			return n
		}
		n++
	}
}

// FuzzOrphans compares it with a sorted slice.
func FuzzOrphans(f *testing.F) {
	f.Add([]byte{9, 3, 7, 200, 1, 5, 210, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var g Orphans
		var want []time.Duration
		var owners, back uint64 // sums
		now := time.Duration(0)
		for i, s := range steps {
			if s < 200 {
				until := now + time.Duration(int(s)*(i%7))*ms
				if !g.Keep(until, owner{perClient: uint64(i)}) {
					t.Fatalf("no room beside %d", len(want))
				}
				owners += uint64(i)
				want = append(want, until)
			} else {
				now += time.Duration(s-199) * 20 * ms
				before := len(want)
				want = slices.DeleteFunc(want, func(at time.Duration) bool { return at <= now })
				n := 0
				for o, due := g.Due(now); due; o, due = g.Due(now) {
					n++
					back += o.perClient
				}
				if n != before-len(want) {
					t.Fatalf("%d are due at %v, want %d", n, now, before-len(want))
				}
				if len(want) == 0 && back != owners {
					t.Fatalf("all are due, and not all owners were returned")
				}
			}
			if g.Len() != len(want) {
				t.Fatalf("%d orphans, want %d", g.Len(), len(want))
			}
			if len(want) == maxOrphans {
				return
			}
		}
	})
}

func TestOrphansAreBounded(t *testing.T) {
	var g Orphans
	for i := range maxOrphans {
		if !g.Keep(time.Duration(maxOrphans-i)*ms, owner{}) {
			t.Fatalf("no room for orphan %d", i)
		}
	}
	if g.Keep(0, owner{}) {
		t.Errorf("room for more than %d", maxOrphans)
	}
	if n := g.due(time.Duration(maxOrphans/2) * ms); n != maxOrphans/2 {
		t.Errorf("%d due, want half", n)
	}
	if !g.Keep(time.Hour, owner{}) || g.due(time.Minute) != maxOrphans/2 || g.Len() != 1 {
		t.Errorf("%d left, want one", g.Len())
	}
}

// The work that a client has left counts as its own until it is done, also for its share
// under pressure.
func TestOrphansCountForTheirClient(t *testing.T) {
	p, err := NewPlan(PlanConfig{Adaptive: &AdaptiveConfig{}})
	if err != nil {
		t.Fatal(err)
	}
	c, now := new(Concurrency), time.Minute
	c.Use(p)
	enter := func() (pl Place) {
		c.Enter(now, p, &Entrant{Client: 7}, &pl)
		c.Count(now, p, 7, &pl)
		return pl
	}
	for range 20 { // what a request takes
		pl := enter()
		now += 50 * ms
		pl.Leave(now, Served)
	}
	c.NoteShortage(now)
	pl := enter()
	now += 5 * ms
	pl.Leave(now, Aborted)
	if n := c.crowds.Count(7); n != 1 {
		t.Errorf("%d of the client in the backend, want its orphan", n)
	}
	c.releaseOrphans(now + time.Second)
	if n := c.crowds.Count(7); n != 0 || c.gate.InFlight() != 0 {
		t.Errorf("%d of the client and %d in all, when all is done", n, c.gate.InFlight())
	}
}
