package seeds

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

var (
	millisecond = clients.Share{Weight: 1, Policy: Punctual{}, Precise: true}
	sizes       = []int{64, 512, 4096, 32_768}
)

// spread returns the most of what the rungs take in terms of a law, over the least.
func spread(rungs []Rung, law func(n float64) float64) float64 {
	least, most := math.Inf(1), 0.0
	for _, r := range rungs {
		ratio := r.Slots / law(float64(r.Clients))
		least, most = min(least, ratio), max(most, ratio)
	}
	return most / least
}

func linear(n float64) float64    { return n }
func logarithm(n float64) float64 { return n * math.Log2(n) }
func loglog(n float64) float64    { return n * math.Log2(math.Log2(n)) }

// Five hundred times as many clients, and each of the three grows by its own law: in
// terms of it they take about the same at all sizes, and in terms of the others they
// do not.
func TestLadder(t *testing.T) {
	big(t)
	climbs := func(policy func(n int) clients.Policy, c Channel) (rungs []Rung) {
		for _, n := range sizes {
			rungs = append(rungs, Climb(policy, c, n, max(2, 10_000/n), 1))
		}
		return rungs
	}
	appointments := func() (rungs []Rung) {
		for _, n := range sizes {
			r, err := ByAppointment(millisecond, 1, n, 1)
			if err != nil {
				t.Fatal(err)
			}
			if r.Slots < float64(n) || r.Slots > 1.15*float64(n) {
				t.Errorf("by appointment %d clients take %.0f slots, want as many, up to 15 %% more", n, r.Slots)
			}
			rungs = append(rungs, r)
		}
		return rungs
	}
	for _, c := range []struct {
		name   string
		rungs  []Rung
		law    func(float64) float64
		within float64 // the spread, in terms of the law
		others []func(float64) float64
		beyond float64 // the spread, in terms of others
	}{
		{"windows of 2^k", climbs(Doubling, OneOf), logarithm, 1.25, []func(float64) float64{linear, loglog}, 1.35},
		{"windows of n", climbs(Fitting, OneOf), loglog, 1.15, []func(float64) float64{linear, logarithm}, 1.3},
		{"appointments", appointments(), linear, 1.15, []func(float64) float64{loglog, logarithm}, 1.3},
		{"windows of 2^k, alone", climbs(Doubling, Alone), logarithm, 1.25, []func(float64) float64{linear, loglog}, 1.35},
		{"windows of n, alone", climbs(Fitting, Alone), loglog, 1.15, []func(float64) float64{linear, logarithm}, 1.3},
	} {
		own := spread(c.rungs, c.law)
		if own > c.within {
			t.Errorf("%s: in terms of its law what it takes varies by %.2f, want at most %.2f", c.name, own, c.within)
		}
		for i, law := range c.others {
			other := spread(c.rungs, law)
			t.Logf("%s: %.2f by its law, %.2f by another", c.name, own, other)
			if other < c.beyond {
				t.Errorf("%s: in terms of another law, number %d, it varies by %.2f, want at least %.2f", c.name, i, other, c.beyond)
			}
		}
	}
}

// Whole seconds cost a second or so, at any size.
func TestWholeSecondsCostASecond(t *testing.T) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		r, err := ByAppointment(clients.Share{Weight: 1, Policy: clients.Exact{}}, 3, n, 1)
		if err != nil {
			t.Fatal(err)
		}
		if late := r.Slots - 1.02*float64(n); late < 70 || late > 160 {
			t.Errorf("%d clients take %.0f slots, want 1.02 each and about a second", n, r.Slots)
		}
	}
}

// A crowd beyond the horizon wastes slots that cannot be used later: with room for one
// more it does not.
func TestRoomForOneMore(t *testing.T) {
	for burst, most := range map[int]float64{1: 1.15, 2: 1.02} {
		r, err := ByAppointment(millisecond, burst, 30_000, 1)
		if err != nil {
			t.Fatal(err)
		}
		if ratio := r.Slots / 30_000; ratio > most {
			t.Errorf("with a burst of %d they take %.3f slots each, want at most %.2f", burst, ratio, most)
		}
	}
}

// One client has the channel for itself. Of two that come at once one is served at
// once, or none; then they come at random.
func TestChannels(t *testing.T) {
	for _, channel := range []Channel{OneOf, Alone} {
		if r := Climb(Doubling, channel, 1, 10, 1); r != (Rung{1, 1, 1}) {
			t.Errorf("one client, channel %d: %+v, want 1 slot and 1 request", channel, r)
		}
		const n = 10_000
		slots, requests, draw := 0, 0, rand.New(rand.NewPCG(1, 1))
		for range n {
			s, r := climb(Windows{Size: 4, Slot: Slot}, channel, 2, draw)
			slots, requests = slots+s, requests+r
		}
		// OneOf: the other takes a slot of four, and another if it is the first one, which
		// is taken. Alone: both do, as long as it is the same; and one of them again if it
		// is the first one, in which both have been.
		want := map[Channel]float64{OneOf: 3 + 1.0/4, Alone: 4 + 6.0/16 + 4.0/16*8/3}[channel]
		if got := float64(requests) / n; math.Abs(got-want) > 0.03 {
			t.Errorf("two clients, channel %d: %.3f requests, want %.3f", channel, got, want)
		}
	}
}

// The k-th retry is in the k-th window, whenever the one before was.
func TestWindows(t *testing.T) {
	const window = 10 * Slot
	for attempt, before := range []time.Duration{1: 0, 2: window - 1, 3: window, 4: 2*window + 1} {
		if attempt == 0 {
			continue
		}
		for _, u := range []float64{0, 0.5, 0.999} {
			wait, again := Windows{Size: 10, Slot: Slot}.Next(clients.Refused{Attempt: attempt, Elapsed: before, U: u})
			from := time.Duration(attempt-1) * window
			if at := before + wait; !again || wait < 0 || at < from || at >= from+window {
				t.Errorf("attempt %d comes at %v, want within %v from %v", attempt, at, window, from)
			}
		}
	}
}
