package caddymodule

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A herd is reported once, when it comes and when it goes; one that becomes
// another, as both.
func TestHerdIsReportedOnChanges(t *testing.T) {
	var h herd
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
	s := serveSite(t, "{"+options+"}\n"+bound+`
	shield {
		name shop
		capacity 10/s
	}
	respond ok
}`)
	b := s.app.configured.backends[0]
	now := shield.Now()
	for i := range 200 {
		b.guard.Admit(now+time.Duration(i)*time.Millisecond, shield.Request{Client: limiter.KeyOf(strconv.Itoa(i)), Fingerprint: 1})
	}
	later := now + time.Second
	b.guard.Tick(later)
	s.app.reportOnce(later)
	if is := b.state.herd.is; is.Kind != pushback.BacklogHerd || is.Size < 150 || is.Size > 220 {
		t.Errorf("%+v, want a backlog of some 190 clients", is)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{s.app})
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP caddy_shield_herd 1 while a herd of this kind is there: backlog (many came at once, and have appointments), periodic, or echo (clients that come at an interval of their own).
# TYPE caddy_shield_herd gauge
caddy_shield_herd{kind="backlog",shield="shop"} 1
caddy_shield_herd{kind="echo",shield="shop"} 0
caddy_shield_herd{kind="periodic",shield="shop"} 0
`), "caddy_shield_herd"); err != nil {
		t.Error(err)
	}
	var status Status
	s.app.fill(&status)
	if h := status.Shields[0].Herd; h == nil || h.Kind != "backlog" || h.Size < 150 {
		t.Errorf("status: %+v", h)
	}
}
