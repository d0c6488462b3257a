// Package live sends real clients over real sockets, and makes real overloads on
// one machine to send them to.
//
// A [Load] is the general one: clients that come at a rate whether or not those
// before them have been answered, or together as a herd, over HTTP/1.1, HTTP/2 or
// gRPC, which retry by the policies of package clients. Its latencies run from the
// instant at which a request was due. What it shows second by second can be set
// beside a simulation of package sim.
//
//	target, err := live.NewTarget(ctx, "http://127.0.0.1:8080/", false)
//	load, err := live.NewLoad(live.LoadConfig{
//		Target: target, Rate: 30, Duration: 20 * time.Second, Herd: 1000, Within: 100 * time.Millisecond,
//		Mix: clients.All(clients.Exact{}), Timeout: 10 * time.Second, Patience: time.Minute,
//	})
//	result := load.Run(ctx)
//
// A fragile [Backend] and a [Herd] are what a demonstration needs. That herd is
// deliberately plain, as most clients are: it starts within a window, waits a
// fixed time for an answer, tries again after a fixed time without jitter, obeys
// Retry-After when there is one, and gives up at last. A table and a picture
// compare runs of it.
//
// What is random here comes from a seed: who comes when, and how long clients
// wait. What differs between two runs comes from what stands before the backend,
// and from the scheduler.
//
// Everything here reads the real clock and waits with timers. Tests run it in
// testing/synctest bubbles, where a minute passes at once.
package live
