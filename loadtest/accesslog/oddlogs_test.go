package accesslog

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// broken answers 502 to a part of the events from begin to end, at any load.
func broken(events []event, part float64, begin, end time.Duration) []event {
	random := rand.New(rand.NewPCG(2, 7))
	for i := range events {
		if at := events[i].at; at >= begin && at < end && random.Float64() < part {
			events[i].status = 502
		}
	}
	return events
}

// moved is events, later by a time.
func moved(events []event, by time.Duration) []event {
	later := slices.Clone(events)
	for i := range later {
		later[i].at += by
	}
	return later
}

func table(t testing.TB, e *Estimate) string {
	t.Helper()
	var b bytes.Buffer
	if err := e.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A backend was full only if it rejected a larger share under more load, and has not served
// more at other times.
func TestBrokenPageIsNotFull(t *testing.T) {
	quiet := steadyTraffic(10, 20*time.Minute, 50*time.Millisecond, 200)
	busy := moved(steadyTraffic(60, 20*time.Minute, 50*time.Millisecond, 200), 20*time.Minute)
	for name, events := range map[string][]event{
		"a broken page, and more without it": append(broken(quiet, 0.1, 0, time.Hour), busy...),
		"a broken page all the time":         broken(steadyTraffic(60, 20*time.Minute, 50*time.Millisecond, 200), 0.1, 0, time.Hour),
		"a broken page, by day and by night": broken(append(steadyTraffic(10, 20*time.Minute, 50*time.Millisecond, 200), busy...), 0.1, 0, time.Hour),
		"an outage of ten minutes":           broken(steadyTraffic(60, 20*time.Minute, 50*time.Millisecond, 200), 1, 5*time.Minute, 15*time.Minute),
		"a third for five minutes":           broken(steadyTraffic(30, 20*time.Minute, 50*time.Millisecond, 200), 0.33, 5*time.Minute, 10*time.Minute),
	} {
		e := tallied(events)
		if s := e.Suggest(); e.Answers.Full != 0 || !strings.Contains(s, "\t# capacity ") || strings.Contains(s, "\tcapacity ") {
			t.Errorf("%s: full at %.1f per second, most served %.1f\n%s", name, e.Answers.Full, e.Answers.Peak, s)
		}
	}
}

// limited answers 503 to events above a token bucket's rate.
func limited(events []event, rate, burst float64) []event {
	slices.SortFunc(events, func(a, b event) int { return int(a.at - b.at) })
	tokens, last := burst, time.Duration(0)
	for i := range events {
		tokens = min(burst, tokens+rate*(events[i].at-last).Seconds())
		last = events[i].at
		if tokens >= 1 {
			tokens--
		} else {
			events[i].status, events[i].took = 503, time.Millisecond
		}
	}
	return events
}

// A backend that was full is found: for a while, all the time, or by a little.
func TestFullIsFound(t *testing.T) {
	base := func() []event { return steadyTraffic(30, 30*time.Minute, 50*time.Millisecond, 500) }
	for name, events := range map[string][]event{
		"a peak of ten minutes": limited(append(base(), moved(steadyTraffic(60, 10*time.Minute, 50*time.Millisecond, 500), 10*time.Minute)...), 60, 20),
		"a peak of two minutes": limited(append(base(), moved(steadyTraffic(60, 2*time.Minute, 50*time.Millisecond, 500), 20*time.Minute)...), 60, 20),
		"all the time":          limited(steadyTraffic(80, 20*time.Minute, 50*time.Millisecond, 500), 60, 20),
		"twice as many":         limited(steadyTraffic(120, 20*time.Minute, 50*time.Millisecond, 500), 60, 5),
		"a little too many":     limited(append(base(), moved(steadyTraffic(40, 10*time.Minute, 50*time.Millisecond, 500), 10*time.Minute)...), 60, 5),
	} {
		e := tallied(events)
		within(t, name+": the capacity", e.Answers.Full, 60, 0.05)
		if e.Answers.Full < e.Answers.Peak {
			t.Errorf("%s: %.1f per second, less than %.1f that were served", name, e.Answers.Full, e.Answers.Peak)
		}
	}
}

// reversed is a log with its newest line first.
func reversed(log []byte) []byte {
	lines := bytes.SplitAfter(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
	lines[len(lines)-1] = append(bytes.Clone(lines[len(lines)-1]), '\n')
	slices.Reverse(lines)
	return bytes.Join(lines, nil)
}

// interleaved takes lines of two logs by turns, so many at once.
func interleaved(a, b []byte, run int) (all []byte) {
	left, right := bytes.SplitAfter(a, []byte("\n")), bytes.SplitAfter(b, []byte("\n"))
	for len(left) > 0 || len(right) > 0 {
		for _, lines := range []*[][]byte{&left, &right} {
			n := min(run, len(*lines))
			all = append(all, bytes.Join((*lines)[:n], nil)...)
			*lines = (*lines)[n:]
		}
	}
	return all
}

// With lines out of order the rate is still right, or the table warns.
func TestOrder(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: it reads long logs")
	}
	day := steadyTraffic(10, 10*time.Minute, 50*time.Millisecond, 50)
	half := steadyTraffic(10, 30*time.Minute, 50*time.Millisecond, 50)
	log, long := pen{}.write(t, day), pen{}.write(t, half)
	at := bytes.IndexByte(log[len(log)/2:], '\n') + len(log)/2 + 1
	stray := func(by time.Duration) []byte {
		return slices.Concat(log[:at], lineAt(t, 5*time.Minute+by), log[at:])
	}
	for name, c := range map[string]struct {
		log  []byte
		span time.Duration // 0: is not looked at
		rate float64
		warn string // "": nothing
	}{
		"in order":                    {log, 10 * time.Minute, 10, ""},
		"newest first":                {reversed(log), 10 * time.Minute, 10, "sort the lines by time"},
		"newest first, 30 minutes":    {reversed(long), 30 * time.Minute, 10, "sort the lines by time"},
		"two servers, one by one":     {slices.Concat(long, long), 60 * time.Minute, 10, "pieces overlap by 30m0s"},
		"two servers, merged":         {interleaved(long, long, 1), 30 * time.Minute, 20, ""},
		"a line 59 minutes ahead":     {stray(59 * time.Minute), 10 * time.Minute, 10, "1 line is"},
		"a line 2 hours ahead":        {stray(2 * time.Hour), 10 * time.Minute, 10, "1 line is"},
		"a line 59 minutes behind":    {stray(-59 * time.Minute), 10 * time.Minute, 10, "1 line is"},
		"the last 59 minutes ahead":   {slices.Concat(log, lineAt(t, 69*time.Minute)), 10 * time.Minute, 10, "1 line is"},
		"line by line 30 min apart":   {interleaved(log, pen{}.write(t, moved(day, 30*time.Minute)), 1), 10 * time.Minute, 20, "lines are"},
		"20 by 20 lines 30 min apart": {interleaved(log, pen{}.write(t, moved(day, 30*time.Minute)), 20), 0, 0, "sort the lines by time"},
	} {
		e := read(t, c.log)
		if c.span > 0 {
			within(t, name+": the span", e.Span.Seconds(), c.span.Seconds(), 0.01)
			within(t, name+": the rate", e.Rate, c.rate, 0.05)
		}
		if c.span > 0 && c.rate == 10 {
			within(t, name+": the busiest minute", e.Arrivals.BusiestMinute, 10.97, 0.01)
			within(t, name+": the median", e.Arrivals.P50, 10, 0.11)
		}
		got := table(t, e)
		if c.warn != "" && !strings.Contains(got, c.warn) {
			t.Errorf("%s: no %q in:\n%s", name, c.warn, got)
		}
		for _, warning := range []string{"sort the lines", "overlap", "line is", "lines are"} {
			if c.warn == "" && strings.Contains(got, warning) {
				t.Errorf("%s: %q in:\n%s", name, warning, got)
			}
		}
	}
}

// Lines of a quiet site are far apart, and still in order.
func TestQuietSite(t *testing.T) {
	var events []event
	for i := range 25 {
		events = append(events, event{at: time.Duration(i) * 20 * time.Minute, client: i, path: "/", status: 200})
	}
	for n, want := range map[int]time.Duration{2: 20 * time.Minute, 3: 40 * time.Minute, 25: 8 * time.Hour} {
		e := read(t, pen{}.write(t, events[:n]))
		if e.Span != want || e.Pieces != 1 || e.Lines.Stray != 0 {
			t.Errorf("%d lines: %v in %d pieces, %d stray; want %v", n, e.Span, e.Pieces, e.Lines.Stray, want)
		}
	}
}

// The command of the documentation merges the logs of several servers.
func TestMergeCommand(t *testing.T) {
	sorter, err := exec.LookPath("sort")
	if err != nil {
		t.Skip("needs sort on the path")
	}
	const command = "LC_ALL=C sort -t: -k3,3n node1.log node2.log > all.log"
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), command) {
		t.Fatalf("%s does not show %q: %v", page, command, err)
	}
	log := pen{}.write(t, steadyTraffic(10, 30*time.Minute, 50*time.Millisecond, 50))
	dir := t.TempDir()
	for _, name := range []string{"node1.log", "node2.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), reversed(log), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), sorter, "-t:", "-k3,3n", "node1.log", "node2.log")
	cmd.Dir, cmd.Env = dir, []string{"LC_ALL=C"}
	all, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	e := read(t, all)
	within(t, "the rate", e.Rate, 20, 0.05)
	if e.Pieces != 1 || e.Lines.Unsorted != 0 {
		t.Errorf("%d pieces, %d lines unsorted", e.Pieces, e.Lines.Unsorted)
	}
}

// A client whose waits are all the same is not late, even if they are longer than told.
func TestSteadyIsNotLate(t *testing.T) {
	var events []event
	random := rand.New(rand.NewPCG(6, 1))
	told := []string{"5"}
	for c := range 400 {
		at := time.Duration(c) * 2 * time.Second
		for range 6 {
			events = append(events, event{at: at, client: c, path: "/", status: 503, header: map[string][]string{"Retry-After": told}})
			if c%4 == 0 {
				at += 7*time.Second + time.Duration(random.IntN(50))*time.Millisecond
			} else {
				at += 5*time.Second + time.Duration(random.IntN(50))*time.Millisecond
			}
		}
		events = append(events, event{at: at, client: c, path: "/", status: 200})
	}
	e := read(t, pen{}.write(t, events))
	within(t, "the share that honours", e.Honour(), 0.75, 0.01)
	if len(e.Returns) != 2 || !alike(e.Returns[1].Policy, clients.Fixed{Gap: 7 * time.Second}) {
		t.Errorf("%+v; want 25 %% fixed 7 s", e.Returns)
	}
}

// Durations that are whole numbers have an unknown unit, and do not count.
func TestWholeNumbers(t *testing.T) {
	line := func(i int, duration string) string {
		return fmt.Sprintf(`{"logger":"http.log.access","ts":%.3f,"request":{"remote_ip":"192.0.2.1","method":"GET","host":"a","uri":"/"},"duration":%s,"status":200}`+"\n", 1768478400.001+float64(i), duration)
	}
	for name, c := range map[string]struct {
		durations []string
		untimed   int
		mean      time.Duration
	}{
		"with a point":     {[]string{"1.0", "1.0", "1.0"}, 0, time.Second},
		"an exponent":      {[]string{"1e0", "5e-1", "1.5"}, 0, time.Second},
		"text":             {[]string{`"1s"`, `"1s"`}, 0, time.Second},
		"zero":             {[]string{"0", "0.5", "1"}, 1, 250 * time.Millisecond},
		"only whole ones":  {[]string{"1", "2", "3", "100"}, 4, 0},
		"among fractions":  {[]string{"0.5", "1.5", "120000000"}, 1, time.Second},
		"none, or no time": {[]string{`"x"`, "-1", "0.3"}, 2, 300 * time.Millisecond},
	} {
		var log strings.Builder
		for i, d := range c.durations {
			log.WriteString(line(i, d))
		}
		e := read(t, []byte(log.String()))
		if e.Lines.Untimed != c.untimed || e.Service != c.mean || e.Requests != len(c.durations) {
			t.Errorf("%s: %d without a duration, mean %v; want %d, %v", name, e.Lines.Untimed, e.Service, c.untimed, c.mean)
		}
	}
}

// used is the memory that the process holds from the system.
func used() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// A worstLog has as many clients as are counted, half of them refused, and
// then lines of 900 kB.
type worstLog struct {
	i, n   int
	long   string
	many   string // values of a header
	left   []byte
	before uint64
	most   uint64
}

func (w *worstLog) Read(p []byte) (int, error) {
	if len(w.left) == 0 {
		w.most = max(w.most, used()-min(used(), w.before))
		if w.i == w.n {
			return 0, io.EOF
		}
		uri, header, status := "/", "", 200
		if w.i%2 == 0 {
			status = 503
		}
		switch over := w.i - maxCounted; {
		case over < 0:
		case over%2 == 0:
			uri = w.long
		default:
			header = w.many
		}
		w.left = fmt.Appendf(w.left[:0], `{"logger":"http.log.access","ts":%.3f,"request":{"remote_ip":"10.%d.%d.%d","method":"GET","host":"a","uri":"%s"},"duration":0.001,"status":%d,"resp_headers":{"Retry-After":["5"%s]}}`+"\n",
			1768478400+float64(w.i)/1000, w.i>>16&255, w.i>>8&255, w.i&255, uri, status, header)
		w.i++
	}
	n := copy(p, w.left)
	w.left = w.left[n:]
	return n, nil
}

// The documentation's bound of memory holds for the whole process, not only for live heap.
func TestMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: it reads long logs")
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "the process grows by less than 50 MiB") {
		t.Errorf("%s has no such bound: %v", page, err)
	}
	for try := 1; ; try++ {
		runtime.GC()
		debug.FreeOSMemory()
		log := &worstLog{n: maxCounted + 40, long: strings.Repeat("x", 900_000), many: strings.Repeat(`,"y"`, 220_000), before: used()}
		e, err := Read(log)
		if err != nil || e.Requests != log.n {
			t.Fatalf("%+v, %v", e, err)
		}
		t.Logf("%d MiB", log.most>>20)
		if log.most <= 50<<20 {
			return
		}
		if try == 4 { // the collector is late on a busy machine
			t.Fatalf("%d MiB of memory, want at most 50", log.most>>20)
		}
	}
}

// Each piece of log ends the waits that are open in it.
func TestManyPieces(t *testing.T) {
	tally := newTally()
	const runs = 2000
	pieces := 0
	for i := range 20 * runs { // in runs of 20, 700 s apart
		when := time.Duration(i)*7*time.Millisecond + time.Duration(i/20%2)*700*time.Second
		tally.request(request{end: since1970(epoch) + when, client: hash(fmt.Sprint(i % 7000)), what: 1, status: 503, seconds: time.Duration(i%3) * time.Second})
		if tally.e.Pieces == pieces {
			continue
		}
		pieces = tally.e.Pieces
		waiting := 0
		for _, c := range tally.callers.of {
			if c.waiting || slices.ContainsFunc(c.waits[:], func(w wait) bool { return w.at != 0 }) {
				waiting++
			}
		}
		if waiting > minRun { // those of the next piece, which is new after so many lines
			t.Fatalf("%d clients wait after piece %d", waiting, pieces)
		}
	}
	if e := tally.estimate(); e.Pieces < runs/2 || e.Judged == 0 || e.Undecided == 0 {
		t.Errorf("%d pieces, %d judged, %d undecided", e.Pieces, e.Judged, e.Undecided)
	}
}

// The time of many pieces: 32,000 rejected clients, and a log that goes back 700 s all the
// time.
func BenchmarkManyPieces(b *testing.B) {
	var events []event
	for i := range 60_000 {
		e := event{at: time.Duration(i) * time.Millisecond, client: i % 32_000, path: "/", status: 503}
		if i >= 32_000 {
			e.at += time.Duration(i/20%2) * 700 * time.Second
		}
		events = append(events, e)
	}
	var log []byte
	for run := range slices.Chunk(events, 20) {
		log = append(log, pen{}.write(b, run)...)
	}
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		if _, err := Read(bytes.NewReader(log)); err != nil {
			b.Fatal(err)
		}
	}
}
