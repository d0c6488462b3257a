package overload

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/sim"
)

// TestGoldenDecisions compares every decision of the named scenarios with what was
// decided when the golden file was written, one line for each; -update writes it anew.
func TestGoldenDecisions(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: a run is one goroutine, and ten times slower with it")
	}
	var out strings.Builder
	for _, s := range []Scenario{
		Step5(), Sustained(), Drift(), Slowdown(), Metastable(false), Metastable(true), Half(), Coherent(), Busy(),
		Mixed(.6), impatient(), cold(1.2), cold(5), Draw(7, 1), Draw(7, 2), Draw(7, 3), threeClasses(steps(0, 80, 20, 640, 60, 80), 90),
	} {
		n, hash := 0, uint64(0)
		row := Shield
		row.Maker = func(c shield.Config) (sim.Server, error) {
			server, err := sim.Guard(c)
			server.(*sim.Guarded).Decided = func(d shield.Decision) {
				h := fnv.New64a()
				for _, v := range []int64{
					int64(hash), int64(d.Reason), int64(d.Zone), int64(d.Wait), int64(d.Hint.Seconds), int64(d.Hint.Ms), int64(d.Hold), int64(d.Class),
				} {
					_ = binary.Write(h, binary.LittleEndian, v)
				}
				n, hash = n+1, h.Sum64()
			}
			return server, err
		}
		row.Run(s, 11)
		fmt.Fprintf(&out, "%016x %7d %s\n", hash, n, s.Name)
	}
	const file = "testdata/decisions.golden"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != out.String() {
		t.Errorf("decides differently:\nwas\n%sis\n%s", want, out.String())
	}
}
