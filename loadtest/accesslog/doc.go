// Package accesslog reads Caddy's access log, and estimates what a simulation
// needs to know of a site: how many requests come and how long they take, how
// many clients there are, and what they do when they are refused.
//
//	e, err := accesslog.Read(file)
//	e.WriteTable(os.Stdout)
//	fmt.Print(e.Suggest())
//
// The log is that of Caddy's JSON encoder, plain or gzipped: the lines of the
// loggers http.log.access and below. It is read once, from its beginning to its end, and
// memory does not depend on what is in it: 11 MiB that are alive, and a process grows by less than 50 MiB.
//
// # Time
//
// A line is written when its request has been answered, so a request came at its
// ts less its duration, and the wait of a client that was refused is from the ts
// of the refusal to the arrival of its next request. The network is in it.
//
// Lines need not be sorted exactly: arrivals are counted in a ring of ten minutes. Where
// the clock goes back by more than that, or nothing is logged for more than an
// hour, a new piece of log begins. Waits do not reach over pieces, and the time
// between them does not count. Fewer than ten lines in a row that are more than ten minutes
// from those around them are stray: they are in no piece. Where pieces overlap, as those
// of several servers do, or lines are out of order, [Estimate.WriteTable] says so.
//
// # Retries
//
// A request is taken for a retry if the same client (an IPv6 client is its /64) had asked for the same,
// method, host and path, was answered 429, 502, 503 or 504, and
// that is not longer ago than two minutes and what Retry-After had said. Each client that
// has been refused is judged by all its waits, see [Behaviour]. If there are
// more than 32,768, it is a random half of them, or a quarter, and so on: which, is decided by a hash of the
// address, as in Wegman's adaptive sampling (Flajolet, "On adaptive sampling", Computing 43,
// 1990). So no kind of client is more likely to be forgotten than
// another.
package accesslog
