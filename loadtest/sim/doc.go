// Package sim plays herds of clients against a rule of admission in virtual
// time: the real shield.Guard, or small models of what others do.
//
// A [Scenario] says which clients come, when, with which retry policies, and what
// changes meanwhile. Run plays it and returns a [Result].
//
//	r, err := sim.Run(sim.Scenario{
//		Name:       "5,000 at once",
//		Clients:    5000,
//		Within:     100 * time.Millisecond,
//		Mix:        clients.All(clients.Exact{}),
//		Background: 50,
//		Config:     shield.Config{Capacity: limiter.Config{Rate: 100, Burst: 10}},
//	}, nil)
//
// There is one event loop and one event per client that waits: no goroutines, no timers, no
// clock. The same Scenario gives the same Result, always. Different rules face the same herd:
// when each client comes, its policy, and how much work its request is for a plant depend
// on nothing but the seed and the Scenario. Once as many requests are open
// as will be, a request allocates nothing but its keys in the zones of a config.
//
// herds_test.go has the scenarios that this project makes promises about, rows_test.go
// their bounds, and testdata/traces pages of what is decided. This prints the table:
//
//	go test ./loadtest/sim -run 'TestRows|TestPolling' -v -full
//
// # The model
//
// Each client wants one request to be served, or as many as Calls, one after the other.
// Clients of one address ask for the same. A request may wait in the server's queue. A
// rejection leaves the server after the Hold that its Decision asks for.
//
// An admitted request occupies the backend for Service: at once, or if there is a Plant, as
// soon as a worker is free, and for as long as the Plant then takes. A request that a plant
// rejects is answered 503, with its Retry-After; one that finds it full or restarting, or is
// lost in its restart, is answered 502. The server is told what a real shell tells it:
// shield.Overloaded of these, shield.Aborted when a client hangs up, and when the backend
// asks to be left alone.
//
// A client waits for Timeout, from its sending to its reading. Then it hangs up: its permit
// in the queue or its held rejection is given up, and what the backend does for it goes on.
// The policy says whether it tries again, and Patience for how long at most. Budgets of a
// policy are counted for each share of the Mix.
//
// # Limitations
//
// Requests are decided in no time. The server learns one Delay later that a client has hung
// up. A restart of a server forgets all state at once, breaks the connections of those in
// its queue, and lets go on what is at the backend. The Optimum knows the workers of a
// Plant, and nothing of what goes wrong with them.
package sim
