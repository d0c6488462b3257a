package pushback

import (
	"fmt"
	"testing"
	"time"
)

// In the long run one in 64 rejections of an agent is lost at most, whatever share of its
// clients leaves, and none is held back less as long as fewer leave.
func TestOneRefusalInSixtyFourIsLost(t *testing.T) {
	for _, c := range []struct {
		leave           float64 // of those that are held back
		most, held, few float64 // lost, and held back at least and at most, as shares
	}{
		{0, 0, 1, 1}, {.01, .0101, .99, 1}, {.05, .0158, .15, .4}, {.5, .0158, .02, .04}, {1, .0158, .01, .02},
	} {
		var p patience
		const n = 200_000
		held, lost, sum := 0, 0, 0.
		for range n {
			if !p.holds(agentOf("agent")) {
				continue
			}
			held++
			if sum += c.leave; sum >= 1 {
				sum--
				lost++
				p.leaves(agentOf("agent"))
			}
		}
		t.Logf("%v leave: %.4f lost, %.3f held back", c.leave, float64(lost)/n, float64(held)/n)
		if l, h := float64(lost)/n, float64(held)/n; l > c.most || h < c.held || h > c.few {
			t.Errorf("%v leave: %.4f lost, %.3f held back; want %v, and %v to %v", c.leave, l, h, c.most, c.held, c.few)
		}
		if got := p.lost.Load(); got != uint64(lost) {
			t.Errorf("%d lost, want %d", got, lost)
		}
	}
}

// Agents whose clients leave cost others nothing.
func TestOtherAgentsAreHeldBack(t *testing.T) {
	var p patience
	for range 100 {
		p.leaves(agentOf("agent"))
	}
	for i := 0; ; i++ {
		if who := agentOf(fmt.Sprint("agent ", i)); who != agentOf("agent") {
			if !p.holds(who) {
				t.Error("another agent's rejection is not held back")
			}
			return
		}
	}
}

// A burst is told from as many rejections that come evenly.
func TestMoment(t *testing.T) {
	var m moment
	now := time.Hour
	play := func(n int) (burst int) {
		for range n {
			if m.reject() {
				burst++
			}
		}
		now += 100 * ms
		m.tick(now)
		return burst
	}
	if n := play(1000); n != 1000-burstLeast {
		t.Errorf("%d of the first 1,000 are a burst", n)
	}
	for range 100 {
		play(64)
	}
	late := 0
	for range 100 {
		late += play(64)
	}
	if late > 0 {
		t.Errorf("%d of those that come evenly are a burst", late)
	}
	now += 10 * time.Second
	m.tick(now)
	if n := play(1000); n < 900 {
		t.Errorf("%d of 1,000 are a burst after a silence", n)
	}
}
