package accesslog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// epoch is when the logs of tests begin.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)

// An event is a request of a test log.
type event struct {
	at     time.Duration // since epoch, when it came
	took   time.Duration
	client int
	path   string
	status int
	header http.Header // of the response
}

// A pen writes lines as Caddy does. TestAccessLogOfCaddy in cmd/shield compares them with Caddy's own.
type pen struct {
	logger string
	at     func(time.Time) string     // in JSON; nil: unix_seconds_float
	took   func(time.Duration) string // in JSON; nil: seconds
}

// inFormat returns how a pen writes instants in a format of package time.
func inFormat(layout string) func(time.Time) string {
	return func(t time.Time) string { return strconv.Quote(t.Format(layout)) }
}

func (p pen) write(t testing.TB, events []event) []byte {
	t.Helper()
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at + a.took - b.at - b.took) })
	if p.logger == "" {
		p.logger = "http.log.access.log0"
	}
	if p.at == nil {
		p.at = func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixNano())/1e9, 'f', -1, 64) }
	}
	if p.took == nil {
		p.took = func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
	}
	var out bytes.Buffer
	for _, e := range events {
		header, err := json.Marshal(e.header)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, `{"level":"info","ts":%s,"logger":%q,"msg":"handled request",`+
			`"request":{"remote_ip":"127.0.0.1","remote_port":"4711","client_ip":"10.%d.%d.%d","proto":"HTTP/1.1","method":"GET","host":"shop.example","uri":%q,"headers":{"User-Agent":["test"]}},`+
			`"bytes_read":0,"user_id":"","duration":%s,"size":5,"status":%d,"resp_headers":%s}`+"\n",
			p.at(epoch.Add(e.at+e.took)), p.logger, e.client>>16&255, e.client>>8&255, e.client&255, e.path, p.took(e.took), e.status, header)
	}
	return out.Bytes()
}

// A town is clients of a known population, and a server that rejects at random.
type town struct {
	population clients.Population
	n          int           // clients
	over       time.Duration // in which they come first
	rejects    float64       // the probability that an attempt is rejected
	told       func(*rand.Rand) pushback.Hint
	most       int // attempts of a client, so that none goes on for ever
}

// some is a hint of 1 to 8 whole seconds, with the milliseconds of a shield that does not
// dither.
func some(r *rand.Rand) pushback.Hint {
	s := 1 + r.IntN(8)
	return pushback.Hint{Seconds: s, Ms: 1000*s - r.IntN(1000)}
}

func nothing(*rand.Rand) pushback.Hint { return pushback.Hint{} }

func (w town) events(seed uint64) (all []event) {
	random := rand.New(rand.NewPCG(seed, 5))
	for c := range w.n {
		policy := w.population[w.population.Pick((float64(c)+0.5)/float64(w.n))].Policy
		begin := time.Duration(random.Float64() * float64(w.over))
		at, gap := begin, time.Duration(0)
		for attempt := 1; ; attempt++ {
			e := event{at: at, client: c, path: "/item?n=" + strconv.Itoa(attempt), status: 200, took: time.Duration(random.ExpFloat64() * float64(50*time.Millisecond))}
			if attempt >= w.most || random.Float64() >= w.rejects {
				all = append(all, e)
				break
			}
			hint := w.told(random)
			e.status, e.took = 503, time.Duration(random.Float64()*float64(time.Second)) // dithered
			if hint != (pushback.Hint{}) {
				e.header = http.Header{"Retry-After": {strconv.Itoa(hint.Seconds)}, "Retry-After-Ms": {strconv.Itoa(hint.Ms)}}
			}
			all = append(all, e)
			wait, again := policy.Next(clients.Rejected{Attempt: attempt, Hint: hint, Gap: gap, Elapsed: at + e.took - begin, U: random.Float64()})
			if !again {
				break
			}
			rtt := 10*time.Millisecond + time.Duration(random.ExpFloat64()*float64(20*time.Millisecond))
			gap = wait
			at += e.took + wait + rtt
		}
	}
	return all
}

// read is the estimate of a log.
func read(t testing.TB, log []byte) *Estimate {
	t.Helper()
	e, err := Read(bytes.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// since1970 is how a request has its times.
func since1970(t time.Time) time.Duration { return time.Duration(t.UnixNano()) }

// tallied is the estimate of events without their lines, which other tests read.
func tallied(events []event) *Estimate {
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at + a.took - b.at - b.took) })
	t := newTally()
	for _, e := range events {
		path, _, _ := strings.Cut(e.path, "?")
		seconds, _ := strconv.Atoi(e.header.Get("Retry-After"))
		millis, _ := strconv.Atoi(e.header.Get("Retry-After-Ms"))
		t.request(request{
			end: (since1970(epoch) + e.at + e.took).Truncate(time.Microsecond), took: e.took, status: e.status,
			client: hash(strconv.Itoa(e.client)), what: hash("GET", "shop.example", path),
			seconds: time.Duration(seconds) * time.Second, millis: time.Duration(millis) * time.Millisecond,
		})
	}
	return t.estimate()
}

// mix has clients that obey Retry-After, and clients that come every 15 s.
func mix(exact, hammer float64) clients.Population {
	return clients.Population{{Weight: exact, Policy: clients.Exact{}}, {Weight: hammer, Policy: clients.Hammer{Gap: 15 * time.Second}}}
}
