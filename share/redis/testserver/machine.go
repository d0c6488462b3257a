package testserver

import (
	"sync/atomic"
	"testing"
	"time"
)

// A Machine says whether the machine was fast enough for what a test measures: how much of
// a limit is used, and what is told of a store, depend on answers within some milliseconds,
// and a busy machine gives no process its time so soon.
type Machine struct {
	since time.Time
	late  atomic.Int64 // of sleeps that ended later than prompt
}

const (
	sleep  = 5 * time.Millisecond
	prompt = 3 * time.Millisecond
	most   = 0.05 // of the time, that prompt machines are late
)

// Watch begins to watch the machine, until the test ends.
func Watch(t testing.TB) *Machine {
	m := &Machine{since: time.Now()}
	go func() {
		for t.Context().Err() == nil {
			at := time.Now()
			time.Sleep(sleep)
			if late := time.Since(at) - sleep; late > prompt {
				m.late.Add(int64(late))
			}
		}
	}()
	return m
}

// Prompt says whether the machine was prompt since the last Lap, or the first.
func (m *Machine) Prompt() bool {
	return time.Duration(m.late.Load()).Seconds() <= most*time.Since(m.since).Seconds()
}

// Lap is Prompt, and begins anew.
func (m *Machine) Lap() bool {
	defer m.late.Store(0)
	defer func() { m.since = time.Now() }()
	return m.Prompt()
}
