// Package endtoend measures what Caddy pays per request for shield, from the
// server's entry to its response, beside Caddy alone, a static 429, and
// github.com/mholt/caddy-ratelimit.
//
// It has nothing but tests; README.md says how to run them.
package endtoend

import (
	"net/http"
	"syscall"
	"testing"
	"time"
)

// BenchmarkAdmit shows what a limiter adds to a request that it lets through.
func BenchmarkAdmit(b *testing.B) {
	for _, next := range []struct{ name, handler string }{
		{"respond", respond},
		{"proxy", ""},
	} {
		for _, r := range admitting {
			b.Run("next="+next.name+"/handler="+r.name, func(b *testing.B) { measure(b, r.start(b, next.handler), r.want) })
		}
	}
}

// BenchmarkReject shows what a response costs that spares the backend.
func BenchmarkReject(b *testing.B) {
	for _, r := range rejecting {
		b.Run("handler="+r.name, func(b *testing.B) { measure(b, r.start(b, ""), r.want) })
	}
}

func measure(b *testing.B, c *pipeline, want answer) {
	b.ReportAllocs()
	cpu := cpuTime()
	for b.Loop() {
		// Every response is checked: a bucket that refills halfway would mix
		// admissions into the price of rejections.
		if got := c.do(); !want.covers(got) {
			b.Fatalf("answer %+v; want %+v", got, want)
		}
	}
	// Waiting and busy neighbours, which ns/op suffers from, do not count.
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the processor time this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A row is one handler under test, set before the handler that would serve.
type row struct {
	name    string
	handler string // in JSON; empty for none
	hold    bool   // measured while another request is in flight
	want    answer
}

var (
	served      = answer{status: http.StatusOK, size: len(okBody)}
	tooMany     = answer{status: http.StatusTooManyRequests, retryAfter: true}
	unavailable = answer{status: http.StatusServiceUnavailable, retryAfter: true}
)

// respond serves from memory, to show a limiter's cost without a proxy's.
const respond = `{"handler": "static_response", "status_code": 200, "body": "ok\n"}`

// admitting are handlers with limits that one client cannot reach.
var admitting = []row{
	{name: "none", want: served},
	{name: "shield", want: served, handler: `{"handler": "shield",
		"zones": [{"name": "per_client", "key": "{http.vars.client_ip}", "rate": 1000000, "per": "1s", "burst": 1000000}],
		"capacity": {"rate": 1000000, "per": "1s", "burst": 1000000},
		"concurrency": {"limit": 1000}}`},
	// Only a zone: what caddy-ratelimit can be compared with.
	{name: "shield-zone", want: served, handler: `{"handler": "shield",
		"zones": [{"name": "per_client", "key": "{http.vars.client_ip}", "rate": 1000000, "per": "1s", "burst": 1000000}]}`},
	// A short window, because it allocates max_events timestamps per client.
	{name: "caddy-ratelimit", want: served, handler: `{"handler": "rate_limit", "rate_limits":
		{"per_client": {"key": "{http.vars.client_ip}", "max_events": 1000, "window": "1ms"}}}`},
}

// rejecting are handlers that reject from the second request on. The first is
// the yardstick: what operators write that reject all clients alike.
var rejecting = []row{
	{name: "respond", want: tooMany, handler: `{"handler": "static_response", "status_code": 429,
		"headers": {"Retry-After": ["1"]}, "body": "Too many requests\n"}`},
	{name: "shield-zone", want: tooMany, handler: `{"handler": "shield",
		"zones": [{"name": "per_client", "key": "{http.vars.client_ip}", "rate": 1, "per": "1h", "burst": 1}]}`},
	// Without dither: a rejection that is held back for a fraction of a second costs that, and no allocation.
	{name: "shield-capacity", want: unavailable, handler: `{"handler": "shield",
		"capacity": {"rate": 1, "per": "1h", "burst": 1}, "pushback": {"dither": false}}`},
	{name: "shield-concurrency", hold: true, want: unavailable, handler: `{"handler": "shield",
		"concurrency": {"limit": 1}, "queue": {"off": true}, "pushback": {"dither": false}}`},
	{name: "caddy-ratelimit", want: tooMany, handler: `{"handler": "rate_limit", "rate_limits":
		{"per_client": {"key": "{http.vars.client_ip}", "max_events": 1, "window": "1h"}}}`},
}

// start runs Caddy with the row's handler before next, which may be empty for
// a proxy to a backend of the row's own, and returns a client that has seen
// the response that the row is about.
func (r row) start(tb testing.TB, next string) *pipeline {
	tb.Helper()
	be := newBackend(tb)
	if next == "" {
		next = be.handler
	}
	if r.handler != "" {
		next = r.handler + "," + next
	}
	srv := serve(tb, next)
	if r.hold {
		be.hold(tb, srv)
	}
	c := newPipeline(tb, srv)
	// A row that rejects may first admit what its burst allows.
	for range 3 {
		got := c.do()
		if r.want.covers(got) {
			return c
		}
		if got != served {
			tb.Fatalf("answer %+v, want %+v", got, r.want)
		}
	}
	tb.Fatalf("still served after 3 requests, want %+v", r.want)
	return nil
}

// covers reports whether got is the response wanted. A rejection's body may be of
// any size.
func (want answer) covers(got answer) bool {
	if want.size == 0 {
		got.size = 0
	}
	return got == want
}
