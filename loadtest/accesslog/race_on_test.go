//go:build race

package accesslog

// raceEnabled: reading is one goroutine, and ten times slower with the detector.
const raceEnabled = true
