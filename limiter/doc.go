// Package limiter is rate limiting by token buckets (GCRA): it decides whether a
// request fits into a rate.
//
// A [Limit] is what the operator sets. A [Bucket] is what traffic writes: one instant. A
// [Table] holds one instant per key for very many keys. Limits are passed with every
// call: a reload changes a limit at once and forgives no client, and a config that is
// never used changes nothing.
//
// # The law
//
// A token bucket holds Burst tokens and earns Rate tokens per Per. A request of
// cost n is admitted if n tokens are there, and takes them. The bucket is kept
// as the moment at which it will be full again (fullAt): it owes fullAt-now of
// earning time, and a full bucket is worth Burst earning intervals.
//
//	paid  = max(fullAt, now) + n*interval
//	short = paid - now - burst*interval
//	admit if short <= 0, then fullAt = paid; else reject, and wait short
//
// This is the virtual scheduling form of the generic cell rate algorithm, ITU-T
// I.371 annex A, with the semantics of golang.org/x/time/rate.
//
// # Promises
//
// In any window of length t at most burst + rate*t tokens are taken, also when
// clock readings arrive out of order. A rejection changes nothing. The wait of a
// rejection is exact: the same request is admitted at now+wait, and not a
// nanosecond sooner, if nothing else comes. Memory is bounded.
//
// # Limitations
//
// The time to earn one token is rounded up to whole nanoseconds: the rate is
// never above what was set, and below it by a share of at most Rate/1e9 per
// second (0.1 % at a million per second). A full Table forgets keys; its
// documentation says which.
//
// # Time
//
// now is the time since an epoch that the caller chooses and keeps, taken from
// a monotonic clock: [time.Since] of one fixed [time.Time] is right. Only
// differences count. Nothing here reads a clock.
package limiter
