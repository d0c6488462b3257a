// Package clients says when refused clients come back.
//
// A [Policy] is data and a pure function: it is given all that it may use, a
// random number included, and keeps nothing. So a million clients share one
// value, and a client is a few numbers in a slice. A [Population] is a mix of
// policies.
//
// A policy speaks of waits as the client sees them: from the moment that it has
// read the refusal until it sends its next request. The network is not in it.
package clients
