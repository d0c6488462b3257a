package overload

import (
	"flag"
	"os"
	"testing"

	"github.com/herdshield/shield/loadshed"
)

var full = flag.Bool("full", false, "print the tables of TestTable")

// ours are the rows that the tests hold to bounds.
var (
	adaptive = Row{Name: "adaptive", Build: Adaptive(loadshed.Config{})}
	queued   = Row{Name: "adaptive, queue", Build: Queued(loadshed.Config{})}
)

// TestTable prints the table of the package comment:
//
//	go test ./loadtest/overload -run Table -v -full
//
// The rows of other projects are in loadtest/competitors.
func TestTable(t *testing.T) {
	if !*full {
		t.Skip("prints tables with -full; TestScenarios has the bounds")
	}
	rows := []Row{{Name: "none", Build: None}, {Name: "fixed 12", Build: Fixed(12)}, adaptive, queued}
	if err := WriteTable(os.Stdout, rows); err != nil {
		t.Fatal(err)
	}
	for _, seed := range []uint64{HeldOut, Unseen} {
		if seed == Unseen && os.Getenv("NOUNSEEN") != "" {
			continue
		}
		if err := WriteSets(os.Stdout, rows, seed); err != nil {
			t.Fatal(err)
		}
	}
}
