package overload

import (
	"os"
	"testing"

	"github.com/herdshield/shield/loadshed"
)

var (
	adaptive = Row{Name: "limit alone", Build: Adaptive(loadshed.AdaptiveConfig{})}
	ours     = Row{Name: "shield", Build: Shield}
)

// TestTable prints how the limit does in every scenario. The rows of other projects
// are in loadtest/lab/competitors.
//
//	go -C loadtest/lab test ./overload -run '^TestTable$' -v -table
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("it only prints; with -table")
	}
	rows := []Row{{Name: "none", Build: None}, {Name: "fixed 12", Build: Fixed(12)}, adaptive, ours}
	if err := WriteTable(os.Stdout, rows); err != nil {
		t.Fatal(err)
	}
	for _, seed := range []uint64{HeldOut, Unseen} {
		if err := WriteSets(os.Stdout, rows, seed); err != nil {
			t.Fatal(err)
		}
	}
}
