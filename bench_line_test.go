package shield

import (
	"github.com/herdshield/shield/limiter"
	"sync/atomic"
	"testing"
	"time"
)

func benchGuard(b *testing.B, parallel bool, kind string) {
	g, err := New(Config{Capacity: perSecond(1000, 100)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Hour
	if kind != "free" {
		for i := range 20000 {
			g.Admit(now, Request{Client: limiter.Key(1e6 + i*7919), Fingerprint: 7})
		}
	}
	var n atomic.Int64
	step := func(i int64) {
		switch kind {
		case "free":
			d := g.Admit(now+time.Duration(i)*2*time.Millisecond, Request{Client: limiter.Key(uint64(i) * 0x9e3779b97f4a7c15), Fingerprint: 7})
			if d.Admit {
				d.Done(now, Served)
			}
		case "early":
			g.Admit(now+5*time.Second, Request{Client: limiter.Key(1e6 + (10000+i%10000)*7919), Fingerprint: 7})
		case "refuse":
			d := g.Admit(now+time.Duration(i)*time.Microsecond/4, Request{Client: limiter.Key(uint64(i+1) * 0x9e3779b97f4a7c15), Fingerprint: 7})
			d.Sent()
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	if parallel {
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				step(n.Add(1))
			}
		})
	} else {
		for i := range b.N {
			step(int64(i))
		}
	}
}
func BenchmarkCore(b *testing.B) {
	for _, k := range []string{"free", "refuse", "early"} {
		b.Run(k, func(b *testing.B) { benchGuard(b, false, k) })
		b.Run(k+"-par", func(b *testing.B) { benchGuard(b, true, k) })
	}
}
