package live

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
)

func quantilesOf(n int64, d time.Duration) Quantiles {
	return Quantiles{Count: n, Min: d / 2, P50: d, P90: 2 * d, P99: 3 * d, P999: 4 * d, Max: 5 * d}
}

// shown is a load that makes the tables show all that they can.
func shown() (LoadConfig, LoadResult) {
	c := one
	c.Herd, c.Within, c.HerdAfter, c.Rate, c.Duration, c.Attempts, c.Seed = 100, 100*time.Millisecond, time.Second, 30, 2*time.Second, 4, 7
	c.Mix = clients.Population{{Weight: 3, Policy: clients.Exact{}}, {Weight: 1, Policy: clients.GiveUp{}}}
	herd := Tally{
		Clients: 100, Served: 90, GaveUp: 8, Trying: 2, Requests: 205, Rejected: 110, TimedOut: 2, Unreachable: 3,
		Responses: map[string]int{"200": 90, "503": 110}, Wait: quantilesOf(90, 150*time.Millisecond), Attempt: quantilesOf(200, 15*time.Millisecond),
		Late: quantilesOf(205, 5*time.Millisecond), Told: quantilesOf(109, time.Second), Never: 1, LastServed: 2345 * time.Millisecond,
	}
	others := Tally{Clients: 60, Served: 60, Requests: 60, Responses: map[string]int{"200": 60}, Wait: quantilesOf(60, 999600*time.Nanosecond), Attempt: quantilesOf(60, 999600*time.Nanosecond), Late: quantilesOf(60, time.Millisecond), LastServed: 2 * time.Second}
	all := herd
	all.Clients, all.Served, all.Requests, all.Skipped, all.Responses = 160, 150, 265, 4, map[string]int{"200": 150, "503": 110}
	return c, LoadResult{
		Took: 2345678 * time.Microsecond, Stopped: ErrStopped, Herd: herd, Others: others, All: all,
		Policies: []PolicyTally{{"exact", herd}, {"never returns", Tally{Clients: 5, GaveUp: 5, Requests: 5}}},
		Seconds: []Second{{
			Bin:      sim.Bin{Herd: sim.Door{Came: 3, Admitted: 1}, NewClients: sim.Door{Came: 2, Admitted: 2}, Retries: 1, Served: 2, TimedOut: 1, GaveUp: 1, InFlight: 4},
			Rejected: 2, Unreachable: 1,
		}, {}},
		Broken: "connection reset",
	}
}

func ExampleWriteLoad() {
	c, r := shown()
	WriteLoad(os.Stdout, c, r)
	// Output:
	// target    GET http://127.0.0.1:1/, a connection for each attempt
	// load      a herd of 100 within 100ms after 1s, and 30 clients per second for 2s, evenly spaced
	// clients   exact 75%, never returns 25%; each waits 1s for a response, and tries again for 1h0m0s at most, 4 times in all
	// took      2.35 s; seed 7
	//
	//                                     herd      others           all
	// clients                              100          60           160
	//   served                      90 (90.0%)   60 (100%)   150 (93.8%)
	//   gave up                              8           0             8
	//   still trying when stopped            2           0             2
	// never came                             0           0             4
	// last served after                 2.34 s      2.00 s        2.34 s
	// requests                             205          60           265
	//   per second                       87.39       25.58           113
	//   goodput per second               38.37       25.58         63.95
	// requests per success                2.28        1.00          1.77
	//   answered 200                        90          60           150
	//   answered 503                       110           0           110
	//   timed out                            2           0             2
	//   no connection, or broken             3           0             3
	//
	// from the instant a request was due                 p50       p90       p99     p99.9       max
	// herd: wait of clients served, with retries      150 ms    300 ms    450 ms    600 ms    750 ms
	// herd: one attempt that was answered            15.0 ms   30.0 ms   45.0 ms   60.0 ms   75.0 ms
	// others: wait of clients served, with retries   1.00 ms   2.00 ms   3.00 ms   4.00 ms   5.00 ms
	// others: one attempt that was answered          1.00 ms   2.00 ms   3.00 ms   4.00 ms   5.00 ms
	// all: wait of clients served, with retries       150 ms    300 ms    450 ms    600 ms    750 ms
	// all: one attempt that was answered             15.0 ms   30.0 ms   45.0 ms   60.0 ms   75.0 ms
	// of that, late in leaving this machine          5.00 ms   10.0 ms   15.0 ms   20.0 ms   25.0 ms
	//
	// policy          clients   served   gave up   per success   wait p50      p99
	// exact               100       90         8          2.28     150 ms   450 ms
	// never returns         5        0         5          0.00          -        -
	//
	// Retry-After told to 109 of 110 rejected: 500 ms least, 1.00 s median, 5.00 s most; not to come back to 1
	//
	// Note: 1% of the requests left 15.0 ms or more after they were due: this machine was too busy, and its latencies are in the figures.
	//
	// Note: 3 requests had no connection, or it broke. The last: connection reset
	//
	// Note: 4 clients never came, because 20000 were there already, or this machine had not started them when their time was over: the load was less than was asked for.
	//
	// Note: the waits are those of the clients that were served. The other 10 waited in vain, and are not included.
	//
	// Note: the run ended early: stopped. 2 clients were still trying.
}

// A load of nothing, and one that has too few files open.
func TestTableOfALoad(t *testing.T) {
	c := LoadConfig{Target: here, Herd: 1, Mix: one.Mix, Timeout: time.Second}
	for _, r := range []LoadResult{{}, {Broken: syscall.EMFILE.Error()}, {All: Tally{Clients: 100_000, Served: 99_999}}} {
		var b strings.Builder
		if err := WriteLoad(&b, c, r); err != nil {
			t.Fatal(err)
		}
		wants := []string{"a herd of 1 within 0s, at random", "every 1s; each waits 1s for a response, and tries once\n", "0 (0.0%)", "none served"}
		if r.All.Served > 0 {
			wants = []string{"99999 (99.9%)"} // and not 100%
		}
		for _, want := range wants {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in:\n%s", want, &b)
			}
		}
		if advised := strings.Contains(b.String(), "Raise it (ulimit -n)"); advised != (r.Broken != "") {
			t.Errorf("advice about ulimit is given: %v, in:\n%s", advised, &b)
		}
	}
}

// The JSON of a result has all of it, with the words of a simulation's.
func TestJSONHasTheWholeResult(t *testing.T) {
	_, r := shown()
	r.Started, r.Coming = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), 1606*time.Millisecond
	r.All.CutOff, r.All.OldestCut = 2, 1500*time.Millisecond
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"started":"2026-05-01T12:00:00Z"`, `"coming_ns":1606000000`, `"policy":"exact"`, `"cut_off":2,"oldest_cut_off_ns":1500000000`,
		`"stopped":"stopped"`, `"last_broken":"connection reset"`, `"herd":{"clients":100`, `"others":{"clients":60`, `"p999_ns":600000000`,
		`"seconds":[{"herd":{"came":3,"admitted":1},"new_clients":{"came":2,"admitted":2},"served":2`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("JSON has no %s:\n%s", want, b)
		}
	}
	if n := strings.Count(string(b), `"last_served_ns":2345000000`); n != 3 { // all, herd, the first policy
		t.Errorf("JSON says %d times when the last was served; want 3:\n%s", n, b)
	}
	r.Stopped = nil
	if b, err = json.Marshal(r); err != nil || !strings.Contains(string(b), `"stopped":null`) {
		t.Errorf("%v: JSON of a whole run says that it was stopped:\n%s", err, b)
	}
}

func TestExpectations(t *testing.T) {
	_, r := shown()
	for in, want := range map[string]string{ // "": met
		"served>=90%":                "",
		"served >= 92%":              "served is 150 of 164 clients, 91.5%; expected served >= 92%", // those who never came, too
		"served>=150":                "",
		"served>150":                 "served is 150; expected served > 150",
		"gave-up<=8":                 "",
		"gave-up<1%":                 "gave-up is 8 of 164 clients, 4.9%; expected gave-up < 1%",
		"timed-out<1%":               "",
		"unreachable<=1%":            "unreachable is 3 of 265 requests, 1.1%",
		"rejected<50%":               "",
		"requests-per-success<=1.77": "",
		"requests-per-success<1.7":   "requests-per-success is 1.767; expected",
		"p50<=150ms":                 "",
		"p99.9<600ms":                "p99.9 is 600 ms; expected p99.9 < 600ms",
		"max<1s":                     "",
	} {
		e, err := ParseExpectation(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		err = e.Check(r)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", in, err, want)
		}
	}
	for _, in := range []string{"p99<1h", "requests-per-success<1e9", "served>=1%"} {
		if e, err := ParseExpectation(in); err != nil || e.Check(LoadResult{All: Tally{Clients: 3}}) == nil {
			t.Errorf("%q is met though no client was served: %v", in, err)
		}
	}
	for in, want := range map[string]string{
		"served":                  "compares nothing",
		"served=99%":              "compares nothing",
		"serve>=99%":              `figure "serve" is unknown; use one of gave-up,`,
		"served>=":                `the value is ""; use a number, or a share of the clients`,
		"served>=101%":            "use a number, or a share",
		"served>=NaN":             "use a number",
		"served>=-1":              "use a number",
		"served>=Inf":             "use a number",
		"p99<5":                   "use a time, like 250ms",
		"p99<-5s":                 "use a time",
		"p99<99%":                 "use a time",
		"requests-per-success<9%": "use a number",
		"served>==9":              "use a number",
		"":                        "compares nothing",
	} {
		if _, err := ParseExpectation(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v; want %q in it", in, err, want)
		}
	}
}

// A terminal gets one line, redrawn, and its last state.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		n := 0
		stop := Watch(&out, func() string { n++; return fmt.Sprint("line ", n) })
		time.Sleep(150 * time.Millisecond)
		stop()
		if want := "\r\x1b[K   line 1\r\x1b[K   line 2\n"; out.String() != want {
			t.Errorf("output is %q; want %q", out.String(), want)
		}
	})
}
