//go:build !race

package agreement

const raceEnabled = false
