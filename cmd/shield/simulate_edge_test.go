package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/edge"
)

// With --edge, clients ask a backend for three quarters of what it can serve, or what a log says, and
// what is named is compared with nothing.
func TestEdgePlan(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "none shield-adaptive",
		"--compare shield":                "none shield",
		"--compare fixed:1,none no-hint":  "fixed:1 none no-hint",
		"--workers 5 --background 37.5/s": "none shield-adaptive",
	} {
		s := simulatePlan(t, strings.Fields("--edge --workers 4 --service 80ms "+args)...)
		var names []string
		for _, one := range s.servers {
			names = append(names, one.name)
		}
		if got := strings.Join(names, " "); got != want || s.Background != 37.5 || s.Clients != 0 {
			t.Errorf("%s: compares %s, %v per second and a herd of %d; want %s, 37.5 and none", args, got, s.Background, s.Clients, want)
		}
	}
	s, _, err := parseSimulate("--edge")
	if err != nil {
		t.Fatal(err)
	}
	s.log = "access.log"
	if err := s.plan(nil, &accesslog.Estimate{Rate: 30, Calm: 25, Bursts: accesslog.Bursts{N: 2, Largest: 600}}); err != nil || s.Background != 30 || s.Clients != 0 {
		t.Errorf("of a log, %v per second and a herd of %d (%v); want all 30, and none", s.Background, s.Clients, err)
	}
}

// The edge of a file goes to the terminal, and all that was tried into files.
func TestEdge(t *testing.T) {
	file := write(t, "one.caddyfile", "shield {\n\tconcurrency 10\n}\n")
	args := []string{"--edge", "--workers", "1", "--service", "100ms", "--background", "7", "--timeout", "5s", "--policy", "fixed@0s*4", "--compare", file, "--json", "-"}
	var out, text bytes.Buffer
	if err := runSimulate(&out, &text, args...); err != nil {
		t.Fatal(err)
	}
	var r edge.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Capacity != 10 || r.Asked != 7 || r.Policies != "every 0s, 4 attempts" || len(r.Services) != 2 || len(r.Services[0].Edges) != 2 || len(r.Services[1].Edges) != 2 {
		t.Fatalf("the report is %+v; want two services with two edges each", r)
	}
	none, limited := r.Services[0], r.Services[1]
	if none.Name != "none" || len(none.Edges[0].Smallest) == 0 || len(none.Edges[1].Smallest) == 0 || limited.Name != "one.caddyfile" {
		t.Errorf("services are %+v and %+v; want none with edges, and the file", none, limited)
	}
	if !regexp.MustCompile(`(?m)^64 s +1\.\d+x ·█{7} +`).Match(text.Bytes()) {
		t.Errorf("no picture of what none does not come back from in:\n%s", &text)
	}
	for _, want := range []string{"Clients come at 7 per second", "A push comes after 2m0s of calm", "slower backend for", "none, more arrivals: does not come back from", "one.caddyfile (2 of 2): "} {
		if !strings.Contains(strings.ReplaceAll(text.String(), "\n", " "), want) {
			t.Errorf("no %q in:\n%s", want, &text)
		}
	}
}
