// Package agreement has nothing but tests: they set what package sim says will
// happen beside what does when package live plays it, over real sockets and
// through Caddy. On both sides are the same text of a config, the same policies of
// clients, and a backend of the same kind:
//
//	go -C loadtest/lab test ./agreement                       # some 25 s
//	go -C loadtest/lab test ./agreement -run Table -v -table  # some 5 min; the docs' table
//
// # What differs
//
// Live, the arrivals are other ones of the same kind: the two sides agree as two
// seeds of one side do, and no better. So the table has the scatter of one
// simulated run: its standard deviation, as a share of the mean. Most figures are
// held to 15 %. Four scatter by 5 to 9 % in a short run, and are held to a third:
// when the last of a mix is done, and how the few of it wait who come when they like.
//
// Live, a request takes time besides that of the backend: a connection to Caddy,
// Caddy, a connection from there, timers that are late, and 2 processors for
// all of it. The table's first line measures that on an idle machine, and is
// why the simulated network takes no time. Clients, Caddy and backend are one
// process.
//
// The live backend is live.Backend without contention, which shares no code with
// plant.Plant. A handler in front of it plays the outage. Requests that reach the backend
// are counted there, but by the simulator when it leaves shield.
//
// The simulated Guard's clock begins with the warm-up, the real one's with the
// process. Therefore the simulated one learns of the background a second later:
// with a warm-up of 2 s that made waits up to 9 % shorter, and nothing with 3 s.
//
// Live, the limit in flight is read ten times per second from the admin endpoint, and
// a herd that is connected has made its connections before it comes.
package agreement
