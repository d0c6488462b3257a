// Package overload plays backends under overload in virtual time, with shield's
// code for admission before them: the real loadshed types, or whatever implements
// [Limiter].
//
//	r := overload.Run(overload.Step5(), overload.Adaptive(loadshed.Config{}), 11)
//	fmt.Println(r.Between(120, 180).Goodput())
//
// There is one event loop, no goroutine and no clock. The same Scenario, Limiter
// and seed give the same Result, always; and who comes when, and how much work it
// is, depends on nothing but the seed, so that different limiters face the same
// requests.
//
//	go -C loadtest/lab test ./overload -run '^TestTable$' -v -table
//
// prints how the limit does in every scenario; loadtest/lab/competitors adds the rows
// of other projects.
//
// # The model
//
// A [Plant] has workers and a queue without bound, first come, first served. It may
// slow down, lose coherency with its queue, add latency that occupies nothing, stop
// or refuse for a while. Requests are a Poisson process that does not wait for
// answers. A client gives up after its time-out; what it asked for stays in the
// backend, as most backends do not notice. It may try again, at its own pace or when
// it was told.
//
// # The drawn backends
//
// [HeldOut] and [Unseen] are the seeds of 24 backends each. They were written down
// before the law was run on anything, and it was tuned on the named scenarios under
// other seeds and on backends drawn from other seeds.
//
// # Non-promises
//
// Goodput is a percentage of the capacity without coherency loss and with times of
// service of the mean that was drawn for: a run may have more or less luck than
// that by some percent. A retry asks for the same work as the first attempt. There
// is one backend, no network between, and nothing takes time to decide.
package overload
