package testserver

import (
	"sync/atomic"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// A Machine says whether the machine was fast enough for what a test measures: how much of
// a limit is used, and what is told of a store, depend on answers within some milliseconds,
// and a busy machine gives no process its time so soon. A server that does nothing else is
// pinged, so it waits for the same things as a replica does, but not for shield.
type Machine struct {
	since time.Time
	held  atomic.Int64 // in pings that took longer than prompt
}

const (
	pingEvery = 5 * time.Millisecond
	prompt    = 8 * time.Millisecond
	most      = 0.05 // of the time, that prompt machines spend in other pings
)

// Watch begins to watch the machine, until the test ends.
func Watch(t testing.TB) *Machine {
	t.Helper()
	conn, err := redigo.Dial("tcp", Start(t, Programs(t)[0]).Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	m := &Machine{since: time.Now()}
	go func() {
		for at := time.Now(); ; at = time.Now() {
			time.Sleep(pingEvery)
			if _, err := conn.Do("PING"); err != nil {
				return
			}
			if took := time.Since(at) - pingEvery; took > prompt {
				m.held.Add(int64(took))
			}
		}
	}()
	return m
}

// Lap returns whether the machine was prompt since the last call, or the first.
func (m *Machine) Lap() bool {
	is := m.Prompt()
	m.since = time.Now()
	m.held.Store(0)
	return is
}

// Prompt says whether the machine was prompt since the last Lap.
func (m *Machine) Prompt() bool {
	return time.Duration(m.held.Load()).Seconds() <= most*time.Since(m.since).Seconds()
}
