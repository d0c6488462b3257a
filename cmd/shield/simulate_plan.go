package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
	"github.com/herdshield/shield/share/virtual"
)

// Bounds of a simulation. Ours: the size of a machine, and more than users need.
const (
	maxHerd       = 5_000_000
	maxBackground = 100_000 // clients per second
	maxPool       = 100_000 // workers
	maxUntil      = 24 * time.Hour

	// mostBins is about how many bins a run has at most.
	mostBins = 20_000

	// maxClients bounds the clients of a run, background included: 24 bytes each, about
	// 1.2 GB.
	maxClients = 50_000_000

	minService = 10 * time.Microsecond
	maxService = 10 * time.Minute
)

// A fault is a Mark, and the flag that asks for it.
type fault struct {
	flag string
	report.Mark
}

func readLog(path string) (*accesslog.Estimate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return accesslog.Read(f)
}

// take sets the flags that were not given from an estimate.
func (s *simulation) take(e *accesslog.Estimate) {
	set := func(flag string, f func()) {
		if !s.changed(flag) {
			f()
		}
	}
	set("clients", func() { s.Clients = min(e.Bursts.Largest, maxHerd) })
	if e.Bursts.N > 0 && s.Clients > 0 {
		set("within", func() { s.Within = time.Second })
	}
	rate := e.Rate
	if s.Clients > 0 && !s.edge {
		rate = e.Calm // the bursts are the herd, and must not count twice
	}
	set("background", func() { s.Background = min(rate, maxBackground) })
	if e.Service > 0 {
		set("service", func() { s.Service.Mean = min(max(e.Service.Round(minService), minService), maxService) })
	}
	set("workers", func() {
		most := 2 * e.PeakInWork
		if e.Full > 0 {
			most = e.Full * s.Service.Mean.Seconds()
		}
		s.pool.Workers = int(min(maxPool, max(1, math.Ceil(most))))
	})
}

// problems are errors of the flags, all of which the user sees at once. Those that are nil
// are none.
type problems []error

func (p *problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

// together checks which flags are given with which.
func (s *simulation) together() (wrong problems) {
	if s.edge {
		return s.calm()
	}
	if s.Clients == 0 && s.changed("within") {
		wrong.addf("--within is given, but --clients is 0; use both, or neither")
	}
	if s.Clients == 0 && s.Background == 0 {
		wrong.addf("--clients and --background are both 0; use at least one of them")
	}
	if s.shares && s.Replicas < 2 {
		wrong.addf("--store is given with --replicas %d; use at least 2", s.Replicas)
	}
	return wrong
}

// plan reads the flags, so that s is ready to run. The error names all that is wrong.
func (s *simulation) plan(args []string, estimate *accesslog.Estimate) error {
	if estimate != nil {
		s.take(estimate)
	}
	wrong := s.together()
	var err error
	s.Mix, err = clients.Parse(s.policy)
	if estimate != nil && !s.changed("policy") {
		s.Mix, err = estimate.Population(), nil
	}
	if err != nil {
		wrong.addf("--policy: %w", err)
	}
	if s.others != "" {
		if s.NewClientsMix, err = clients.Parse(s.others); err != nil {
			wrong.addf("--background-policy: %w", err)
		}
	}
	faults := s.faults(&wrong)
	s.Capacity = float64(s.pool.Workers) / s.Service.Mean.Seconds()
	limit := limiter.Config{Rate: s.limit}
	s.servers = s.chosen(args, &wrong)
	if err := errors.Join(wrong...); err != nil {
		return err
	}

	asks := slices.ContainsFunc(s.servers, func(s server) bool { return s.asks })
	if s.limit > 0 && !asks {
		wrong.addf("--limit is given, but nothing you compare takes it; compare shield or a model as well")
	}
	limit = equip(s.servers, limit, 0.8*s.Capacity)
	for _, f := range faults {
		s.Marks = append(s.Marks, f.Mark)
	}
	if s.edge {
		s.Until = edge.Deepest*edge.Longest + edge.Within + edge.Watch(s.Background) // as long as as many clients come, at most
	} else if !s.changed("duration") {
		s.Until = s.usual(min(perSec(limit), s.Capacity) - s.Background)
	}
	s.fits(faults, &wrong)
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	if s.shares {
		s.Store = &sim.Store{New: func() sim.Unit { return virtual.New() }}
	}
	s.Service.Exponential = true
	s.Plant, s.Bin = &s.pool, binOf(s.Warmup+s.Until)
	s.Policies = s.Mix.String()
	if s.NewClientsMix != nil {
		s.Policies += "; of background clients: " + s.NewClientsMix.String()
	}
	if !asks {
		limit = limiter.Config{}
	}
	return s.describe(limit)
}

// fits checks that all faults begin within a run, and that its clients are not too many.
func (s *simulation) fits(faults []fault, wrong *problems) {
	for _, f := range faults {
		if f.From >= s.Until {
			wrong.addf("--%s starts at %v, but a run lasts %v (--duration); start it earlier", f.flag, f.From, s.Until)
		}
	}
	if n := float64(s.Clients) + s.Background*(s.Warmup+s.Until).Seconds(); n > maxClients {
		wrong.addf("about %s clients would arrive: %d, and %s per second for %v including the warm-up; the limit is %d. Lower --clients, --background or --duration",
			chart.Number(n), s.Clients, chart.Number(s.Background), s.Warmup+s.Until, maxClients)
	}
}

func (s *simulation) inputs() (paths []string) {
	for _, one := range s.servers {
		paths = append(paths, one.path)
	}
	return append(paths, s.log)
}

// usual is how long a run is by default: three times its shortest time, given so many spare
// requests per second. It is 1 to 10 minutes, or as long as the marks need.
func (s *simulation) usual(spare float64) time.Duration {
	const least, most = time.Minute, 10 * time.Minute
	until := most
	if best := float64(s.Clients) / spare; spare > 0 && best < most.Seconds() {
		until = min(most, max(least, time.Duration(3*best*float64(time.Second))))
	}
	for _, m := range s.Marks {
		until = min(maxUntil, max(until, m.To+least))
	}
	return until.Round(time.Second)
}

func binOf(span time.Duration) time.Duration {
	for _, bin := range []time.Duration{100, 200, 500, 1000, 2000} {
		if bin *= time.Millisecond; span/bin <= mostBins {
			return bin
		}
	}
	return 5 * time.Second
}

// chosen returns the servers that --compare and further arguments name.
func (s *simulation) chosen(args []string, wrong *problems) (all []server) {
	names := strings.Split(strings.Join(slices.Concat(s.compare, args), ","), ",")
	if s.edge {
		names = edgeNames(names)
	} else if len(s.compare) == 0 {
		names = []string{"fixed:1", "shield"}
	}
	if len(names) > maxServers {
		wrong.addf("%d servers are compared; the limit is %d", len(names), maxServers)
		return nil
	}
	seen := map[string]bool{}
	for _, name := range names {
		name = strings.TrimSpace(name)
		one, err := parseServer(name)
		if err != nil {
			wrong.addf("--compare: %w", err)
			continue
		}
		if seen[one.name] { // of two directories
			one.name = name
		}
		if seen[one.name] {
			wrong.addf("--compare: %s is a duplicate; name each once", name)
		}
		seen[one.name] = true
		all = append(all, one)
	}
	return all
}

// faults reads the flags for what goes wrong with the backend: when, +, how long and, for --slow, x and how
// many times.
func (s *simulation) faults(wrong *problems) (faults []fault) {
	c := &s.pool
	read := func(flag, text, like string) (span [2]time.Duration, factor float64) {
		factor = 1
		when, times, slow := strings.Cut(text, "x")
		at, long, ok := strings.Cut(when, "+")
		from, err1 := time.ParseDuration(at)
		d, err2 := time.ParseDuration(long)
		var err3 error
		if slow {
			factor, err3 = strconv.ParseFloat(times, 64)
		}
		if !ok || slow != (flag == "slow") || errors.Join(err1, err2, err3) != nil || from < 0 || from > maxUntil || d <= 0 || d > maxUntil || !(factor >= 0.001 && factor <= 1000) {
			wrong.addf("--%s is %q; use %s", flag, text, like)
		}
		name := flag
		if flag == "slow" {
			name = chart.Number(factor) + " times as slow"
		}
		faults = append(faults, fault{flag, report.Mark{Name: name, From: from, To: from + d}})
		return [2]time.Duration{from, from + d}, factor
	}
	const like = "a start, counted from the herd, and a length, like 30s+10s"
	if s.outage != "" {
		c.Outage, _ = read("outage", s.outage, like)
	}
	if s.restart != "" {
		c.Restart, _ = read("restart", s.restart, like)
	}
	var slows [][2]plant.Step
	for _, text := range s.slow {
		span, factor := read("slow", text, "a start, a length and how many times as slow, 0.001 to 1000, like 30s+10sx4")
		slows = append(slows, [2]plant.Step{{From: span[0], Value: factor}, {From: span[1], Value: 1}})
	}
	slices.SortFunc(slows, func(a, b [2]plant.Step) int { return cmp.Compare(a[0].From, b[0].From) })
	for i, one := range slows {
		if i > 0 && one[0].From < slows[i-1][1].From {
			wrong.addf("--slow from %v starts before the one from %v ends; start it later", one[0].From, slows[i-1][0].From)
		}
		c.Slow = append(c.Slow, one[:]...)
	}
	return faults
}

func perSec(c limiter.Config) float64 {
	return c.Rate / cmp.Or(c.Per, time.Second).Seconds()
}
