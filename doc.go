// Package shield decides, for each request to a fragile backend, whether it may
// go on now, and if not, when it should come back.
//
// A [Guard] composes three limits, cheapest refusal first:
//
//	zones        has this client used up its own quota?   refuse: Quota
//	capacity     is the backend's rate used up?           refuse: Capacity
//	concurrency  is there room in flight?                 wait, or refuse: Concurrency
//
// How much may be in flight is a number, or it is found out: see package loadshed,
// which also has the queue in which a request waits a moment for its place, the
// classes that say who goes first, and what is done when the backend itself asks to
// be left alone (Paused) or when retries would take more than it has room for
// (Retried).
//
// All are checked before any is charged: a refusal charges nothing anywhere. A
// refused client gets an appointment: a slot of its own in the rate that the
// backend can spare, and for Quota not before it has earned the tokens. Who comes
// then goes first; who comes before, while others wait, is refused as Early and
// told the rest. See package pushback for how appointments are made and kept.
//
// What the operator sets is a [Config]; what traffic writes is a [State]. A new
// Guard on the State of an old one applies its limits at once and forgives
// nobody.
//
// Most Go programs want [Guard.Handler]. Others call [Guard.Admit], [Guard.Await]
// if the decision is Queued, and [Decision.Done]; Admit and Done are functions of
// state, now and request: no clock, no lock across I/O, no allocation.
package shield
