// Package share lets several replicas of one shield work as one: they share limits,
// appointments and promises through a store, such as a Redis server.
//
// No request waits for the store unless the replica has no token and the store may have
// one, and then for at most MaxTrip. A replica that has no store works with its
// part of every limit. It never closes, and never admits without a limit.
//
// The package is pure: a [Link] is the state of one replica's share in one backend, and
// [Model] is the store itself. Both are functions of what they are told and when. Package
// share/redis does the same as the Model with scripts, in a server; the simulator plays
// the Model in virtual time.
package share
