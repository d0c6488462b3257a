package pushback

import "time"

// maxSeconds is the longest Retry-After of an overload: from 60 s on the Azure SDKs give
// up and older OpenAI clients hammer. A quota of an hour is worth giving up for.
const maxSeconds = 59

// A Hint is when to come back.
type Hint struct {
	Seconds int  // the wait in whole seconds, rounded up: 1 to 59, for a quota to 86,400
	Ms      int  // the wait in milliseconds, rounded up: never above Seconds
	Never   bool // not at all; Seconds and Ms are 0
}

// hint rounds wait up to milliseconds and to whole seconds. Both are at most hi. A lo above
// a second is their least; with a lo of a second the milliseconds are the exact wait.
func hint(wait, lo, hi time.Duration) Hint {
	ms := int64(wait / time.Millisecond)
	if wait%time.Millisecond > 0 {
		ms++
	}
	if lo > time.Second {
		ms = max(ms, lo.Milliseconds())
	}
	ms = min(max(ms, 1), hi.Milliseconds())
	return Hint{Seconds: int((ms + 999) / 1000), Ms: int(ms)}
}
