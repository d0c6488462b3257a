//go:build !race

package seeds

const raceEnabled = false
