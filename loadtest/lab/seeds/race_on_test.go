//go:build race

package seeds

// raceEnabled: the race detector makes a run some ten times slower, and nothing here
// is shared.
const raceEnabled = true
