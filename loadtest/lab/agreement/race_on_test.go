//go:build race

package agreement

// raceEnabled: the race detector makes a run some ten times slower, and what is
// compared here is time.
const raceEnabled = true
