package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The front end has a core for itself. Clients and the backend, which are in this process,
// share the other one.
const (
	frontCore  = 0
	clientCore = 1
)

// onCore is the beginning of a command line that runs a program on one core, if there are two.
func onCore(core int) []string {
	if path, err := exec.LookPath("taskset"); err == nil && cores > 1 {
		return []string{path, "-c", strconv.Itoa(core)}
	}
	return nil
}

var cores = runtime.NumCPU() // before pin

// pin has this process run on one core, if there are two.
func pin(core int) error {
	if cores < 2 {
		return nil
	}
	runtime.GOMAXPROCS(1)
	var set unix.CPUSet
	set.Set(core)
	threads, err := os.ReadDir("/proc/self/task") // later ones have it from these
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil {
			return fmt.Errorf("pinning a thread to core %d: %w", core, err)
		}
	}
	return nil
}

// processorTime returns the processor time of a process and of its children that run.
func processorTime(pid int) (sum time.Duration, err error) {
	var t unix.Timespec
	if err := unix.ClockGettime(clockOf(pid), &t); err != nil {
		return 0, fmt.Errorf("the clock of process %d: %w", pid, err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return 0, err
	}
	for child := range strings.FieldsSeq(string(children)) {
		id, err := strconv.Atoi(child)
		if err != nil {
			return 0, err
		}
		of, err := processorTime(id)
		if err != nil {
			return 0, err
		}
		sum += of
	}
	return sum + time.Duration(t.Nano()), nil
}

// clockOf is what clock_getcpuclockid(3) returns: the clock of all threads of a process, those
// that have ended too, to the nanosecond.
func clockOf(pid int) int32 { return int32(^pid)<<3 | 2 }
