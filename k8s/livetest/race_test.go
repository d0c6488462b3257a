//go:build race

package livetest

// raceEnabled: the program is built with the race detector, as these tests are.
const raceEnabled = true
