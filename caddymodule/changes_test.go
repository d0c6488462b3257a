package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// saying returns what news say, one after the other.
func saying(all []news) string {
	var said []string
	for _, n := range all {
		fields := zapcore.NewMapObjectEncoder()
		for _, f := range n.fields {
			f.AddTo(fields)
		}
		text := n.message
		for _, name := range slices.Sorted(maps.Keys(fields.Fields)) {
			if v := fields.Fields[name]; v != uint64(0) && v != time.Duration(0) {
				text += fmt.Sprintf(" %s=%v", name, v)
			}
		}
		said = append(said, text)
	}
	return strings.Join(said, "; ")
}

// A herd is reported once, when it comes and when it goes; one that becomes
// another, as both.
func TestHerdIsReportedOnChanges(t *testing.T) {
	var h herdReport
	backlog := pushback.HerdReport{Kind: pushback.BacklogHerd, Size: 100}
	larger := pushback.HerdReport{Kind: pushback.BacklogHerd, Size: 300}
	minutely := pushback.HerdReport{Kind: pushback.PeriodicHerd, Size: 50, Period: time.Minute}
	for i, c := range []struct {
		at   time.Duration
		is   pushback.HerdReport
		want string
	}{
		{1 * time.Second, pushback.HerdReport{}, ""},
		{2 * time.Second, backlog, "herd detected kind=backlog size=100"},
		{3 * time.Second, larger, ""},
		{4 * time.Second, backlog, ""},
		{5 * time.Second, minutely, "herd ended kind=backlog lasted=3s size=300; herd detected kind=periodic period=1m0s size=50"},
		{6 * time.Second, minutely, ""},
		{7 * time.Second, pushback.HerdReport{}, "herd ended kind=periodic lasted=2s period=1m0s size=50"},
		{8 * time.Second, pushback.HerdReport{}, ""},
	} {
		if got := saying(h.step(c.at, c.is)); got != c.want {
			t.Errorf("step %d: %q, want %q", i, got, c.want)
		}
	}
}

// Metrics and status show the herds that the detector finds.
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
		b.guard().Admit(now+time.Duration(i)*time.Millisecond, shield.Request{Client: limiter.KeyOf(strconv.Itoa(i))})
	}
	later := now + time.Second
	b.guard().Tick(later)
	s.app.reportOnce(later)
	if is := b.record.reported.herd.herd; is.Kind != pushback.BacklogHerd || is.Size < 150 || is.Size > 220 {
		t.Errorf("%+v, want a backlog of some 190 clients", is)
	}
	wantMetrics(t, s.app, `
caddy_shield_herd{kind="backlog",shield="shop"} 1
caddy_shield_herd{kind="periodic",shield="shop"} 0
`, "caddy_shield_herd")
	var status adminapi.Status
	s.app.fill(&status)
	if h := status.Shields[0].Herd; h == nil || h.Kind != "backlog" || h.Size < 150 {
		t.Errorf("status: %+v", h)
	}
}

// An overload is logged when it begins, once a minute, and when it has ended.
func TestOverloadStartsAndEndsOnce(t *testing.T) {
	var e episode
	for i, step := range []struct {
		at                           time.Duration
		capacity, concurrency, early uint64 // new refusals
		want                         string
	}{
		{0, 0, 0, 0, ""},
		{1 * time.Second, 3, 0, 0, "overload started capacity=3 observed=false"},
		{2 * time.Second, 0, 4, 0, ""},
		{3 * time.Second, 0, 0, 0, ""},
		{6 * time.Second, 0, 1, 0, ""}, // a wave 4 s later is the same overload
		{10 * time.Second, 0, 0, 0, ""},
		{10*time.Second + 1, 0, 0, 2, ""}, // so is one that only comes too early
		{15 * time.Second, 0, 0, 0, ""},
		{16 * time.Second, 0, 0, 0, "overload ended lasted=9.000000001s observed=false refused=10"},
		{17 * time.Second, 0, 0, 0, ""},
		{18 * time.Second, 1, 0, 0, "overload started capacity=1 observed=false"},
		{22 * time.Second, 0, 0, 5, ""},
		{26 * time.Second, 0, 5, 5, ""},
		{30 * time.Second, 1, 0, 0, ""}, {34 * time.Second, 1, 0, 0, ""}, {38 * time.Second, 1, 0, 0, ""}, {42 * time.Second, 1, 0, 0, ""},
		{46 * time.Second, 1, 0, 0, ""}, {50 * time.Second, 1, 0, 0, ""}, {54 * time.Second, 1, 0, 0, ""}, {58 * time.Second, 1, 0, 0, ""},
		{62 * time.Second, 1, 0, 0, ""}, {66 * time.Second, 1, 0, 0, ""}, {70 * time.Second, 1, 0, 0, ""}, {74 * time.Second, 1, 0, 0, ""},
		{78 * time.Second, 1, 0, 0, "overload goes on capacity=13 concurrency=5 early=10 observed=false"},
		{79 * time.Second, 7, 0, 0, ""},
		{84 * time.Second, 0, 0, 0, "overload ended lasted=1m1s observed=false refused=36"},
	} {
		added := reasonCounts{shield.Capacity: step.capacity, shield.Concurrency: step.concurrency, shield.Early: step.early}
		if got := saying(overloadNews(&e, step.at, added, false)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// So is a client's own fault. That it comes back to it within a minute is no news.
func TestFaultsAreLoggedByTheMinute(t *testing.T) {
	var r refusalReport
	for i, step := range []struct {
		at                time.Duration
		refused, observed uint64 // so far
		want              string
	}{
		{0, 0, 0, ""},
		{1 * time.Second, 3, 0, "refusing over quota requests=3"},
		{30 * time.Second, 10, 2, "would refuse over quota requests=2"},
		{60 * time.Second, 11, 2, ""},
		{61 * time.Second, 13, 2, "still refusing over quota requests=10"},
		{90 * time.Second, 13, 3, "would still refuse over quota requests=1"},
		{120 * time.Second, 13, 3, ""},
		{121 * time.Second, 13, 3, "no longer refusing over quota lasted=1m0s requests=13"},
		{122 * time.Second, 14, 3, "refusing over quota requests=1"},
		{150 * time.Second, 14, 3, "would no longer refuse over quota lasted=1m0s requests=3"},
	} {
		if got := saying(r.over(step.at, shield.Quota, step.refused, step.observed)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// During a reload two apps report from one state: every refusal is reported once.
func TestTwoReportersShareTheNews(t *testing.T) {
	z := newZoneRecord("z")
	guard := shield.Must(shield.New(
		shield.Config{Zones: []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: time.Hour}}}},
		&shield.State{Zones: map[string]*shield.ZoneState{"z": z.ZoneState}},
	))
	const refused = 20_000
	var reported, lines atomic.Uint64
	minute := atomic.Int64{}
	report := func() {
		for _, n := range z.report(time.Duration(minute.Add(1)) * remindEvery / 1000) {
			if lines.Add(1); !strings.HasPrefix(n.message, "no longer") {
				reported.Add(uint64(n.fields[0].Integer))
			}
		}
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range refused / 2 {
				guard.Admit(shield.Now(), shield.Request{Keys: []limiter.Key{1}})
				report()
			}
		})
	}
	wg.Wait()
	guard.Admit(shield.Now(), shield.Request{Keys: []limiter.Key{1}})
	minute.Add(1000)
	report()
	if got := reported.Load(); got != refused { // all but the first, which is admitted, and the last
		t.Errorf("%d refusals reported, want %d", got, refused)
	}
	if got := lines.Load(); got < 20 || got > 22 {
		t.Errorf("%d lines in %d minutes", got, refused/1000)
	}
}
