package main

import (
	"strings"
	"testing"
	"time"
)

func TestCheckNamesWhatFallsShort(t *testing.T) {
	const lasts, capacity = 10 * time.Second, 100
	only := func(live, simulated int, checked bool) []result {
		r := result{backend: "b", variant: variant{name: "v", checked: checked}, load: load{lasts: lasts}, capacity: capacity}
		r.live.Served = live
		r.simulated.Good = simulated
		return []result{r}
	}
	for _, c := range []struct {
		live, simulated int
		checked, quick  bool
		want            string // part of the error; "": none
	}{
		{live: 910, simulated: 1000, checked: true},
		{live: 1090, simulated: 1000, checked: true},
		{live: 890, simulated: 1000, checked: true, want: "b, v: 89.0 served per second, -11.0 % of"},
		{live: 1110, simulated: 1000, checked: true, want: "+11.0 %"},
		{live: 0, simulated: 0, checked: true, want: "NaN"},
		{live: 100, simulated: 1000},
		{live: 510, simulated: 1000, checked: true, quick: true},
		{live: 490, simulated: 1000, checked: true, quick: true, want: "49.0 served per second; want at least 50.0"},
	} {
		err := check(only(c.live, c.simulated, c.checked), c.quick)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: error %q; want none", c, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: error %v; want %q", c, err, c.want)
		}
	}
}

// The simulation that the live runs are held to must not be one that anything
// passes: without shield next to nothing is served, with it what the backend can.
func TestSimulationTellsVariantsApart(t *testing.T) {
	l := load{480, 60 * time.Second}
	for _, v := range variants {
		got := simulate(v, l, 160).Goodput()
		if protects := v.caddyfile != ""; protects && (got < 95 || got > 101) || !protects && got > 10 {
			t.Errorf("%s: %.1f %% of the capacity is served", v.name, got)
		}
	}
}
