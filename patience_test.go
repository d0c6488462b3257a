package shield

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
)

// A kind of clients that wait for an answer for so long, of one agent.
type listener struct {
	agent    string
	patience time.Duration
}

// heard is what became of the requests of an overload.
type heard struct {
	first, later  float64 // shares of all requests whose client left while its refusal was held back: of the first 5 s, and after
	held, couldBe int     // refusals to clients that wait for 5 s, after 10 s: held back, and all with a time to come back
	asked         [2]int
	lost          [2]int
}

func (h heard) String() string {
	return fmt.Sprintf("%.1f %% never heard in the first 5 s, %.1f %% later; of refusals to the patient %d of %d held back",
		100*h.first, 100*h.later, h.held, h.couldBe)
}

// listen plays an open loop of 5 times what 8 workers of 50 ms can do, from so many
// addresses (0: all different) of all kinds alike.
func listen(t *testing.T, kinds []listener, addresses int, seed uint64) (h heard) {
	s := newStage(t, Config{Concurrency: 12}, 8, 50*ms, seed)
	const begin, end = time.Hour, time.Hour + 60*time.Second
	n := 0
	s.often(begin, end, 5*160, func(now time.Duration) {
		n++
		who := n
		if addresses > 0 {
			who = s.random.IntN(addresses)
		}
		is := kinds[who%len(kinds)]
		half := 0
		if now > begin+5*time.Second {
			half = 1
		}
		h.asked[half]++
		s.askFor(now, Request{Client: limiter.Key(1 + who), Agent: is.agent}, is.patience, func(time.Duration) {}, func(_ time.Duration, d Decision) {
			if d.Hold > is.patience {
				h.lost[half]++
			}
			if is.patience >= time.Second && now > begin+30*time.Second && d.Reason != Early && d.Wait > time.Second {
				h.couldBe++
				if d.Hold > 0 {
					h.held++
				}
			}
		})
	})
	s.play(end)
	h.first = float64(h.lost[0]) / float64(h.asked[0])
	h.later = float64(h.lost[1]) / float64(h.asked[1])
	return h
}

// Rejections are held back for no longer than the clients of an agent listen, and agents whose
// clients listen long enough have theirs held back as before.
func TestRefusalsAreHeard(t *testing.T) {
	const most = 0.02
	patient := listener{"b", 5 * time.Second}
	for _, c := range []struct {
		story     string
		kinds     []listener
		addresses int
		held      float64
	}{
		{"all wait for 5 s", []listener{patient}, 0, .9},
		{"all wait for 100 ms", []listener{{"a", 100 * ms}}, 0, 0},
		{"all wait for 250 ms", []listener{{"a", 250 * ms}}, 0, 0},
		{"all wait for 1 s", []listener{{"a", time.Second}}, 0, .9},
		{"all wait for 250 ms, 1,000 addresses", []listener{{"a", 250 * ms}}, 1000, 0},
		{"half wait for 250 ms, half for 5 s", []listener{{"a", 250 * ms}, patient}, 0, .9},
		{"100 ms, 250 ms, 1 s, 5 s", []listener{{"a", 100 * ms}, {"c", 250 * ms}, {"d", time.Second}, patient}, 0, .9},
		{"the same, one agent, all different", []listener{{"b", 100 * ms}, {"b", 250 * ms}, {"b", time.Second}, patient}, 0, 0},
		{"the same, one agent, 1,000 addresses", []listener{{"b", 100 * ms}, {"b", 250 * ms}, {"b", time.Second}, patient}, 1000, 0},
		{"half and half, one agent, 1,000 addresses", []listener{{"b", 250 * ms}, patient}, 1000, 0}, // most learn nothing within a minute
	} {
		h := listen(t, c.kinds, c.addresses, 1)
		if float64(h.held) < c.held*float64(h.couldBe) { // two agents may share a cell, by their hash: once in a hundred runs
			for i := range c.kinds {
				c.kinds[i].agent += " again"
			}
			h = listen(t, c.kinds, c.addresses, 1)
		}
		t.Logf("%s: %v", c.story, h)
		if h.later > most || float64(h.held) < c.held*float64(h.couldBe) {
			t.Errorf("%s: %v; want %v later, and %v held back", c.story, h, most, c.held)
		}
	}
}

// A refusal is lost whose client goes while it is held back, and no other.
func TestLostRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Capacity: perSecond(10, 1)}, nil)
		held := 0
		for i := range 20 {
			d := g.Admit(Now(), Request{Client: limiter.Key(1 + i)})
			if d.Hold == 0 {
				continue
			}
			held++
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if held%2 == 0 {
				cancel()
			}
			if _, ok := d.Deliver(ctx); ok != (held%2 == 1) {
				t.Errorf("request %d: delivered %v", i, ok)
			}
			cancel()
		}
		if s := g.backend.Stats(Now()); held < 10 || s.Held != 0 || s.Lost != uint64(held/2) {
			t.Errorf("%d of %d are lost and %d held, want half and none", s.Lost, held, s.Held)
		}
	})
}

// A herd is served as soon, whatever is known of how long its clients listen.
func TestHerdIsHeard(t *testing.T) {
	const n, best = 1000, 9900 * ms // but for the burst of 10
	for _, c := range []struct {
		story string
		kinds []listener
		most  float64
	}{
		{"all listen", []listener{{"b", 0}}, 1.12},
		{"half leave after 250 ms, another agent", []listener{{"a", 250 * ms}, {"b", 0}}, 1.3},
		{"half leave after 250 ms, the same agent", []listener{{"b", 250 * ms}, {"b", 0}}, 1.3},
		{"one in 100 leaves after 250 ms, the same agent", append(make([]listener, 99), listener{"", 250 * ms}), 1.2},
	} {
		for round := range 2 {
			s := newStage(t, Config{Capacity: perSecond(100, 10)}, 1000, 5*ms, 1)
			var herds [2][]*patron
			for i := range herds[:round+1] {
				at := time.Hour + time.Duration(i)*time.Minute
				herds[i] = s.crowd(at, 100*ms, n, 0, false)
				for j, v := range herds[i] {
					k := c.kinds[j%len(c.kinds)]
					v.agent, v.patience = k.agent, k.patience
					if i > 0 { // the same clients again
						v.key = herds[0][j].key
					}
				}
			}
			s.play(time.Hour + 5*time.Minute)
			f := fateOf(time.Hour+time.Duration(round)*time.Minute, herds[round])
			x := f.last.Seconds() / best.Seconds()
			t.Logf("%s, herd %d: %v; %.2f of the least time", c.story, 1+round, f, x)
			if f.served != n || x > c.most {
				t.Errorf("%s, herd %d: %v; %.2f of the least time, want %v", c.story, 1+round, f, x, c.most)
			}
		}
	}
}
