// Package shield is a rate limiter and load shedder for fragile backends. It decides for each
// request whether it can go on now and, if not, when its client should return. Each rejected
// client gets a Retry-After of its own, an appointment, so retries arrive spread out instead of
// as a thundering herd.
//
// A [Guard] makes one decision at a time, starting with the cheapest checks:
//
//	blocks        did you block this client?                  reject: Blocked
//	appointments  is the client back before its time?         reject: Early
//	zones         is the client's own quota used up?          reject: Quota
//	pause         did the backend ask to be left alone?       reject: Pause
//	retry budget  would retries take more than is left?       reject: RetryBudget
//	capacity      is the backend's rate used up?              reject: Capacity
//	concurrency   has the client too many in flight?          reject: PerClient
//	              is the concurrency limit reached?           queue, or reject: Concurrency
//
// Zones and capacity are token buckets: see package limiter. The concurrency limit is fixed or
// adaptive: see package loadshed, which also has the queue, the priority classes, the pause and
// the retry budget. Appointments are in package pushback.
//
// Because all limits are checked before any is charged, a rejection charges nothing. The one
// exception is a client that waited for its token and then finds no permit: it has used some of
// its quota. A rejected client gets a slot in the rate the backend can spare, and with Quota not
// before it has earned the tokens. Clients returning on time go first. A client returning
// earlier, while others wait, hears the rest of its wait again, unless the backend would
// otherwise be idle.
//
// A [Config] is what you set, and a [State] is what traffic writes. To reload, make a new Guard
// on the State of the old one: its limits apply immediately, and no client is forgiven.
//
// Most Go programs want [Guard.Handler], or package shieldgrpc. Other servers call
// [Guard.Enter], then [Decision.Deliver] for a rejection or [Decision.Done] for the rest.
// Simulators call [Guard.Admit] and [Guard.Settle]. Both are functions of state, now and
// request, without a clock or a lock across I/O, and admitting allocates nothing.
package shield
