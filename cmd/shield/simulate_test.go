package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
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
func runSimulate(out, progress io.Writer, args ...string) error {
	s, rest, err := parseSimulate(args...)
	if err != nil {
		return err
	}
	return s.run(rest, out, screen{progress, true})
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

func TestSimulateFlags(t *testing.T) {
	p := simulatePlan(t, "--clients", "10", "--within", "1s", "--background", "36e3/h", "--policy", "curl:3,exact:1", "--timeout", "0",
		"--patience", "30s", "--delay", "1ms", "--workers", "3", "--service", "10ms", "--coherency", "0.5",
		"--backlog", "9", "--outage", "30s+10s", "--slow", "60s+5sx4", "--slow", "1s+2sx0.5", "--restart", "90s+1s",
		"--replicas", "2", "--store", "--seed", "7", "--requests", "99", "--warmup", "3s", "--limit", "3000/m",
		"--compare", "none,shield-adaptive", "shield", "next-token")
	mix, _ := clients.Parse("curl:3,exact:1")
	s := time.Second
	want := sim.Scenario{
		Seed: 7, Clients: 10, Within: s, Mix: mix, Background: 10, Warmup: 3 * s, Delay: s / 1000, Service: sim.Service{Mean: 10 * time.Millisecond, Exponential: true},
		Plant: &plant.Config{
			Workers: 3, Coherency: 0.5, Queue: 9, Outage: [2]time.Duration{30 * s, 40 * s},
			Slow:    plant.Steps{{From: s, Value: 0.5}, {From: 3 * s, Value: 1}, {From: 60 * s, Value: 4}, {From: 65 * s, Value: 1}},
			Restart: [2]time.Duration{90 * s, 91 * s},
		},
		Patience: 30 * s, Replicas: 2, Store: &sim.Store{}, Until: 151 * s, MaxRequests: 99, Bin: s / 10,
	}
	if p.Store == nil || p.Store.New == nil {
		t.Fatal("the replicas have no store")
	}
	p.Store.New = nil // a function is equal to nothing else
	if !reflect.DeepEqual(p.Scenario, want) {
		t.Errorf("scenario is\n%+v %+v\nwant\n%+v %+v", p.Scenario, p.Scenario.Plant, want, want.Plant)
	}
	var names []string
	for _, s := range p.servers {
		names = append(names, s.name)
	}
	if got := strings.Join(names, " "); got != "none shield-adaptive shield next-token" {
		t.Errorf("servers are %s", got)
	}
	if c := p.servers[2].config.Capacity; c != (limiter.Config{Rate: 50}) {
		t.Errorf("limit is %+v; want 50/s with the default burst", c)
	}
	for _, part := range []string{"A herd of 10 clients arrives within 1s", "curl 75%, exact 25%", "Outage at 30s for 10s", "4 times as slow at 1m0s", "2 servers before it, which share limits and appointments"} {
		if !strings.Contains(strings.ReplaceAll(p.text, "\n", " "), part) {
			t.Errorf("text has no %q:\n%s", part, p.text)
		}
	}
}

func TestSimulateChecksItsFlags(t *testing.T) {
	file := write(t, "two.caddyfile", ":80 {\n\tshield {\n\t\tname a\n\t\tcapacity 5/s\n\t}\n\tshield {\n\t\tname b\n\t\tcapacity 5/s\n\t}\n}")
	sites := write(t, "sites.caddyfile", "a.test, b.test {\n\tshield 5/s\n}\nc.test {\n\tshield 5/s\n}\n")
	wrong := write(t, "wrong", "shield {\n\tcapacity ten\n}")
	for args, want := range map[string]string{
		"--clients -1":                   `--clients is "-1"; use a number: size of the herd, in clients (0 to 5000000)`,
		"--within 2h":                    `--within is "2h"; use a time like 10s: time within which the herd arrives (0s to 1h0m0s)`,
		"--seed -1":                      `--seed is "-1"; use `,
		"--background 5/d":               `--background is "5/d"; use a rate: rate at which background clients arrive, such as 30/s`,
		"--limit 0":                      `--limit is "0"; use a rate: rate that shield and the models admit`,
		"--duration 0":                   `--duration is "0"; use a time like 10s: length of a run`,
		"--outage 20s+5s --duration 20s": "--outage starts at 20s, but a run lasts 20s (--duration); start it earlier",
		"--slow 1s+1sx2 --slow 30s+1sx2 --duration 20s": "--slow starts at 30s, but a run lasts 20s",
		"--store": "--store is given with --replicas 1; use at least 2",
		"--clients 5000000 --background 20000 --duration 1h": "about 79,400,000 clients would arrive: 5000000, and 20,000 per second for 1h2m0s including the warm-up; the limit is 50000000",
		"--clients 0 --within 5s":                            "--within is given, but --clients is 0",
		"--clients 0 --background 0":                         "and --background are both 0; use at least one of them",
		"--edge --slow 1s+1sx2":                              "--slow is given with --edge, which plays its own pushes; use only one of them",
		"--edge --background 0":                              "--background is 0 with --edge; use the normal rate of the service, at least 0.1 per second",
		"--edge=maybe":                                       `--edge is "maybe"`,
		"--edge Caddyfile":                                   "put --compare before the names of what to compare",
		"--limit 5 --compare none":                           "--limit is given, but nothing you compare takes it",
		"--background-policy curll":                          `--background-policy: "curll" is unknown`,
		"--policy curll":                                     `--policy: "curll" is unknown; use one of: exact,`,
		"--outage 30s":                                       `--outage is "30s"; use a start, counted from the herd, and a length, like 30s+10s`,
		"--slow 30s+10s":                                     `--slow is "30s+10s"; use a start, a length and how many times`,
		"--slow 30s+10sx2 --slow 35s+1sx2":                   "--slow from 35s starts before the one from 30s ends",
		"--compare none,,shield":                             `"" is neither a file nor a known word`,
		"--compare nonesuch":                                 `"nonesuch" is neither a file nor a known word; use a Caddyfile, JSON, or one of none, shield`,
		"--compare fixed:0":                                  `--compare: "fixed:0": the Retry-After is "0"; use whole seconds, 1 to 3600`,
		"--compare none,none":                                "none is a duplicate; name each once",
		"--compare none,a,b,c,d,e,f,g,h":                     "9 servers are compared; the limit is 8",
		"--compare " + file:                                  "two.caddyfile has 2 shields: a, b; use one of them, like " + file + "#a",
		"--compare " + sites:                                 "sites.caddyfile has 2 shields: srv0, srv0-2; use one of them, like " + sites + "#srv0",
		"--compare " + file + "#c":                           "has 2 shields: a, b; use one of them, like ",
		"--compare " + wrong:                                 wrong + ":2",
		"--compare " + filepath.Dir(file):                    "is a directory",
		"--compare " + file + "#a --json " + file:            "--json is " + file + ", which is also an input",
		"--json /nonesuch/a.json":                            "--json: open /nonesuch/a.json",
		"shield.caddyfile":                                   "put --compare before the names of what to compare",
		"--from-access-log /nonesuch/a.log":                  "--from-access-log: open /nonesuch/a.log",
		"--from-access-log " + wrong:                         "--from-access-log: ",
		"--nonesuch":                                         "unknown flag: --nonesuch; simulate --help lists the flags",
	} {
		err := runSimulate(io.Discard, io.Discard, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("simulate %s:\nerror is %v\nwant %q in it", args, err, want)
		}
	}
	// All that is wrong is said at once.
	err := runSimulate(io.Discard, io.Discard, "--policy", "x", "--outage", "x", "--compare", "nonesuch")
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("error is %v; want three lines", err)
	}
}

// results are those of the runs, by their names, without their bins.
func results(t *testing.T, args ...string) map[string]sim.Result {
	t.Helper()
	s, rest, err := parseSimulate(few(args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(rest, io.Discard, screen{io.Discard, false}); err != nil {
		t.Fatal(err)
	}
	runs := map[string]sim.Result{}
	for _, r := range s.Runs {
		name := r.Name
		r.Name, r.Series = "", nil
		runs[name] = r.Result
	}
	return runs
}

// A simulation runs the config of the file, in each of the forms.
func TestSimulateRunsTheFile(t *testing.T) {
	bare := write(t, "bare", "shield {\n\tcapacity 30/s burst 10\n}\n")
	site := write(t, "site", "example.com {\n\tshield {\n\t\tname x\n\t\tcapacity 1/s\n\t}\n\tshield {\n\t\tname y\n\t\tcapacity 1800/m burst 10\n\t}\n}\n")
	handler := write(t, "handler.json", `{"handler": "shield", "capacity": {"rate": 30, "burst": 10}}`)
	observes := write(t, "observes", "shield {\n\tmode observe\n\tcapacity 30/s burst 10\n}\n")
	runs := results(t, "--limit", "30/s", "--compare", "shield", bare, site+"#y", handler, observes)
	want := runs["shield"]
	for _, name := range []string{"bare", "site#y", "handler.json", "observes"} {
		if !reflect.DeepEqual(runs[name], want) {
			t.Errorf("%s gives\n%v\nwant, as shield at 30/s,\n%v", name, runs[name], want)
		}
	}
	// It says what is not simulated.
	path := write(t, "path", "{\n\tshield {\n\t\tmode observe\n\t}\n}\na.test {\n\thandle /api/* {\n\t\tshield 5/s\n\t}\n}\n")
	notes := strings.Join(simulatePlan(t, "--compare", path).servers[0].notes, "\n")
	for _, want := range []string{"matchers, keys and tickets are not simulated", "mode is observe; simulated as if it enforced", "with a bucket for each client"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes are %q; want %q in them", notes, want)
		}
	}
	// The models take the first capacity of a config.
	p := simulatePlan(t, "--compare", "fixed:2", bare)
	if c := p.servers[0].config.Capacity; c.Rate != 30 || c.Burst != 10 {
		t.Errorf("fixed:2 lets through %+v; want as the file", c)
	}
}

func TestSimulateWritesFiles(t *testing.T) {
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	var out, progress bytes.Buffer
	if err := os.Symlink("a.json", path("link")); err != nil { // its file is not there yet
		t.Fatal(err)
	}
	if err := runSimulate(&out, &progress, few("--json", path("link"))...); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path("a.json")); err != nil || !bytes.HasPrefix(b, []byte(`{"backend_capacity`)) {
		t.Errorf("a.json: %v, %.40q", err, b)
	}

	// With - the table goes where the progress does.
	out.Reset()
	if err := runSimulate(&out, &progress, few("--json", "-")...); err != nil || !strings.HasPrefix(out.String(), "{") || !strings.Contains(progress.String(), "clients served") {
		t.Errorf("--json -: %v\n%.100s\n%s", err, &out, &progress)
	}
}

func TestSimulateTable(t *testing.T) {
	var out, again bytes.Buffer
	for _, w := range []io.Writer{&out, &again} {
		if err := runSimulate(w, io.Discard, few("--requests", "500", "--compare", "fixed:1", "shield", "no-hint", "next-token", "shield-adaptive", "none")...); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != again.String() {
		t.Errorf("two runs differ:\n%s\n%s", &out, &again)
	}
	for _, want := range []string{
		"200 clients arrives within 100ms", "40 requests per second at most", "of 200", "fixed:1: a model", "no-hint: a model", "next-token: a model", "none: no limit",
		"shield: capacity 32/s burst 10, and nothing else", "shield-adaptive: concurrency adaptive, and nothing else", "fixed:1 ended after 500 requests (--requests)",
	} {
		if !strings.Contains(strings.ReplaceAll(out.String(), "\n", " "), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	out.Reset()
	if err := runSimulate(&out, io.Discard, "--policy", "list"); err != nil {
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
	common := write(t, "common", "shield {\n\tcapacity 30/s burst 3\n}\n")
	own := write(t, "own", "shield {\n\tcapacity 30/s burst 3\n\tpushback {\n\t\toverload_status 403\n\t}\n}\n")
	runs := results(t, "--policy", "curl", "--compare", common, own)
	if runs["common"].MostAttempts < 2 || runs["own"].MostAttempts != 1 {
		t.Errorf("with 503 a client sends %v requests, and %v with 403; want more, and 1", runs["common"].MostAttempts, runs["own"].MostAttempts)
	}
}

// A herd that is taken from a log does not come with the new clients, too.
func TestSimulateTakesAHerdOnce(t *testing.T) {
	for _, c := range []struct {
		args []string
		want float64
	}{{nil, 25}, {[]string{"--clients", "0"}, 30}, {[]string{"--clients", "7"}, 25}, {[]string{"--background", "9"}, 9}} {
		s, _, err := parseSimulate(c.args...)
		if err != nil {
			t.Fatal(err)
		}
		s.take(&accesslog.Estimate{Rate: 30, Calm: 25, Bursts: accesslog.Bursts{N: 2, Largest: 600}})
		if s.Background != c.want {
			t.Errorf("%v: background is %v; want %v", c.args, s.Background, c.want)
		}
	}
}

// A run that ends before the herd comes says so.
func TestSimulateEndsBeforeTheHerd(t *testing.T) {
	var out, progress bytes.Buffer
	if err := runSimulate(&out, &progress, "--requests", "10"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(progress.String(), "shield (2 of 2) ") || !strings.Contains(out.String(), "shield ended after 10 requests (--requests), at -") {
		t.Errorf("progress is %q, and the output does not say when the run ended:\n%s", &progress, &out)
	}
}

// writeLog writes an access log of so many seconds: 20 requests in each, of 50 ms, of
// which the first is rejected, and comes again after the 2 s that it was told.
func writeLog(t *testing.T, seconds int) string {
	t.Helper()
	var b strings.Builder
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
	return write(t, "access.log", b.String())
}

func TestSimulateFromAccessLog(t *testing.T) {
	log := writeLog(t, 120)
	s, _, err := parseSimulate("--from-access-log", log, "--service", "60ms")
	if err != nil {
		t.Fatal(err)
	}
	e, err := readLog(log)
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

	link := log + ".link"
	if err := os.Symlink(log, link); err != nil {
		t.Fatal(err)
	}
	for _, same := range []string{log, link} {
		if err := runSimulate(io.Discard, io.Discard, "--from-access-log", log, "--json", same); err == nil || !strings.Contains(err.Error(), "--json is "+same+", which is also an input") {
			t.Errorf("error is %v; want that the log would be overwritten", err)
		}
	}
	var out bytes.Buffer
	if err := runSimulate(&out, io.Discard, "--from-access-log", log, "--duration", "5s", "--clients", "20"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"requests per second", "20 clients arrives within", "--workers sets them"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, &out)
		}
	}
}

// A herd before an adaptive limit is served nearly as soon as the backend can: its rate is
// learned within the first second, and the limit grows to it. Where the backend can do far more
// than the first limit of 20 lets it, the herd has been told its times before that is known.
func TestAdaptiveLimitServesAHerd(t *testing.T) {
	t.Parallel()
	for flags, most := range map[string]float64{
		"--clients 1000 --background 30":                                           1.25,
		"--clients 1583 --within 1s --background 54 --workers 12 --service 67.7ms": 1.2,
		"--clients 3000 --within 1s --background 54 --workers 32 --service 67.7ms": 1.7,
	} {
		var ratios []float64 // of the least time, by seed
		for seed := range 3 {
			s := simulatePlan(t, append(strings.Fields(flags), "--compare", "shield-adaptive", "--seed", strconv.Itoa(1+seed))...)
			if err := s.runs(screen{}); err != nil {
				t.Fatal(err)
			}
			r := s.Runs[0]
			if r.Waiting > 0 || r.Served < r.Clients {
				t.Fatalf("%s, seed %d: %d of %d served; want all", flags, 1+seed, r.Served, r.Clients)
			}
			ratios = append(ratios, r.Drained.Seconds()/r.Optimum.Seconds())
		}
		if slices.Sort(ratios); ratios[1] > most || ratios[2] > most+0.2 {
			t.Errorf("%s: %.2f of the least time; want %.2f in the middle, and 0.2 more at worst", flags, ratios, most)
		}
	}
}

// Clients whose requests cost 30 tokens on average get as many as the rate of 10 per second and address earns, and the burst.
func TestSimulateCosts(t *testing.T) {
	path := write(t, "Caddyfile", ":80\nshield {\nzone tokens {\nrate 600/m\ncost auto\nsettle usage\n}\n}\nreverse_proxy localhost:1\n")
	r := results(t, "--clients", "0", "--background", "20", "--background-addresses", "4", "--warmup", "20s", "--duration", "5m", "--cost", "30", "--compare", path)["Caddyfile"]
	if most := 4 * (600 + 320*10) / 30.; float64(r.Answered) < 0.9*most || float64(r.Answered) > 1.1*most {
		t.Errorf("%v requests are served; want %.0f", r.Answered, most)
	}
}
