package pushback

import (
	"fmt"
	"testing"
	"time"
)

// In the long run one in 64 refusals of an agent is lost at most, whatever share of its
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
		for i := range n {
			who := listenerOf(uint64(i+1), "agent", FamilyOther)
			hold := time.Duration(i%10) * time.Second / 10
			if !p.holds(who, hold) {
				continue
			}
			held++
			if sum += c.leave; sum >= 1 {
				sum--
				lost++
				p.leaves(who)
			} else {
				p.heard(who, hold)
			}
		}
		t.Logf("%v leave: %.4f lost, %.3f held back", c.leave, float64(lost)/n, float64(held)/n)
		if l, h := float64(lost)/n, float64(held)/n; l > c.most || h < c.held || h > c.few {
			t.Errorf("%v leave: %.4f lost, %.3f held back; want %v, and %v to %v", c.leave, l, h, c.most, c.held, c.few)
		}
		if got := p.lost.Load(); got != uint64(lost) {
			t.Errorf("%d lost, want %d", got, lost)
		}
		// When they listen again, all of them are held back after a while.
		last := 0
		for i := range 10_000 {
			if !p.holds(listenerOf(uint64(i+1), "agent", FamilyOther), time.Second*3/4) {
				last = i
			}
		}
		if last > maxDebt {
			t.Errorf("%v leave: the %d-th of those that listen is not held back, want %d at most", c.leave, last, maxDebt)
		}
	}
}

// A client that has listened for long is held back, whatever others of its agent do, until
// it leaves itself. Other agents are not touched.
func TestPatientClientsAreHeldBack(t *testing.T) {
	var p patience
	one, other := listenerOf(1, "agent", FamilyOther), listenerOf(2, "agent", FamilyOther)
	p.heard(one, longListening)
	p.heard(other, longListening-1)
	for range 100 {
		p.leaves(listenerOf(3, "agent", FamilyOther))
	}
	held := func(who listener) (n int) {
		for range 100 {
			if p.holds(who, time.Second/4) {
				n++
			}
		}
		return n
	}
	if a, b := held(one), held(other); a != 100 || b > 3 {
		t.Errorf("%d and %d of 100 are held back, want 100 and few", a, b)
	}
	for i := 0; ; i++ {
		if who := listenerOf(1, fmt.Sprint("agent ", i), FamilyOther); who.agent != one.agent {
			if n := held(who); n != 100 {
				t.Errorf("%d of 100 of another agent are held back", n)
			}
			break
		}
	}
	p.leaves(one)
	if n := held(one); n > 3 {
		t.Errorf("%d of 100 are held back, after it has left", n)
	}
	if n := held(listenerOf(0, "agent", FamilyOther)); n > 3 {
		t.Errorf("%d of 100 of a client that is not known", n)
	}
}

// A flood of agents and clients costs memory once, and the refusal nothing.
func TestPatienceIsBounded(t *testing.T) {
	var p patience
	var m moment
	n := uint64(0)
	if allocs := testing.AllocsPerRun(10_000, func() {
		n++
		who := listenerOf(n, agents[n%uint64(len(agents))], FamilyOther)
		if p.holds(who, longListening) && n%2 == 0 {
			p.leaves(who)
		}
		p.heard(who, longListening)
		m.refuse()
	}); allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
	if debt := p.debts[listenerOf(0, agents[0], FamilyOther).agent].Load(); debt > maxDebt || debt < -maxCredit {
		t.Errorf("a debt of %d", debt)
	}
}

var agents = func() (list [1000]string) {
	for i := range list {
		list[i] = fmt.Sprintf("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.0.0 Safari/537.36", i)
	}
	return list
}()

// A burst is told from as many refusals that come evenly.
func TestMoment(t *testing.T) {
	var m moment
	now := time.Hour
	play := func(n int) (burst int) {
		for range n {
			if m.refuse() {
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

func BenchmarkPatience(b *testing.B) {
	var p patience
	var m moment
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		m.refuse()
		p.holds(listenerOf(n, agents[n%8], FamilyOther), time.Second/2)
	}
}
