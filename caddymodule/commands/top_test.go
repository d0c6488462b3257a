package commands

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

// twoShields is a response about a herd before shop, and a quiet api.
var twoShields = adminapi.Watch{
	Boot: "b", Host: "web-1", Seq: 500, Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local).UnixMilli(),
	Status: adminapi.Status{
		Shields: []oncall.Situation{
			{Name: "shop", Mode: "enforce", Level: oncall.Warn, Says: "shop rejects 84 requests/s, because the backend's capacity of 100/s is used up.",
				Facts: &oncall.Facts{
					Search: &oncall.Search{By: "adaptive"}, Queue: &oncall.Queue{Size: 64},
					Lately:  &oncall.Lately{Admitted: 100, Rejected: map[string]float64{"capacity": 60, "early": 24}, Kept: 9, NoShow: 1},
					Waiting: &oncall.Waiting{Clients: 1240, Over: 12.4},
					Herd:    &oncall.Herd{Kind: "backlog", Size: 1200},
				}},
			{Name: "api", Mode: "observe", Level: oncall.Good, Says: "api admits all.", Facts: &oncall.Facts{Lately: &oncall.Lately{Admitted: 5}}},
		},
		Overrides: []adminapi.Override{
			{ID: "1", Kind: "block", Shields: []string{"api", "shop"}, Client: "192.0.2.1", Left: 50, By: "10.0.0.1:5"},
			{ID: "2", Kind: "set", Shields: []string{"api"}, Setting: "capacity", Value: "5/s", Left: 5},
			{ID: "3", Kind: "set", Shields: []string{"shop"}, Setting: "capacity", Value: "30/s burst 5", Left: 1790, By: "10.0.0.1:9, origin \"\x1b[31m\""},
		},
	},
	Samples: map[string]oncall.Samples{
		"shop": {From: 497, Count: 4, Columns: map[string][]uint32{
			"admitted": {100, 100, 100, 100}, "rejected.capacity": {0, 80, 40, 60}, "rejected.early": {0, 0, 0, 24},
			"in_flight": {3, 12, 12, 11}, "limit": {12, 12, 12, 12}, "queue": {0, 0, 3, 2}, "backlog_ms": {0, 9000, 10000, 12400}, "kept": {0, 0, 4, 9}, "quiet": append([]uint32{7}, make([]uint32, 299)...),
		}},
		"api": {Count: 4, Columns: map[string][]uint32{"admitted": {5, 5, 5, 5}}},
	},
	Who: &adminapi.WhoStatus{Shields: []adminapi.WhoList{{Name: "shop", Rejected: []adminapi.RejectedClient{
		{Client: "203.0.113.7", LastMinute: 5321, PerSecond: 88.7, Reason: "early", Agent: "python"},
	}}}},
}

func TestTopScreen(t *testing.T) {
	ansi := regexp.MustCompile(`\x1b\[\d+m`)
	screen := func(watch *adminapi.Watch, err error, width, height int) string {
		return ansi.ReplaceAllString(topText(watch, err, width, height), "")
	}
	fewer, many := twoShields, twoShields
	fewer.Shields, fewer.Overrides = []oncall.Situation{{Name: "shop", Level: oncall.Warn, Says: "shop rejects all."}, twoShields.Shields[1]}, nil
	many.Overrides = slices.Repeat(twoShields.Overrides[:1], 50)
	for what, c := range map[string]struct {
		watch adminapi.Watch
		err   error
		want  []string
		never string
	}{
		"at first": {twoShields, nil, []string{
			`web-1  03:04:05`, `shop rejects 84 requests/s, because the backend's capacity of 100/s is used up.`, `api admits all.`, `^shop$`,
			`admitted +100 .*████$`, `rejected.capacity +60 .* █▄▆$`, `in_flight +11 .*▂███$`, `queue +2 `, `quiet +0 +$`,
			`backlog_ms +12400 .* ▆▇█$`, `^shop +203.0.113.7 +python +5321 +88.7 +early`,
			`^3 +capacity 30/s burst 5 of shield shop +29m50s +"10.0.0.1:9,.*x1b`, `^1 +192.0.2.1 is blocked in shields api, shop +50s +10.0.0.1:5`,
		}, "no response"},
		"without a response":       {twoShields, errors.New("connection refused"), []string{`03:04:05  no response since then: connection refused`, `shop rejects`}, "no shield"},
		"many overrides":           {many, nil, []string{`(?s)192.0.2.1 is.*192.0.2.1 is.*192.0.2.1 is`, `203.0.113.7`}, "no response"},
		"another one, nothing set": {fewer, nil, []string{`shop rejects all`, `^api$`, `admitted +5 `}, "OVERRIDE"},
		"without a shield":         {adminapi.Watch{}, nil, []string{`The running config has no shield.`}, "no response"},
	} {
		shown := screen(&c.watch, c.err, 120, 40)
		for _, want := range c.want {
			if !regexp.MustCompile(`(?m)` + want).MatchString(shown) {
				t.Errorf("%s: want %s in\n%s", what, want, shown)
			}
		}
		if strings.Contains(shown, c.never) {
			t.Errorf("%s: %q is in\n%s", what, c.never, shown)
		}
	}
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 40; height += 3 {
			shown := strings.Split(screen(&twoShields, nil, width, height), "\n")
			if len(shown) > height {
				t.Fatalf("%d × %d: %d lines", width, height, len(shown))
			}
			for _, line := range shown[min(2, len(shown)):min(4, len(shown))] {
				if len(line) > max(width, len("requests/s,")) {
					t.Fatalf("%d × %d: the sentence has a line %q", width, height, line)
				}
			}
		}
	}
}

// One request tells top all seconds, so that it does not fill the log of the server. When the response has
// ended, as at a reload, top asks again.
func TestTopAsksOnce(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		for range 5 {
			_ = json.NewEncoder(w).Encode(twoShields)
		}
	}))
	defer server.Close()
	cmd := topCommand()
	_ = cmd.Flags().Set("address", strings.TrimPrefix(server.URL, "http://"))
	_ = cmd.Flags().Set("shield", "shop")
	ctx, cancel := context.WithCancel(t.Context())
	cmd.SetContext(ctx)
	seen, lost := 0, false
	if err := follow(cmd, time.Millisecond, func(watch adminapi.Watch, err error) {
		switch {
		case err != nil:
			lost = true
			cancel()
		case watch.Seq != 500:
			t.Errorf("second %d", watch.Seq)
		}
		if seen++; seen == 8 {
			server.CloseClientConnections()
			server.Listener.Close()
		}
	}); err != nil || !lost {
		t.Errorf("without a server: %v; it is said: %v", err, lost)
	}
	if want := "/shield/live?all=1&follow=1&last=300&shield=shop"; len(asked) != 2 || asked[0] != want || seen < 8 {
		t.Errorf("for %d seconds it asked for %q; want twice, for %s", seen, asked, want)
	}
	if err := follow(cmd, 0, nil); err == nil || !strings.Contains(err.Error(), "is shield running") {
		t.Errorf("without a server from the start: %v", err)
	}
}
