package accesslog

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// steadyTraffic is Poisson arrivals at rate, of n clients by turns, that take
// exponential times with the given mean.
func steadyTraffic(rate float64, over, mean time.Duration, n int) (all []event) {
	random := rand.New(rand.NewPCG(1, 1))
	for at := 0.0; ; {
		at += random.ExpFloat64() / rate
		if at >= over.Seconds() {
			return all
		}
		all = append(all, event{
			at: time.Duration(at * 1e9), took: time.Duration(random.ExpFloat64() * float64(mean)),
			client: random.IntN(n), path: fmt.Sprintf("/%d", len(all)), status: 200,
		})
	}
}

func within(t *testing.T, what string, got, want, by float64) {
	t.Helper()
	if !(math.Abs(got-want) <= by*math.Abs(want)) {
		t.Errorf("%s is %.4g, want %.4g ± %.0f%%", what, got, want, 100*by)
	}
}

// Rates, times and Little's law of known traffic.
func TestSteadyTraffic(t *testing.T) {
	events := steadyTraffic(40, 20*time.Minute, 120*time.Millisecond, 700)
	for i := range events[:len(events)/100] { // a hundredth fails, and tells nothing of times
		events[i*100].status, events[i*100].took = 500, 0
	}
	e := tallied(events)
	if e.Requests != len(events) || e.Clients != 700 || e.Pieces != 1 {
		t.Errorf("%d requests of %d clients in %d pieces, want %d of 700 in 1", e.Requests, e.Clients, e.Pieces, len(events))
	}
	within(t, "the rate", e.Rate, 40, 0.03)
	within(t, "the mean", e.PerSec, 40, 0.03)
	within(t, "the service time", e.Service.Seconds(), 0.120, 0.03)
	within(t, "in flight", e.InWork, 40*0.120, 0.04)
	within(t, "5xx", float64(e.Failed+e.Overload), 0.01*float64(e.Requests), 0.01)
	if e.Bursts.N != 0 || e.Retries != 0 || e.Full != 0 {
		t.Errorf("%d bursts, %d retries, %.1f served per second when full; want none", e.Bursts.N, e.Retries, e.Full)
	}
}

// The formats of Caddy's encoder that are read give the same estimate as the requests themselves. Durations
// that are whole numbers have an unknown unit, and do not count; lines in other formats are broken.
func TestFormats(t *testing.T) {
	w := town{population: mix(0.6, 0.4), told: some, n: 500, over: time.Hour, rejects: 0.6, most: 6}
	want := tallied(w.events(7))
	for format, at := range map[string]func(time.Time) string{
		"unix_seconds_float": nil, "iso8601": inFormat("2006-01-02T15:04:05.000Z0700"), "rfc3339_nano": inFormat(time.RFC3339Nano),
	} {
		for duration, took := range map[string]func(time.Duration) string{
			"s":      nil,
			"string": func(d time.Duration) string { return strconv.Quote(d.String()) },
			"ms":     func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) },
			"ns":     func(d time.Duration) string { return strconv.FormatInt(d.Nanoseconds(), 10) },
		} {
			got := read(t, pen{at: at, took: took}.write(t, w.events(7)))
			if got.Lines.Broken > 0 || got.Requests != want.Requests {
				t.Errorf("%s, %s: %+v", format, duration, got)
			}
			if whole := duration == "ms" || duration == "ns"; whole {
				if got.Lines.Untimed < got.Requests*9/10 {
					t.Errorf("%s, %s: %+v", format, duration, got)
				}
				continue
			}
			if got.Lines.Untimed > 0 || got.Judged != want.Judged || got.Retries != want.Retries {
				t.Errorf("%s, %s: %+v, want %+v", format, duration, got, want)
			}
			within(t, format+": the share that honors", honor(got), honor(want), 0.02)
			within(t, format+": the rate", got.Rate, want.Rate, 0.001)
			within(t, format+": the time", got.Service.Seconds(), want.Service.Seconds(), 0.001)
		}
	}
	if e, err := Read(bytes.NewReader(pen{at: inFormat("2006/01/02 15:04:05")}.write(t, w.events(7)[:9]))); err == nil || !strings.Contains(err.Error(), "9 broken") {
		t.Errorf("wall: %+v, %v", e, err)
	}
}

// Herds of clients are counted, page loads of one client are not.
func TestBursts(t *testing.T) {
	events := steadyTraffic(5, 20*time.Minute, 20*time.Millisecond, 300)
	for _, herd := range []struct{ at, n int }{{200, 300}, {500, 800}, {900, 100}} {
		for i := range herd.n {
			events = append(events, event{at: time.Duration(herd.at)*time.Second + time.Duration(i)*time.Millisecond, client: 1000 + i, path: "/", status: 200})
		}
	}
	for i := range 500 { // a page with many pictures
		events = append(events, event{at: 700*time.Second + time.Duration(i)*time.Millisecond, client: 3, path: fmt.Sprint("/picture/", i), status: 200})
	}
	e := tallied(events)
	if e.Bursts.N != 3 || e.Bursts.At.Sub(epoch.Truncate(time.Second)) != 500*time.Second {
		t.Errorf("%+v; want 3, the largest after 500 s", e.Bursts)
	}
	within(t, "the largest herd", float64(e.Bursts.Largest), 800, 0.06)
}

// Lines that are not of the access log are counted and skipped.
func TestSkippedLines(t *testing.T) {
	good := string(pen{}.write(t, []event{{client: 1, path: "/", status: 200}}))
	other := string(pen{logger: "http.log.error.log0"}.write(t, []event{{client: 1, path: "/", status: 502}}))
	long := strings.Replace(good, `"user_id":""`, `"user_id":"`+strings.Repeat("x", 3*longestLine)+`"`, 1)
	log := strings.Join([]string{
		good, "\n\n", other, `{"level":"info","ts":1.7e9,"logger":"tls","msg":"cleaning storage unit"}` + "\n",
		"2026/01/01 12:00:00 INFO not JSON\n", good[:len(good)/2] + "\n", "{}\n", "null\n", "[]\n", "\xff\xfe\n",
		`{"logger":"http.log.access","ts":"yesterday","request":{},"status":200}` + "\n",
		`{"logger":"http.log.access","ts":-5,"request":{},"status":200}` + "\n",
		`{"logger":"http.log.access","ts":1e300,"request":{},"status":200}` + "\n",
		`{"logger":"http.log.access","ts":1.7e9,"status":200}` + "\n",
		long, strings.TrimSuffix(good, "\n"),
	}, "")
	e := read(t, []byte(log))
	if want := (Lines{Read: 15, Other: 2, Broken: 11, Untimed: 0}); e.Lines != want || e.Requests != 2 {
		t.Errorf("%d requests, %+v; want 2, %+v", e.Requests, e.Lines, want)
	}
}

// Lines after filters are read, with headers that are gone or have become text.
func TestFilters(t *testing.T) {
	line := func(ts, more string, status int) string {
		return fmt.Sprintf(`{"logger":"http.log.access","ts":%s,"request":{"remote_ip":"192.0.2.1","method":"GET","host":"a","uri":"/"},"duration":0.001,"status":%d%s}`+"\n", ts, status, more)
	}
	for name, header := range map[string]string{
		"a list":          `,"resp_headers":{"Retry-After":["5"]}`,
		"a list, HTTP/2":  `,"resp_headers":{"retry-after":["5"]}`,
		"text":            `,"resp_headers":{"Retry-After":"5"}`,
		"a date":          `,"resp_headers":{"Retry-After":["Thu, 15 Jan 2026 12:00:05 GMT"]}`,
		"shield's object": `,"resp_headers":"gone","shield":{"decision":"reject","reason":"quota","zone":"z","retry_after_ms":4321}`,
	} {
		e := read(t, []byte(line("1768478400.001", header, 429)+line("1768478405.011", "", 200)))
		if len(e.Returns) != 1 || fmt.Sprint(e.Returns[0].Policy) != "exact" {
			t.Errorf("%s: %+v", name, e.Returns)
		}
	}
	e := read(t, []byte(line("1768478400.001", `,"resp_headers":"gone"`, 429)+line("1768478400.511", "", 200)))
	if e.Requests != 2 || e.Retries != 1 || honor(e) != 0 {
		t.Errorf("without headers: %+v", e)
	}
	// A client is an address, an IPv6 network of 64 bits, or what a filter has put in its place.
	for n, clients := range map[int]string{
		1: "2001:db8::1 2001:db8::ffff:2", 2: "2001:db8::1 2001:db8:0:1::1 2001:db8:0:1::2", 3: "192.0.2.1 192.0.2.2 ::ffff:192.0.2.3 192.0.2.3", 4: "1 2 3 4 4",
	} {
		log := ""
		for client := range strings.FieldsSeq(clients) {
			log += strings.Replace(line("1768478400.001", "", 200), "192.0.2.1", client, 1)
		}
		if e := read(t, []byte(log)); e.Clients != n {
			t.Errorf("%s are %d clients, want %d", clients, e.Clients, n)
		}
	}
}

// A night without a line makes pieces. Lines of a quiet site are far apart, and still one.
func TestPieces(t *testing.T) {
	day := steadyTraffic(10, 10*time.Minute, 50*time.Millisecond, 50)
	e := tallied(append(day, moved(day, 9*time.Hour)...))
	if e.Pieces != 2 {
		t.Errorf("%d pieces; want 2", e.Pieces)
	}
	within(t, "the rate", e.Rate, 10, 0.05)
	within(t, "the span", e.Span.Seconds(), 1200, 0.01)
	var quiet []event
	for i := range 25 {
		quiet = append(quiet, event{at: time.Duration(i) * 20 * time.Minute, client: i, path: "/", status: 200})
	}
	for n, want := range map[int]time.Duration{2: 20 * time.Minute, 3: 40 * time.Minute, 25: 8 * time.Hour} {
		if e := tallied(quiet[:n]); e.Span != want || e.Pieces != 1 || e.Lines.Unsorted != 0 {
			t.Errorf("%d lines: %v in %d pieces, %d out of order; want %v", n, e.Span, e.Pieces, e.Lines.Unsorted, want)
		}
	}
}

// Memory is bounded for any log: a flood of rejected addresses leaves a sample, which still
// tells the kinds of clients.
func TestFlood(t *testing.T) {
	tally := newTally()
	const n = 600_000
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most := heap(), int64(0)
	for i := range n { // each comes at i ms, and is rejected; every third comes back in time, 2 s later, for the same, another third for something else
		at := since1970(epoch.Add(time.Duration(i) * time.Millisecond))
		tally.request(request{end: at, client: hash(fmt.Sprint("client ", i)), what: 5, status: 429, seconds: 2 * time.Second})
		if old := i - 2010; old >= 0 && old%3 > 0 {
			tally.request(request{end: at, client: hash(fmt.Sprint("client ", old)), what: 4 + uint64(old%3), status: 200})
		}
		if i%50_000 == 0 {
			most = max(most, heap()-before)
		}
	}
	most = max(most, heap()-before)
	tally.request(request{end: since1970(epoch) + n*time.Millisecond + 9*time.Minute, client: 1, status: 200})
	e := tally.estimate()
	if len(tally.callers.of) > maxCallers || len(tally.clients.of) > maxCounted {
		t.Errorf("%d callers and %d clients are remembered", len(tally.callers.of), len(tally.clients.of))
	}
	if most > 30<<20 {
		t.Errorf("%d MiB of memory", most>>20)
	}
	t.Logf("%d MiB, %d judged", most>>20, e.Judged)
	if e.Judged < maxCallers/4 || e.Judged > maxCallers {
		t.Errorf("%d judged", e.Judged)
	}
	within(t, "clients", float64(e.Clients), n, 0.03)
	within(t, "the share that honors", honor(e), 1.0/3, 0.05)
	within(t, "retries", float64(e.Retries), n/3, 0.05)
}

// Every response is counted once, and streams have no time.
func TestAnswers(t *testing.T) {
	var events []event
	for i, status := range []int{200, 204, 101, 304, 404, 429, 499, 500, 502, 503, 504, 0} {
		events = append(events, event{at: time.Duration(i) * time.Second, took: 1500 * time.Millisecond, client: i, path: "/", status: status})
	}
	events = append(events, event{took: 9500 * time.Millisecond, client: 50, path: "/", status: 200, header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}})
	e := read(t, pen{}.write(t, events))
	if e.Requests != 13 || e.Quota != 1 || e.Overload != 3 || e.Failed != 1 || e.Timed != 2 || e.Service != 1500*time.Millisecond {
		t.Errorf("%d requests: %d of 429, %d of 502 to 504, %d of 500, %v of %d; want 13: 1, 3, 1, 1.5s of 2", e.Requests, e.Quota, e.Overload, e.Failed, e.Service, e.Timed)
	}
	within(t, "most served", e.Peak, 5.0/12, 0.001) // in the seconds after the first, of which the log has only a part
}

func FuzzRead(f *testing.F) {
	f.Add(pen{}.write(f, []event{
		{client: 1, path: "/", status: 503, header: http.Header{"Retry-After": {"1"}}},
		{at: time.Second, took: time.Millisecond, client: 1, path: "/", status: 200},
	}))
	f.Add([]byte(`{"logger":"http.log.access","ts":9e18,"request":{"uri":"/"},"status":503,"duration":1e300,"resp_headers":{"Retry-After":["99999999999999999999"]}}`))
	f.Add([]byte(`{"logger":"http.log.access","ts":"2026/01/02 15:04:05","request":{},"status":429,"duration":"-5h"}`))
	f.Fuzz(func(t *testing.T, log []byte) {
		e, err := Read(bytes.NewReader(append(log, log...)))
		if err != nil && e == nil {
			return
		}
		p := e.Population()
		if len(p) == 0 || len(p) > clients.MaxShares || slices.ContainsFunc(p, func(s clients.Share) bool { return !(s.Weight > 0) }) {
			t.Errorf("the population is %+v", p)
		}
		if err := e.WriteTable(io.Discard); err != nil {
			t.Error(err)
		}
		if !(e.Rate >= 0) || math.IsInf(e.Rate, 0) || e.Service < 0 || e.Retries > e.Requests {
			t.Errorf("%+v", e)
		}
	})
}
