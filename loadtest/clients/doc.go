// Package clients models how clients retry: backoff, jitter, Retry-After, retry budgets
// and giving up.
//
// A [Policy] is data and a pure function. It gets everything that it may use, a random
// number included, and keeps no state. So a million clients share one value, and each
// client is a few numbers in a slice. A [Population] is a mix of policies. [Catalog] lists
// the named policies with their formulas and sources, and [Parse] reads a mix of names.
//
// A wait runs from the moment at which the client has read the rejection until it sends its
// next request. Network time is not included.
//
// In the formulas n counts the attempts that have failed, from 1, and U is
// uniform in [0, 1).
package clients
