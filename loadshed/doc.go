// Package loadshed does load shedding by admission control: it finds how many requests a backend
// can have in flight, and decides which are admitted, which wait and which are rejected.
//
// A gate counts requests in flight and admits another one only below the limit. The limit is a
// number, or an adaptive concurrency limit that follows the backend. In front of the gate, a
// queue smooths bursts. Classes keep permits for requests of higher priority, counting by client
// finds those with more than a fair share, a budget caps retries, and a pause is backpressure
// from the backend. [Concurrency] composes them all under a [Plan].
//
// You pass the settings with every call and they are never stored, so a reload applies
// immediately to everything known and in flight.
//
// # The control loop of the adaptive limit
//
// Signal: congestion, which is how long requests took, divided by the baseline: how long the
// same requests would have taken without a queue. By Little's law (Little, "A Proof for the
// Queuing Formula L = λW", 1961), rate times baseline is how many have to be in flight, the
// need. A timeout counts as a latency as long as it lasted.
//
// Setpoint: the greatest need of the last windows, plus headroom of a twentieth of it, half of
// its square root, and two. That is the staffing rule of Halfin and Whitt ("Heavy-Traffic Limits
// for Queues with Many Exponential Servers", 1981): few workers need more slack than many.
//
// Actuator: the limit, from min to max. It is cut by at most 30%, after two windows above the
// tolerance, and rises to what the need calls for. A limit that isn't used up doesn't rise. If
// the backend rejects requests or all of them time out, it is cut immediately.
//
// Period: a window of two mean latencies, 250 ms to 1 s, with 25 requests or more that count as
// 12 equal ones (Kish, 1965).
//
// Law: while the limit isn't used up, the baseline is learned for free. While it is, latency
// proves nothing, so the baseline stands still, except for three experiments:
//
//   - A climb. When an overload begins, the limit rises by half again and again, as long as
//     throughput follows and latency doesn't. This is a slow start that stops by itself.
//   - A cut must pay off. If latency doesn't follow the limit down, there is no queue, so the
//     cut is taken back and the measured latency becomes the baseline.
//   - A probe. Under lasting pressure, the limit is halved for the time of some 60 requests. If
//     as much is served as before, there was a queue, and the lower limit stays. Otherwise,
//     latency at half the limit is the baseline. This is BBR's ProbeRTT (Cardwell and others,
//     2016) for concurrency.
//
// The first finds large backends within a second or two, the second keeps one that became slower
// without a queue from being throttled, and the third keeps the limit from drifting in a long
// overload.
//
// A 429 means either that its client is over a quota, or that the backend is full. In the second
// case, 429s appear only while a certain number is in flight. If that's so, a fourth experiment
// lowers the limit a little. If the 429s then end, what was in flight bounds it from above.
//
// With a target (AdaptiveConfig.Target) there is no baseline. The limit is the highest that
// serves 95% of the requests in time, found by AIMD.
//
// # Promises
//
// The gate's count is exact: with a limit of n there are never n+1 in flight, however many
// goroutines enter concurrently. A rejection changes no state. The limit stays within its
// bounds, and each change has a reason. A request that doesn't wait allocates nothing, and the
// law runs once per window, in the goroutine of a request that is ending.
//
// # Time
//
// now is the time since an epoch that the caller keeps, from a monotonic clock.
package loadshed
