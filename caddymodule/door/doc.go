// Package door is the listener wrapper caddy.listeners.shield: it makes rejections cheap for clients that
// hammer. A request that a shield behind it has just rejected, and that comes again on the same
// connection, is rejected before net/http reads it, for about what that costs nginx. The shield
// decides on each such request: quotas, appointments and counts are the same as without a door.
//
// It is not for the first requests of a connection: those are net/http's and Caddy's. It reads no
// requests on its own account. What it answers is, byte for byte, what net/http has read as one
// request on that connection a moment before, and the answer is what the server wrote then, with
// other numbers.
// Nothing is remembered beyond the connection that it came on, so no client gets an answer of
// another, and a flood of connections finds nothing to fill.
//
//	door.go     the wrapper, and TLS
//	conn.go     a connection, with HTTP/1.1
//	h2visit.go  how handlers' answers are seen over HTTP/2
//	h2.go       a connection with HTTP/2
//	h2write.go  answers between the frames of its server
//	visit.go    what handlers and it tell each other
//	memo.go     the requests that it remembers
//	hpack.go    header blocks
//	page.go     the answers that it remembers
//
// A handler calls [Of], takes the decision that a door has made of its request, if any, with [Visit.Take], and tells what it rejects
// with [Visit.Rejected].
package door
