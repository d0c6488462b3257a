package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
)

// Gradient2 lets more through where there is room, less where latency grows, and
// counts what is in flight.
func TestGradient2(t *testing.T) {
	s, _ := Gradient2(shield.Config{})
	g := s.(*limited)
	now := time.Duration(0)
	windows := func(n int, latency time.Duration) {
		for range n {
			var tickets []int32
			for a := g.Arrive(now, Request{}); a.Admit; a = g.Arrive(now, Request{}) {
				tickets = append(tickets, a.Ticket)
			}
			if len(tickets) != g.Limit() {
				t.Fatalf("%d admitted at a limit of %d", len(tickets), g.Limit())
			}
			now += max(latency, time.Second)
			for i, ticket := range tickets {
				g.since.of[ticket] = now - latency
				g.Finish(now+time.Duration(i), ticket, End{})
			}
			if g.inFlight != 0 {
				t.Fatalf("%d in flight", g.inFlight)
			}
		}
	}
	windows(20, 100*time.Millisecond)
	up := g.Limit()
	windows(5, time.Second)
	if down := g.Limit(); up <= 20 || down >= up {
		t.Errorf("limit is %d, and %d when latency is tenfold; want above 20, and less", up, down)
	}
	if err := g.Change(shield.Config{}, true); err != nil || g.Limit() != 20 {
		t.Errorf("after a restart the limit is %d, error %v; want 20", g.Limit(), err)
	}
}
