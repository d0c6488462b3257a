package shield

import (
	"testing"
	"time"
)

// Rejections are held back for no longer than the clients of an agent listen, and agents whose
// clients listen long enough have theirs held back as before.
func TestRejectionsAreHeard(t *testing.T) {
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
		o := overload{workers: 8, service: 50 * ms, x: 5, addresses: c.addresses, kinds: c.kinds, from: 5 * time.Second, end: time.Minute}
		is := o.play(t, Config{Concurrency: 12}, 1)
		if is.held < c.held { // two agents may share a cell, by their hash: once in a hundred runs
			for i := range c.kinds {
				c.kinds[i].agent += " again"
			}
			is = o.play(t, Config{Concurrency: 12}, 1)
		}
		t.Logf("%s: %.3f are never heard, and %.3f of those to the patient held back", c.story, is.lost, is.held)
		if is.lost > most || is.held < c.held {
			t.Errorf("%s: %.3f never heard, and %.3f held back; want %v and %v", c.story, is.lost, is.held, most, c.held)
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
