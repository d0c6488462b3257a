// Package competitors plays other projects' concurrency limiters in the scenarios
// of loadtest/lab/overload, next to shield's.
//
//	bash loadtest/lab/competitors/run
//
// prints the tables: some minutes.
//
// failsafe-go is the real code, with its defaults, in a synctest bubble whose clock
// is that of the run. Gradient2, which is in
// package sim, is our port of the formula of Netflix's
// concurrency-limits 0.5.4 (Java): its sequence of updates is faithful, its
// threading is not. It has Java's defaults, but limits of 1 to 1000: the default of
// 20 is more than most of these backends can use.
package competitors
