// Package accesslog reads Caddy's access log and estimates the inputs of a simulation: the
// rate and the times of requests, the number of clients, and how rejected clients retry.
//
// The log is that of Caddy's JSON encoder, plain or gzipped: the lines of the loggers
// http.log.access and below. It is read once, from beginning to end. Memory is bounded for
// any content: 13 MiB of live heap.
//
// # Time
//
// Caddy writes a line when a request has been answered, so the request came at its ts less
// its duration. The wait of a rejected client runs from the ts of the rejection to the
// arrival of its next request, network time included.
//
// Lines need not be sorted exactly: arrivals are counted in a ring of ten minutes, and lines that are
// older than that are in no second and in no wait. A new piece of log begins where nothing is logged for
// more than an hour. The time between pieces does not count.
//
// # Retries
//
// A request counts as a retry if the same client had a 429, 502, 503 or 504 for the same
// method, host and path. That must not be longer ago than its Retry-After and two minutes.
// An IPv6 client is its /64. Each rejected client is classified by all its waits, see [Behaviour]. Of more
// than 32,768 such clients a random half is kept, or a quarter, and so on. A hash of the
// address decides, so every kind of client is equally likely to be kept. That is Wegman's
// adaptive sampling (Flajolet, "On adaptive sampling", Computing 43, 1990).
package accesslog
