// Package share lets several replicas of one shield work as one: they share limits,
// and appointments through a store, such as a Redis server.
//
// No request waits for the store unless the replica has no token and the store may have
// one, or its client is rejected and the store has a slot for it, and then for at most MaxTrip; one that is due may wait
// for its token for longer. A replica that has no store works with its
// part of every limit. It never closes, and never admits without a limit.
//
// One lease shares what is admitted: tokens of a capacity or of a client, and permits
// in flight, are units of pools, of which each replica holds some. A replica's rate is
// either earned by the pools or by the replica, never by both. For example, of 100 tokens
// per second that two replicas share, each lends 50 per second to the pool, and fetches
// what it needs, be it 10 or 90. If one does not hear of the store for 300 ms, it works
// alone; when the pool has ended to earn for it, 350 ms after it was heard of, it earns
// its 50 per second itself.
//
// The package is pure: a [Holder] is one replica's side of the lease of a [Zone] or of a
// [Link], and a function of what it is told and when. The store's side is [Script], in
// a server, or in package share/virtual, which simulations use.
package share
