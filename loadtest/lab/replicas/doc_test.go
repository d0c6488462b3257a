// Package replicas has nothing but tests: real processes of the program, a real store and
// real clients over sockets. They show what docs/replicas.md says of a herd and of places
// in flight, counted at the backend.
//
//	go -C loadtest/lab test ./replicas                       # 10 s: the limits hold, on a machine however busy
//	go -C loadtest/lab test ./replicas -full -v -timeout 30m # 12 min: the tables and their bounds, on a machine that has nothing else to do
//
// With -full, -run 'TestHerd/^4$/other/store_flushed' plays some rows, beside the one process
// that they are measured by.
//
// # A herd
//
// 1,000 clients come within 100 ms, to a capacity of 100 per second with a burst of 10,
// beside others at 30 per second. Each opens a connection for each attempt, to the replica
// that the balancer picks, and comes back when it was told. "other" is never the same replica
// twice in a row, "skew" the first of them nine times in ten. One machine has all of this:
// while the herd comes it is busy, and exchanges with the store take long.
//
// In any window the backend gets at most one request for each replica beyond burst + rate * time.
// A request counts there when its replica passed it on: a busy machine brings requests
// together that were sent in turn.
//
// # Places
//
// Three times as many clients come as the backend can serve with its places, at even times, to
// all replicas, to one, or to one after the other. Without a queue a place stays empty until
// the next client comes.
package replicas

import "flag"

var full = flag.Bool("full", false, "play the rows of docs/replicas.md, and write them to standard output; wants -v")
