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

// A client that an operator has blocked makes no overload.
func TestBlockedClientIsNoOverload(t *testing.T) {
	h, err := Live{Name: "shop", Config: shield.Config{Capacity: limiter.Config{Rate: 10}}, State: new(LiveState)}.New()
	if err != nil {
		t.Fatal(err)
	}
	now := shield.Now()
	_ = h.guard().Block(now, 7, now+time.Minute)
	h.guard().Admit(now, shield.Request{Client: 7})
	if got, want := saying(h.report(now)), ""; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// An overload is logged when it begins, and when it has ended.
func TestOverloadStartsAndEndsOnce(t *testing.T) {
	var e overload
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
		{78 * time.Second, 1, 0, 0, ""},
		{79 * time.Second, 7, 0, 0, ""},
		{84 * time.Second, 0, 0, 0, "overload ended lasted=1m1s observed=false rejected=36"},
	} {
		added := reasonCounts{shield.Capacity: step.capacity, shield.Concurrency: step.concurrency, shield.Early: step.early}
		if got := saying(e.step(step.at, added, 0, false)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// A playedShield has been played against clients that were rejected, and returned.
type playedShield struct {
	*Handler
	said       []string      // beginnings and ends of overloads
	overloaded time.Duration // by the metric
	herds      int           // that were detected
}

// playClients has clients come to a shield with a capacity of 60/s, and a zone that one of them exceeds once a second if quota. come returns how many
// new ones there are, every 10 ms. Rejected ones return when they are told to, or after early, if that is not 0.
func playClients(t *testing.T, responses pushback.ResponseConfig, length, early time.Duration, quota bool, come func(at time.Duration) int) (p playedShield) {
	p.Handler = newLive(t, Live{Name: "shop", Config: shield.Config{
		Capacity: limiter.Config{Rate: 60, Burst: 10},
		Zones:    []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 3, Per: time.Minute, Burst: 5}}},
		Pushback: responses,
	}, State: new(LiveState), Zones: []*LiveZoneState{NewLiveZoneState("z")}})
	g := p.guard()
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
			due[at] = append(due[at], slices.Repeat([]limiter.Key{overQuota}, 6)...)
		}
		for _, client := range due[at] {
			r := shield.Request{Client: client, Keys: []limiter.Key{client}}
			d := g.Admit(now, r)
			if d.Queued() {
				g.Settle(d.Until(), r, &d, 0)
			}
			if d.Admit {
				d.Done(now, shield.Served)
			}
			if d.Admit || d.Reason == shield.Quota { // who is over its quota has others after it
				continue
			}
			back := at + d.Hold + time.Duration(d.Hint.Seconds)*time.Second
			if early > 0 {
				back = at + early
			}
			back += step - 1 - (back-1)%step
			due[back] = append(due[back], client)
		}
		if at%time.Second != 600*time.Millisecond {
			continue
		}
		g.Tick(now)
		for _, n := range p.report(now) {
			switch text := fmt.Sprint(int(at.Seconds()), " s: ", saying([]news{n})); {
			case n.event == "shield_overload_started" || n.event == "shield_overload_ended":
				p.said = append(p.said, text)
			case strings.Contains(text, "herd detected kind=backlog"):
				p.herds++
			}
		}
		is := p.record.inOverload(now)
		if is {
			p.overloaded += time.Second
		}
		if is != (len(p.said)%2 == 1) {
			t.Errorf("after %v the metric says an overload is %v, events say %q", at, is, p.said)
		}
	}
	return p
}

// An overload lasts from its first rejection until the last client has been served, says the metric, too.
func TestOverloadsOfClients(t *testing.T) {
	for _, c := range []struct {
		name          string
		min           time.Duration // of what rejected clients are told
		length, early time.Duration
		come          func(at time.Duration) int
		overloads     int
		least, most   time.Duration
		herds         int
	}{
		// Not one of a second, and more as new clients find no room among those that return. 600 clients need 30 to 45 s if some 20 a second
		// find room.
		{"a herd, and 33 new clients per second, as ever", 0, time.Minute, 0, func(at time.Duration) int {
			if at == 3*time.Second {
				return 600
			}
			return map[bool]int{true: 1}[at%(30*time.Millisecond) == 0]
		}, 1, 25 * time.Second, 50 * time.Second, 1},
		// Two of 12 are told to return after a second. A client that is over its quota every second has appointments of up to 30 s all the
		// while: it neither prolongs these overloads nor makes one of them.
		{"12 clients every 20 s", 0, 5 * time.Minute, 0, func(at time.Duration) int {
			return map[time.Duration]int{500 * time.Millisecond: 12}[at%(20*time.Second)]
		}, 15, 15 * 5 * time.Second, 15 * 7 * time.Second, 0},
		// They are told to return after 20 s, return after one, and are served: nobody is expected anymore, so the overload ends 5 s later.
		{"12 clients who return early", 20 * time.Second, 30 * time.Second, time.Second, func(at time.Duration) int {
			return map[time.Duration]int{500 * time.Millisecond: 12}[at]
		}, 1, 5 * time.Second, 7 * time.Second, 0},
	} {
		p := playClients(t, pushback.ResponseConfig{Min: c.min}, c.length, c.early, c.early == 0, c.come)
		if len(p.said) != 2*c.overloads || p.overloaded < c.least || p.overloaded > c.most || p.herds < c.herds {
			t.Errorf("%s: overloaded for %v, %d herds, events %q; want %d overloads of %v to %v in all, %d herds", c.name, p.overloaded, p.herds, p.said, c.overloads, c.least, c.most, c.herds)
		}
	}
}
