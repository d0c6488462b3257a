package loadshed

import (
	"testing"
	"time"
)

// A client may have a quarter of the places for what takes far longer than the rest, while
// there is not room for all; and as many as there are for anything else, or alone.
func TestShareOfCostlyRequests(t *testing.T) {
	const slow, quick, unknown = 1, 2, 3
	for _, c := range []struct {
		name     string
		route    uint8
		pressure bool
		others   int
		client   uint64
		want     int
	}{
		{"slow", slow, true, 1, 7, 5},
		{"unknown", unknown, true, 1, 7, 5},
		{"quick", quick, true, 1, 7, 19},
		{"there is room", slow, false, 1, 7, 19},
		{"alone", slow, true, 0, 7, 20},
		{"not known", slow, true, 1, 0, 19},
	} {
		p, err := NewPlan(PlanConfig{Limit: 20})
		if err != nil {
			t.Fatal(err)
		}
		var k Concurrency
		now := time.Hour
		enter := func(client uint64, route uint8) (pl Place, entered bool) {
			pl.route = route
			is, _ := k.Enter(now, p, &Entrant{Client: client}, &pl)
			if is == Entered {
				k.Count(now, p, client, &pl)
			}
			return pl, is == Entered
		}
		for i := range 400 { // what requests take
			route, takes := uint8(quick), 10*time.Millisecond
			if i%40 == 0 {
				route, takes = slow, time.Second
			}
			pl, _ := enter(1, route)
			pl.at = now - takes
			pl.Leave(now, Served)
		}
		for range c.others {
			enter(2, quick)
		}
		if c.pressure {
			k.NoteShortage(now)
		}
		n := 0
		for range 20 {
			if _, entered := enter(c.client, c.route); entered {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d of 20 places, want %d", c.name, n, c.want)
		}
	}
}
