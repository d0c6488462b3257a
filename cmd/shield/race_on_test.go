//go:build race

package main

// raceEnabled: the race detector makes simulations some twenty times slower, and
// there is one goroutine in each.
const raceEnabled = true
