// Package endtoend measures what Caddy pays per request for shield, from the
// server's entry to its response, beside Caddy alone, a static 429, and
// github.com/mholt/caddy-ratelimit.
//
// It has nothing but tests; README.md says how to run them.
package endtoend

import (
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
