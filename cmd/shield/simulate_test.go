package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

// parseSimulate returns the command with its flags set by args, and the other args.
func parseSimulate(args ...string) (*simulation, []string, error) {
	cmd := &cobra.Command{Use: "simulate", SilenceUsage: true, SilenceErrors: true}
	s := simulateFlags(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return nil, nil, cmd.FlagErrorFunc()(cmd, err)
	}
	return s, cmd.Flags().Args(), cmd.Args(cmd, cmd.Flags().Args())
}

// runSimulate runs the command with args as main would, but for its exit.
func runSimulate(ctx context.Context, out, progress io.Writer, args ...string) error {
	s, rest, err := parseSimulate(args...)
	if err != nil {
		return err
	}
	return s.run(ctx, rest, out, screen{progress, true})
}

func simulatePlan(t *testing.T, args ...string) *simulation {
	t.Helper()
	s, rest, err := parseSimulate(args...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.plan(rest, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// few are flags of a run that takes milliseconds.
func few(args ...string) []string {
	return append([]string{"--clients", "200", "--workers", "2", "--service", "50ms", "--background", "10", "--warmup", "5s", "--duration", "20s"}, args...)
}

func TestSimulateDefaults(t *testing.T) {
	p := simulatePlan(t)
	want := sim.Scenario{
		Seed: 1, Clients: 1000, Within: 100 * time.Millisecond, Mix: clients.Population{{Weight: 1, Policy: clients.Exact{}, Name: "exact"}}, Background: 30,
		Warmup: 2 * time.Minute, Delay: 10 * time.Millisecond, Service: sim.Service{Mean: 80 * time.Millisecond, Exponential: true},
		Plant: &plant.Config{Workers: 10}, Timeout: 10 * time.Second, Replicas: 1, Balance: sim.BalanceRandom,
		Until: time.Minute, MaxRequests: 200_000_000, Bin: 100 * time.Millisecond, Shelters: true,
	}
	if !reflect.DeepEqual(p.Scenario, want) {
		t.Errorf("scenario is\n%+v\nwant\n%+v", p.Scenario, want)
	}
	limit := shield.Config{Capacity: limiter.Config{Rate: 100}}
	if len(p.servers) != 2 || p.servers[0].name != "fixed:1" || p.servers[1].name != "shield" ||
		!reflect.DeepEqual(p.servers[0].config, limit) || !reflect.DeepEqual(p.servers[1].config, limit) {
		t.Errorf("servers are %+v; want fixed:1 and shield, at 100/s", p.servers)
	}
}

func TestSimulateFlags(t *testing.T) {
	p := simulatePlan(t, "--clients", "10", "--within", "1s", "--background", "600/m", "--policy", "curl:3,exact:1", "--timeout", "0",
		"--patience", "30s", "--delay", "1ms", "--workers", "3", "--service", "10ms", "--first-byte", "2ms", "--distribution", "deterministic", "--coherency", "0.5",
		"--backlog", "9", "--outage", "30s+10s", "--outage-refuses", "--slow", "60s+5sx4", "--slow", "1s+2sx0.5", "--restart", "90s+1s",
		"--cold", "20sx3", "--restart-shield", "12s", "--replicas", "2", "--balance", "other", "--store", "--store-trip", "2ms", "--store-outage", "20s+5s", "--seed", "7", "--requests", "99", "--warmup", "3s", "--limit", "3000/m",
		"--compare", "none,shield-adaptive", "shield", "gradient2")
	mix, _ := clients.Parse("curl:3,exact:1")
	s := time.Second
	want := sim.Scenario{
		Seed: 7, Clients: 10, Within: s, Mix: mix, Background: 10, Warmup: 3 * s, Delay: s / 1000, Service: sim.Service{Mean: 10 * time.Millisecond}, FirstByte: 2 * time.Millisecond,
		Plant: &plant.Config{
			Workers: 3, Coherency: 0.5, Queue: 9, Outage: [2]time.Duration{30 * s, 40 * s}, Refuses: true,
			Slow:    plant.Steps{{From: s, Value: 0.5}, {From: 3 * s, Value: 1}, {From: 60 * s, Value: 4}, {From: 65 * s, Value: 1}},
			Restart: [2]time.Duration{90 * s, 91 * s}, Cold: plant.Cold{Times: 3, For: 20 * s},
		},
		Patience: 30 * s, Replicas: 2, Balance: sim.BalanceOther,
		Store: &sim.Store{Trip: 2 * time.Millisecond, Faults: []sim.Fault{{From: 20 * s, To: 25 * s}}}, Shelters: true, Until: 151 * s, Changes: []sim.Change{{At: 12 * s, Restart: true}}, MaxRequests: 99, Bin: s / 10,
	}
	if !reflect.DeepEqual(p.Scenario, want) {
		t.Errorf("scenario is\n%+v %+v\nwant\n%+v %+v", p.Scenario, p.Scenario.Plant, want, want.Plant)
	}
	var names []string
	for _, s := range p.servers {
		names = append(names, s.name)
	}
	if got := strings.Join(names, " "); got != "none shield-adaptive shield gradient2" {
		t.Errorf("servers are %s", got)
	}
	if c := p.servers[2].config.Capacity; c != (limiter.Config{Rate: 50}) {
		t.Errorf("limit is %+v; want 50/s with the default burst", c)
	}
	for _, part := range []string{"A herd of 10 clients comes within 1s", "curl 75 %, exact 25 %", "Outage at 30s for 10s", "4 times as slow at 1m0s", "2 servers before it, which share limits and promises"} {
		if !strings.Contains(strings.ReplaceAll(p.text, "\n", " "), part) {
			t.Errorf("text has no %q:\n%s", part, p.text)
		}
	}
}

func TestSimulateChecksItsFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "two.caddyfile")
	if err := os.WriteFile(file, []byte(":80 {\n\tshield {\n\t\tname a\n\t\tcapacity 5/s\n\t}\n\tshield {\n\t\tname b\n\t\tcapacity 5/s\n\t}\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	sites := filepath.Join(t.TempDir(), "sites.caddyfile")
	if err := os.WriteFile(sites, []byte("a.test, b.test {\n\tshield 5/s\n}\nc.test {\n\tshield 5/s\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := file + ".wrong"
	if err := os.WriteFile(wrong, []byte("shield {\n\tcapacity ten\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--clients -1":                   "--clients is -1; want 0 to 5000000",
		"--clients many":                 `--clients is "many"; want a whole number`,
		"--within soon":                  `--within is "soon"; want a time with a unit`,
		"--seed -1":                      `--seed is "-1"; want a whole number of at least 0`,
		"--coherency x":                  `--coherency is "x"; want a number`,
		"--outage 20s+5s --duration 20s": "--outage begins at 20s, and a run is 20s (--duration); want it to begin before that",
		"--slow 1s+1sx2 --slow 30s+1sx2 --duration 20s":      "--slow begins at 30s, and a run is 20s",
		"--restart 21s+1s --duration 20s":                    "--restart begins at 21s, and a run is 20s",
		"--store":                                            "--store is given with --replicas 1; want at least 2",
		"--replicas 2 --store-trip 2ms":                      "--store-trip is given without --store; want both",
		"--replicas 2 --store-outage 1s+1s":                  "--store-outage is given without --store; want both",
		"--replicas 2 --store --store-trip 1m":               "--store-trip is 1m0s; want 10µs to 10s",
		"--replicas 2 --store --store-outage 1s":             `--store-outage is "1s"; want when it begins`,
		"--replicas 2 --balance best":                        `--balance is "best"; want random, other, sticky, skewed or moving`,
		"--restart-shield 20s --duration 20s":                "--restart-shield begins at 20s, and a run is 20s",
		"--restart 19s+1s --cold 5sx2 --duration 20s":        "--cold begins at 20s, with the end of --restart, and a run is 20s",
		"--clients 5000000 --background 20000 --duration 1h": "about 79400000 clients would come: 5000000, and 20000 per second for 1h2m0s with the warm-up; want at most 50000000",
		"--clients 0 --within 5s":                            "--within is given, and --clients is 0",
		"--limit 5 --compare none":                           "--limit is given, and nothing that is compared takes it",
		"--scenario herd":                                    `--scenario is "herd"; want one of nat, gateway, flood, quota, hangup, stream, impatient, or list`,
		"--scenario nat --from-access-log a":                 "--scenario and --from-access-log are given; want one of them",
		"--scenario nat --compare scenario":                  "scenario is the config of a situation; want --scenario quota, hangup or stream with it",
		"--addresses -1":                                     "--addresses is -1; want 0 to 5000000",
		"--background-addresses -1":                          "--background-addresses is -1; want 0 to 5000000",
		"--background-policy curll":                          `--background-policy: "curll": policy "curll" is unknown`,
		"--enforce":                                          "--enforce is given, and nothing that is compared observes",
		"--compare none,,shield":                             "--compare has a name that is empty",
		"--compare none --csv a --json ./a":                  "--json and --csv are the same file, a; want one each",
		"--compare " + file + "#a --svg " + file:             "--compare and --svg are the same file",
		"--from-access-log " + file + " --csv " + file:       "--from-access-log: ",
		"--within 2h":                                        "--within is 2h0m0s; want 0s to 1h0m0s",
		"--background -3":                                    `--background is "-3"; want a number per s, m or h`,
		"--background 5/d":                                   `--background is "5/d"`,
		"--background 5/":                                    `--background is "5/"`,
		"--background NaN":                                   `--background is "NaN"`,
		"--clients 0 --background 0":                         "and --background too; want at least one of them",
		"--policy curll":                                     `--policy: "curll": policy "curll" is unknown; want one near it: curl`,
		"--workers 0":                                        "--workers is 0; want 1 to 100000",
		"--service 1h":                                       "--service is 1h0m0s; want 10µs to 10m0s",
		"--distribution normal":                              `--distribution is "normal"; want exponential or deterministic`,
		"--coherency NaN":                                    "--coherency is NaN; want 0 to 100",
		"--outage 30s":                                       `--outage is "30s"; want when it begins, since the herd came, and how long it is, as 30s+10s`,
		"--outage -1s+1s":                                    `--outage is "-1s+1s"`,
		"--outage-refuses":                                   "--outage-refuses is given without --outage; want both",
		"--slow 30s+10s":                                     `--slow is "30s+10s"; want when, how long and how many times`,
		"--slow 30s+10sx0":                                   `--slow is "30s+10sx0"`,
		"--slow 30s+10sx2 --slow 35s+1sx2":                   "--slow from 35s begins before the one from 30s ends",
		"--restart 30s":                                      `--restart is "30s"; want when it begins`,
		"--cold 20sx3":                                       "--cold is given without --restart; want both",
		"--cold 20s --restart 1s+1s":                         `--cold is "20s"; want how long`,
		"--restart-shield soon":                              `--restart-shield is "soon"; want when`,
		"--replicas 65":                                      "--replicas is 65; want 1 to 64",
		"--limit 0":                                          `--limit is "0"; want a number per s, m or h, as 30/s, from 0.001`,
		"--requests 0":                                       "--requests is 0; want 1 to",
		"--duration 0":                                       "--duration is 0s; want 1s to 24h0m0s",
		"--warmup 0":                                         "--warmup is 0s; want 1s to 1h0m0s",
		"--json - --csv -":                                   "--json and --csv are -; want one of them on standard output",
		"--compare nonesuch":                                 "nonesuch is neither a file nor a known word; want a Caddyfile, JSON, or one of none, shield",
		"--config fixed:0":                                   `--config: "fixed:0": the Retry-After is "0"; want whole seconds, 1 to 3600`,
		"--compare fixed":                                    `--compare: "fixed" has no Retry-After`,
		"--compare none,none":                                "none is a duplicate; want each once",
		"--compare suggested":                                "want --from-access-log with it",
		"--compare none,a,b,c,d,e,f,g,h":                     "9 servers are compared; want at most 8",
		"--compare " + file:                                  "two.caddyfile has 2 shields: a, b; want one of them, as " + file + "#a",
		"--compare " + sites:                                 "sites.caddyfile has 2 shields: srv0 (a.test b.test), srv0-2 (c.test); want one of them, as " + sites + `#srv0; "name NAME" in a shield gives it a name that stays`,
		"--compare " + file + "#c":                           `has no shield "c"; want one of: a, b`,
		"--compare " + wrong:                                 wrong + ":2",
		"--compare " + filepath.Dir(file):                    "is a directory",
		"shield.caddyfile":                                   "want --compare before the names of what to compare",
		"--from-access-log /nonesuch/a.log":                  "--from-access-log: open /nonesuch/a.log",
		"--from-access-log " + wrong:                         "--from-access-log: ",
		"--svg /nonesuch/a.svg":                              "--svg: open /nonesuch/a.svg",
		"--nonesuch":                                         "--nonesuch is no flag of simulate; want one of simulate --help",
	} {
		err := runSimulate(t.Context(), io.Discard, io.Discard, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("simulate %s:\nerror is %v\nwant %q in it", args, err, want)
		}
	}
	// All that is wrong is said at once.
	err := runSimulate(t.Context(), io.Discard, io.Discard, "--clients", "-1", "--policy", "x", "--outage", "x", "--compare", "nonesuch")
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("error is %v; want four lines", err)
	}
}

// figures are what --json writes of each run, by name.
func figures(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	var out bytes.Buffer
	if err := runSimulate(t.Context(), &out, io.Discard, append(few("--json", "-"), args...)...); err != nil {
		t.Fatal(err)
	}
	var all struct{ Runs []map[string]any }
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	runs := map[string]map[string]any{}
	for _, r := range all.Runs {
		runs[r["name"].(string)] = r
		delete(r, "name")
		delete(r, "notes")
	}
	return runs
}

// A simulation runs the config of the file, in each of the forms.
func TestSimulateRunsTheFile(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bare := write("bare", "shield {\n\tcapacity 30/s burst 3\n}\n")
	site := write("site", "example.com {\n\tshield {\n\t\tname x\n\t\tcapacity 1/s\n\t}\n\tshield {\n\t\tname y\n\t\tcapacity 1800/m burst 3\n\t}\n}\n")
	handler := write("handler.json", `{"handler": "shield", "capacity": {"rate": 30, "burst": 3}}`)
	observes := write("observes", "shield {\n\tmode observe\n\tcapacity 30/s burst 3\n}\n")
	runs := figures(t, "--limit", "30/s", "--compare", "shield", "none", bare, site+"#y", handler, observes)
	want := runs["shield"]
	for _, name := range []string{"bare", "site#y", "handler.json"} {
		if !reflect.DeepEqual(runs[name], want) {
			t.Errorf("%s gives\n%v\nwant, as shield at 30/s,\n%v", name, runs[name], want)
		}
	}
	if !reflect.DeepEqual(runs["observes"]["served"], runs["none"]["served"]) || runs["observes"]["requests_refused"] != 0. {
		t.Errorf("a shield that observes gives %v; want as none, %v", runs["observes"], runs["none"])
	}
	if got := figures(t, "--config", observes, "--enforce")["observes"]; !reflect.DeepEqual(got, want) {
		t.Errorf("with --enforce it gives\n%v\nwant\n%v", got, want)
	}
	// The models take the first capacity of a config.
	p := simulatePlan(t, "--compare", "fixed:2", bare)
	if c := p.servers[0].config.Capacity; c.Rate != 30 || c.Burst != 3 {
		t.Errorf("fixed:2 lets through %+v; want as the file", c)
	}
}

func TestSimulateModels(t *testing.T) {
	runs := figures(t, "--compare", "fixed:1", "no-hint", "next-token", "kubernetes", "mimir", "gradient2", "shield-adaptive", "none")
	if len(runs) != 8 {
		t.Fatalf("%d runs; want 8", len(runs))
	}
	for name, r := range runs {
		if r["requests_decided"].(float64) < 200 || (r["requests_refused"] == 0.) != (name == "none") {
			t.Errorf("%s: %v decided, %v refused", name, r["requests_decided"], r["requests_refused"])
		}
	}
}

func TestSimulateWritesFiles(t *testing.T) {
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	var out, progress bytes.Buffer
	err := runSimulate(t.Context(), &out, &progress, few("--quiet", "--csv", path("a.csv"), "--svg", path("a.svg"), "--html", path("a.html"), "--json", path("a.json"))...)
	if err != nil || out.Len() > 0 || progress.Len() > 0 {
		t.Errorf("with --quiet: %v\n%s%s", err, &out, &progress)
	}
	for name, begins := range map[string]string{"a.csv": "run,second,herd_came", "a.svg": "<svg ", "a.html": "<!DOCTYPE html>", "a.json": "{\n\t\"backend_workers\": 2"} {
		if b, err := os.ReadFile(path(name)); err != nil || !bytes.HasPrefix(b, []byte(begins)) {
			t.Errorf("%s: %v, %.40q; want %q", name, err, b, begins)
		}
	}

	// With - the table goes where the progress does.
	out.Reset()
	if err := runSimulate(t.Context(), &out, &progress, few("--csv", "-")...); err != nil || !strings.HasPrefix(out.String(), "run,") || !strings.Contains(progress.String(), "clients served") {
		t.Errorf("--csv -: %v\n%.100s\n%s", err, &out, &progress)
	}
}

func TestSimulateTable(t *testing.T) {
	var out, again bytes.Buffer
	for _, w := range []io.Writer{&out, &again} {
		if err := runSimulate(t.Context(), w, io.Discard, few("--requests", "500")...); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != again.String() {
		t.Errorf("two runs differ:\n%s\n%s", &out, &again)
	}
	for _, want := range []string{"200 clients comes within 100ms", "40 requests per second at most", "of 200", "fixed:1: a model", "fixed:1 ended after 500 requests (--requests)"} {
		if !strings.Contains(strings.ReplaceAll(out.String(), "\n", " "), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	out.Reset()
	if err := runSimulate(t.Context(), &out, io.Discard, "--policy", "list"); err != nil {
		t.Fatal(err)
	}
	for _, e := range clients.Catalog() {
		if !strings.Contains(out.String(), e.About) || !strings.Contains(out.String(), e.Source) {
			t.Errorf("--policy list does not say what %s is", e.Name)
		}
	}
}

// Simulated clients get the status that their config sets: curl retries after 503, and
// not after 403.
func TestSimulateStatuses(t *testing.T) {
	folder := t.TempDir()
	for name, status := range map[string]string{"common": "", "own": "\tpushback {\n\t\toverload_status 403\n\t}\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("shield {\n\tcapacity 30/s burst 3\n"+status+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := figures(t, "--policy", "curl", "--compare", filepath.Join(folder, "common"), filepath.Join(folder, "own"))
	if runs["common"]["most_requests_by_one"].(float64) < 2 || runs["own"]["most_requests_by_one"] != 1. {
		t.Errorf("with 503 a client sends %v requests, and %v with 403; want more, and 1", runs["common"]["most_requests_by_one"], runs["own"]["most_requests_by_one"])
	}
}

// A shield without a name is told by its hosts.
func TestSimulateNotesTheSite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("a.test {\n\thandle /api/* {\n\t\tshield 5/s\n\t}\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := simulatePlan(t, "--compare", file).servers[0]
	want := []string{"the shield srv0, of a.test", "not simulated: matchers decide which requests reach this shield"}
	if len(s.notes) < 2 || !reflect.DeepEqual(s.notes[:2], want) {
		t.Errorf("notes are %q; want %q first", s.notes, want)
	}
}

// A herd that is taken from a log does not come with the strangers, too.
func TestSimulateTakesAHerdOnce(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{{nil, "25"}, {[]string{"--clients", "0"}, "30"}, {[]string{"--clients", "7"}, "25"}, {[]string{"--background", "9"}, "9"}} {
		s, _, err := parseSimulate(c.args...)
		if err != nil {
			t.Fatal(err)
		}
		s.take(&accesslog.Estimate{Rate: 30, Calm: 25, Bursts: accesslog.Bursts{N: 2, Largest: 600}})
		if s.background != c.want {
			t.Errorf("%v: background is %s; want %s", c.args, s.background, c.want)
		}
	}
}

// JSON has the inputs, and how a run ended.
func TestSimulateJSON(t *testing.T) {
	var out bytes.Buffer
	if err := runSimulate(t.Context(), &out, io.Discard, few("--json", "-", "--seed", "9", "--requests", "300", "--outage", "2s+1s", "--compare", "none")...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"seed": 9,`, `"clients": 200,`, `"within_seconds": 0.1,`, `"background_per_second": 10,`, `"policies": "exact",`, `"timeout_seconds": 10,`,
		`"duration_seconds": 20,`, `"name": "outage",`, `"from_seconds": 2,`, `"ended_by": "requests",`, `"ended_seconds": `,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in:\n%.900s", want, &out)
		}
	}
}

// One has a singular, and clients that do not come are not mentioned.
func TestSimulateWords(t *testing.T) {
	text := simulatePlan(t, "--clients", "1", "--workers", "1", "--background", "0").text
	if !strings.Contains(text, "A herd of 1 client comes within") || !strings.Contains(text, "1 worker that takes 80ms") || strings.Contains(text, "background") {
		t.Errorf("text is\n%s", text)
	}
}

// A file is what it was until the new one is whole.
func TestSimulateReplacesFilesWhole(t *testing.T) {
	folder := t.TempDir()
	old, link := filepath.Join(folder, "old"), filepath.Join(folder, "link")
	if err := os.WriteFile(old, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(old, link); err != nil {
		t.Fatal(err)
	}
	write := func(text string, err error) error {
		f := outputFile{name: link, write: func(w io.Writer) error {
			_, _ = io.WriteString(w, text)
			return err
		}}
		if err := f.open(io.Discard); err != nil {
			t.Fatal(err)
		}
		return f.finish()
	}
	full := errors.New("no space left")
	if err := write("half", full); !errors.Is(err, full) {
		t.Errorf("error is %v; want %v", err, full)
	}
	if b, err := os.ReadFile(old); err != nil || string(b) != "old" {
		t.Errorf("after a failure it is %q, %v; want old", b, err)
	}
	if err := write("new", nil); err != nil {
		t.Error(err)
	}
	b, _ := os.ReadFile(old)
	info, err := os.Stat(old)
	if err != nil || string(b) != "new" || info.Mode().Perm() != 0o640 {
		t.Errorf("it is %q, %v, %v; want new, in the same place, with the same mode", b, info.Mode(), err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 2 {
		t.Errorf("there are %d files; want two", len(left))
	}
}

// A stopper ends a simulation at the first sign of progress.
type stopper struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (s *stopper) Write(p []byte) (int, error) {
	s.cancel()
	return s.Buffer.Write(p)
}

func TestSimulateStopsWithWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	progress := &stopper{cancel: cancel}
	var out bytes.Buffer
	// All of this would take minutes.
	err := runSimulate(ctx, &out, progress, "--background", "20000", "--warmup", "1s", "--duration", "40m", "--workers", "2000", "--compare", "shield,none")
	code, ok := errors.AsType[exit](err)
	if !ok || code.code != 130 || !strings.Contains(err.Error(), "interrupted in run 1 of 2; the figures are those until then") {
		t.Errorf("error is %v; want one with exit code 130", err)
	}
	for _, want := range []string{"clients served", "shield was interrupted at "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "none ") {
		t.Errorf("the second run began after the end:\n%s", &out)
	}
	if !strings.Contains(progress.String(), "shield (1 of 2) [") || !strings.HasSuffix(progress.String(), "\r\x1b[K") {
		t.Errorf("progress is %q", progress)
	}

	// Before the herd there is no picture, and that is said.
	file := filepath.Join(t.TempDir(), "a.svg")
	if err := os.WriteFile(file, []byte("of yesterday"), 0o600); err != nil {
		t.Fatal(err)
	}
	progress.Reset()
	err = runSimulate(ctx, io.Discard, progress, "--svg", file)
	if code, ok := errors.AsType[exit](err); !ok || code.code != 130 || !strings.Contains(progress.String(), "--svg: no run is long enough to draw") {
		t.Errorf("error is %v, progress %q; want 130, and that no run is long enough", err, progress)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "of yesterday" {
		t.Errorf("the old picture is %q now (%v); want it untouched", b, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
		t.Errorf("there are %d files; want the old one only", len(left))
	}
	err = runSimulate(ctx, io.Discard, progress, "--from-access-log", writeLog(t, 100))
	if code, ok := errors.AsType[exit](err); !ok || code.code != 130 || !strings.Contains(err.Error(), "while the access log was read") {
		t.Errorf("error is %v; want 130, while the log was read", err)
	}
}

// The real program ends so, too.
func TestSimulateExitCode(t *testing.T) {
	cmd := command(t, "simulate", "--background", "20000", "--warmup", "1s", "--duration", "40m", "--workers", "2000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	if _, err := io.ReadFull(out, one); err != nil { // it has begun
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(out)
	err = cmd.Wait()
	if end, ok := errors.AsType[*exec.ExitError](err); !ok || end.ExitCode() != 130 || !bytes.Contains(text, []byte("clients served")) {
		t.Errorf("error is %v; want exit code 130, and what there is:\n%s", err, text)
	}
}

func TestBar(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	progress := screen{&out, true}.progress("shield (1 of 2)", func() time.Time { return now })
	for _, step := range []struct {
		at    time.Duration
		share float64
		want  string
	}{
		{50 * time.Millisecond, 0.1, ""},
		{time.Second, 0.25, "\r\x1b[K   shield (1 of 2) [#######.......................]  25 %"},
		{1050 * time.Millisecond, 0.26, ""},
		{5 * time.Second, 0.5, "\r\x1b[K   shield (1 of 2) [###############...............]  50 %, about 5s left"},
		{9 * time.Second, 1, "\r\x1b[K   shield (1 of 2) [##############################] 100 %, about 0s left"},
	} {
		out.Reset()
		now = time.Unix(0, 0).Add(step.at)
		progress(time.Duration(step.share*1e12), 1e12)
		if out.String() != step.want {
			t.Errorf("at %v: %q; want %q", step.at, &out, step.want)
		}
	}
}

// writeLog writes an access log of so many seconds: 20 requests in each, of 50 ms, of
// which the first is refused, and comes again after the 2 s that it was told.
func writeLog(t *testing.T, seconds int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.log")
	var b bytes.Buffer
	line := func(at float64, client, status int, header string) {
		fmt.Fprintf(&b, `{"level":"info","ts":%.4f,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.%d.%d","client_ip":"10.0.%d.%d","proto":"HTTP/1.1","method":"GET","host":"a.test","uri":"/%d","headers":{}},"bytes_read":0,"duration":0.05,"size":1,"status":%d,"resp_headers":{%s}}`+"\n",
			1.7e9+at, client/200, client%200, client/200, client%200, client, status, header)
	}
	for s := range seconds {
		for i := range 20 {
			at, status, header := float64(s)+float64(i)/20, 200, ""
			if i == 0 {
				status, header = 503, `"Retry-After":["2"]`
			}
			line(at, s*20+i, status, header)
			if i == 1 && s >= 2 {
				line(float64(s)+0.06, (s-2)*20, 200, "")
			}
		}
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSimulateFromAccessLog(t *testing.T) {
	log := writeLog(t, 120)
	s, _, err := parseSimulate("--from-access-log", log, "--service", "60ms")
	if err != nil {
		t.Fatal(err)
	}
	e, err := readLog(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.plan(nil, e); err != nil {
		t.Fatal(err)
	}
	c := s.Scenario
	if math.Abs(c.Background-e.Calm) > 0.01*e.Calm || c.Clients != e.Bursts.Largest || c.Service.Mean != 60*time.Millisecond || c.Plant.Workers < 2 || !reflect.DeepEqual(c.Mix, e.Population()) {
		t.Errorf("scenario is %+v with %+v; want what the log has: %+v", c, c.Plant, e)
	}
	if len(s.servers) != 2 || s.servers[0].name != "none" || s.servers[1].name != "suggested" || s.servers[1].config.Adaptive == nil {
		t.Errorf("servers are %+v; want none and suggested", s.servers)
	}

	if err := runSimulate(t.Context(), io.Discard, io.Discard, "--from-access-log", log, "--csv", log); err == nil || !strings.Contains(err.Error(), "--from-access-log and --csv are the same file") {
		t.Errorf("error is %v; want that the log would be overwritten", err)
	}
	var out bytes.Buffer
	if err := runSimulate(t.Context(), &out, io.Discard, "--from-access-log", log, "--duration", "5s", "--clients", "20"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"requests per second", "A config that follows from it (--compare suggested):", "concurrency adaptive", "20 clients comes within", "--workers sets them"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, &out)
		}
	}
}

// The help names all that can be compared, and every flag says what it is.
func TestSimulateHelp(t *testing.T) {
	out, err := command(t, "simulate", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range append(strings.Split(serverWords, ", "), "suggested", "130", "aws-full-jitter", "$ shield simulate") {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the help does not say %q", want)
		}
	}
	for line := range strings.Lines(string(out)) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 && !strings.Contains(line, "--") && !strings.Contains(line, "[") {
			t.Errorf("%d letters in: %s", n, line)
		}
	}
}

// A suggestion that is worse than no limit in its own simulation is called so, and no other.
func TestSimulateSaysIfTheSuggestionIsWorse(t *testing.T) {
	waits := func(served int, each time.Duration) sim.Waits {
		var all []int64
		for i := range served {
			all = append(all, int64(i+1)*int64(each))
		}
		return sim.WaitsOf(all, 100)
	}
	run := func(name string, served int, each time.Duration) report.Run {
		return report.Run{Result: sim.Result{Name: name, Clients: 100, Served: served, Waits: waits(served, each)}}
	}
	for name, c := range map[string]struct {
		suggested report.Run
		want      []string // parts of the note; nil: there is none
	}{
		"as good":      {run("suggested", 100, 10*time.Millisecond), nil},
		"better":       {run("suggested", 100, 5*time.Millisecond), nil},
		"a bit slower": {run("suggested", 100, 11*time.Millisecond), nil},
		"slower":       {run("suggested", 100, 50*time.Millisecond), []string{"half of the herd are served after 2.5s, and with none after 500ms"}},
		"fewer":        {run("suggested", 40, 10*time.Millisecond), []string{"it serves 40 clients of the herd, and none 100", "half of the herd are served never"}},
		"not compared": {run("shield", 40, 10*time.Millisecond), nil},
	} {
		s := new(simulation)
		s.Runs = []report.Run{run("none", 100, 10*time.Millisecond), c.suggested}
		var out bytes.Buffer
		if err := s.show(&out); err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(out.String(), "suggested is worse than none here: ")
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: the note is %q", name, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: the note is %q; want %q in it", name, got, want)
			}
		}
	}
}
