// Package shield decides, for each request to a fragile backend, whether it may
// go on now, and if not, when it should come back.
//
// A [Guard] composes three limits, cheapest refusal first:
//
//	zones        has this client used up its own quota?   refuse: Quota
//	capacity     is the backend's rate used up?           refuse: Capacity
//	concurrency  is there room in flight?                 refuse: Concurrency
//
// All are checked before any is charged: a refusal charges nothing anywhere.
// The wait of a refusal for Quota or Capacity is exact: at now+wait the same
// request is admitted if nothing else comes. For Concurrency it is the time
// that what is in flight now is expected to take (Little's law).
//
// What the operator sets is a [Config]; what traffic writes is a [State]. A new
// Guard on the State of an old one applies its limits at once and forgives
// nobody.
//
// Most Go programs want [Guard.Handler]. Others call [Guard.Admit] and
// [Decision.Done], which are functions of state, now and request: no clock, no
// lock across I/O, no allocation.
package shield
