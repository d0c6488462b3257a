// Package live is a load generator with real sockets, and a fragile backend to aim it at.
//
// A [Load] sends clients in an open loop at a rate, together as a herd, or both, over
// HTTP/1.1. They retry by the policies of package clients. Latencies run
// from the instant at which a request was due. The result second by second compares
// directly with a simulation of package sim.
//
// A herd and a fragile [Backend] make a demonstration.
//
// Arrivals and waits are random, from a seed. Other differences between two runs come
// from the server, and from the scheduler.
//
// The package reads the real clock and waits with timers. Tests run it in testing/synctest
// bubbles, where a minute passes at once.
package live
