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
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/lab/must"
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
	must.Do(t, overload.Print(os.Stdout, rows))
}

var gradient2 = overload.Row{Name: "Gradient2", Maker: overload.Gradient2}

func failsafeRow(t *testing.T) overload.Row {
	return overload.Row{Name: "failsafe-go v0.9.8", Maker: newFailsafe, In: func(play func()) {
		synctest.Test(t, func(*testing.T) { play() })
	}}
}

// newFailsafe is the Maker of a server with the adaptive limiter of failsafe-go, with
// its defaults. A request that its client gives up is dropped, as its executor does. The
// limiter reads the clock: runs have to be played in a synctest bubble, whose clock
// the server moves on.
func newFailsafe(shield.Config) (sim.Server, error) {
	return &failsafe{
		limiter: adaptivelimiter.NewWithDefaults[any](), began: time.Now(), open: map[int32]adaptivelimiter.Permit{},
	}, nil
}

type failsafe struct {
	limiter adaptivelimiter.AdaptiveLimiter[any]
	began   time.Time
	open    map[int32]adaptivelimiter.Permit // by ticket
	tickets int32
}

func (f *failsafe) moveOn(now time.Duration) { time.Sleep(now - time.Since(f.began)) }

func (f *failsafe) Arrive(now time.Duration, _ sim.Request) sim.Answer {
	f.moveOn(now)
	permit, ok := f.limiter.TryAcquirePermit()
	if !ok {
		return sim.Answer{Status: http.StatusTooManyRequests}
	}
	f.tickets++
	f.open[f.tickets] = permit
	return sim.Answer{Admit: true, Ticket: f.tickets}
}

func (f *failsafe) Finish(now time.Duration, ticket int32, e sim.End) {
	f.moveOn(now)
	if e.Outcome == shield.Served {
		f.open[ticket].Record()
	} else {
		f.open[ticket].Drop()
	}
	delete(f.open, ticket)
}

// Change implements sim.Server: there is no config.
func (f *failsafe) Change(shield.Config, bool) error { return nil }

// Limit implements sim.Gauge.
func (f *failsafe) Limit() int { return f.limiter.(adaptivelimiter.Metrics).Limit() }
