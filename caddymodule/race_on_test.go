//go:build race

package caddymodule

// raceEnabled tells tests whose race is not ours that they would find it.
const raceEnabled = true
