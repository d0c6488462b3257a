// Package competitors plays other projects' concurrency limiters in the scenarios
// of loadtest/lab/overload, next to shield's.
//
//	bash loadtest/lab/competitors/run
//
// prints the tables: some minutes.
//
// failsafe-go is the real code, with its defaults, in a synctest bubble whose clock
// is that of the run. Gradient2, which is in
// package overload, is our port of the formula of Netflix's
// concurrency-limits 0.5.4 (Java): its sequence of updates is faithful, its
// threading is not. It has Java's defaults, but limits of 1 to 1000: the default of
// 20 is more than most of these backends can use.
package competitors

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/overload"
)

var table = flag.Bool("table", false, "print the tables: some minutes")

func TestTable(t *testing.T) {
	if !*table {
		t.Skip("needs -table: it only prints")
	}
	rows := []overload.Row{
		overload.None, overload.Fixed(12), failsafeRow(t), gradient2, overload.Alone, overload.Shield,
	}
	must.Do(t, overload.Print(os.Stdout, rows))
}

var gradient2 = overload.Row{Name: "Gradient2", Maker: overload.Gradient2}

func failsafeRow(t *testing.T) overload.Row {
	return overload.Row{Name: "failsafe-go v0.9.8", Maker: newFailsafe, In: func(play func()) {
		synctest.Test(t, func(*testing.T) { play() })
	}}
}
