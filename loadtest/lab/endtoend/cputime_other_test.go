//go:build !unix

package endtoend

import "time"

// cpuTime is not known here; the benchmarks report 0 cpu-ns/op.
func cpuTime() time.Duration { return 0 }
