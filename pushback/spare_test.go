package pushback

import (
	"math"
	"testing"
	"time"
)

// From the first second on the base is the plain average, and after 30 s what
// was longer ago fades.
func TestBaseLearnsAtOnce(t *testing.T) {
	var b baseLoad
	b.add(50, time.Second, false, false, 1)
	if math.Abs(b.rate-50) > 1e-9 {
		t.Errorf("after one second with 50 requests: %v/s", b.rate)
	}
	b.add(100, time.Second, false, false, 1)
	if math.Abs(b.rate-75) > 1e-9 {
		t.Errorf("after seconds with 50 and 100 requests: %v/s, want 75", b.rate)
	}
	for range 28 {
		b.add(75, time.Second, false, false, 1)
	}
	for range 30 {
		b.add(175, time.Second, false, false, 1)
	}
	if want := 75 + 100*(1-1/math.E); math.Abs(b.rate-want) > 0.01 {
		t.Errorf("30 s after the rate rose from 75 to 175: %v/s, want %.2f", b.rate, want)
	}
}

// While a backlog stands, the herd at the door is not taken for what always
// comes.
func TestBaseIsFrozenWhileABacklogStands(t *testing.T) {
	var b baseLoad
	for range 60 {
		b.add(50, time.Second, false, false, 1)
	}
	for range 10 {
		b.add(5000, time.Second, true, false, 1)
	}
	// Ten seconds at 160/s at most, at a twentieth of the speed.
	if b.rate < 50 || b.rate > 52 {
		t.Errorf("ten seconds of a herd moved the base from 50 to %.2f/s", b.rate)
	}
	b = baseLoad{}
	for range 10 {
		b.add(1e6, time.Second, true, false, 1)
	}
	if b.rate > 100 || b.seen != 0 {
		t.Errorf("a herd at a new server: the base is %v/s after %v", b.rate, b.seen)
	}
	for range 3 {
		b.add(20, time.Second, false, false, 1)
	}
	if math.Abs(b.rate-20) > 1 {
		t.Errorf("three quiet seconds with 20/s after it: %v/s", b.rate)
	}
}

// Nor is a flood of strangers that do not come back.
func TestBaseLearnsNoFlood(t *testing.T) {
	b := baseLoad{rate: 50, seen: baseWindow}
	for range 600 {
		b.add(5000, time.Second, true, false, 0)
	}
	if b.rate != 50 {
		t.Errorf("ten minutes of a flood moved the base from 50 to %.2f/s", b.rate)
	}
}

func TestBaseTakesOddTimes(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 1, ms, time.Hour, 100 * 365 * 24 * time.Hour} {
		for _, standing := range []bool{false, true} {
			var b baseLoad
			b.add(10, time.Second, false, false, 1)
			b.add(5, d, standing, false, 1)
			b.add(math.MaxUint64, time.Second, true, false, 1)
			if !(b.rate >= 0) || math.IsInf(b.rate, 0) || b.seen < 0 || b.seen > baseWindow {
				t.Errorf("over %v, standing %v: %+v", d, standing, b)
			}
		}
	}
	var b baseLoad
	b.add(100, time.Second, false, false, 1)
	b.add(0, 24*time.Hour, false, false, 1)
	if b.rate > 0.1 {
		t.Errorf("after a day without a request: %v/s", b.rate)
	}
}

// 0.98·μ − base, from a tenth of μ to μ.
func TestSpareIsBounded(t *testing.T) {
	for _, test := range []struct{ base, service, want float64 }{
		{0, 100, 98}, {50, 100, 48}, {90, 100, 10}, {1e12, 100, 10}, {0, 0.01, 0.0098}, {0, 1e9, 0.98e9}, {5, math.Inf(1), math.Inf(1)},
	} {
		c := Calendar{forecast: forecast{base: baseLoad{rate: test.base}}}
		if got := c.Spare(test.service); got != test.want && math.Abs(got-test.want) > 1e-9*test.want {
			t.Errorf("%v/s with a base load of %v/s: spare is %v, want %v", test.service, test.base, got, test.want)
		}
	}
}

// The share is known to within 0.06 after 200 promises, forgets what it
// was after some hundred more, and stays from minKept to 1.
func TestKeptShareIsLearned(t *testing.T) {
	for _, want := range []float64{0.3, 0.7, 1} {
		var k keptPromises
		for range 200 {
			k.add(1, want)
		}
		if got := k.share(Untried); math.Abs(got-want) > 0.06 {
			t.Errorf("200 promises, %v of them kept: %.3f", want, got)
		}
		for range 100 {
			k.add(10, 10*(1.3-want))
		}
		if got := k.share(Untried); math.Abs(got-min(1, 1.3-want)) > 0.05 {
			t.Errorf("then 1,000 promises, %v of them kept: %.3f", 1.3-want, got)
		}
	}
	var k keptPromises
	if k.share(Untried) != 1 {
		t.Errorf("nothing is known: %v, want 1", k.share(Untried))
	}
	for _, n := range []float64{1, 1e3, 1e9} {
		k.add(n, 0)
		if s := k.share(Untried); s < minKept[Untried] || s > 1 {
			t.Errorf("%v promises broken: %v", n, s)
		}
	}
	// A client that comes late is counted when it comes, once.
	k = keptPromises{}
	k.add(100, 70)
	for range 30 {
		k.addLate()
	}
	if k.share(Untried) != 1 {
		t.Errorf("30 no-shows of 100 came late: %v, want 1", k.share(Untried))
	}
	for range 1_000 {
		k.addLate()
	}
	if k.share(Untried) != 1 || k.kept > k.made {
		t.Errorf("a thousand more: %+v", k)
	}
	// A promise may be counted with its neighbours in the next bucket.
	k = keptPromises{}
	k.add(10, 13)
	if k.share(Untried) != 1 {
		t.Errorf("13 of 10 kept: %v", k.share(Untried))
	}
	k.add(10, 7)
	if s := k.share(Untried); math.Abs(s-1) > 0.02 {
		t.Errorf("20 of 20 kept: %v", s)
	}
}
