//go:build race

package main

// raceEnabled: the race detector makes a run some ten times slower.
const raceEnabled = true
