package seeds

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
)

// big skips what plays many clients where that takes long.
func big(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("needs a build without the race detector, and no -short: it plays many clients")
	}
}

// A law is the waits of a policy as its source has them: uniform between two
// numbers of seconds, the n-th by n from 0.
type law func(n int) (from, to float64, again bool)

var laws = map[string]law{
	"google-analytics": func(n int) (float64, float64, bool) {
		return math.Exp2(float64(n)), math.Exp2(float64(n)) + 1, n < 5
	},
	"go-array": func(n int) (float64, float64, bool) {
		m := []float64{0.01, 0.01, 0.1, 0.1, 0.5, 0.5, 3, 3, 5}[min(n, 8)]
		return m / 2, m * 3 / 2, true
	},
	"google-http-java-client": func(n int) (float64, float64, bool) {
		v := min(60, 0.5*math.Pow(1.5, float64(n)))
		return v / 2, v * 3 / 2, true
	},
	"binary-exponential": func(n int) (float64, float64, bool) { return 0, math.Exp2(float64(min(10, n+1))), n < 15 },
	"aws-full-jitter":    func(n int) (float64, float64, bool) { return 0, min(60, math.Exp2(float64(n))), true },
	"aws-equal-jitter": func(n int) (float64, float64, bool) {
		v := min(60, math.Exp2(float64(n)))
		return v / 2, v, true
	},
}

// exact returns the rate of retries of a law by convolution, without any random
// number: the n-th retry comes when n waits are over. A wait is uniform on a grid that
// is as fine as step.
func (l law) exact(step, until time.Duration) Curve {
	dt, n := step.Seconds(), int(until/step)
	now := make([]float64, n) // the chance that an attempt comes in a cell
	now[0] = 1
	sums := make([]float64, n+1)
	curve := make(Curve, n)
	for i := range curve {
		curve[i].At = (float64(i) + 0.5) * dt
	}
	for attempt, mass := 0, 1.0; mass > 1e-9; attempt++ {
		from, to, again := l(attempt)
		if !again {
			break
		}
		for i, p := range now {
			sums[i+1] = sums[i] + p
		}
		a, b := int(math.Round(from/dt)), int(math.Round(to/dt))
		b = max(b, a+1)
		mass = 0
		for i := range now {
			now[i] = (sums[max(0, i-a+1)] - sums[max(0, i-b+1)]) / float64(b-a)
			curve[i].Rate += now[i] / dt
			mass += now[i]
		}
	}
	return curve
}

// The clients follow the laws: by any time as many have come, and the local maxima
// are the same.
func TestLaws(t *testing.T) {
	big(t)
	for name, l := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := time.Millisecond
			if name == "go-array" {
				step = time.Millisecond / 2 // its first waits are 5 to 14 ms
			}
			exact := l.exact(step, 20*time.Second)
			o := Play(Policy(name), 100_000, 2, Bin, 20*time.Second)
			by, perBin := 0.0, int(Bin/step)
			for i := range o.Counts {
				for _, p := range exact[i*perBin : (i+1)*perBin] {
					by += p.Rate * step.Seconds()
				}
				at := time.Duration(i+1) * Bin
				// A grid is off by half a cell for each wait, and so is rounding to milliseconds.
				slack := 0.015*max(0.2, by) + 0.02
				if at < 200*time.Millisecond && name == "go-array" {
					slack = 0.4 // nearly all that comes is in one bin or the next
				}
				if got := o.By(at); math.Abs(got-by) > slack {
					t.Fatalf("by %v %.4f retries per client have come, want %.4f", at, got, by)
				}
			}
		})
	}
}

func near(got, want, tolerance float64) bool { return math.Abs(got/want-1) <= tolerance }

// a claim is a local maximum: when, and how far it rises over what was before it.
type claim struct{ at, rise float64 }

func checkWaves(t *testing.T, from string, got []Peak, want []claim) {
	t.Helper()
	if len(got) < len(want) {
		t.Fatalf("%s: %d local maxima, want %d: %v", from, len(got), len(want), got)
	}
	for i, w := range want {
		if !near(got[i].Top.At, w.at, 0.05) || !near(got[i].Rise(), w.rise, 0.05) {
			t.Errorf("%s: local maximum %d is at %.2f s, × %.2f; want %.2f s, × %.2f, ± 5 %%",
				from, i, got[i].Top.At, got[i].Rise(), w.at, w.rise)
		}
	}
}

// "The overall curve is very much not monotonically decreasing": every wave but the
// first rises again, the second to 4 times what was before it, later ones to 1.33.
func TestGoogleHTTPJavaRises(t *testing.T) {
	big(t)
	t.Parallel()
	want := []claim{
		{1.4, 1.38 / 0.347}, {2.4, 0.888 / 0.525}, {4.1, 0.582 / 0.422}, {6.7, 0.386 / 0.285},
		{10.5, 0.256 / 0.192}, {16.2, 0.171 / 0.129}, {24.9, 0.114 / 0.086},
	}
	got := Down("google-http-java-client", Crowd).Waves()
	if len(got) > 0 && math.IsInf(got[0].Rise(), 1) {
		got = got[1:] // no client comes before 0.25 s
	}
	exactly := want[0]
	// Whole milliseconds: one in 501 first retries comes at 0.750 s, in what would
	// otherwise be the bin with the least.
	want[0].rise = 3.75
	checkWaves(t, "played", got, want)
	want[0] = exactly
	exact := laws["google-http-java-client"].exact(Bin, Shown).Peaks(0.03)
	if len(exact) > 0 && math.IsInf(exact[0].Rise(), 1) {
		exact = exact[1:]
	}
	checkWaves(t, "exact", exact, want)
	for _, p := range got {
		if p.Rise() < 1.33*0.95 || p.Rise() > 4*1.05 {
			t.Errorf("the local maximum at %.1f s is × %.2f, want 1.33 to 4", p.Top.At, p.Rise())
		}
	}
}

// "We still see local peaks caused by the overlapping generations of retries."
func TestBinaryRises(t *testing.T) {
	big(t)
	t.Parallel()
	want := []claim{{2, 0.783 / 0.5}, {4.0, 1.25}, {8.6, 1.13}, {18, 1.10}, {37.3, 1.09}}
	checkWaves(t, "played", Down("binary-exponential", Crowd).Waves(), want)
	checkWaves(t, "exact", laws["binary-exponential"].exact(Bin, Shown).Peaks(0.03), want)
}

// "We have a monotonically decreasing retry rate": N/2^⌊log2(t+2)⌋ per second, which
// is constant within a window and halves from one to the next.
func TestModifiedBinaryNeverRises(t *testing.T) {
	big(t)
	t.Parallel()
	o := Down("modified-binary-exponential", Crowd)
	if peaks := o.Waves(); len(peaks) > 0 {
		t.Errorf("it has local maxima: %v", peaks)
	}
	last := math.Inf(1)
	for s := range int(Shown / time.Second) {
		rate := o.By(time.Duration(s+1)*time.Second) - o.By(time.Duration(s)*time.Second)
		want := 1 / math.Exp2(math.Floor(math.Log2(float64(s)+2)))
		noise := 5 * math.Sqrt(want/Crowd) // five standard deviations
		if math.Abs(rate-want) > noise || !near(rate, want, 0.05) {
			t.Errorf("in second %d %.5f come per client, want %.5f ± %.5f", s, rate, want, noise)
		}
		if rate > last+noise {
			t.Errorf("in second %d %.5f come per client, more than %.5f before", s, rate, last)
		}
		last = rate
	}
}

// "A pure exponential back-off will just lead to increasingly spaced-out huge bursts":
// all at once, each silence twice as long as the one before.
func TestPlainExponentialBursts(t *testing.T) {
	for name, want := range map[string][]float64{
		"aws-exponential":   {1, 3, 7, 15, 31},
		"server-timing":     {1, 3, 7, 15, 31},
		"paranoid-pirate":   {1, 3, 7, 15, 31},
		"clojure":           {1, 3, 7, 15},
		"clojure-predicate": {1, 3, 7, 15},
		"tcp-rto":           {3, 9, 21},
		"docker-restart":    {0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 25.5, 51.1},
	} {
		bursts := Down(name, 1000).Bursts(Bin)
		if len(bursts) != len(want) {
			t.Errorf("%s: %d bursts, want %d", name, len(bursts), len(want))
			continue
		}
		for i, b := range bursts {
			if math.Abs(b.Share-1) > 1e-9 || b.To-b.From > 1.5*Bin.Seconds() || !near(b.From, want[i], 0.01) {
				t.Errorf("%s: burst %d is %.3f of the clients from %.2f to %.2f s, want all at %.2f s", name, i, b.Share, b.From, b.To, want[i])
			}
		}
	}
}

// Google Analytics adds up to a second to waits that double: burst n is n seconds
// wide, with silence between them, and 5 retries are over after 31 to 36 s, on
// average 33.5.
func TestGoogleAnalyticsGivesUp(t *testing.T) {
	big(t)
	const n = 200_000
	o := Down("google-analytics", n)
	bursts := o.Bursts(300 * time.Millisecond)
	if len(bursts) != 5 || o.GaveUp != n || o.Retries != 5*n {
		t.Fatalf("%d bursts, %d of %d give up after %d retries; want 5, and all after 5", len(bursts), o.GaveUp, n, o.Retries)
	}
	for i, b := range bursts {
		from, to := math.Exp2(float64(i+1))-1, math.Exp2(float64(i+1))+float64(i)
		// Of a sum of five no client is at the very ends.
		if slack := 0.02 + 0.06*float64(i); b.From < from || b.From > from+slack || b.To > to+0.011 || b.To < to-slack {
			t.Errorf("burst %d is from %.2f to %.2f s, want %.2f to %.2f", i, b.From, b.To, from, to)
		}
	}
	mean := 0.0
	for i, c := range o.Counts[25*int(time.Second/Bin):] {
		mean += (25 + (float64(i)+0.5)*Bin.Seconds()) * float64(c) / n
	}
	if !near(mean, 33.5, 0.005) {
		t.Errorf("the last retry is at %.2f s on average, want 33.5", mean)
	}
	for i, want := range []float64{1, 1, 0.75, 2.0 / 3, 0.599} {
		top := 0.0
		for _, p := range o.Curve(0.01) {
			if p.At >= bursts[i].From && p.At < bursts[i].To {
				top = max(top, p.Rate)
			}
		}
		if !near(top, want, 0.06) { // a little noise on top
			t.Errorf("burst %d has up to %.3f per second, want %.3f", i, top, want)
		}
	}
}

// The Go array's clients come back every five seconds on average, and never stop.
func TestGoArraySettles(t *testing.T) {
	big(t)
	t.Parallel()
	const n, until = 30_000, 10 * time.Minute
	o := Play(Policy("go-array"), n, 1, time.Second, until)
	if o.GaveUp > 0 || o.Last < until-time.Second {
		t.Errorf("%d give up, and the last comes at %v; want none, in %v", o.GaveUp, o.Last, until)
	}
	for s := 60; s < 600; s += 10 {
		rate := 0
		for _, c := range o.Counts[s : s+10] {
			rate += c
		}
		if !near(float64(rate)/10/n, 0.2, 0.05) {
			t.Errorf("from %d to %d s %.3f come per client and second, want 0.2 ± 5 %%", s, s+10, float64(rate)/10/n)
		}
	}
}

// Jitter: full has waves, equal pulses, and decorrelated two maxima.
func TestAWSJitter(t *testing.T) {
	big(t)
	const n = 300_000
	full := Down("aws-full-jitter", Crowd).Waves()
	checkWaves(t, "full", full, []claim{{1.0, 1.57}, {1.97, 1.25}, {4.3, 1.13}})
	equal := Down("aws-equal-jitter", 50_000)
	for i, want := range []struct{ from, to time.Duration }{{500, 1000}, {1500, 3000}, {3500, 7000}, {7500, 15_000}, {15_500, 31_000}} {
		from, to := want.from*time.Millisecond, want.to*time.Millisecond
		if before, after := equal.By(from), equal.By(to+Bin); math.Abs(before-float64(i)) > 1e-9 || math.Abs(after-float64(i+1)) > 1e-9 {
			t.Errorf("equal: %.4f per client come before %v, %.4f before %v; want %d, and one more", before, from, after, to, i)
		}
	}
	decorrelated := Down("aws-decorrelated", n).Waves()
	if len(decorrelated) < 2 {
		t.Fatalf("decorrelated: %v, want two local maxima", decorrelated)
	}
	for i, want := range []struct{ at, within, rate float64 }{{2.9, 0.05, 0.64}, {5.3, 0.3, 0.26}} { // the second is flat
		p := decorrelated[len(decorrelated)-2+i].Top
		if !near(p.At, want.at, want.within) || !near(p.Rate, want.rate, 0.05) {
			t.Errorf("decorrelated: local maximum of %.3f at %.2f s, want %.2f at %.1f s", p.Rate, p.At, want.rate, want.at)
		}
	}
	for name, want := range map[string]float64{
		"aws-full-jitter": 6.63, "aws-equal-jitter": 6.00, "aws-decorrelated": 7.51,
		"go-array": 18.1, "google-http-java-client": 9.67, "binary-exponential": 5.51, "modified-binary-exponential": 4.94,
	} {
		if got := Down(name, 30_000).By(Shown); !near(got, want, 0.01) {
			t.Errorf("%s: %.2f retries in a minute, want %.2f", name, got, want)
		}
	}
}

// A retry budget of 10 % of the requests lets one in nine come back, once.
func TestSREBudget(t *testing.T) {
	const n = 100_000
	o := Down("google-sre", n)
	if share := float64(o.Retries) / float64(n+o.Retries); !near(share, 0.1, 0.001) || o.Last >= time.Second {
		t.Errorf("%.4f of the requests are retries, the last at %v; want 0.1 within a second", share, o.Last)
	}
}

// down refuses all, and says nothing.
type down struct{}

func (down) Arrive(time.Duration, sim.Request) sim.Answer { return sim.Answer{} }
func (down) Finish(time.Duration, int32, sim.End)         {}
func (down) Change(shield.Config, bool) error             { return nil }

// The simulator that operators use makes of these policies the same curves.
func TestSimulatorAgrees(t *testing.T) {
	big(t)
	const n = 2000
	for _, name := range []string{
		"clojure", "google-analytics", "go-array", "google-http-java-client", "binary-exponential", "ethernet",
		"modified-binary-exponential", "server-timing", "tcp-rto", "paranoid-pirate", "docker-restart", "hadoop",
		"aws-exponential", "aws-full-jitter", "aws-equal-jitter", "aws-decorrelated",
	} {
		// Half a bin off, so that what comes at whole seconds is in the midst of one.
		const bin, half = time.Second, time.Second / 2
		r, err := sim.Run(sim.Scenario{
			Clients: n, Mix: clients.All(Policy(name)), Config: shield.Config{Capacity: limiter.Config{Rate: 1, Burst: 1}},
			Warmup: half, Until: 30 * time.Second, Bin: bin,
		}, func(shield.Config) (sim.Server, error) { return down{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		o := Play(Policy(name), 100_000, 3, half, 31*time.Second)
		got := 0.0
		for i := range 30 {
			want := o.By(time.Duration(i+1)*bin - half)
			if i < len(r.Series) {
				got += float64(r.Series[i].Herd.Came) / n
				if i == 0 {
					got-- // the first requests
				}
			}
			// Retries of one client are not independent: this is five times what n of
			// them can be off by at most.
			if slack := 5 * math.Sqrt(max(1, want)/n); math.Abs(got-want) > slack {
				t.Errorf("%s: in the simulator %.3f retries per client have come by second %d, here %.3f", name, got, i, want)
				break
			}
		}
	}
}

func TestPeaks(t *testing.T) {
	curve := func(rates ...float64) (c Curve) {
		for i, r := range rates {
			c = append(c, Point{float64(i), r})
		}
		return c
	}
	for _, c := range []struct {
		curve Curve
		want  []claim
	}{
		{nil, nil},
		{curve(4, 3, 2, 1), nil},
		{curve(4, 4.1, 3.9, 4, 1), nil},
		{curve(4, 2, 3, 1, 1.5), []claim{{2, 1.5}}},
		{curve(1, 2, 1, 4, 3.95, 4.2, 1), []claim{{1, 2}, {5, 4.2}}},
		{curve(0, 2, 1), []claim{{1, math.Inf(1)}}},
	} {
		got := c.curve.Peaks(0.05)
		if len(got) != len(c.want) {
			t.Errorf("%v has peaks %v, want %v", c.curve, got, c.want)
			continue
		}
		for i, p := range got {
			if (claim{p.Top.At, p.Rise()}) != c.want[i] {
				t.Errorf("%v has peaks %v, want %v", c.curve, got, c.want)
			}
		}
	}
}

func TestCurve(t *testing.T) {
	o := &Outage{Clients: 10, Bin: 100 * time.Millisecond, Counts: make([]int, 20)}
	o.Counts[11], o.Counts[15], o.Counts[17] = 5, 10, 20
	for share, want := range map[float64]float64{0: 10, 0.5: 10.0 / 3} {
		if got := o.Curve(share)[15]; !near(got.Rate, want, 1e-9) || !near(got.At, 1.55, 1e-9) {
			t.Errorf("smoothed by %v of the time: %v, want %v", share, got, want)
		}
	}
	if got := o.By(1600 * time.Millisecond); got != 1.5 {
		t.Errorf("%v have come, want 1.5", got)
	}
	if got := o.Bursts(0); len(got) != 3 || got[2].Share != 2 || !near(got[2].From, 1.7, 1e-9) || !near(got[2].To, 1.8, 1e-9) {
		t.Errorf("bursts %v, want three", got)
	}
	if most, at, silent := o.Most(200 * time.Millisecond); most != 2 || !near(at, 1.6, 1e-9) || !near(silent, 0.7, 1e-9) {
		t.Errorf("most %v at %v s, silent %v; want 2 at 1.6 s, and 0.7", most, at, silent)
	}
}
