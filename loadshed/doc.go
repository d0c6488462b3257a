// Package loadshed is load shedding by admission control: it finds how many requests a backend can have in
// flight, and decides which are admitted, which wait and which are rejected.
//
// A gate counts requests in flight and admits one more only below the limit. The limit is
// a number, or an adaptive concurrency limit, which follows the backend. A queue before the
// gate smooths bursts. Classes keep permits for requests of higher priority, and counts by
// client find those with more than a fair share. A budget caps retries, and a pause is
// backpressure from the backend. [Concurrency] composes them all under a [Plan].
//
// The operator's settings are passed with every call and never stored, so that a reload
// applies at once to all that is known and in flight.
//
// # The control loop of the adaptive limit
//
// Signal: congestion, the time that requests took over the time that the same requests
// would have taken without a queue, the baseline. By Little's law (Little, "A Proof for the
// Queuing Formula L = λW", 1961) the rate times the baseline is how many have to be in
// flight, the need. A time-out counts as a latency as long as it lasted.
//
// Setpoint: the greatest need of the last windows, plus headroom of a twentieth, half of
// the square root of it, and two. That is the staffing rule of Halfin and Whitt ("Heavy-Traffic Limits
// for Queues with Many Exponential Servers", 1981): few workers need more slack than many.
//
// Actuator: the limit, from min to max. It is cut by 30 % at most, after two windows
// above the tolerance, and rises to what the need calls for. A limit that is not used up does
// not rise. Where the backend rejects requests or all time out, it is cut at once.
//
// Period: a window of two mean latencies, 250 ms to 1 s, with 25 requests or more that
// count as 12 equal ones (Kish, 1965).
//
// Law: the baseline is learned for free while the limit is not used up. While it is,
// latency proves nothing, and the baseline stands still, except for two experiments:
//
//   - A cut must pay off. If latency does not follow the limit down, there is no queue:
//     the cut is taken back, and the measured latency becomes the baseline.
//   - A probe. Under lasting pressure the limit is halved for the time of some 60
//     requests. If as much is served as before, there was a queue, and the lower limit
//     stays. Otherwise latency at half the limit is the baseline. This is BBR's ProbeRTT
//     (Cardwell and others, 2016) for concurrency.
//
// The first keeps a backend that has become slower, without a queue, from being throttled;
// the second keeps the limit from drifting in a long overload.
//
// A 429 means that its client is over a quota, or that the backend is full: then they come only while as many are in
// flight as it takes. Where that is so, a third experiment lowers the limit a little. If the 429s end, they bound it.
//
// With a target (AdaptiveConfig.Target) there is no baseline. The limit is the highest
// that serves 95 % of the requests in time, by AIMD.
//
// # Promises
//
// The count of the gate is exact: with a limit of n there are never n+1 in flight,
// however many goroutines enter at once. A rejection changes no state. The limit stays
// within its bounds, and each change has a reason. A request that does not wait allocates
// nothing; the law runs once per window, in the goroutine of a request that ends.
//
// # Time
//
// now is the time since an epoch that the caller keeps, from a monotonic clock.
package loadshed
