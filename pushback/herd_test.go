package pushback

import (
	"encoding/binary"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

// watch lets ticks pass, and returns after how many of them the kind was first
// one for which stop is true, or -1.
func watch(h *Herd, now *time.Duration, ticks int, s source, stop func(HerdKind) bool) int {
	for i := range ticks {
		*now += herdTick
		n := s()
		h.Tick(*now, n, n, 0, 0)
		if stop(h.Kind()) {
			return i + 1
		}
	}
	return -1
}

func anyHerd(k HerdKind) bool { return k != NoHerd }

func never(HerdKind) bool { return false }

// slow tells that there is no time for weeks.
func slow() bool {
	info, ok := debug.ReadBuildInfo()
	race := ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
	return race || testing.Short()
}

// A false alarm would take capacity away for a herd that never comes. So a week
// of each model passes without one. A tenth above the mean rate is admitted, so
// that there are refusals in plenty; none of them comes again.
func TestHerdIsSilent(t *testing.T) {
	hours := 168
	if slow() {
		hours = 12
	}
	for _, m := range quietModels {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var h Herd
			var now time.Duration
			var refused int
			var maxQ, maxEcho float64
			var maxRatio, maxCUSUM float64
			s, limit := m.make(newRand(3)), leakyLimit{rate: 1.1 * m.rate, burst: 1 + 0.1*m.rate}
			for range hours * 36000 {
				now += herdTick
				n := s()
				r := limit.refuse(n)
				refused += r
				h.Tick(now, n, n, r, 0)
				if k := h.Kind(); k != NoHerd {
					t.Fatalf("a herd (%v) at %v: %+v", k, now, h.Report())
				}
				if h.bins == 0 {
					for i := range h.pulses {
						if h.pulses[i].cycles == pulseCycles {
							maxQ = max(maxQ, h.pulses[i].q)
						}
					}
					for i := range h.echoes.lag {
						maxEcho = max(maxEcho, h.echoes.lag[i].q())
					}
					for i := range h.allan {
						if h.allan[i].known > 1000 {
							maxRatio = max(maxRatio, h.allan[i].ratio())
						}
					}
					maxCUSUM = max(maxCUSUM, h.cusum.sum)
				}
			}
			t.Logf("%d h, %d refused; at most: Q %.1f, echo %.1f, Allan ratio %.2f, CUSUM %.1f", hours, refused, maxQ, maxEcho, maxRatio, maxCUSUM)
			if refused == 0 {
				t.Error("nothing was refused: no echo could have been heard")
			}
		})
	}
}

// The limits are the longest delays of a prototype with a threshold of 10.
func TestHerdFindsPulses(t *testing.T) {
	const onset = 10 * time.Minute
	for _, c := range []struct {
		name   string
		period time.Duration
		share  float64
		width  int
		within time.Duration
	}{
		{"1 s 20 %", time.Second, 0.2, 1, 35 * time.Second},
		{"1 s 10 %", time.Second, 0.1, 1, 250 * time.Second},
		{"5 s 10 %", 5 * time.Second, 0.1, 2, 125 * time.Second},
		{"30 s 10 %", 30 * time.Second, 0.1, 10, 510 * time.Second},
		{"60 s 5 %", time.Minute, 0.05, 10, 1020 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(5) {
				var h Herd
				var now time.Duration
				s := pulses(newRand(seed+1), 100, c.period, c.share, c.width, onset)
				if watch(&h, &now, int(onset/herdTick), s, anyHerd) >= 0 {
					t.Fatalf("seed %d: a herd before there is one", seed)
				}
				delay := time.Duration(watch(&h, &now, int(c.within/herdTick), s, anyHerd)) * herdTick
				if delay < 0 {
					t.Errorf("seed %d: nothing found within %v; Q %.1f", seed, c.within, h.Report().Q)
					continue
				}
				t.Logf("seed %d: found after %v", seed, delay)

				// Once all remembered cycles are with the pulse:
				watch(&h, &now, 48*int(c.period/herdTick), s, never)
				r := h.Report()
				if r.Kind != PeriodicHerd || r.Period != c.period {
					t.Errorf("seed %d: %v with period %v, want %v", seed, r.Kind, r.Period, c.period)
				}
				size := 100 * c.share * c.period.Seconds()
				if math.Abs(r.Size/size-1) > 0.35 {
					t.Errorf("seed %d: a size of %.0f, want %.0f", seed, r.Size, size)
				}
				middle := time.Duration(c.width) * herdTick / 2
				if off := mod(r.Phase-middle+c.period/2, c.period) - c.period/2; off.Abs() > max(c.period/20, herdTick/2) {
					t.Errorf("seed %d: the phase is %v, want %v", seed, r.Phase, middle)
				}

				if watch(&h, &now, 24*int(c.period/herdTick), steady(newRand(9), 100), func(k HerdKind) bool { return k == NoHerd }) < 0 {
					t.Errorf("seed %d: still a herd 24 periods after its end", seed)
				}
			}
		})
	}
}

// Twelve cycles make an alarm, even if nothing comes but the pulse.
func TestPulseNeedsTwelveCycles(t *testing.T) {
	var h Herd
	var now time.Duration
	i := 0
	only := func() int {
		if i++; i%10 == 3 {
			return 50
		}
		return 0
	}
	if got := watch(&h, &now, 1000, only, anyHerd); got != 120 {
		t.Errorf("found after %d ticks, want 120", got)
	}
}

// However regular, what is below 3 % of the requests is not worth an alarm.
func TestSmallPulseIsNoHerd(t *testing.T) {
	for _, c := range []struct {
		share float64
		want  HerdKind
	}{{0.02, NoHerd}, {0.05, PeriodicHerd}} {
		var h Herd
		var now time.Duration
		watch(&h, &now, 6000, pulses(newRand(1), 20000, time.Second, c.share, 1, 0), never)
		if r := h.Report(); r.Kind != c.want || r.Q[0] < pulseAlarm {
			t.Errorf("a pulse of %v of the requests, Q %.1f: %v, want %v", c.share, r.Q[0], r.Kind, c.want)
		}
	}
}

// While the day begins, every five minutes bring more at their end than at
// their beginning: that is no pulse.
func TestGrowthIsNoPulse(t *testing.T) {
	var h Herd
	var now time.Duration
	s := daily(newRand(1), 2000, 0.5)
	for range 24 * 12 {
		watch(&h, &now, 3000, s, never)
		if q := h.Report().Q[7]; now > time.Hour && q > 6 {
			t.Fatalf("after %v: a Q of %.1f at %v", now, q, HerdPeriods[7])
		}
	}
}

// The calendar leaves the room that Pulse asks for: it must be where the pulse
// is, wherever in the minute, and nowhere else.
func TestPulseIsWhereItComes(t *testing.T) {
	for _, epoch := range []time.Duration{0, 20 * time.Second, 59500 * ms, -90300 * ms} {
		var h Herd
		now := epoch
		const size = 300.0
		s := pulses(newRand(1), 100, time.Minute, 0.05, 10, 0)
		if got := h.Pulse(0, time.Minute); got != 0 {
			t.Errorf("a pulse of %v before anything is known", got)
		}
		watch(&h, &now, 60*600, s, never)

		middle := epoch + 100*time.Minute + 500*ms
		around := h.Pulse(middle-2*time.Second, middle+2*time.Second)
		if around < 0.85*size || around > 1.15*size {
			t.Errorf("epoch %v: %.0f requests within 2 s of the pulse, want %v", epoch, around, size)
		}
		if got := h.Pulse(middle+4*time.Second, middle+56*time.Second); got > 0.01*size {
			t.Errorf("epoch %v: %.1f requests where no pulse is", epoch, got)
		}
		r, sum := h.Report(), 0.0
		if got := h.Pulse(middle-7*time.Second, middle+2*time.Minute-7*time.Second); math.Abs(got-2*r.Size) > 1e-6 {
			t.Errorf("epoch %v: %v requests in two periods, want %v", epoch, got, 2*r.Size)
		}
		for from := middle - 10*time.Second; from < middle+50*time.Second; from += 250 * ms {
			sum += h.Pulse(from, from+250*ms)
		}
		if math.Abs(sum-r.Size) > 1e-6 {
			t.Errorf("epoch %v: %v requests in the buckets of a period, want %v", epoch, sum, r.Size)
		}
		if got := h.Pulse(middle, middle-time.Second); got != 0 {
			t.Errorf("epoch %v: %v requests before they come", epoch, got)
		}
	}
}

func TestBacklogIsAHerd(t *testing.T) {
	var h Herd
	var now time.Duration
	for client := range uint64(HerdClients) {
		h.Saw(mixed(client + 1))
	}
	for _, c := range []struct {
		backlog time.Duration
		want    HerdKind
	}{
		{0, NoHerd}, {5 * time.Second, NoHerd}, {5001 * ms, BacklogHerd}, {30 * time.Second, BacklogHerd},
		{3001 * ms, BacklogHerd}, {3 * time.Second, NoHerd}, {5 * time.Second, NoHerd},
	} {
		now += herdTick
		h.Tick(now, 10, 10, 0, c.backlog)
		if got := h.Kind(); got != c.want || h.Report().Kind != c.want {
			t.Errorf("%v outstanding: %v, want %v", c.backlog, got, c.want)
		}
	}

	// Its size is how many different clients were refused.
	rng := newRand(1)
	for range 5000 {
		client := rng.Uint64()
		h.Saw(client)
		h.Saw(client)
	}
	now += herdTick
	h.Tick(now, 10000, 10000, 10000, time.Minute)
	r := h.Report()
	if math.Abs(r.Size/5000-1) > 0.07 || r.Size != float64(r.Distinct) || r.Requests != 10000+HerdClients {
		t.Errorf("size %v, %d of %d distinct; want 5000 of 10000", r.Size, r.Distinct, r.Requests)
	}
}

// mixed makes a hash of a number.
func mixed(n uint64) uint64 { return n * 0x9e3779b97f4a7c15 }

// A few clients that hammer are no herd, however far the promises to them reach, and whatever the
// interval at which they repeat.
func TestFewClientsAreNoHerd(t *testing.T) {
	var h Herd
	var now time.Duration
	for i := range 3000 {
		for client := range uint64(HerdClients - 1) {
			h.Saw(mixed(client + 1))
		}
		now += herdTick
		h.Tick(now, 10, 10, 10, 30*time.Second)
		if k := h.Kind(); k != NoHerd {
			t.Fatalf("after %d ticks %d clients are a herd: %+v", i+1, HerdClients-1, h.Report())
		}
	}
	h.Saw(mixed(HerdClients))
	now += herdTick
	if h.Tick(now, 10, 10, 10, 30*time.Second); h.Kind() != BacklogHerd {
		t.Errorf("with one more there is no herd: %+v", h.Report())
	}

	// A single client repeats its refused request after two seconds.
	var one, many Herd
	rng, from := newRand(7), uint64(1)
	s := returners(7, 0.5, &leakyLimit{rate: 105, burst: 10}, func() time.Duration { return 2 * time.Second })
	for range 18000 {
		now += herdTick
		n, r := s()
		for range r {
			one.Saw(from)
			many.Saw(rng.Uint64())
		}
		one.Tick(now, n, n, r, 0)
		many.Tick(now, n, n, r, 0)
	}
	if one.Kind() != NoHerd || many.Kind() != EchoHerd {
		t.Errorf("one client is %v, and many are %v", one.Kind(), many.Kind())
	}
}

// A timer of one client, or of a few, is no periodic herd.
func TestFewRequestsAreNoPulse(t *testing.T) {
	for size, want := range map[int]HerdKind{1: NoHerd, HerdClients - 1: NoHerd, HerdClients: PeriodicHerd} {
		var h Herd
		var now time.Duration
		i := 0
		timer := func() int {
			if i++; i%10 == 3 {
				return size
			}
			return 0
		}
		if watch(&h, &now, 1000, timer, never); h.Kind() != want {
			t.Errorf("%d requests per second at a time are %v; want %v", size, h.Kind(), want)
		}
	}
}

func TestClientsAreCounted(t *testing.T) {
	for _, clients := range []int{1, 10, 100, 1000, 100_000, 1_000_000} {
		var h Herd
		rng := newRand(uint64(clients))
		for range clients {
			h.Saw(rng.Uint64())
		}
		if got := h.Report().Distinct; math.Abs(float64(got)/float64(clients)-1) > 0.07 {
			t.Errorf("%d clients are counted as %d", clients, got)
		}
	}

	// One who hammers is one; and is forgotten after one to two minutes.
	var h Herd
	var now time.Duration
	for range 1000 {
		h.Saw(42)
	}
	for i := range 1300 {
		now += herdTick
		h.Tick(now, 0, 0, 0, 0)
		r := h.Report()
		known := r.Distinct == 1 && r.Requests == 1000
		if i < 600 && !known || i > 1200 && (r.Distinct != 0 || r.Requests != 0) {
			t.Fatalf("after %v: %d of %d", now, r.Distinct, r.Requests)
		}
	}
}

// returners come again after every refusal, with a probability of share, when
// later says; a limit refuses what is above its rate.
func returners(seed uint64, share float64, limit *leakyLimit, later func() time.Duration) func() (arrivals, refused int) {
	rng := newRand(seed)
	fresh := steady(rng, 100)
	var ring [1024]int
	i := 0
	return func() (arrivals, refused int) {
		arrivals = fresh() + ring[i%1024]
		ring[i%1024] = 0
		refused = limit.refuse(arrivals)
		for range refused {
			if rng.Float64() < share {
				// Refused, and back, at some time within their bins.
				ring[(i+int(float64(later())/float64(herdTick)+rng.Float64()))%1024]++
			}
		}
		i++
		return arrivals, refused
	}
}

// Clients who come again after a fixed interval are heard even when they are not
// in step. Half of the refused do so, with a round trip of up to 50 ms.
func TestHerdHearsEchoes(t *testing.T) {
	for _, lag := range HerdLags {
		rng := newRand(5)
		s := returners(uint64(lag), 0.5, &leakyLimit{rate: 105, burst: 10}, func() time.Duration {
			return lag + time.Duration(rng.Float64()*50*float64(ms))
		})
		var h Herd
		var now, heard time.Duration
		for range 36000 {
			now += herdTick
			n, r := s()
			for range r {
				h.Saw(rng.Uint64())
			}
			h.Tick(now, n, n, r, 0)
			if k := h.Kind(); k != NoHerd && heard == 0 {
				heard = now
			}
		}
		r := h.Report()
		share := h.echoes.lag[slices.Index(HerdLags[:], lag)].regression()
		t.Logf("every %v: heard after %v; a share of %.2f", lag, heard, share)
		if r.Kind != EchoHerd || r.Period != lag {
			t.Errorf("every %v: %v with period %v", lag, r.Kind, r.Period)
		}
		if share < 0.3 || share > 0.7 || r.Size <= 0 {
			t.Errorf("every %v: a share of %.2f and a size of %.1f, want 0.5 and more than 0", lag, share, r.Size)
		}
		for range 600 {
			now += herdTick
			h.Tick(now, 10, 10, 0, 0)
		}
		if k := h.Kind(); k != NoHerd {
			t.Errorf("every %v: still %v a minute after the last refusal", lag, k)
		}
	}
}

// Clients that come when they were told to are no echo, and no pulse.
func TestObedientClientsAreNoHerd(t *testing.T) {
	rng := newRand(6)
	s := returners(6, 1, &leakyLimit{rate: 110, burst: 10}, func() time.Duration {
		return time.Second + time.Duration(rng.Float64()*float64(29*time.Second))
	})
	var h Herd
	var now time.Duration
	for range 12 * 36000 {
		now += herdTick
		n, r := s()
		h.Tick(now, n, n, r, 0)
		if k := h.Kind(); k != NoHerd {
			t.Fatalf("%v: %v; %+v", now, k, h.Report())
		}
	}
}

// A single second with five times the usual is seen at once by what raises no
// alarm.
func TestHerdSeesSteps(t *testing.T) {
	var h Herd
	var now time.Duration
	watch(&h, &now, 36000, steady(newRand(1), 100), never)
	r := h.Report()
	for i := range h.allan {
		if f := h.allan[i].factor(); f < 0.4 || f > 2 || r.AllanRatio[i] < 0.4 || r.AllanRatio[i] > 2 {
			t.Errorf("Poisson: an Allan factor of %.2f, %.2f of the usual, at %v", f, r.AllanRatio[i], HerdAllanScales[i])
		}
	}
	if r.CUSUM > 10 {
		t.Errorf("Poisson: a CUSUM of %.1f", r.CUSUM)
	}
	watch(&h, &now, 10, steady(newRand(2), 600), never)
	watch(&h, &now, 20, steady(newRand(3), 100), never)
	r = h.Report()
	if r.AllanRatio[allanSecond] < 2 || r.CUSUM <= 14 {
		t.Errorf("2 s after the step: an Allan ratio of %.2f at 1 s, a CUSUM of %.1f; want 2 and 14", r.AllanRatio[allanSecond], r.CUSUM)
	}
	watch(&h, &now, 600, steady(newRand(5), 200), never) // a long step
	if r = h.Report(); r.CUSUM <= 14 {
		t.Errorf("a minute of twice the rate: a CUSUM of %.1f, want more than 14", r.CUSUM)
	}
	watch(&h, &now, 750, steady(newRand(4), 100), never)
	if r = h.Report(); r.CUSUM > 10 {
		t.Errorf("75 s after the step: a CUSUM of %.1f", r.CUSUM)
	}
}

// Omitted calls are empty bins, up to a limit.
func TestHerdGaps(t *testing.T) {
	for _, gap := range []int{1, 2, 7, 599, 6000} {
		var all, some Herd
		s := clustered(newRand(uint64(gap)), 100)
		var now time.Duration
		for range 20 {
			for range 333 {
				now += herdTick
				n := s()
				all.Tick(now, n, n, n/10, 0)
				some.Tick(now, n, n, n/10, 0)
			}
			for range gap {
				now += herdTick
				all.Tick(now, 0, 0, 0, 0)
			}
		}
		now += herdTick
		all.Tick(now, 7, 7, 1, 0)
		some.Tick(now, 7, 7, 1, 0)
		all.clients, some.clients = clientCount{}, clientCount{}
		if all != some {
			t.Errorf("%d calls left out: %+v, want %+v", gap, some.Report(), all.Report())
		}
	}

	// A client that is refused before the call that ends a silence is counted.
	for gap := time.Duration(590); gap < 1810; gap++ {
		var h Herd
		h.Tick(0, 0, 0, 0, 0)
		for range 100 {
			h.Saw(1)
		}
		h.Tick(gap*herdTick, 100, 100, 100, 0)
		if got := h.Report().Requests; got != 100 {
			t.Fatalf("%d calls left out: %d refusals are counted, want 100", gap-1, got)
		}
	}

	// After more, as if it were new; but a backlog is a backlog, and the clients
	// who were refused just before the call belong to it.
	var old, fresh Herd
	var now time.Duration
	watch(&old, &now, 36000, pulses(newRand(1), 100, time.Second, 0.5, 1, 0), never)
	if old.Report().Period != time.Second {
		t.Fatal("the pulse was not found")
	}
	for range 50 { // forgotten with the rest
		old.Saw(1)
	}
	watch(&old, &now, 700, steady(newRand(2), 100), never)
	now += 10*time.Minute + 2*herdTick
	for client := range uint64(100) {
		old.Saw(client * 0x9e3779b97f4a7c15)
		fresh.Saw(client * 0x9e3779b97f4a7c15)
	}
	old.Tick(now, 5, 5, 0, time.Minute)
	fresh.Tick(now, 5, 5, 0, time.Minute)
	if old.Report() != fresh.Report() || old.pulses != fresh.pulses || old.Kind() != BacklogHerd {
		t.Errorf("after a long silence: %+v, want %+v", old.Report(), fresh.Report())
	}
	if r := old.Report(); r.Requests != 100 {
		t.Errorf("after a long silence: %d refusals of the last bin, want 100", r.Requests)
	}
}

// A caller's timer may be late or early; what comes too soon is kept.
func TestHerdTicksUnevenly(t *testing.T) {
	var even, uneven, halves Herd
	rng := newRand(1)
	s := clustered(rng, 100)
	for i := range 20000 {
		now := time.Duration(i) * herdTick
		n := s()
		even.Tick(now, n, n, n/10, 0)
		off := time.Duration(0)
		if i > 0 { // the first call sets the grid
			off = time.Duration((rng.Float64() - 0.5) * 98 * float64(ms))
		}
		uneven.Tick(now+off, n, n, n/10, 0)
		if i > 0 {
			halves.Tick(now-60*ms, n/2, n/2, n/10, 0)
			n, off = n-n/2, 0
			halves.Tick(now, n, n, 0, 0)
		} else {
			halves.Tick(now, n, n, n/10, 0)
		}
	}
	if even != uneven {
		t.Errorf("uneven ticks: %+v, want %+v", uneven.Report(), even.Report())
	}
	if even != halves {
		t.Errorf("twice as many ticks: %+v, want %+v", halves.Report(), even.Report())
	}
}

// Only differences of time count: a shift moves the phase, and nothing else.
func TestHerdShift(t *testing.T) {
	report := func(shift time.Duration) (HerdReport, float64) {
		var h Herd
		now := shift
		watch(&h, &now, 36007, pulses(newRand(1), 100, 30*time.Second, 0.2, 5, 0), never)
		return h.Report(), h.Pulse(now+20*time.Second, now+25*time.Second)
	}
	want, wantPulse := report(0)
	if want.Kind != PeriodicHerd {
		t.Fatalf("no pulse was found: %+v", want)
	}
	for _, ticks := range []time.Duration{1, 7, 299, 300, 1e9, -1, -1234567} {
		got, gotPulse := report(ticks * herdTick)
		if phase := mod(want.Phase+ticks*herdTick, want.Period); got.Phase != phase {
			t.Errorf("shifted by %d ticks: the phase is %v, want %v", ticks, got.Phase, phase)
		}
		got.Phase = want.Phase
		if got != want || math.Abs(gotPulse-wantPulse) > 1e-4 {
			t.Errorf("shifted by %d ticks: %+v and %v, want %+v and %v", ticks, got, gotPulse, want, wantPulse)
		}
	}
}

func TestHerdIsSmall(t *testing.T) {
	const herds = 500
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	keep := make([]*Herd, herds)
	for i := range keep {
		keep[i] = new(Herd)
		for client := range uint64(1000) {
			keep[i].Saw(client * 0x9e3779b97f4a7c15)
		}
		keep[i].Tick(herdTick, 1, 1, 1, 0)
		keep[i].Report()
	}
	runtime.ReadMemStats(&after)
	// All that was ever allocated, so a growing sketch would count too.
	size := (after.TotalAlloc - before.TotalAlloc) / herds
	t.Logf("%d bytes", size)
	if size >= 8000 {
		t.Errorf("a Herd takes %d bytes, want less than 8000", size)
	}
}

func TestHerdAllocatesNothing(t *testing.T) {
	var h Herd
	var now time.Duration
	h.Saw(0)
	rng := newRand(1)
	if n := testing.AllocsPerRun(5000, func() {
		now += herdTick
		h.Saw(rng.Uint64())
		h.Tick(now, 10, 10, 1, 0)
		h.Report()
		h.Pulse(now, now+time.Second)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzHerdTick holds what is told to its bounds, whatever comes when.
func FuzzHerdTick(f *testing.F) {
	f.Add(int64(0), []byte{10, 0, 1, 0, 20, 5, 1, 60})
	f.Add(int64(-1e15), []byte{255, 255, 255, 255, 0, 0, 1, 0, 9, 9, 254, 3})
	f.Add(int64(1e12), slices.Repeat([]byte{200, 100, 1, 0, 0, 0, 9, 0}, 400))
	f.Fuzz(func(t *testing.T, epoch int64, calls []byte) {
		var h Herd
		now := time.Duration(epoch % 1e17)
		calls = calls[:min(len(calls), 4*128)]
		for i := 0; len(calls) >= 4; i, calls = i+1, calls[4:] {
			n := int(binary.LittleEndian.Uint16(calls)) * int(calls[0])
			gap := time.Duration(calls[2]) * herdTick
			if calls[2] == 255 {
				gap = time.Duration(calls[3]) * time.Minute
			}
			now += gap
			h.Tick(now, n, n, n*int(calls[1])/255, time.Duration(calls[3])*time.Second)
			h.Saw(uint64(n) * 0x9e3779b97f4a7c15)
			if i%32 != 0 && len(calls) >= 8 {
				continue
			}
			r := h.Report()
			check := func(what string, v, most float64) {
				if !(v >= 0 && v <= most) { // NaN fails too
					t.Fatalf("%s is %v, want 0 to %v", what, v, most)
				}
			}
			for _, q := range r.Q {
				check("Q", q, 16.6)
			}
			for i := range h.allan {
				check("an Allan factor", h.allan[i].factor(), math.MaxFloat64)
				check("an Allan ratio", r.AllanRatio[i], math.MaxFloat64)
			}
			check("the CUSUM", r.CUSUM, cusumMost)
			check("the size", r.Size, math.MaxFloat64)
			check("the phase", float64(r.Phase), float64(max(0, r.Period-1)))
			check("the pulse", h.Pulse(now, now+gap), math.MaxFloat64)
			if r.Distinct > 2*r.Requests+2 {
				t.Fatalf("%d clients in %d requests", r.Distinct, r.Requests)
			}
		}
	})
}

func BenchmarkHerdTick(b *testing.B) {
	for _, c := range []struct {
		name    string
		refused int
	}{{"admitting", 0}, {"refusing", 3}} {
		b.Run(c.name, func(b *testing.B) {
			var h Herd
			var now time.Duration
			b.ReportAllocs()
			for b.Loop() {
				now += herdTick
				h.Tick(now, 10, 10, c.refused, 0)
			}
		})
	}
}

func BenchmarkHerdSaw(b *testing.B) {
	var h Herd
	h.Saw(0)
	client := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		client += 0x9e3779b97f4a7c15
		h.Saw(client)
	}
}

func BenchmarkHerdReport(b *testing.B) {
	var h Herd
	h.Saw(0)
	b.ReportAllocs()
	for b.Loop() {
		h.Report()
	}
}
