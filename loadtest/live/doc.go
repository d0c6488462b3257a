// Package live makes a real overload on one machine: a fragile Backend, a Herd
// of HTTP clients over real sockets, and a table and a picture that compare runs.
//
// The herd is deliberately plain, as most clients are: it starts within a
// window, waits a fixed time for an answer, tries again after a fixed time
// without jitter, obeys Retry-After when there is one, and gives up at last.
// Nothing is random in this package but the moments at which a Herd with a Seed
// starts its clients: what differs between two runs comes from what stands
// between the herd and the backend, and from the scheduler.
//
// Everything here reads the real clock and waits with timers. Tests run it in
// testing/synctest bubbles, where a minute passes at once.
package live
