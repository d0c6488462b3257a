package caddymodule

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
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
	if got, want := saying(h.report(now)), "rejecting individual clients blocked=1 observed=false"; got != want {
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
		{78 * time.Second, 1, 0, 0, "overload continues capacity=13 concurrency=5 early=10 observed=false"},
		{79 * time.Second, 7, 0, 0, ""},
		{84 * time.Second, 0, 0, 0, "overload ended lasted=1m1s observed=false rejected=36"},
	} {
		added := reasonCounts{shield.Capacity: step.capacity, shield.Concurrency: step.concurrency, shield.Early: step.early}
		if got := saying(e.step(&kinds[overload], step.at, added, 0, false)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// A playedShield has been played against clients that were rejected, and returned.
type playedShield struct {
	*Handler
	said         []string      // beginnings and ends of overloads
	overloaded   time.Duration // by the metric
	served, last time.Duration
}

// playClients has clients come to a shield with a capacity of 60/s, and a zone that one of them exceeds once a second if quota. come returns how many
// new ones there are, every 10 ms. Rejected ones return when they are told to, or after early, if that is not 0.
func playClients(t *testing.T, responses pushback.ResponseConfig, length, early time.Duration, quota bool, come func(at time.Duration) int) (p playedShield) {
	h, err := Live{Name: "shop", Config: shield.Config{
		Capacity: limiter.Config{Rate: 60, Burst: 10},
		Zones:    []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 3, Per: time.Minute, Burst: 5}}},
		Pushback: responses,
	}, State: new(LiveState), Zones: []*LiveZoneState{NewLiveZoneState("z")}}.New()
	if err != nil {
		t.Fatal(err)
	}
	p.Handler = h
	const step = 10 * time.Millisecond
	began, clients := shield.Now().Truncate(time.Second)+time.Second, 0
	due := map[time.Duration][]limiter.Key{}
	for at := time.Duration(0); at < length; at += step {
		now := began + at
		for range come(at) {
			clients++
			due[at] = append(due[at], limiter.KeyOf(strconv.Itoa(clients)))
		}
		if quota && at%time.Second == 0 {
			overQuota := limiter.KeyOf("over quota " + at.String())
			for range 6 {
				if d := h.guard().Admit(now, shield.Request{Client: overQuota, Keys: []limiter.Key{overQuota}}); d.Admit {
					d.Done(now, shield.Served)
				}
			}
		}
		for _, client := range due[at] {
			r := shield.Request{Client: client, Keys: []limiter.Key{client}}
			d := h.guard().Admit(now, r)
			if d.Queued() {
				h.guard().Settle(d.Until(), r, &d, 0)
			}
			if d.Admit {
				d.Done(now, shield.Served)
				p.served = at
				continue
			}
			back := at + d.Hold + time.Duration(d.Hint.Seconds)*time.Second
			if early > 0 {
				back = at + early
			}
			back += step - 1 - (back-1)%step
			due[back] = append(due[back], client)
			p.last = max(p.last, back)
		}
		if at%time.Second != 600*time.Millisecond {
			continue
		}
		h.guard().Tick(now)
		for _, n := range h.report(now) {
			if n.event == kinds[overload].beginning || n.event == kinds[overload].end {
				p.said = append(p.said, fmt.Sprint(int(at.Seconds()), " s: ", saying([]news{n})))
			}
		}
		is := h.record.inOverload(now)
		if is {
			p.overloaded += time.Second
		}
		if is != (len(p.said)%2 == 1) {
			t.Errorf("after %v the metric says an overload is %v, events say %q", at, is, p.said)
		}
	}
	return p
}

// A herd is one overload, from its first rejection until the last client has been served: not one of a second, and more as new clients find no
// room among those that return. The metric says so, too. Clients that are over their quota all the while do not prolong it.
func TestHerdIsOneOverload(t *testing.T) {
	p := playClients(t, pushback.ResponseConfig{}, time.Minute, 0, true, func(at time.Duration) int {
		switch {
		case at == 3*time.Second:
			return 600
		case at%(30*time.Millisecond) == 0: // 33 new clients per second, as ever
			return 1
		}
		return 0
	})
	t.Logf("the last client was told to return at %v; events: %q", p.last, p.said)
	if len(p.said) != 2 || !strings.Contains(p.said[0], "overload started") || !strings.Contains(p.said[1], "overload ended") {
		t.Errorf("events %q; want one beginning and one end", p.said)
	}
	if over := p.record.reported.episodes[overload]; over.last-over.since < 20*time.Second || over.last-over.since > 45*time.Second {
		t.Errorf("the overload took %v; want as long as 600 clients need if some 20 a second find room", over.last-over.since)
	}
}

// Every 20 s 12 clients come together, of which two are told to return after a second: each is an overload of its own. A client that is over its quota
// every second has appointments of up to 30 s all the while: it neither prolongs these overloads nor makes one of them.
func TestQuotasDoNotProlongOverloads(t *testing.T) {
	for _, quota := range []bool{false, true} {
		p := playClients(t, pushback.ResponseConfig{}, 5*time.Minute, 0, quota, func(at time.Duration) int {
			if at%(20*time.Second) == 500*time.Millisecond {
				return 12
			}
			return 0
		})
		if len(p.said) != 2*15 || p.overloaded > 15*7*time.Second {
			t.Errorf("quota clients: %v: overloaded for %v, events %q; want 15 beginnings, 15 ends and 5 to 7 s each", quota, p.overloaded, p.said)
		}
	}
}

// Two clients are told to return after 20 s. They return after one, and are served: nobody is expected anymore, so the overload ends 5 s later.
func TestOverloadEndsWhenAllHaveReturned(t *testing.T) {
	p := playClients(t, pushback.ResponseConfig{Min: 20 * time.Second}, 30*time.Second, time.Second, false, func(at time.Duration) int {
		return map[time.Duration]int{500 * time.Millisecond: 12}[at]
	})
	if p.served > 2*time.Second || len(p.said) != 2 || p.overloaded > 7*time.Second {
		t.Errorf("the last client was served at %v, overloaded for %v, events %q; want 1.5 s, 5 to 7 s and an end", p.served, p.overloaded, p.said)
	}
}

// A shield that is taken out of the config while it is overloaded reports the end, in the log and as an event: else whoever was told of the beginning
// would wait for it forever. A reload that keeps the shield ends nothing.
func TestRemovedShieldEndsItsOverload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shield.log")
	config := func(name string) setup {
		return setup{
			apps:     `"events": {"subscriptions": [{"handlers": [{"handler": "shield_test_recorder"}]}]},`,
			log:      fmt.Sprintf(`{"output": "file", "filename": %q}`, file),
			handlers: fmt.Sprintf(`{"handler": "shield", "name": %q, "capacity": {"rate": 1, "per": "1h"}}, %s`, name, respondOK),
		}
	}
	recordedMu.Lock()
	recorded = nil
	recordedMu.Unlock()
	wanted := []string{"shield_overload_started shop false <nil> <nil>"}
	r := start(t, config("shop"))
	want := func(after string) {
		t.Helper()
		recordedMu.Lock()
		defer recordedMu.Unlock()
		if got := slices.DeleteFunc(slices.Clone(recorded), func(e string) bool { return !strings.HasPrefix(e, "shield_overload") }); !slices.Equal(got, wanted) {
			t.Errorf("after %s: events %q, want %q", after, got, wanted)
		}
	}
	r.wantStatus(http.StatusOK, "/")
	r.wantStatus(http.StatusServiceUnavailable, "/")
	r.load(config("shop"))
	want("a reload that keeps it")
	r.load(config("other"))
	wanted = append(wanted, "shield_overload_ended shop false 1 0")
	want("one that removes it")
	if log, err := os.ReadFile(file); err != nil || strings.Count(string(log), "overload ended") != 1 {
		t.Errorf("%v; want one line with overload ended in\n%s", err, log)
	}
}

// A Live shield that is shown no longer does so, too.
func TestHiddenShieldEndsItsOverload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shield.log")
	app := serveSite(t, "{\nadmin off\npersist_config off\nlog {\noutput file "+file+"\n}\n}\n"+bound+"shield 9/s\nrespond ok\n}").app
	live := func() *Handler {
		return newLive(t, Live{Name: "web", Config: shield.Config{Capacity: limiter.Config{Rate: 1, Per: time.Hour}}, State: new(LiveState)})
	}
	gone, stays := live(), live()
	app.Show([]*Handler{gone, stays})
	for _, h := range []*Handler{gone, stays} {
		asked(t, h, "192.0.2.1", served)
		asked(t, h, "192.0.2.1", served)
	}
	app.reportOnce(shield.Now())
	app.Show([]*Handler{stays})
	if !stays.record.reported.episodes[overload].on {
		t.Error("the overload of the shield that stays has ended")
	}
	if log, err := os.ReadFile(file); err != nil || strings.Count(string(log), "overload ended") != 1 {
		t.Errorf("%v; want one line with overload ended in\n%s", err, log)
	}
}
