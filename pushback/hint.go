package pushback

import "time"

// maxSeconds is the longest Retry-After: from 60 s on the Azure SDKs give up
// and older OpenAI clients hammer.
const maxSeconds = 59

// A Hint is when to come back.
type Hint struct {
	Seconds int // the wait in whole seconds, rounded up: 1 to 59
	Ms      int // the wait in milliseconds, rounded up: never above Seconds
}

// hint rounds wait up to whole seconds and to milliseconds. Seconds are then
// raised to lo or lowered to hi, and Ms with them.
func hint(wait time.Duration, lo, hi int) Hint {
	ms := int64(wait / time.Millisecond)
	if wait%time.Millisecond > 0 {
		ms++
	}
	ms = max(ms, 1)
	switch {
	case ms > int64(hi)*1000:
		ms = int64(hi) * 1000
	case ms <= int64(lo-1)*1000:
		ms = int64(lo) * 1000
	}
	return Hint{Seconds: int((ms + 999) / 1000), Ms: int(ms)}
}
