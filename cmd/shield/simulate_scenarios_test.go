package main

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
)

// Every situation runs, as its name alone.
func TestSituations(t *testing.T) {
	t.Parallel()
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := runSimulate(t.Context(), &out, io.Discard, "--scenario", s.name); err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", &out)
			for _, name := range s.compare {
				if !strings.Contains(out.String(), name) {
					t.Errorf("the table has no %s", name)
				}
			}
		})
	}
}

// The situations are as they are described: so many clients come, as often.
func TestSituationsAreAsSaid(t *testing.T) {
	played := func(name, server string) sim.Result {
		p := simulatePlan(t, "--scenario", name)
		for _, s := range p.servers {
			if s.name == server || s.name == "" && server == "scenario" {
				r, err := p.play(t.Context(), s, screen{io.Discard, false}, "")
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
		}
		t.Fatalf("%s compares no %s", name, server)
		return sim.Result{}
	}
	per := func(r sim.Result, seconds float64) float64 { return float64(r.Decided) / seconds }
	if r := played("gateway", "none"); per(r, 70) < 780 || per(r, 70) > 820 {
		t.Errorf("gateway: %.0f requests per second; want 800, 5 times what 8 workers of 50 ms serve", per(r, 70))
	}
	if r := played("hangup", "none"); per(r, 70) < 190 || per(r, 70) > 210 || r.TimedOut < r.Decided*9/10 {
		t.Errorf("hangup: %.0f requests per second, %d of %d timed out; want 200, and nearly all", per(r, 70), r.TimedOut, r.Decided)
	}
	for name, limit := range map[string]int{"hangup": 8, "stream": 20} {
		most := 0
		for _, b := range played(name, "scenario").Series {
			most = max(most, int(b.InFlight))
		}
		if most != limit {
			t.Errorf("%s: %d in the backend at once; want the limit, %d", name, most, limit)
		}
	}
	if r := played("quota", "scenario"); r.Served != 600 || per(r, 80) < 95 {
		t.Errorf("quota: %d of the crowd served, %.0f requests per second; want 600, and about 100", r.Served, per(r, 80))
	}
	if r := played("flood", "shield"); r.Strangers.Came < 38*120 || r.Strangers.Came > 42*120 {
		t.Errorf("flood: %d clients that come when they are told; want 40 per second of 2 min", r.Strangers.Came)
	}
	if r := played("nat", "shield"); r.Clients != 1000 || r.MostAttempts > 4 {
		t.Errorf("nat: %d clients, %d attempts by one; want 1,000, and 4 at most", r.Clients, r.MostAttempts)
	}
	if r := played("impatient", "fixed:1"); r.Clients != 1000 {
		t.Errorf("impatient: %d clients; want 1,000", r.Clients)
	}
}

// Flags that are given stand, and so does what is compared.
func TestSituationGivesWay(t *testing.T) {
	p := simulatePlan(t, "--scenario", "quota", "--clients", "7", "--background-addresses", "3", "--compare", "none", "scenario")
	s := p.Scenario
	if s.Clients != 7 || s.StrangersAddresses != 3 || s.Background != 100 || s.Warmup != 20*time.Second || !reflect.DeepEqual(s.StrangersMix, mustMix(t, "give-up")) {
		t.Errorf("%+v; want 7 clients and 3 addresses, and all else as quota has it", s)
	}
	if len(p.servers) != 2 || p.servers[0].name != "none" || p.servers[1].config.Capacity.Rate != 50 {
		t.Errorf("%+v; want none, and the config of the situation", p.servers)
	}
	for _, part := range []string{"A herd of 7 clients comes", "100 per second from 3 addresses", "of background clients: never returns"} {
		if !strings.Contains(strings.ReplaceAll(p.text, "\n", " "), part) {
			t.Errorf("text has no %q:\n%s", part, p.text)
		}
	}
}

func mustMix(t *testing.T, text string) clients.Population {
	t.Helper()
	mix, err := clients.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return mix
}

// The list has every situation, with flags that are the situation.
func TestSituationList(t *testing.T) {
	var out bytes.Buffer
	if err := runSimulate(t.Context(), &out, io.Discard, "--scenario", "list"); err != nil {
		t.Fatal(err)
	}
	for _, s := range situations {
		if !strings.Contains("\n"+out.String(), "\n"+s.name+"\n") {
			t.Errorf("the list has no %s:\n%s", s.name, &out)
		}
		args := []string{"--compare", strings.ReplaceAll(strings.Join(s.compare, ","), "scenario", "none")}
		args = append(args, strings.Fields(s.flags)...)
		if s.config != "" {
			args[1] = "none"
		}
		got, want := simulatePlan(t, args...).Scenario, simulatePlan(t, "--scenario", s.name).Scenario
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s by its flags is\n%+v\nwant\n%+v", s.name, got, want)
		}
	}
}
