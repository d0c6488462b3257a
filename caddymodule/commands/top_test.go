package commands

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/pflag"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

// twoShields is an answer about a herd before shop, and a quiet api.
var twoShields = told{
	watch: adminapi.Watch{
		Boot: "b", Host: "web-1", Seq: 500, Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local).UnixMilli(),
		Shields: []adminapi.ShieldWatch{
			{Name: "shop", Mode: "enforce", Level: oncall.Warn, Says: "shop refuses 84 requests/s, because the backend's capacity of 100/s is used up.",
				ShieldDetails: &adminapi.ShieldDetails{
					Limit: "adaptive", QueueSize: 64,
					Lately:  adminapi.LatelyWatch{Admitted: 100, Refused: map[string]float64{"capacity": 60, "early": 24}, Kept: 9, NoShow: 1},
					Waiting: &adminapi.WaitingWatch{Clients: 1240, Over: 12.4},
					Herd:    &adminapi.HerdStatus{Kind: "backlog", Size: 1200},
					Samples: oncall.Samples{From: 497, Count: 4, Columns: map[string]oncall.Column{
						"admitted": {100}, "refused.capacity": {0, 80, 40, 60}, "refused.early": {0, 0, 0, 24},
						"in_flight": {3, 12, 12, 11}, "limit": {12}, "queue": {0, 0, 3, 2}, "backlog_ms": {0, 9000, 10000, 12400}, "kept": {0, 0, 4, 9},
					}},
				}},
			{Name: "api", Mode: "observe", Level: oncall.Good, Says: "api admits all.", ShieldDetails: &adminapi.ShieldDetails{
				Lately: adminapi.LatelyWatch{Admitted: 5}, Samples: oncall.Samples{Count: 4, Columns: map[string]oncall.Column{"admitted": {5}}},
			}},
		},
		Overrides: &adminapi.OverridesStatus{Overrides: []adminapi.Override{
			{ID: "1", Kind: "block", Client: "192.0.2.1", Left: 50, By: "10.0.0.1:5"}, {ID: "2", Kind: "set", Shield: "api", Setting: "capacity", Value: "5/s", Left: 5},
			{ID: "3", Kind: "set", Shield: "shop", Setting: "capacity", Value: "30/s burst 5", Left: 1790, By: "10.0.0.1:9, origin \"\x1b[31m\""},
		}},
		Who: &adminapi.WhoStatus{Shields: []adminapi.WhoShield{{Name: "shop", Refused: []adminapi.RefusedClient{
			{Client: "203.0.113.7", LastMinute: 5321, PerSecond: 88.7, Reason: "early", Agent: "python"},
		}}}},
	},
}

func TestTopScreen(t *testing.T) {
	s := topScreen{width: 120}
	s.take(twoShields)
	for _, c := range []struct {
		what        string
		do          func()
		want, never []string
	}{
		{"at first", func() {}, []string{
			`web-1  03:04:05`, `● shop   ● api`, `shop refuses 84 requests/s, because the backend's capacity of 100/s is used up.`,
			`admitted +100.0/s .*████$`, `refused capacity +60.0/s .* █▄▆$`, `in flight +11 of 12 .*▂███$`, `queue +2 of 64 `,
			`backlog +12.4 s .* ▆▇█$`, `promises kept +90 % `, `waiting +1240 clients; the end is in 13 s`, `herd +backlog of 1200`,
			`203.0.113.7 +88.7 +5321  early +python`,
			`override, for +29 min 50 s  capacity 30/s burst 5 of shield shop; asked by "10.0.0.1:9,.*x1b`, `override, for +50 s  192.0.2.1 is blocked in all shields; asked by 10.0.0.1:5`,
		}, []string{"capacity 5/s", "deferred", "no appointment", "broken", "replicas"}},
		{"the next one", func() { s.choose(+1) }, []string{`api admits all. \(mode observe\)`, `admitted +5.0/s`}, []string{"refused", "203.0.113.7"}},
		{"and around", func() { s.choose(+1) }, []string{`shop refuses`}, nil},
		{"without an answer", func() { s.take(told{err: errors.New("connection refused")}) }, []string{
			`03:04:05  no answer since then: connection refused`, `shop refuses`,
		}, nil},
		{"many overrides", func() {
			many := twoShields
			many.watch.Overrides = &adminapi.OverridesStatus{Overrides: slices.Repeat(twoShields.watch.Overrides.Overrides[:1], 50)}
			s.take(many)
		}, []string{`(?s)override.*override.*override.*and more`, `203.0.113.7`}, nil},
		{"without the chosen one", func() {
			s.chosen = "blog"
			s.take(twoShields)
		}, []string{`● shop   ● api`, `The running config has no shield "blog" any more.`}, nil},
		{"another one", func() { s.choose(+1) }, []string{`api admits all`}, nil},
		{"the one in trouble", func() {
			s = topScreen{}
			worse := twoShields
			worse.watch.Shields = slices.Clone(twoShields.watch.Shields)
			worse.watch.Shields[1].Level = oncall.Bad
			s.take(worse)
			s.take(twoShields) // a person reads one shield until another one is asked for
		}, []string{`api admits all`}, nil},
		{"without a shield", func() { s.take(told{}) }, []string{`The running config has no shield.`}, []string{"no answer"}},
	} {
		c.do()
		shown := ansi.Strip(s.String())
		for _, want := range c.want {
			if !regexp.MustCompile(`(?m)` + want).MatchString(shown) {
				t.Errorf("%s: want %s in\n%s", c.what, want, shown)
			}
		}
		for _, never := range c.never {
			if strings.Contains(shown, never) {
				t.Errorf("%s: %q is in\n%s", c.what, never, shown)
			}
		}
	}
}

// The screen fits into any terminal.
func TestTopFitsTheTerminal(t *testing.T) {
	s := topScreen{}
	s.take(twoShields)
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 40; height += 3 {
			s.width, s.height = width, height
			lines := strings.Split(s.String(), "\n")
			if len(lines) > height {
				t.Fatalf("%d × %d: %d lines", width, height, len(lines))
			}
			for _, line := range lines {
				if n := ansi.StringWidth(line); n > width {
					t.Fatalf("%d × %d: %q is %d wide", width, height, line, n)
				}
			}
		}
	}
}

// A figure that was 0 for as long as the terminal is wide has an empty course.
func TestTopShowsQuietFigures(t *testing.T) {
	quiet := twoShields
	quiet.watch.Shields = []adminapi.ShieldWatch{{Name: "shop", ShieldDetails: &adminapi.ShieldDetails{
		Samples: oncall.Samples{Count: 300, Columns: map[string]oncall.Column{"in_flight": append(oncall.Column{7}, make(oncall.Column, 299)...)}},
	}}}
	s := topScreen{width: 80}
	s.take(quiet)
	if shown := ansi.Strip(s.String()); !regexp.MustCompile(`(?m)^in flight +0 +$`).MatchString(shown) {
		t.Errorf("want a figure of 0 without bars in\n%s", shown)
	}
}

// One request tells top all seconds, so that it does not fill the log of the server. When the answer has
// ended, as at a reload, top asks again, and the screen stays.
func TestTopAsksOnce(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		for seq := range uint64(5) {
			line := twoShields.watch
			line.Seq += seq
			_ = json.NewEncoder(w).Encode(line)
		}
	}))
	defer server.Close()
	flags := pflag.NewFlagSet("top", pflag.ContinueOnError)
	flags.String("address", strings.TrimPrefix(server.URL, "http://"), "")
	program := &top{flags: caddycmd.Flags{FlagSet: flags}, screen: topScreen{chosen: "blog"}}
	if err := program.first(); err == nil || err.Error() != `--shield is "blog"; want one of shop, api` {
		t.Errorf("error: %v", err)
	}
	program.screen.chosen = "api"
	next := program.Init()
	for seq := uint64(501); seq < 505; seq++ {
		if _, next = program.Update(next()); next == nil || program.screen.watch.Seq != seq || program.screen.err != nil {
			t.Fatalf("second %d, %v; want %d", program.screen.watch.Seq, program.screen.err, seq)
		}
	}
	if want := "/shield/live?follow=1&all=1&last=300"; len(asked) != 1 || asked[0] != want {
		t.Errorf("for five seconds it asked for %q; want once, for %s", asked, want)
	}
	if _, again := program.Update(next()); again == nil || program.screen.err != nil || program.screen.watch.Seq != 504 {
		t.Errorf("at the end of the answer it shows second %d, %v", program.screen.watch.Seq, program.screen.err)
	}
	if program.Update(program.ask()); len(asked) != 2 || program.screen.watch.Seq != 500 {
		t.Errorf("after the end of the answer it asked for %q", asked)
	}
	server.CloseClientConnections()
	server.Close()
	program.live.Close()
	program.live = nil
	if program.Update(program.ask()); program.screen.err == nil || program.screen.watch.Seq != 500 {
		t.Errorf("without a server it shows second %d, %v", program.screen.watch.Seq, program.screen.err)
	}
	for _, key := range []struct{ press, want string }{{"right", "shop"}, {"left", "api"}, {"tab", "shop"}} {
		code := map[string]rune{"right": tea.KeyRight, "left": tea.KeyLeft, "tab": tea.KeyTab}[key.press]
		if program.Update(tea.KeyPressMsg{Code: code}); program.screen.chosen != key.want {
			t.Errorf("%s chose %q, want %q", key.press, program.screen.chosen, key.want)
		}
	}
	if _, quit := program.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); quit == nil {
		t.Error("q does not end it")
	} else if _, is := quit().(tea.QuitMsg); !is {
		t.Error("q does something else")
	}
	if view := program.View(); !view.AltScreen || !strings.Contains(view.Content, "shield top") {
		t.Errorf("view: %+v", view)
	}
}
