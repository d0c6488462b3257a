package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
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

// The status shows the herds that the detector finds.
func TestHerdIsShown(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		capacity 10/s
	}
	respond ok
}`)
	s.app.stopReports()
	b := s.app.configured[0]
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
	status := s.app.Status(true)
	if h := status.Shields[0].Herd; h == nil || h.Kind != "backlog" || h.Size < 150 {
		t.Errorf("status: %+v", h)
	}
}

// A client that an operator has blocked makes no overload.
func TestBlockedClientIsNoOverload(t *testing.T) {
	h, err := Live{Name: "shop", Config: shield.Config{Capacity: limiter.Config{Rate: 10}}, State: new(LiveState)}.New()
	if err != nil {
		t.Fatal(err)
	}
	now := shield.Now()
	_ = h.guard().Block(now, 7, now+time.Minute)
	h.guard().Admit(now, shield.Request{Client: 7})
	if got, want := saying(h.report(now)), "rejecting single clients blocked=1 observed=false"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// An overload is logged when it begins, once a minute, and when it has ended.
func TestOverloadStartsAndEndsOnce(t *testing.T) {
	var e episode
	for i, step := range []struct {
		at                           time.Duration
		capacity, concurrency, early uint64 // new rejections
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
		{16 * time.Second, 0, 0, 0, "overload ended lasted=9.000000001s observed=false rejected=10"},
		{17 * time.Second, 0, 0, 0, ""},
		{18 * time.Second, 1, 0, 0, "overload started capacity=1 observed=false"},
		{22 * time.Second, 0, 0, 5, ""},
		{26 * time.Second, 0, 5, 5, ""},
		{30 * time.Second, 1, 0, 0, ""}, {34 * time.Second, 1, 0, 0, ""}, {38 * time.Second, 1, 0, 0, ""}, {42 * time.Second, 1, 0, 0, ""},
		{46 * time.Second, 1, 0, 0, ""}, {50 * time.Second, 1, 0, 0, ""}, {54 * time.Second, 1, 0, 0, ""}, {58 * time.Second, 1, 0, 0, ""},
		{62 * time.Second, 1, 0, 0, ""}, {66 * time.Second, 1, 0, 0, ""}, {70 * time.Second, 1, 0, 0, ""}, {74 * time.Second, 1, 0, 0, ""},
		{78 * time.Second, 1, 0, 0, "overload goes on capacity=13 concurrency=5 early=10 observed=false"},
		{79 * time.Second, 7, 0, 0, ""},
		{84 * time.Second, 0, 0, 0, "overload ended lasted=1m1s observed=false rejected=36"},
	} {
		added := reasonCounts{shield.Capacity: step.capacity, shield.Concurrency: step.concurrency, shield.Early: step.early}
		if got := saying(e.step(&kinds[overload], step.at, added, false)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}
