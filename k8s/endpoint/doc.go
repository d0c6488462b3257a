// Package endpoint chooses, for each request to a Backend, the one endpoint that gets
// it, and counts what each of them has in flight.
//
// # The choice
//
// Of two endpoints, taken at random, the one with less in flight: the power of two
// choices (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
// 1996), which is close to the least of all without everybody running to the same one.
// If neither will do, all are looked at. In this order, the first that there are any
// of is what is chosen from:
//
//  1. endpoints that have not been tried for this request, and are not ejected;
//  2. ejected ones that have not been tried;
//  3. tried ones that are not ejected;
//  4. all others.
//
// Endpoints that are Ready are chosen from, and those that are Draining only while
// nobody is Ready. If all that are chosen from have as many requests in flight as they
// may have, the answer is ErrFull: the request is to wait or to be refused, and not to
// be sent where it is likely to fail.
//
// # Slow start
//
// One that becomes Ready in a Set where others can be used has cold caches, and the
// least in flight. For 10 s it is taken as one of the two with a probability that
// rises from a tenth to one, linearly: Envoy's slow start with its default minimum and
// aggression. If there is no room elsewhere, it gets requests all the same.
//
// # Ejection
//
// An endpoint that cannot be connected to is ejected for 1 s, and for twice as long
// each time its trial fails, up to 30 s. After that it is on trial: it gets one
// request per second until one of these has been Served. This is the half-open
// state of a circuit breaker (Nygard, "Release It!", 2007). Requests that were sent
// before the ejection have no say in it: whether they fail, or are served, as by a
// process that is shutting down and does not take connections any more.
//
// Never more than half of the usable endpoints are ejected or on trial: if more fail, it
// is not the endpoints. This is the panic threshold of Envoy's load balancer, kept when
// ejecting, not when choosing.
//
// # Promises
//
// With a cap of n an endpoint never has n+1 in flight, however many goroutines pick
// and however the Set is updated meanwhile: the cap and the count are one word, and
// an endpoint that leaves with requests in flight is the same one, with the same count,
// when it comes back before they have ended. A cap that is lowered cuts off nobody.
//
// Pick takes no lock and does not allocate; nor does Release, but for a lock after a
// failure. All memory is that of the endpoints, and of those that have left with
// requests in flight.
package endpoint
