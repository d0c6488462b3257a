//go:build race

package main

// raceEnabled: the race detector makes a run some ten times slower, and there is
// one goroutine per run. package sim tests that.
const raceEnabled = true
