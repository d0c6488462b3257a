package shield

import (
	"testing"
	"time"
)

// A kind of clients that wait for an answer for so long, of one agent.
type listener struct {
	agent    string
	patience time.Duration
}

// listen plays an open loop of 5 times what 8 workers of 50 ms can do, from so many
// addresses (0: all different) of all kinds alike. It returns the share of all requests after
// 5 s whose client left while its refusal was held back; and, of the refusals after 30 s with a
// time to come back to clients that wait for 5 s, the share that was held back.
func listen(t *testing.T, kinds []listener, addresses int, seed uint64) (lost, held float64) {
	s := newStage(t, Config{Concurrency: 12}, 8, 50*ms, seed)
	const begin, end = time.Hour, time.Hour + 60*time.Second
	n, asked, left, holds, could := 0, 0, 0, 0, 0
	s.often(begin, end, 5*160, func(now time.Duration) {
		n++
		who := n
		if addresses > 0 {
			who = s.random.IntN(addresses)
		}
		is, c := kinds[who%len(kinds)], &call{Request: one(1 + who)}
		c.Agent, c.patience = is.agent, is.patience
		if now > begin+5*time.Second {
			asked++
		}
		c.told = func(time.Duration) {
			if c.lost() && now > begin+5*time.Second {
				left++
			}
			if is.patience >= time.Second && now > begin+30*time.Second && c.d.Reason != Early && c.d.Wait > time.Second {
				could++
				if c.d.Hold > 0 {
					holds++
				}
			}
		}
		s.ask(now, c)
	})
	s.play(end)
	return float64(left) / float64(asked), float64(holds) / float64(max(1, could))
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
		lost, held := listen(t, c.kinds, c.addresses, 1)
		if held < c.held { // two agents may share a cell, by their hash: once in a hundred runs
			for i := range c.kinds {
				c.kinds[i].agent += " again"
			}
			lost, held = listen(t, c.kinds, c.addresses, 1)
		}
		t.Logf("%s: %.1f %% are never heard, and %.1f %% of those to the patient held back", c.story, 100*lost, 100*held)
		if lost > most || held < c.held {
			t.Errorf("%s: %.3f never heard, and %.3f held back; want %v and %v", c.story, lost, held, most, c.held)
		}
	}
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
