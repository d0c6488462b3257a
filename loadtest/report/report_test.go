package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

var update = flag.Bool("update", false, "write the golden files")

// example is two runs, made up: the first serves a herd of 100 in 4 s, the second
// loses most of it.
func example() *Report {
	r := &Report{
		Scenario: sim.Scenario{
			Bin: 500 * time.Millisecond, Warmup: time.Second, Until: 7 * time.Second, Seed: 7, Clients: 100, Within: time.Second,
			Background: 10, Timeout: 5 * time.Second, MaxRequests: 12_346, Plant: &plant.Config{Workers: 4},
		},
		Policies: "exact 60%, every 1.5s, 3 attempts 40%", Capacity: 40,
		Marks: []Mark{{"outage", 2 * time.Second, 3 * time.Second}, {"restart", 4 * time.Second, 4 * time.Second}},
	}
	good := sim.Result{
		Name: "a.caddyfile", Seed: 7, Clients: 100, Reachable: 100, Served: 98, GaveUp: 2,
		Drained: 4200 * time.Millisecond, Optimum: 3500 * time.Millisecond, Cleared: 5 * time.Second,
		Decided: 12_345, Answered: 150, Rejected: 12_195, Requests: 260, MostAttempts: 5, PeakReturns: 9,
		Policies: []sim.PolicyResult{
			{Policy: "exact", Clients: 60, Served: 60, Requests: 120, P50: time.Second, P90: 2 * time.Second, P99: 3 * time.Second},
			{Policy: "every 1.5s, 3 attempts", Clients: 40, Served: 38, GaveUp: 2, Requests: 140, P50: 2 * time.Second, P90: 3 * time.Second, P99: 12_340 * time.Millisecond},
		},
		NewClients: sim.NewClientsResult{Came: 50, AtOnce: 25, P95: 1500 * time.Millisecond},
	}
	spread := func(served, n int, longest ...time.Duration) sim.Waits { // as many served within each
		var waits []int64
		for i := range served {
			waits = append(waits, int64(longest[i*len(longest)/served]))
		}
		return sim.WaitsOf(waits, n)
	}
	good.Policies[0].Waits = spread(60, 60, time.Second, 2*time.Second, 3*time.Second)
	good.Policies[1].Waits = spread(38, 40, time.Second, 2*time.Second, 12_340*time.Millisecond)
	bad := good
	bad.Name, bad.Served, bad.GaveUp, bad.Waiting = "none", 0, 60, 40
	bad.Policies = []sim.PolicyResult{{Policy: "exact", Clients: 60, GaveUp: 60, Waits: spread(0, 60)}, {Policy: "every 1.5s, 3 attempts", Clients: 40, Waits: spread(0, 40)}}
	bad.NewClients.P95, bad.Wasted, bad.Decided = 0, 77, 12_346
	for i := range int32(16) {
		good.Series = append(good.Series, sim.Bin{
			Herd: sim.Door{Came: 30 * (i % 3), Admitted: 10}, NewClients: sim.Door{Came: 5, Admitted: 5},
			Served: 15, Retries: i, InFlight: 3 + i%2, Queued: i % 4, Limit: 8,
		})
		bad.Series = append(bad.Series, sim.Bin{Herd: sim.Door{Came: 500, Admitted: 500}, TimedOut: 400, GaveUp: i, InFlight: 900})
	}
	r.Runs = []Run{{Result: good, Notes: []string{"a note"}}, {Result: bad}}
	return r
}

// A run that ended early says when, before the herd too.
func TestEndedEarly(t *testing.T) {
	r := Report{Scenario: sim.Scenario{Bin: time.Second, Warmup: 5 * time.Second, MaxRequests: 9}}
	for _, bins := range []int{2, 6} {
		r.Runs = append(r.Runs, Run{Result: sim.Result{Name: "a", Decided: 9, Series: make([]sim.Bin, bins)}})
	}
	const want = "a ended after 9 requests (--requests), at -3s, before its time.\na ended after 9 requests (--requests), at 1s, before its time."
	if got := strings.Join(r.EndedEarly(), "\n"); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (-update writes it):\n%s\nwant:\n%s", file, got, want)
	}
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTable(t *testing.T) { golden(t, "testdata/table.txt", written(t, example().WriteTable)) }
func TestJSON(t *testing.T) {
	text := written(t, example().WriteJSON)
	var got struct {
		FirstBin time.Duration `json:"first_bin_ns"`
		Bin      time.Duration `json:"bin_ns"`
		Runs     []Run
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := example()
	for i := range want.Runs { // what a table or a picture is drawn of
		run := &want.Runs[i]
		for j := range run.Policies {
			run.Policies[j].Waits = nil
		}
	}
	if !reflect.DeepEqual(got.Runs, want.Runs) || got.FirstBin != -want.Warmup || got.Bin != want.Bin {
		t.Errorf("JSON has\n%+v\nwant\n%+v", got, want)
	}
	for _, name := range []string{`"drained_ns":4200000000`, `"policy":"exact"`, `"herd":{"came":30,"admitted":10}`} {
		if !strings.Contains(text, name) {
			t.Errorf("JSON has no %s:\n%s", name, text)
		}
	}
}

// A figure without a value is - in the table, and clients that never come back have given up.
func TestTableOfUnknownFigures(t *testing.T) {
	r := example()
	for i := range r.Runs {
		r.Runs[i].GaveUp = 0 // of clients that would have come back
	}
	r.Runs[0].NewClients.Unserved = 3 // more than 5%
	r.Runs[0].Optimum = 1e9 * time.Second
	table := written(t, r.WriteTable)
	if strings.Contains(table, "1000000000") {
		t.Errorf("a time that never comes is one:\n%s", table)
	}
	for _, want := range []string{`95% served within +- +-\n`, `  gave up +2 +60\n`} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("no %s in:\n%s", want, table)
		}
	}
}

// Without a herd the table says what became of all.
func TestTableWithoutHerd(t *testing.T) {
	r := example()
	r.Runs = r.Runs[:1]
	run := &r.Runs[0]
	run.Clients, run.Reachable, run.Policies = 0, 0, nil
	for i := range run.Series {
		run.Series[i] = sim.Bin{NewClients: sim.Door{Came: 10, Admitted: 8}, Retries: 2, Served: 6, GaveUp: 1}
	}
	table := strings.Join(strings.Fields(written(t, r.WriteTable)), " ")
	if want := "clients, warm-up included 128 served 96 gave up 16 still waiting at the end 16 requests"; !strings.Contains(table, want) {
		t.Errorf("no %q in:\n%s", want, table)
	}
}

func TestTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 1500: "1.50 µs", 999400: "999 µs", 999500: "1.00 ms", 12345678: "12.3 ms", 123456789: "123 ms",
		999499999: "999 ms", 999500000: "1.00 s", 99.94e9: "99.9 s", 99.96e9: "100 s", 3600e9: "3600 s",
	} {
		if got := Time(d); got != want {
			t.Errorf("Time(%d) = %q, want %q", d, got, want)
		}
	}
}

// Percentiles that clients keep from being reached are never.
func TestWaitsHaveTheUnserved(t *testing.T) {
	if table := written(t, example().WriteTable); strings.Count(table, "never") != 1+6 {
		t.Errorf("the table has %d times never; want 7: 99%% of a policy of the first run, and all of the second:\n%s", strings.Count(table, "never"), table)
	}
}
