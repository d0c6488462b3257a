// Package endtoend measures what Caddy pays per request for shield, from the
// server's entry to its answer, beside Caddy alone, a static 429, and
// github.com/mholt/caddy-ratelimit.
//
// It has nothing but tests; README.md says how to run them.
package endtoend

import (
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

type connectFunc func(testing.TB, *caddyhttp.Server) client

var levels = []struct {
	name    string
	connect connectFunc
}{
	{"pipeline", newPipeline},
	{"socket", newSocket},
}

// BenchmarkAdmit shows what a limiter adds to a request that it lets through.
func BenchmarkAdmit(b *testing.B) {
	for _, level := range levels {
		for _, next := range []struct{ name, handler string }{
			{"respond", respond},
			{"proxy", ""},
		} {
			for _, r := range admitting {
				b.Run("level="+level.name+"/next="+next.name+"/handler="+r.name, func(b *testing.B) {
					measure(b, r.start(b, level.connect, next.handler), r.want)
				})
			}
		}
	}
}

// BenchmarkRefuse shows what an answer costs that spares the backend.
func BenchmarkRefuse(b *testing.B) {
	for _, level := range levels {
		for _, r := range refusing {
			b.Run("level="+level.name+"/handler="+r.name, func(b *testing.B) {
				measure(b, r.start(b, level.connect, ""), r.want)
			})
		}
	}
}

func measure(b *testing.B, c client, want answer) {
	b.ReportAllocs()
	cpu := cpuTime()
	for b.Loop() {
		// Every answer is checked: a bucket that refills halfway would mix
		// admissions into the price of refusals.
		if got, err := c.do(); err != nil || !want.covers(got) {
			b.Fatalf("answer %+v, error %v; want %+v", got, err, want)
		}
	}
	// The whole process, so socket rows include the client; but waiting and
	// busy neighbours, which ns/op suffers from, do not count.
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}
