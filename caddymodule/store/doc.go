// Package store connects a Caddy with shields to the store that its replicas share.
//
// It is not for what replicas share, nor for how: that is package share, and its exchanges package share/redis. Neither
// does it know what a shield is, or how a store is configured.
//
// A [Connection] outlives configs, a [Desk] serves what one config at a time shares, and a [Reading] is what metrics,
// the admin endpoint and the page say of the store.
//
// For example, a config that starts does
//
//	c, err := store.Open(pool, settings, shield.Now)
//	is := &store.Config{Started: now, Duties: func(now time.Duration) map[store.Duty]bool { ... }}
//	desk.Tend(is, now) // now, and once per second
//
// and, when it stops,
//
//	if desk.Leave(is, now) {
//		store.Close(pool, settings)
//	}
package store
