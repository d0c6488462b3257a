// Package overload plays backends under overload in virtual time, before shield's
// adaptive concurrency limit and others. The engine is package sim's.
//
//	r := overload.Shield.Run(overload.Step5(), 11)
//	fmt.Println(r.Between(120, 180).Goodput())
//
// The same Row, Scenario and seed give the same Result, always. When each request
// comes, and how much work it is, depends on nothing but the seed, so that different
// limiters face the same requests.
//
//	go -C loadtest/lab test ./overload -run '^TestTable$' -v -table
//
// prints how the limit does in every scenario; loadtest/lab/competitors adds the rows
// of other projects.
//
// # The model
//
// A plant has workers and a queue without bound, first come, first served. It may
// slow down, lose coherency with its queue, add latency that occupies nothing, stop
// or reject for a while. Requests are a Poisson process that does not wait for
// answers. A client gives up after its timeout. Its request stays in the backend, as
// most backends do not notice. It may try again, at its own pace or when it was told.
//
// # The drawn backends
//
// [HeldOut] and [Unseen] are the seeds of 24 backends each. They were written down
// before the law was run on anything. The law was tuned on the named scenarios under
// other seeds and on backends drawn from other seeds.
//
// # Limitations
//
// Goodput is a percentage of the capacity without coherency loss and with the drawn
// mean of the times of service: a run may have more or less luck than that by some
// percent. A retry asks for the same work as the first attempt. There is one backend,
// no network between, and no decision takes time.
package overload
