// Package loadshed finds out how many requests a backend can have in flight, and
// decides who is let in, who waits and who is refused.
//
// A [Gate] counts what is in flight and lets one more in only while that is less
// than the limit. The limit is a number, or an [Adaptive] one, which follows the
// backend. Before the gate a [Queue] smooths bursts. [Shares] keep room for the
// more important classes, [InFlight] sees who has far more than a fair share,
// [Orphans] count work whose client has gone, a [Budget] bounds what retries may
// take, and a [Pause] is the backend's own wish to be left alone.
//
// What the operator sets is passed with every call and never stored, so that a
// reload applies at once to what is known and in flight.
//
// # The control loop of Adaptive
//
// Signal: congestion, the time that requests took over the time that the same
// requests would have taken without a queue. By Little's law (Little, "A Proof for
// the Queuing Formula L = λW", 1961) both are numbers in flight: the sum of the
// latencies over the time that passed is how many there were, the sum of the
// baselines how many there had to be, the need. Each kind of request has its own
// baseline, so that more of the slow ones is no congestion. A time-out is a latency
// as long as it lasted.
//
// Setpoint: the need, and headroom of a tenth and the square root of it: the
// staffing rule of Halfin and Whitt (1981), as few workers need more slack than
// many. Under heavy overload half of it is enough.
//
// Actuator: the limit, from min to max. It is cut by 30 % at most, after two windows
// above the tolerance, and rises by half of its square root, or by half of itself
// after a failure until it is what it was (slow start: Jacobson, 1988). A limit that
// is not used up does not rise.
//
// Period: a window of two mean latencies, 250 ms to 1 s, with 25 requests or more
// that count as 12 equal ones (Kish, 1965).
//
// Law: the baseline is learnt for free while the limit is not used up. While it is,
// latency proves nothing, and the baseline stands still, but for three experiments:
//
//   - A cut must pay. If latency does not follow the limit down, it is the backend's
//     own: the cut is taken back, and the baseline is what was measured.
//   - Throughput must not suffer. If less is served than was at a higher limit, the
//     limit is below the knee, and rises again.
//   - A probe. Under lasting pressure the limit is halved for the time of some 60
//     requests. If as much is served as before, there was a queue, and the lower
//     limit stays; otherwise latency at half the limit is the baseline. This is
//     BBR's ProbeRTT (Cardwell and others, 2016) for concurrency.
//
// In simulation the probe is what keeps the limit from drifting over half an hour of
// overload, and the first experiment is what keeps a backend that has become
// slower, without a queue, from being throttled. A variant with the formula of
// Netflix's Gradient2, a frozen baseline and the same probes refused 22 to 52 % for
// a minute in the latter case, where this law refuses 4.
//
// With a target (Config.Target) there is no baseline: the limit is as high as lets
// 95 % of the requests be served in time.
//
// # Promises
//
// The count of the gate is exact: with a limit of n there are never n+1 in flight,
// however many goroutines enter at once. A refusal changes nothing. The limit stays
// within its bounds, and each change has a reason. Requests cost atomics only and
// no allocation; the law runs once per window, in the goroutine whose request ends
// then. All memory is the structs' own.
//
// # Non-promises
//
// The limit is that of one proxy: several before one backend each find theirs.
// Within the first seconds, and under one request per second, little is known. A
// backend that is busy to more than nine tenths is refused some bursts that it could
// have taken. A single worker that is blocked by one very long request looks
// overloaded, as it is. Latency that rises with the limit without a queue, as in a
// cache that is thrashed, is taken for a queue.
//
// # How long to wait
//
// [Gate.Drain] tells a refused request how long what is in flight now will take
// to leave. By Little's law the requests in flight are their rate of completion
// times their mean time of service, so they leave in one mean time of service. It
// is measured over the last completions. When nothing has completed for longer than
// that, the backend is slower than it was, and the time since the last completion is
// the better estimate. Before the first completion ever it is a second.
package loadshed
