package accesslog

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

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

// A pen writes lines as Caddy does, with Caddy's own encoder.
type pen struct {
	config logging.LogEncoderConfig
	logger string
}

func (p pen) write(t testing.TB, events []event) []byte {
	t.Helper()
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at + a.took - b.at - b.took) })
	enc := logging.JSONEncoder{LogEncoderConfig: p.config}
	if err := enc.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	logger := p.logger
	if logger == "" {
		logger = "http.log.access.log0"
	}
	var out bytes.Buffer
	for _, e := range events {
		ip := fmt.Sprintf("10.%d.%d.%d", e.client>>16&255, e.client>>8&255, e.client&255)
		r := (&http.Request{
			Method: "GET", Host: "shop.example", RequestURI: e.path, URL: &url.URL{Path: e.path}, Proto: "HTTP/1.1",
			RemoteAddr: "127.0.0.1:4711", Header: http.Header{"User-Agent": {"test"}},
		}).WithContext(context.WithValue(context.Background(), caddyhttp.VarsCtxKey, map[string]any{caddyhttp.ClientIPVarKey: ip}))
		line, err := enc.EncodeEntry(
			zapcore.Entry{Level: zapcore.InfoLevel, Time: epoch.Add(e.at + e.took), LoggerName: logger, Message: "handled request"},
			[]zapcore.Field{
				zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r}),
				zap.Int("bytes_read", 0), zap.String("user_id", ""),
				zap.Duration("duration", e.took), zap.Int("size", 5), zap.Int("status", e.status),
				zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: e.header}),
			})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(line.Bytes())
		line.Free()
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
