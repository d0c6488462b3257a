// Package share lets several replicas of one shield act as one: they share limits and
// appointments through a store, such as a Redis server.
//
// Almost no request waits for the store. It waits only if this replica has no token but
// the store may have one, or if its client is rejected and the store has a slot for it,
// and then for at most MaxTrip. A request whose appointment is due may wait for its token
// for longer, and the pool owes that token: it gives none to others before. If there is no
// store, a replica works with its part of every limit: it never closes, and it never admits
// without a limit.
//
// What replicas may admit is leased. Tokens of a capacity or of a client, and permits in
// flight, are units of pools, and each replica holds some of them. A replica's rate is
// earned either by the pools or by the replica, but never by both. For example, if two
// replicas share 100 tokens per second, each lends 50 per second to the pool and fetches
// what it needs, be it 10 or 90. A replica that hasn't heard from the store for 300 ms
// works alone. The pool stops earning for it 350 ms after it last heard from it, and from
// then on the replica earns its 50 per second itself.
//
// The package is pure: a [Holder] is one replica's side of the lease of a [Zone] or of a
// [Link], and depends only on what it is told and when. The store's side is [Script],
// which runs in a server, or in package share/virtual for simulations.
package share
