// Package competitors plays other projects' concurrency limiters in the scenarios
// of loadtest/lab/overload, next to shield's.
//
//	bash loadtest/lab/competitors/run
//
// prints the tables: some minutes.
//
// failsafe-go is the real code, with its defaults, in a synctest bubble whose clock
// is that of the run. Gradient2, which is in
// package sim, is our port of the formula of Netflix's
// concurrency-limits 0.5.4 (Java): its sequence of updates is faithful, its
// threading is not. It has Java's defaults, but limits of 1 to 1000: the default of
// 20 is more than most of these backends can use.
package competitors

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/sim"
)

var table = flag.Bool("table", false, "print the tables: some minutes")

func TestTable(t *testing.T) {
	if !*table {
		t.Skip("needs -table: it only prints")
	}
	rows := []overload.Row{
		overload.None, overload.Fixed(12), failsafeRow(t), gradient2, overload.Alone, overload.Shield,
	}
	if err := overload.Print(os.Stdout, rows); err != nil {
		t.Fatal(err)
	}
}

var gradient2 = overload.Row{Name: "Gradient2", Maker: sim.Gradient2}

func failsafeRow(t *testing.T) overload.Row {
	return overload.Row{Name: "failsafe-go v0.9.8", Maker: newFailsafe, In: func(play func()) {
		synctest.Test(t, func(*testing.T) { play() })
	}}
}

// Both hold a backend of eight workers at its capacity for two minutes, as their
// authors mean them to: the ports and adapters are right.
func TestCompetitorsWork(t *testing.T) {
	for _, row := range []overload.Row{failsafeRow(t), gradient2} {
		r := row.Run(overload.Step5(), 11)
		if good := r.Between(120, 180).Goodput(); good < 93 {
			t.Errorf("%s: goodput %.0f %% of capacity at five times the load, want 93", row.Name, good)
		}
		if quiet := r.Between(20, 60); quiet.RefusedShare() > 1 {
			t.Errorf("%s refuses %.1f %% at half the capacity", row.Name, quiet.RefusedShare())
		}
	}
}

// Under 1.2 times the load for half an hour their limits drift up: what they take
// for the normal latency follows the latency that they cause.
func TestCompetitorsDrift(t *testing.T) {
	for _, row := range []overload.Row{failsafeRow(t), gradient2} {
		r := row.Run(overload.Sustained(), 11)
		if p50 := r.Between(1740, 1860).P50; p50 < 500*time.Millisecond {
			t.Errorf("%s: p50 %v after half an hour: its drift is gone, and the documents that tell of it are wrong", row.Name, p50)
		}
	}
}
