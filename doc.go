// Package shield is a rate limiter and load shedder for fragile backends. For each
// request it decides whether the request may go on now, and if not, when its client
// should come back. That prevents thundering herds and retry storms: each rejected
// client gets its own Retry-After, an appointment, so retries arrive spread out.
//
// A [Guard] asks for one request after the other, cheapest rejection first:
//
//	blocks        has an operator blocked its client?         reject: Blocked
//	appointments  does its client come before its time?       reject: Early
//	zones         is the client's own quota used up?          reject: Quota
//	pause         has the backend asked to be left alone?     reject: Pause
//	retry budget  would retries take more than is left?       reject: RetryBudget
//	capacity      is the backend's rate used up?              reject: Capacity
//	concurrency   has the client too many in flight?          reject: PerClient
//	              is the concurrency limit reached?           queue, or reject: Concurrency
//
// Zones and capacity are token buckets: see package limiter. The concurrency limit is
// fixed or adaptive: see package loadshed, which also has the queue, the priority
// classes, the pause and the retry budget. For appointments see package pushback.
//
// All limits are checked before any is charged: a rejection charges nothing anywhere, but for the quotas of a client that has
// waited for its token, and then finds no permit. A rejected client gets a slot in the rate that the backend can spare; for Quota, not
// before it has earned the tokens. Clients that come on time go first. A client that
// comes earlier, while others wait, is told the rest of its wait again, unless the backend
// would be idle otherwise.
//
// A [Config] is what the operator sets; a [State] is what traffic writes. A new Guard on
// the State of an old one applies its limits at once and forgives no client.
//
// Most Go programs want [Guard.Handler], or package shieldgrpc. Other servers call
// [Guard.Enter], [Decision.Deliver] for a rejection, and [Decision.Done] for the rest.
// Simulators call [Guard.Admit] and [Guard.Settle], which are functions of state, now
// and request: no clock, no lock across I/O, no allocation for an admission.
package shield
