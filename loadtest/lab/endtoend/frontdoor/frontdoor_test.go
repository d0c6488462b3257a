package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// shield is the program, which TestMain builds.
var shield string

func TestMain(m *testing.M) { os.Exit(process.Main(m, &shield)) }

// Every front end of every row gives the answers that are measured. Figures are left to a
// machine that has nothing else to do.
func TestAllAnswersAreAsExpected(t *testing.T) {
	p := programs{"shield": shield}.find()
	for _, name := range debian {
		if p[name] == "" && os.Getenv("CI_REQUIRE_NGINX") == "1" {
			t.Fatalf("there is no %s, and CI_REQUIRE_NGINX is 1; want the packages nginx-light and haproxy", name)
		} else if p[name] == "" {
			t.Logf("there is no %s, so it is left out; install the packages nginx-light and haproxy", name)
		}
	}
	b, stop, err := newBench(p, 200*time.Millisecond, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			results, err := b.row(t.Context(), r.among("", p), 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, of := range results {
				if f := of.rounds[0]; f.used <= 0 || f.perRequest() > float64(10*time.Millisecond) || r.live && f.p50 <= 0 {
					t.Errorf("%s: the figures are %+v; want a price, and waits of honest clients", of.front.name, f)
				}
			}
		})
	}
}

// A row with answers of another status has no figure.
func TestAnotherStatusIsAnError(t *testing.T) {
	b, stop, err := newBench(programs{"shield": shield}, 100*time.Millisecond, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, r := range []row{
		{name: "h1", load: again(2), limit: none, want: 200},
		{name: "h2", load: streams(2, 2), limit: none, want: 200, tls: true},
	} {
		_, err := b.measure(t.Context(), r, with)
		if err == nil || !strings.Contains(err.Error(), "another one such as 429") {
			t.Errorf("%s: error %v; want one that names status 429", r.name, err)
		}
	}
}

func TestTables(t *testing.T) {
	us := func(each ...int) (rounds []figure) {
		for _, n := range each {
			rounds = append(rounds, figure{answered: 1000, took: time.Second, used: time.Duration(n) * time.Millisecond})
		}
		return rounds
	}
	r := row{name: "again", bounds: []bound{{nginx.name, 1.35}, {today.name, 1.05}}}
	live := row{name: "hammer", live: true, bounds: honest}
	waits := []figure{{answered: 50_000, took: time.Second, used: time.Second / 2, p50: time.Millisecond, p99: 16 * time.Millisecond}}
	var out strings.Builder
	if err := writeTables(&out, []result{
		{r, nginx, us(5, 6, 4)}, {r, today, us(20, 20)}, {r, with, us(6, 7, 8)}, {live, with, waits},
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for _, want := range []string{
		"| again | nginx | 5.0 | 4.0–6.0 | 1,000 | 1.00 |  |",
		"| again | shield | 7.0 | 6.0–8.0 | 1,000 | 1.40 | **≤ 1.35 × nginx**, ≤ 1.05 × shield before the door: 0.35 |",
		"| hammer | shield | 50,000 | 0.50 | 1.0 | 16.0 | 16.0–16.0 | - | **≤ 15 ms**, ≤ 1.50 × nginx |",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}
