package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

var results = []Result{
	{
		Name: "good", Seed: 1, Clients: 10, Reachable: 10, Served: 10,
		Drained: 1100 * time.Millisecond, Optimum: time.Second, Cleared: 1200 * time.Millisecond,
		Requests: 20, MostAttempts: 2, Peak: 7, PeakReturns: 3, MostHeld: 9, Overflow: 4.4,
		Strangers: StrangersResult{Came: 8, AtOnce: 7, P95: 1500 * time.Millisecond, Unserved: 1},
	},
	{
		Name: "bad", Seed: 2, Clients: 10, Reachable: 9, Served: 5, GaveUp: 1, Waiting: 3,
		Drained: time.Minute, Optimum: time.Second, Cleared: time.Minute, Requests: 40, MostAttempts: 30, Broken: 6, Idle: 8,
		Policies: []PolicyResult{
			{Policy: clients.Exact{}, Clients: 6, Served: 4, Requests: 10, P50: time.Second, P99: 2 * time.Second},
			{Policy: clients.GiveUp{}, Clients: 4, Served: 1, Requests: 1},
		},
	},
}

func TestWriteTable(t *testing.T) {
	var out strings.Builder
	if err := WriteTable(&out, results...); err != nil {
		t.Fatal(err)
	}
	want := `
scenario  seed  served    drained s  × optimum  cleared ×  req/succ  most  peak (returns)  broken  gave up  held  overflow  idle  strangers at once  p95 s  unserved
good      1     10 of 10  1.1        1.100      1.200      2.00      2     7 (3)           0       0        9     4         0     87.5 %             1.5    1
bad       2     5 of 10   > 60       60.000     60.000     8.00      30    0 (0)           6       1        0     0         8     0.0 %              0.0    0

scenario  seed  policy         served  p50 s  p99 s  req/succ
bad       2     exact          4 of 6  1.0    2.0    2.50
bad       2     never returns  1 of 4  0.0    0.0    1.00
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestWriteMarkdown(t *testing.T) {
	var out strings.Builder
	if err := WriteMarkdown(&out, results[0]); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 4 || lines[3] != "" {
		t.Fatalf("got %d lines, want 3, and no table of policies:\n%s", len(lines), out.String())
	}
	n := strings.Count(lines[0], "|")
	for _, line := range lines[:3] {
		if strings.Count(line, "|") != n || line[0] != '|' || line[len(line)-1] != '|' {
			t.Errorf("not a row of %d cells: %s", n-1, line)
		}
	}
	if !strings.Contains(lines[2], "| good | 1 | 10 of 10 | 1.1 | 1.100 |") {
		t.Errorf("row: %s", lines[2])
	}
}

// broken is a writer that takes so many bytes.
type broken int

func (b *broken) Write(p []byte) (int, error) {
	if *b -= broken(len(p)); *b < 0 {
		return 0, errFull
	}
	return len(p), nil
}

var errFull = error(fullError{})

type fullError struct{}

func (fullError) Error() string { return "full" }

func TestTablesTellWhenTheyCannotBeWritten(t *testing.T) {
	for _, n := range []broken{0, 300, 600} {
		a, b := n, n
		if err := WriteTable(&a, results...); err != errFull {
			t.Errorf("room for %d bytes: a table returns %v", n, err)
		}
		if err := WriteMarkdown(&b, results...); err != errFull {
			t.Errorf("room for %d bytes: Markdown returns %v", n, err)
		}
	}
}
