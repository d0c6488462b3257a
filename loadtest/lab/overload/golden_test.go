package overload

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/sim"
)

var update = flag.Bool("update", false, "write the golden trace anew")

// The limit's way through scenario A, change by change, with the reason of each. A
// change of the law shows here first.
func TestGoldenTrace(t *testing.T) {
	var g *sim.Guarded
	row, s := Alone, Step5()
	row.Maker = watched(&g)
	var changes []loadshed.Change
	next := uint64(0)
	s.Progress = func(time.Duration, time.Duration) { // each second, of which the Guard keeps all
		list, n := g.State.Backend.Changes(next)
		changes, next = append(changes, list...), n
	}
	row.Run(s, Seeds[0])
	var b strings.Builder
	b.WriteString("# Half of the capacity of 8 workers of 50 ms, five times as much from 60 s to 180 s.\n# at, limit, reason, latency over baseline\n")
	for _, c := range changes {
		fmt.Fprintf(&b, "%v %d → %d %v %v/%v\n", c.At.Round(time.Millisecond), c.From, c.To, c.Reason, c.Latency.Round(time.Millisecond), c.Baseline.Round(time.Millisecond))
	}
	const name = "testdata/step5.golden"
	if *update {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != b.String() {
		t.Errorf("the trace differs from %s; run with -update and look at the difference", name)
	}
}

// watched makes real Guards, and keeps the latest.
func watched(g **sim.Guarded) sim.Maker {
	return func(c shield.Config) (sim.Server, error) {
		server, err := sim.Guard(c)
		*g, _ = server.(*sim.Guarded)
		return server, err
	}
}
