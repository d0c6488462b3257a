package pushback

import (
	"math"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// FuzzHint holds every hint to RFC 9110, section 10.2.3 (delay-seconds =
// 1*DIGIT), and to this package's own law: 1 to 59, rounded up, and the
// milliseconds never contradict the seconds.
func FuzzHint(f *testing.F) {
	for _, wait := range []int64{0, 1, -1, 999_999, 1_000_000, 59e9, 59e9 + 1, math.MaxInt64, math.MinInt64} {
		f.Add(wait, uint8(0), uint8(29))
		f.Add(wait, uint8(4), uint8(4))
	}
	delaySeconds := regexp.MustCompile(`^[1-9][0-9]?$`)
	f.Fuzz(func(t *testing.T, nanoseconds int64, a, b uint8) {
		wait := time.Duration(nanoseconds)
		lo, hi := 1+int(min(a, b))%maxSeconds, 1+int(max(a, b))%maxSeconds
		lo, hi = min(lo, hi), max(lo, hi)
		h := hint(wait, time.Duration(lo)*time.Second, time.Duration(hi)*time.Second)
		told := time.Duration(h.Ms) * ms
		if !delaySeconds.MatchString(strconv.Itoa(h.Seconds)) || h.Seconds > maxSeconds {
			t.Errorf("%v in [%d, %d] is told as %d s", wait, lo, hi, h.Seconds)
		}
		if h.Seconds < lo || h.Seconds > hi {
			t.Errorf("%v is told as %d s, outside [%d, %d]", wait, h.Seconds, lo, hi)
		}
		if h.Ms < 1 || int(math.Ceil(float64(h.Ms)/1000)) != h.Seconds {
			t.Errorf("%v in [%d, %d]: %d ms and %d s are not the same time", wait, lo, hi, h.Ms, h.Seconds)
		}
		if told < wait && h.Ms != hi*1000 {
			t.Errorf("%v in [%d, %d] is told as %v: too early", wait, lo, hi, told)
		}
		if told-wait >= ms && wait > 0 && h.Ms != lo*1000 {
			t.Errorf("%v in [%d, %d] is told as %v: later than it need be", wait, lo, hi, told)
		}
	})
}
