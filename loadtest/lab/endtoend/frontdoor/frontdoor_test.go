package main

import (
	"os"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

var shield string

func TestMain(m *testing.M) { os.Exit(process.Main(m, &shield)) }

// Every front end of every row gives the responses that are measured. Figures are left to a
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
	must.Do(t, err)
	t.Cleanup(stop)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			results := must.Get(b.row(t.Context(), r.among("", p), 1))(t)
			for _, of := range results {
				if f := of.rounds[0]; f.answered < 1 || f.used <= 0 || r.live && f.p50 <= 0 { // how many, and at which price, is the machine's
					t.Errorf("%s: the figures are %+v; want answers at some price, and waits of honest clients", of.front.name, f)
				}
			}
		})
	}
}
