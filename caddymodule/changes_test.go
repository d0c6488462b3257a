package caddymodule

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A herd is reported once, when it comes and when it goes; one that becomes
// another, as both.
func TestHerdIsReportedOnChanges(t *testing.T) {
	var h herdReport
	backlog := pushback.HerdReport{Kind: pushback.BacklogHerd, Size: 100}
	larger := pushback.HerdReport{Kind: pushback.BacklogHerd, Size: 300}
	minutely := pushback.HerdReport{Kind: pushback.PeriodicHerd, Size: 50, Period: time.Minute}
	for i, c := range []struct {
		at              time.Duration
		is              pushback.HerdReport
		ended, detected float64 // sizes
		lasted          time.Duration
	}{
		{1 * time.Second, pushback.HerdReport{}, 0, 0, 0},
		{2 * time.Second, backlog, 0, 100, 0},
		{3 * time.Second, larger, 0, 0, 0},
		{4 * time.Second, backlog, 0, 0, 0},
		{3500 * time.Millisecond, pushback.HerdReport{}, 0, 0, 0}, // of the other app, too late
		{5 * time.Second, minutely, 300, 50, 3 * time.Second},
		{6 * time.Second, minutely, 0, 0, 0},
		{7 * time.Second, pushback.HerdReport{}, 50, 0, 2 * time.Second},
		{8 * time.Second, pushback.HerdReport{}, 0, 0, 0},
	} {
		got := h.step(c.at, c.is)
		if got[0].ended != (c.ended > 0) || got[0].herd.Size != c.ended || got[0].lasted != c.lasted ||
			got[1].detected != (c.detected > 0) || got[1].herd.Size != c.detected {
			t.Errorf("step %d: %+v", i, got)
		}
	}
}

// What the detector says is in metrics and status.
func TestHerdIsShown(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		capacity 10/s
	}
	respond ok
}`)
	s.app.stopReports()
	b := s.app.configured.shields[0]
	now := shield.Now()
	for i := range 200 {
		b.guard.Admit(now+time.Duration(i)*time.Millisecond, shield.Request{Client: limiter.KeyOf(strconv.Itoa(i)), Fingerprint: 1})
	}
	later := now + time.Second
	b.guard.Tick(later)
	s.app.reportOnce(later)
	if is := b.record.herd.herd; is.Kind != pushback.BacklogHerd || is.Size < 150 || is.Size > 220 {
		t.Errorf("%+v, want a backlog of some 190 clients", is)
	}
	wantMetrics(t, s.app, `
caddy_shield_herd{kind="backlog",shield="shop"} 1
caddy_shield_herd{kind="echo",shield="shop"} 0
caddy_shield_herd{kind="periodic",shield="shop"} 0
`, "caddy_shield_herd")
	var status Status
	s.app.fill(&status)
	if h := status.Shields[0].Herd; h == nil || h.Kind != "backlog" || h.Size < 150 {
		t.Errorf("status: %+v", h)
	}
}

func TestOverloadStartsAndEndsOnce(t *testing.T) {
	counts := func(capacity, concurrency, early uint64) reasonCounts {
		return reasonCounts{shield.Capacity: capacity, shield.Concurrency: concurrency, shield.Early: early}
	}
	var o overloadReport
	for i, step := range []struct {
		at   time.Duration
		is   reasonCounts
		want overloadChange
	}{
		{0, reasonCounts{}, overloadChange{}},
		{1 * time.Second, counts(3, 0, 0), overloadChange{added: counts(3, 0, 0), started: true}},
		{2 * time.Second, counts(3, 4, 0), overloadChange{added: counts(0, 4, 0)}},
		{3 * time.Second, counts(3, 4, 0), overloadChange{}},
		{6 * time.Second, counts(3, 5, 0), overloadChange{added: counts(0, 1, 0)}}, // a wave 4 s later is the same overload
		{10 * time.Second, counts(3, 5, 0), overloadChange{}},
		{10*time.Second + 1, counts(3, 5, 2), overloadChange{added: counts(0, 0, 2)}}, // so is one that only comes too early
		{15 * time.Second, counts(3, 5, 2), overloadChange{}},
		{16 * time.Second, counts(3, 5, 2), overloadChange{ended: true, lasted: 9*time.Second + 1, refused: 10}},
		{17 * time.Second, counts(3, 5, 2), overloadChange{}},
		{18 * time.Second, counts(4, 5, 2), overloadChange{added: counts(1, 0, 0), started: true}},
		{19 * time.Second, counts(4, 5, 1), overloadChange{}}, // another app's older count
		{30 * time.Second, counts(4, 5, 2), overloadChange{ended: true, refused: 1}},
	} {
		if got := o.step(step.at, step.is); got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
		if want := step.want.started || o.on; o.active() != want {
			t.Errorf("step %d: active = %v", i, o.active())
		}
	}
}

// During a reload two apps report from one state: every refusal is reported
// once, and every overload starts and ends once.
func TestTwoReportersShareTheNews(t *testing.T) {
	var o overloadReport
	var mu sync.Mutex
	var reported, started, ended uint64
	var wg sync.WaitGroup
	for seed := range uint64(2) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for i := range uint64(20_000) {
				c := o.step(time.Duration(i)*time.Millisecond, reasonCounts{shield.Capacity: i / 7 * uint64(rng.IntN(2))})
				mu.Lock()
				reported += c.added[shield.Capacity]
				if c.started {
					started++
				}
				if c.ended {
					ended++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c := o.step(time.Hour, reasonCounts{shield.Capacity: 20_000 / 7})
	reported += c.added[shield.Capacity]
	if reported != 20_000/7 {
		t.Errorf("%d refusals reported, want %d", reported, 20_000/7)
	}
	if started-ended > 1 {
		t.Errorf("%d overloads started and %d ended", started, ended)
	}
}
