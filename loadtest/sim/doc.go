// Package sim plays herds of clients against a rule of admission in virtual
// time: the real shield.Guard, or small models of what others do.
//
// A [Scenario] says who comes, when, with which retry policies, and what changes
// meanwhile. Run plays it and returns a [Result]; WriteTable sets results side
// by side.
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
// There is one event loop and one event per client that waits: no goroutines, no
// timers, no clock. The same Scenario gives the same Result, always. Who comes
// when, and with which policy, depends on nothing but the seed and the Scenario,
// so that different rules face the same herd.
//
// What this project makes promises about is in scenarios.go: [Herds], [Hammered],
// [Varying] and, to compare, [Competitors]. scenarios_test.go has the bounds that
// they are held to. To see them all:
//
//	go test ./loadtest/sim -run TestScenarios -v
//
// With -full after it the million clients are played to the end, which takes some
// minutes.
//
// # The model
//
// A herd of Clients arrives, spread evenly at random over Within; strangers
// arrive besides as a Poisson process, and have since Warmup before the herd.
// Everybody has the same mix of policies, wants one request to be served, and
// is a client of its own: nobody shares an address. A refusal leaves the server
// after the Hold that its Decision asks for. The network takes Delay each way.
// An admitted request occupies the backend for Service.
//
// # Non-promises
//
// Requests are decided in no time. Clients do not time out, and do not go away
// while an answer is held. The capacity that changes is the configured one: the
// backend is as fast as its operator says. A restart forgets all state at once,
// and breaks no connection.
package sim
