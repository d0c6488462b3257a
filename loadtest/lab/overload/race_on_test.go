//go:build race

package overload

// raceEnabled: the race detector makes a run some ten times slower, and there is
// one goroutine per run.
const raceEnabled = true
