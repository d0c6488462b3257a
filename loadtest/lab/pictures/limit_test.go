package main

import (
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/overload"
)

// The kept rows of other limiters are of the scenarios as they are: a row that depends
// on no law is the same when it is played again.
func TestLimitersAreUpToDate(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("needs a build without the race detector, and no -short: it plays everything")
	}
	kept, played := figures{}, figures{}
	kept.read(othersText)
	played.play(overload.Fixed(12))
	for cell, want := range played {
		if got := kept[cell]; got != want {
			t.Errorf("%s of the fixed limit is %s, and limiters.txt says %q: see othersText for how to play it again", cell[2], want, got)
		}
	}
	if len(played) < len(facts)-2 {
		t.Errorf("%d figures were read, and %d are shown", len(played), len(facts))
	}
}

// The picture shows what the page says about it.
func TestFlood(t *testing.T) {
	r, steps := playFlood()
	if n := len(dips(drawFlood(r, steps)[0].Legend[0].Line.XYs).XYs); n < 1 || n > 6 {
		t.Errorf("%d probes, want one every 10 to 80 s", n)
	}
	var fell time.Duration // to half as many more than there are workers
	for _, s := range steps {
		if s.at >= floodBegins && 2*s.limit <= 3*overload.Step5().Plant.Workers {
			fell = s.at - floodBegins
			break
		}
	}
	if fell == 0 || fell > 5*time.Second {
		t.Errorf("the limit has fallen to 12 after %v, want within 5 s", fell)
	}
	if over := r.Between(60, 180); over.Goodput() < 95 || over.RefusedShare() < 70 {
		t.Errorf("goodput %.1f %%, %.1f %% refused", over.Goodput(), over.RefusedShare())
	}
}

func TestFigures(t *testing.T) {
	f := figures{}
	f.read("=== RUN\nlimiter  A good %  p99 ms  p99 ms\nnone     0         1–2     3\nPASS\nnone     4         5       6\n\n" +
		drawnHead(overload.Unseen) + "  worst\nnone  7\n")
	for cell, want := range map[[3]string]string{
		{named, "none", "A good %"}:                      "0",
		{named, "none", "p99 ms"}:                        "1–2",
		{drawnHead(overload.Unseen), "none", "worst"}:    "7",
		{drawnHead(overload.HeldOut), "none", "worst"}:   "",
		{named, "fixed 12", "A good %"}:                  "",
		{drawnHead(overload.Unseen), "none", "A good %"}: "",
	} {
		if got := f[cell]; got != want {
			t.Errorf("%q is %q, want %q", cell, got, want)
		}
	}
	if _, err := f.table(); err == nil || !strings.Contains(err.Error(), `"fixed 12"`) {
		t.Errorf("error %v, want one that says what is missing", err)
	}
	for _, l := range limiters {
		for _, fact := range facts {
			f[[3]string{fact.table, l.row, fact.column}] = "1"
		}
	}
	f[[3]string{named, "none", "B limit 2 min"}] = "0"
	f[[3]string{named, "none", "p50 ms"}] = "0"
	f[[3]string{named, "none", "G s"}] = "never"
	f[[3]string{named, "none", "G slow s"}] = "never–52"
	text, err := f.table()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"|  | no limit | fixed: 12 | failsafe-go 0.9.8 | Gradient2 | shield |\n|---|---:|---:|---:|---:|---:|\n",
		"limit after 2 minutes | – | 1 |", "after 30 minutes | – | 1 ms |", "well after | never | 1 s |", "well after | 52 s or never | 1 s |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
}
