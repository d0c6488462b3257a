// Package clients says when clients come back whose attempt has failed.
//
// A [Policy] is data and a pure function: it is given all that it may use, a
// random number included, and keeps nothing. So a million clients share one
// value, and a client is a few numbers in a slice. A [Population] is a mix of
// policies. [Catalog] lists the policies that have a name, with their formulas
// and where these come from, and [Parse] reads a mix of names.
//
// A policy speaks of waits as the client sees them: from the moment that it has
// read the refusal until it sends its next request. The network is not in it.
//
// In the formulas n counts the attempts that have failed, from 1, and U is
// uniform in [0, 1).
package clients
