// Package endpoint balances the load of a Backend: it chooses an endpoint for each
// request, and counts the requests in flight to each.
//
// # The choice
//
// Of two random endpoints, the one with fewer requests in flight: the power of two choices
// (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 1996). It is
// close to the least of all, without a stampede to a single endpoint. If neither is
// eligible, all are searched. The first of these groups that is not empty is used:
//
//  1. endpoints that have not been tried for this request, and are not ejected;
//  2. ejected ones that have not been tried;
//  3. tried ones that are not ejected;
//  4. all others.
//
// Draining endpoints are used only while none is Ready. If the whole group has as many
// requests in flight as it may have, the response is ErrFull: the request should wait or be
// rejected, and not be sent where it is likely to fail.
//
// # Slow start
//
// An endpoint that becomes Ready beside others has cold caches, and the fewest requests in flight. For
// 10 s it may be one of the two with a probability that rises linearly from a tenth to one: Envoy's slow
// start with its default minimum and aggression. If the others are full, it gets requests all the same.
//
// # Ejection
//
// An endpoint that rejects connections is ejected for 1 s, and for twice as long each time its trial
// fails, up to 30 s. Then it is on trial: it gets one request per second until one of them has been
// Served. This is the half-open state of a circuit breaker (Nygard, "Release It!", 2007). Requests that
// were sent before the ejection do not count, whether they fail or are served: a process that shuts down
// serves its last requests, and accepts no connections.
//
// At most half of the usable endpoints are ejected or on trial: if more fail, the fault is not theirs.
// This is the panic threshold of Envoy's load balancer, applied when ejecting, not when choosing.
//
// # Promises
//
// With a cap of n an endpoint never has n+1 requests in flight, however many goroutines pick and however the
// Set is updated meanwhile. The cap and the count are one word. An endpoint that leaves with requests in flight
// and comes back before they have ended keeps its count. Lowering a cap ends no request.
//
// Pick takes no lock and does not allocate. Neither does Release, except for a lock after a failure.
// Memory grows with the endpoints, and with those that have left with requests in flight.
package endpoint
