// Package loadshed decides whether there is room in flight.
//
// A [Gate] counts the requests that are being served and lets one more in only
// while they are fewer than the limit. The limit is passed with every call and
// never stored, so that a reload applies at once while requests that entered
// under the old one are still counted.
//
// # Promises
//
// The count is exact: with a limit of n there are never n+1 in flight, however
// many goroutines enter at once. A refusal changes nothing.
//
// # How long to wait
//
// [Gate.Drain] tells a refused request how long what is in flight now will take
// to leave. By Little's law (Little, "A Proof for the Queuing Formula L = λW",
// 1961) the requests in flight are their rate of completion times their mean
// time of service, so they leave in one mean time of service. It is measured
// over the last completions. When nothing has completed for longer than that,
// the backend is slower than it was, and the time since the last completion is
// the better estimate. Before the first completion ever it is a second.
//
// # Non-promises
//
// There is no queue: who finds no room is refused. Waiting times of several
// refused clients are not yet told apart.
package loadshed
