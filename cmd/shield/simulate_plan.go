package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

// Bounds of a simulation. Ours: the size of a machine, and more than users need.
const (
	maxHerd       = 5_000_000
	maxBackground = 100_000 // clients per second
	maxPool       = 100_000 // workers
	leastUntil    = time.Second
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

// readLog reads an access log. It is an error if ctx ends before that.
func readLog(ctx context.Context, path string) (*accesslog.Estimate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
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
	if s.Clients > 0 {
		rate = e.Calm // the bursts are the herd, and must not count twice
	}
	set("background", func() { s.background = strconv.FormatFloat(min(rate, maxBackground), 'g', 6, 64) })
	if e.Service > 0 {
		set("service", func() { s.Service.Mean = min(max(e.Service.Round(minService), minService), maxService) })
	}
	set("workers", func() {
		most := 2 * e.Concurrency.Peak
		if e.Answers.Full > 0 {
			most = e.Answers.Full * s.Service.Mean.Seconds()
		}
		s.pool.Workers = int(min(maxPool, max(1, math.Ceil(most))))
	})
}

// problems are errors of the flags, all of which the user sees at once. Those that are nil
// are none.
type problems []error

func (p *problems) add(err error) { *p = append(*p, err) }

func (p *problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

// ranges checks the flags that are numbers.
func (s *simulation) ranges() problems {
	var err error
	s.Background, err = perSecond("background", s.background, 0, maxBackground)
	wrong := problems{
		plant.Between("--clients", s.Clients, 0, maxHerd),
		plant.Between("--addresses", s.Addresses, 0, maxHerd),
		plant.Between("--background-addresses", s.StrangersAddresses, 0, maxHerd),
		plant.Between("--within", s.Within, 0, time.Hour),
		plant.Between("--timeout", s.Timeout, 0, time.Hour),
		plant.Between("--patience", s.Patience, 0, maxUntil),
		plant.Between("--delay", s.Delay, 0, 10*time.Second),
		plant.Between("--workers", s.pool.Workers, 1, maxPool),
		plant.Between("--service", s.Service.Mean, minService, maxService),
		plant.Between("--first-byte", s.FirstByte, 0, maxService),
		plant.Between("--backlog", s.pool.Queue, 0, 1<<22),
		plant.Between("--coherency", s.pool.Coherency, 0, 100),
		plant.Between("--replicas", s.Replicas, 1, 64),
		plant.Between("--store-trip", s.storeTrip, 10*time.Microsecond, 10*time.Second),
		plant.Between("--warmup", s.Warmup, time.Second, time.Hour),
		plant.Between("--requests", s.MaxRequests, 1, math.MaxInt32),
		err,
	}
	if s.changed("duration") {
		wrong.add(plant.Between("--duration", s.Until, leastUntil, maxUntil))
	}
	if s.distribution != "exponential" && s.distribution != "deterministic" {
		wrong.addf("--distribution is %q; want exponential or deterministic", s.distribution)
	}
	if s.pool.Refuses && s.outage == "" {
		wrong.addf("--outage-refuses is given without --outage; want both")
	}
	if s.Clients == 0 && s.changed("within") {
		wrong.addf("--within is given, and --clients is 0; want a herd that comes within that time, or neither")
	}
	if s.Clients == 0 && s.Background == 0 && err == nil {
		wrong.addf("--clients is 0, and --background too; want at least one of them")
	}
	return wrong
}

// plan reads the flags, so that s is ready to run. The error names all that is wrong.
func (s *simulation) plan(args []string, estimate *accesslog.Estimate) error {
	texts, err := s.texts(args, estimate)
	if err != nil {
		return err
	}
	wrong := s.ranges()
	s.Mix, err = clients.Parse(s.policy)
	if estimate != nil && !s.changed("policy") {
		s.Mix, err = estimate.Population(), nil
	}
	if err != nil {
		wrong.addf("--policy: %w", err)
	}
	if s.others != "" {
		if s.StrangersMix, err = clients.Parse(s.others); err != nil {
			wrong.addf("--background-policy: %w", err)
		}
	}
	faults := s.faults(&wrong)
	s.Capacity, s.Version = float64(s.pool.Workers)/s.Service.Mean.Seconds(), version()
	limit := limiter.Config{}
	if s.limit != "" {
		rate, err := perSecond("limit", s.limit, 0.001, maxBackground)
		wrong.add(err)
		limit = limiter.Config{Rate: rate}
	}
	s.servers = s.chosen(args, estimate, texts, &wrong)
	wrong.add(s.files.check(s.inputs()))
	if err := errors.Join(wrong...); err != nil {
		return err
	}

	asks := slices.ContainsFunc(s.servers, func(s server) bool { return s.asks })
	if s.limit != "" && !asks {
		wrong.addf("--limit is given, and nothing that is compared takes it; want shield or a model among them")
	}
	limit = equip(s.servers, limit, 0.8*s.Capacity)
	for _, f := range faults {
		s.Marks = append(s.Marks, f.Mark)
	}
	if !s.changed("duration") {
		s.Until = s.usual(min(perSec(limit), s.Capacity) - s.Background)
	}
	s.fits(faults, &wrong)
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	s.Service.Exponential = s.distribution == "exponential"
	s.Plant, s.Bin, s.Shelters = &s.pool, binOf(s.Warmup+s.Until), true
	s.Policies = policies(s.Mix)
	if s.StrangersMix != nil {
		s.Policies += "; of background clients: " + policies(s.StrangersMix)
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
			wrong.addf("--%s begins at %v, and a run is %v (--duration); want it to begin before that", f.flag, f.From, s.Until)
		}
	}
	if at := s.pool.Restart; s.cold != "" && at[1] >= s.Until && at[0] < s.Until {
		wrong.addf("--cold begins at %v, with the end of --restart, and a run is %v (--duration); want it to begin before that", at[1], s.Until)
	}
	if n := float64(s.Clients) + s.Background*(s.Warmup+s.Until).Seconds(); n > maxClients {
		wrong.addf("about %s clients would come: %d, and %s per second for %v with the warm-up; want at most %d. Lower --clients, --background or --duration",
			digits(n), s.Clients, digits(s.Background), s.Warmup+s.Until, maxClients)
	}
}

// inputs returns the files that are read, with the flags that name them.
func (s *simulation) inputs() map[string]string {
	flags := map[string]string{s.log: "from-access-log"}
	for _, one := range s.servers {
		flags[one.path] = "compare"
	}
	delete(flags, "")
	return flags
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

// texts returns the configs that have no file, by the words that name them. It sets the
// flags that were not given from an estimate or a situation.
func (s *simulation) texts(args []string, e *accesslog.Estimate) (texts map[string]string, err error) {
	texts = map[string]string{}
	if texts["scenario"], err = s.situate(args); e != nil && err == nil {
		s.take(e)
		texts["suggested"] = e.Suggest()
	}
	return texts, err
}

func (s *simulation) chosen(args []string, e *accesslog.Estimate, texts map[string]string, wrong *problems) (all []server) {
	names := s.compared(args, e)
	if len(names) > maxServers {
		wrong.addf("%d servers are compared; want at most %d", len(names), maxServers)
		return nil
	}
	before := len(*wrong)
	seen, observing := map[string]bool{}, false
	for i, name := range names {
		name = strings.TrimSpace(name)
		flag := "compare"
		if i == 0 && s.config != "" {
			flag = "config"
		}
		if name == "" {
			wrong.addf("--compare has a name that is empty; want a file or one of %s", serverWords)
			continue
		}
		one, err := parseServer(name, texts)
		if err != nil {
			wrong.addf("--%s: %w", flag, err)
			continue
		}
		if one.name == "" || seen[one.name] { // of two directories
			one.name = name
		}
		if seen[one.name] {
			wrong.addf("--%s: %s is a duplicate; want each once", flag, name)
		}
		seen[one.name] = true
		observing = observing || one.config.Observe
		if s.enforce {
			one.config.Observe = false
			one.notes = slices.DeleteFunc(one.notes, func(n string) bool { return strings.Contains(n, "--enforce") })
		}
		all = append(all, one)
	}
	if s.enforce && !observing && len(*wrong) == before {
		wrong.addf("--enforce is given, and nothing that is compared observes; want a config with mode observe among them")
	}
	return all
}

// compared returns the names of the servers.
func (s *simulation) compared(args []string, e *accesslog.Estimate) (names []string) {
	if s.config != "" {
		names = append(names, s.config)
	}
	for _, list := range slices.Concat(s.compare, args) {
		names = append(names, strings.Split(list, ",")...)
	}
	if len(names) == 0 && e != nil {
		return []string{"none", "suggested"}
	} else if len(names) == 0 {
		return []string{"fixed:1", "shield"}
	}
	return names
}

// faults reads the faults of the backend, and the restart of shield.
func (s *simulation) faults(wrong *problems) (faults []fault) {
	c := &s.pool
	during := func(flag, name, text, like string) (from, to time.Duration) {
		at, long, ok := strings.Cut(text, "+")
		from, err1 := time.ParseDuration(at)
		d, err2 := time.ParseDuration(long)
		if !ok || err1 != nil || err2 != nil || from < 0 || from > maxUntil || d <= 0 || d > maxUntil {
			wrong.addf("--%s is %q; want when it begins, since the herd came, and how long it is, as %s", flag, text, like)
		}
		faults = append(faults, fault{flag, report.Mark{Name: name, From: from, To: from + d}})
		return from, from + d
	}
	if s.outage != "" {
		c.Outage[0], c.Outage[1] = during("outage", "outage", s.outage, "30s+10s")
	}
	var slows [][2]plant.Step
	for _, text := range s.slow {
		span, factor := times(text)
		if !(factor >= 0.001 && factor <= 1000) {
			wrong.addf("--slow is %q; want when, how long and how many times, 0.001 to 1000, as 30s+10sx4", text)
			continue
		}
		from, to := during("slow", digits(factor)+" times as slow", span, "30s+10sx4")
		slows = append(slows, [2]plant.Step{{From: from, Value: factor}, {From: to, Value: 1}})
	}
	slices.SortFunc(slows, func(a, b [2]plant.Step) int { return cmp.Compare(a[0].From, b[0].From) })
	for i, one := range slows {
		if i > 0 && one[0].From < slows[i-1][1].From {
			wrong.addf("--slow from %v begins before the one from %v ends; want one after the other", one[0].From, slows[i-1][0].From)
		}
		c.Slow = append(c.Slow, one[:]...)
	}
	if s.restart != "" {
		c.Restart[0], c.Restart[1] = during("restart", "restart", s.restart, "30s+2s")
	}
	if s.cold != "" {
		span, factor := times(s.cold)
		d, err := time.ParseDuration(span)
		if err != nil || !(factor >= 1 && factor <= 1000) || d <= 0 || d > time.Hour {
			wrong.addf("--cold is %q; want how long, up to 1h, and how many times, 1 to 1000, as 20sx3", s.cold)
		} else if s.restart == "" {
			wrong.addf("--cold is given without --restart; want both")
		}
		c.Cold = plant.Cold{Times: factor, For: d}
	}
	s.store(during, wrong)
	if s.shieldRestart != "" {
		at, err := time.ParseDuration(s.shieldRestart)
		if err != nil || at < 0 || at > maxUntil {
			wrong.addf("--restart-shield is %q; want when, since the herd came, as 30s", s.shieldRestart)
		}
		s.Changes = []sim.Change{{At: at, Restart: true}}
		faults = append(faults, fault{"restart-shield", report.Mark{Name: "shield restarts", From: at, To: at}})
	}
	return faults
}

// store reads the flags of what replicas share.
func (s *simulation) store(during func(flag, name, text, like string) (from, to time.Duration), wrong *problems) {
	s.Balance = sim.Balance(s.balance)
	if !slices.Contains(sim.Balances, s.Balance) {
		wrong.addf("--balance is %q; want %s", s.balance, balances())
	}
	for _, flag := range []string{"store-trip", "store-outage"} {
		if s.changed(flag) && !s.shares {
			wrong.addf("--%s is given without --store; want both", flag)
		}
	}
	if !s.shares {
		return
	}
	if s.Replicas < 2 {
		wrong.addf("--store is given with --replicas %d; want at least 2", s.Replicas)
	}
	s.Store = &sim.Store{Trip: s.storeTrip}
	if s.storeOutage != "" {
		from, to := during("store-outage", "the store is gone", s.storeOutage, "30s+10s")
		s.Store.Faults = []sim.Fault{{From: from, To: to}}
	}
}

// balances lists how requests may be spread over replicas.
func balances() string {
	names := make([]string, len(sim.Balances))
	for i, b := range sim.Balances {
		names[i] = string(b)
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// times reads what is before the last x of a text, and the number after it; 0 if there is
// none.
func times(text string) (before string, factor float64) {
	if i := strings.LastIndexByte(text, 'x'); i >= 0 {
		factor, _ = strconv.ParseFloat(text[i+1:], 64)
		return text[:i], factor
	}
	return text, 0
}

// perSec returns a limit in requests per second.
func perSec(c limiter.Config) float64 {
	return c.Rate / cmp.Or(c.Per, time.Second).Seconds()
}
