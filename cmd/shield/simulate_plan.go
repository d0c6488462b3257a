package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

// Bounds of a simulation. Ours: what a machine can hold, and beyond what is asked.
const (
	maxHerd       = 5_000_000
	maxBackground = 100_000 // per second
	maxPool       = 100_000 // workers
	leastUntil    = time.Second
	maxUntil      = 24 * time.Hour

	// mostBins is about how many bins a run has at most.
	mostBins = 20_000

	// maxClients bounds how many clients one run has, strangers too: 24 bytes
	// each, about 1.2 GB.
	maxClients = 50_000_000
)

// A happening is a Mark, and the flag that asks for it.
type happening struct {
	flag string
	report.Mark
}

// plans is a simulation that is ready to be made.
type plans struct {
	scenario sim.Scenario
	restart  *sim.Change // of the servers
	servers  []server
	report   report.Report
	text     string // what is simulated
}

// readLog reads an access log, unless ctx ends before.
func readLog(ctx context.Context, path string) (*accesslog.Estimate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return accesslog.Read(until{ctx, f})
}

// until is a Reader that fails when ctx has ended.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}

// take sets what the flags do not from an estimate.
func (s *simulation) take(e *accesslog.Estimate) {
	set := func(flag string, f func()) {
		if !s.changed(flag) {
			f()
		}
	}
	set("clients", func() { s.clients = 0 })
	if e.Bursts.N > 0 {
		set("clients", func() { s.clients = min(e.Bursts.Largest, maxHerd) })
		if s.clients > 0 {
			set("within", func() { s.within = time.Second })
		}
	}
	rate := e.Rate
	if s.clients > 0 {
		rate = e.Calm // the bursts are the herd, and do not count twice
	}
	set("background", func() { s.background = strconv.FormatFloat(min(rate, maxBackground), 'g', 6, 64) })
	if e.Service > 0 {
		set("service", func() { s.service = min(max(e.Service.Round(minService), minService), maxService) })
	}
	set("workers", func() {
		most := 2 * e.Concurrency.Peak
		if e.Answers.Full > 0 {
			most = e.Answers.Full * s.service.Seconds()
		}
		s.workers = int(min(maxPool, max(1, math.Ceil(most))))
	})
}

// showLog writes what the log says, and what is made of it.
func (s *simulation) showLog(w io.Writer, e *accesslog.Estimate) error {
	if err := e.WriteTable(w); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nA config that follows from it (--compare suggested):\n\n%s\n", e.Suggest())
	switch {
	case s.changed("clients"):
	case e.Bursts.N > 0:
		b.WriteString("The herd is the largest burst of the log; --clients sets it. Strangers come at the\nrate without bursts.\n")
	default:
		b.WriteString("The log has no bursts, so there is no herd; --clients adds one.\n")
	}
	if e.Answers.Full == 0 && !s.changed("workers") {
		b.WriteString("The log has not seen the backend full: it is given twice as many workers as were\nbusy in its worst minute; --workers sets them.\n")
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

// Bounds of the time of service.
const (
	minService = 10 * time.Microsecond
	maxService = 10 * time.Minute
)

// plan reads the flags. The error names everything that is wrong with them. args are
// what is compared besides the flag.
func (s *simulation) plan(args []string, estimate *accesslog.Estimate) (*plans, error) {
	if estimate != nil {
		s.take(estimate)
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	whole := func(flag string, is, least, most int) {
		if is < least || is > most {
			wrong("--%s is %d; want %d to %d", flag, is, least, most)
		}
	}
	span := func(flag string, is, least, most time.Duration) {
		if is < least || is > most {
			wrong("--%s is %v; want %v to %v", flag, is, least, most)
		}
	}
	whole("clients", s.clients, 0, maxHerd)
	span("within", s.within, 0, time.Hour)
	span("timeout", s.timeout, 0, time.Hour)
	span("patience", s.patience, 0, maxUntil)
	span("delay", s.delay, 0, 10*time.Second)
	whole("workers", s.workers, 1, maxPool)
	span("service", s.service, minService, maxService)
	whole("backlog", s.backlog, 0, 1<<22)
	if !(s.coherency >= 0 && s.coherency <= 100) {
		wrong("--coherency is %v; want 0 to 100", s.coherency)
	}
	whole("replicas", s.replicas, 1, 64)
	span("warmup", s.warmup, time.Second, time.Hour)
	whole("requests", s.requests, 1, math.MaxInt32)
	if s.changed("duration") {
		span("duration", s.until, leastUntil, maxUntil)
	}
	if s.distribution != "exponential" && s.distribution != "deterministic" {
		wrong("--distribution is %q; want exponential or deterministic", s.distribution)
	}
	background, err := perSecond("background", s.background, 0)
	errs = append(errs, err)
	if s.clients == 0 && background == 0 && err == nil {
		wrong("--clients is 0, and --background too; want somebody to come")
	}
	if s.clients == 0 && s.changed("within") {
		wrong("--within is given, and --clients is 0; want a herd that comes within that time, or neither")
	}
	mix, err := s.population(estimate)
	errs = append(errs, err)
	backend, happens, err := s.backend()
	errs = append(errs, err)
	p := &plans{report: report.Report{Warmup: s.warmup, Workers: s.workers}}
	if s.shieldRestart != "" {
		at, err := instant("restart-shield", s.shieldRestart)
		errs = append(errs, err)
		p.restart = &sim.Change{At: at, Restart: true}
		happens = append(happens, happening{"restart-shield", report.Mark{Name: "shield restarts", From: at, To: at}})
	}
	for _, h := range happens {
		p.report.Marks = append(p.report.Marks, h.Mark)
	}
	limit := limiter.Config{}
	if s.limit != "" {
		rate, err := perSecond("limit", s.limit, 0.001)
		errs = append(errs, err)
		limit = limiter.Config{Rate: rate, Burst: max(1, int(rate/10))}
	}
	p.servers, err = s.servers(args, estimate)
	if errs = append(errs, err, s.outputs(p.servers)); errors.Join(errs...) != nil {
		return nil, errors.Join(errs...)
	}

	if s.limit != "" && !slices.ContainsFunc(p.servers, func(s server) bool { return s.asks }) {
		wrong("--limit is given, and nothing that is compared takes it; want shield or a model among them")
	}
	p.report.Capacity = float64(s.workers) / s.service.Seconds()
	limit = equip(p.servers, limit, 0.8*p.report.Capacity)
	until := s.until
	if !s.changed("duration") {
		until = s.usual(min(perSec(limit), p.report.Capacity)-background, p.report.Marks)
	}
	for _, h := range happens {
		if h.From >= until {
			wrong("--%s begins at %v, and a run is %v (--duration); want it to begin before that", h.flag, h.From, until)
		}
	}
	if s.cold != "" && backend.Restart[1] >= until && backend.Restart[0] < until {
		wrong("--cold begins at %v, with the end of --restart, and a run is %v (--duration); want it to begin before that", backend.Restart[1], until)
	}
	if n := float64(s.clients) + background*(s.warmup+until).Seconds(); n > maxClients {
		wrong("about %s clients would come: %d, and %s per second for %v with the warm-up; want at most %d in all, by less of --clients, --background or --duration",
			digits(n), s.clients, digits(background), s.warmup+until, maxClients)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p.report.Bin = binOf(s.warmup + until)
	p.scenario = sim.Scenario{
		Seed: s.seed, Clients: s.clients, Within: s.within, Mix: mix, Background: background, Warmup: s.warmup,
		Delay: s.delay, Service: sim.Service{Mean: s.service, Exponential: s.distribution == "exponential"},
		Plant: backend, Timeout: s.timeout, Patience: s.patience, Replicas: s.replicas,
		Until: until, MaxRequests: s.requests, Bin: p.report.Bin,
	}
	p.report.Inputs = report.Inputs{
		Seed: s.seed, Clients: s.clients, Background: background, Policies: policies(mix), Timeout: s.timeout, Patience: s.patience, Duration: until,
	}
	if s.clients > 0 {
		p.report.Inputs.Within = s.within
	}
	p.text = s.describe(p, limit)
	return p, nil
}

// outputs returns an error if two files are one, or one is what is read.
func (s *simulation) outputs(servers []server) error {
	var errs []error
	flags := map[string]string{} // by file
	if s.log != "" {
		flags[fileNamed(s.log)] = "from-access-log"
	}
	for _, one := range servers {
		if one.path != "" {
			flags[fileNamed(one.path)] = "compare"
		}
	}
	for _, out := range []struct{ flag, name string }{{"json", s.json}, {"csv", s.csv}, {"svg", s.svg}, {"png", s.png}} {
		file := out.name
		switch file {
		case "":
			continue
		case "-", os.DevNull:
		default:
			file = fileNamed(file)
		}
		if first := flags[file]; first != "" && file == "-" {
			errs = append(errs, fmt.Errorf("--%s and --%s are -; want one of them on standard output", first, out.flag))
		} else if first != "" && file != os.DevNull {
			errs = append(errs, fmt.Errorf("--%s and --%s are the same file, %s; want one each", first, out.flag, out.name))
		}
		flags[file] = out.flag
	}
	return errors.Join(errs...)
}

// fileNamed returns one name for all names of a file, as far as that is known.
func fileNamed(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil {
		return filepath.Join(folder, filepath.Base(name))
	}
	return name
}

// usual is how long a run is if nobody says: three times what it takes at best, with
// so much to spare per second, 1 to 10 minutes; but long enough for what happens.
func (s *simulation) usual(spare float64, marks []report.Mark) time.Duration {
	const least, most = time.Minute, 10 * time.Minute
	until := most
	if best := float64(s.clients) / spare; spare > 0 && best < most.Seconds() {
		until = min(most, max(least, time.Duration(3*best*float64(time.Second))))
	}
	for _, m := range marks {
		until = min(maxUntil, max(until, m.To+least))
	}
	return until.Round(time.Second)
}

// binOf chooses the bins of a run.
func binOf(span time.Duration) time.Duration {
	for _, bin := range []time.Duration{100, 200, 500, 1000, 2000} {
		if bin *= time.Millisecond; span/bin <= mostBins {
			return bin
		}
	}
	return 5 * time.Second
}

// population returns who comes.
func (s *simulation) population(e *accesslog.Estimate) (clients.Population, error) {
	if e != nil && !s.changed("policy") {
		return e.Population(), nil
	}
	mix, err := clients.Parse(s.policy)
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	return mix, nil
}

// servers returns what is compared.
func (s *simulation) servers(args []string, e *accesslog.Estimate) ([]server, error) {
	var names []string
	if s.config != "" {
		names = append(names, s.config)
	}
	for _, list := range slices.Concat(s.compare, args) {
		names = append(names, strings.Split(list, ",")...)
	}
	suggested := ""
	if e != nil {
		suggested = e.Suggest()
	}
	switch {
	case len(names) > 0:
	case e != nil:
		names = []string{"none", "suggested"}
	default:
		names = []string{"fixed:1", "shield"}
	}
	if len(names) > maxServers {
		return nil, fmt.Errorf("%d are to be compared; want at most %d", len(names), maxServers)
	}
	var all []server
	var errs []error
	seen, observing := map[string]bool{}, false
	for i, name := range names {
		name = strings.TrimSpace(name)
		flag := "compare"
		if name == "" {
			errs = append(errs, fmt.Errorf("--compare has a name that is empty; want a file or one of %s", serverWords))
			continue
		}
		if i == 0 && s.config != "" {
			flag = "config"
		}
		one, err := parseServer(name, suggested)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
			continue
		}
		if seen[one.name] { // of two directories
			one.name = name
		}
		if seen[one.name] {
			errs = append(errs, fmt.Errorf("--%s: %s is there twice; want each once", flag, name))
		}
		seen[one.name] = true
		observing = observing || one.config.Observe
		if s.enforce {
			one.config.Observe = false
			one.notes = slices.DeleteFunc(one.notes, func(n string) bool { return strings.Contains(n, "--enforce") })
		}
		all = append(all, one)
	}
	if s.enforce && !observing && len(errs) == 0 {
		errs = append(errs, errors.New("--enforce is given, and nothing that is compared observes; want a config with mode observe among them"))
	}
	return all, errors.Join(errs...)
}

// backend returns the backend, and what happens to it.
func (s *simulation) backend() (*plant.Config, []happening, error) {
	c := &plant.Config{Workers: s.workers, Queue: s.backlog, Coherency: s.coherency, Refuses: s.refuses}
	var marks []happening
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.outage != "" {
		from, to, err := during("outage", s.outage, "30s+10s")
		errs = append(errs, err)
		c.Outage = [2]time.Duration{from, to}
		marks = append(marks, happening{"outage", report.Mark{Name: "outage", From: from, To: to}})
	} else if s.refuses {
		wrong("--outage-refuses is given without --outage; want both")
	}
	type slow struct {
		from, to time.Duration
		factor   float64
	}
	var slows []slow
	for _, text := range s.slow {
		span, times, ok := cutLast(text, "x")
		factor, err := strconv.ParseFloat(times, 64)
		if !ok || err != nil || !(factor >= 0.001 && factor <= 1000) {
			wrong("--slow is %q; want when, how long and how many times, 0.001 to 1000, as 30s+10sx4", text)
			continue
		}
		from, to, err := during("slow", span, "30s+10sx4")
		errs = append(errs, err)
		slows = append(slows, slow{from, to, factor})
		marks = append(marks, happening{"slow", report.Mark{Name: strconv.FormatFloat(factor, 'g', 4, 64) + " times as slow", From: from, To: to}})
	}
	slices.SortFunc(slows, func(a, b slow) int { return int(a.from - b.from) })
	for i, one := range slows {
		if i > 0 && one.from < slows[i-1].to {
			wrong("--slow from %v begins before the one from %v ends; want one after the other", one.from, slows[i-1].from)
		}
		c.Slow = append(c.Slow, plant.Step{From: one.from, Value: one.factor}, plant.Step{From: one.to, Value: 1})
	}
	if s.restart != "" {
		from, to, err := during("restart", s.restart, "30s+2s")
		errs = append(errs, err)
		c.Restart = [2]time.Duration{from, to}
		marks = append(marks, happening{"restart", report.Mark{Name: "restart", From: from, To: to}})
	}
	if s.cold != "" {
		span, times, ok := cutLast(s.cold, "x")
		factor, err := strconv.ParseFloat(times, 64)
		d, err2 := time.ParseDuration(span)
		switch {
		case !ok || err != nil || err2 != nil || !(factor >= 1 && factor <= 1000) || d <= 0 || d > time.Hour:
			wrong("--cold is %q; want how long, up to 1h, and how many times, 1 to 1000, as 20sx3", s.cold)
		case s.restart == "":
			wrong("--cold is given without --restart; want both")
		default:
			c.Cold = plant.Cold{Times: factor, For: d}
		}
	}
	return c, marks, errors.Join(errs...)
}

// during reads when something happens and how long, as 30s+10s.
func during(flag, text, like string) (from, to time.Duration, err error) {
	at, long, ok := strings.Cut(text, "+")
	from, err1 := time.ParseDuration(at)
	d, err2 := time.ParseDuration(long)
	if !ok || err1 != nil || err2 != nil || from < 0 || from > maxUntil || d <= 0 || d > maxUntil {
		return 0, 0, fmt.Errorf("--%s is %q; want when it begins, since the herd came, and how long it is, as %s", flag, text, like)
	}
	return from, from + d, nil
}

// instant reads when something happens, as 30s.
func instant(flag, text string) (time.Duration, error) {
	at, err := time.ParseDuration(text)
	if err != nil || at < 0 || at > maxUntil {
		return 0, fmt.Errorf("--%s is %q; want when, since the herd came, as 30s", flag, text)
	}
	return at, nil
}

// cutLast is strings.Cut around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// perSecond reads a rate, as 50, 50/s, 600/m or 5000/h, of at least least.
func perSecond(flag, text string, least float64) (float64, error) {
	number, per, divided := strings.Cut(text, "/")
	seconds, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[per]
	rate, err := strconv.ParseFloat(number, 64)
	rate /= max(1, seconds)
	if err != nil || !known || divided && per == "" || !(rate >= least && rate <= maxBackground) {
		return 0, fmt.Errorf("--%s is %q; want a number per s, m or h, as 30/s, from %g to %d/s", flag, text, least, maxBackground)
	}
	return rate, nil
}

// perSec is a limit in requests per second.
func perSec(c limiter.Config) float64 {
	if c.Per > 0 {
		return c.Rate / c.Per.Seconds()
	}
	return c.Rate
}

// describe says what is simulated.
func (s *simulation) describe(p *plans, limit limiter.Config) string {
	var b strings.Builder
	c := &p.scenario
	if c.Clients > 0 {
		fmt.Fprintf(&b, "%s within %v", plural(c.Clients, "client comes", "clients come"), c.Within)
		if c.Background > 0 {
			fmt.Fprintf(&b, ", and strangers besides them, %s per second", digits(c.Background))
		}
	} else {
		fmt.Fprintf(&b, "Strangers come, %s per second", digits(c.Background))
	}
	b.WriteString(".\n")
	if c.Timeout > 0 {
		fmt.Fprintf(&b, "They wait %v for an answer", c.Timeout)
	} else {
		b.WriteString("They wait for an answer as long as it takes")
	}
	if c.Patience > 0 {
		fmt.Fprintf(&b, ", and retry for %v", c.Patience)
	}
	fmt.Fprintf(&b, ". Policy: %s.\n", policies(c.Mix))
	fmt.Fprintf(&b, "The backend has %s %v each (%s): %s requests per second at best.", plural(s.workers, "worker that takes", "workers that take"), s.service, s.distribution, digits(p.report.Capacity))
	for _, m := range p.report.Marks {
		fmt.Fprintf(&b, " %s at %v", strings.ToUpper(m.Name[:1])+m.Name[1:], m.From)
		if m.To > m.From {
			fmt.Fprintf(&b, " for %v", m.To-m.From)
		}
		b.WriteByte('.')
	}
	if slices.ContainsFunc(p.servers, func(s server) bool { return s.asks }) {
		fmt.Fprintf(&b, " Shield and the models let through %s per second.", digits(perSec(limit)))
	}
	if c.Replicas > 1 {
		fmt.Fprintf(&b, " There are %d servers before it.", c.Replicas)
	}
	fmt.Fprintf(&b, "\nA run is %v", c.Until)
	if c.Background > 0 {
		fmt.Fprintf(&b, ", after %v of strangers alone", c.Warmup)
	}
	fmt.Fprintf(&b, ". Seed %d.\n", c.Seed)
	return wrap(b.String(), 80)
}

// digits writes v to four digits, without an exponent.
func digits(v float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // of its own kind
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// plural is "1 one", or the number and many.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// wrap breaks lines that are wider than so many letters.
func wrap(text string, wide int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		n := 0
		for i, word := range strings.Fields(line) {
			long := utf8.RuneCountInString(word)
			switch {
			case i == 0:
			case n+1+long > wide:
				b.WriteByte('\n')
				n = 0
			default:
				b.WriteByte(' ')
				n++
			}
			b.WriteString(word)
			n += long
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// policies writes a mix, with the shares of the first few.
func policies(mix clients.Population) string {
	const most = 4
	total := 0.0
	for _, s := range mix {
		total += s.Weight
	}
	var parts []string
	for i, s := range mix {
		if i == most && len(mix) > most {
			parts = append(parts, fmt.Sprintf("and %d more", len(mix)-most))
			break
		}
		text := fmt.Sprint(s.Policy)
		if len(mix) > 1 {
			text += fmt.Sprintf(" %.3g %%", 100*s.Weight/total)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
