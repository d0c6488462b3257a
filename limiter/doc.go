// Package limiter does rate limiting with token buckets (GCRA): it decides whether a request
// fits into a rate.
//
// A [Limit] is what you set. A [Bucket] is what traffic writes, a single instant, and a [Table]
// holds one instant for each of very many keys. You pass the limit with every call, so a reload
// changes it immediately without forgiving any client, and a config that is never used changes
// nothing.
//
// # The law
//
// A token bucket holds Burst tokens and earns Rate tokens per Per. A request costing n tokens is
// admitted, and takes them, if n tokens are there. The bucket is stored as the moment at which
// it will be full again (fullAt): it owes fullAt-now of earning time, and a full bucket is worth
// Burst earning intervals.
//
//	paid  = max(fullAt, now) + n*interval
//	short = paid - now - burst*interval
//	admit if short <= 0, then fullAt = paid; else reject, and wait short
//
// For example, with 10/s and a burst of 5 the interval is 100 ms. Five requests in one burst
// make fullAt = now+500ms, so a sixth is short by 100 ms.
//
// This is the virtual scheduling form of the generic cell rate algorithm, ITU-T I.371 annex A,
// with the semantics of golang.org/x/time/rate.
//
// # Promises
//
// In any window of length t, at most burst + rate*t tokens are taken, even if clock readings
// arrive out of order. A rejection changes nothing. Its wait is exact: if nothing else arrives,
// the same request is admitted at now+wait, and not a nanosecond sooner. Memory is bounded.
//
// # Limitations
//
// The time to earn one token is rounded up to whole nanoseconds. The rate is therefore never
// above what you set, and below it by a share of at most Rate/1e9 per second (0.1% at a million
// per second). A full Table forgets keys; its documentation says which.
//
// # Time
//
// now is the time since an epoch that the caller chooses and keeps, taken from a monotonic
// clock, such as [time.Since] of one fixed [time.Time]. Only differences count, and nothing here
// reads a clock.
package limiter
