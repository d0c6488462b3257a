package testserver

import (
	"sync"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// A Machine says whether the machine was fast enough for what a test measures: how much of
// a limit is used, and what is told of a store, depend on answers within some milliseconds,
// and a busy machine gives no process its time so soon. It pings a server of its own, so it
// waits for the same things as a replica does, but not for shield.
type Machine struct {
	mu    sync.Mutex // guards what follows
	since time.Time
	held  time.Duration // in all, of pings that took longer than prompt
}

const (
	pingEvery = 5 * time.Millisecond
	prompt    = 8 * time.Millisecond
	most      = 0.05 // of the time, that prompt machines spend in other pings
)

// Watch begins to watch the machine, until the test ends.
func Watch(t testing.TB) *Machine {
	t.Helper()
	server := Start(t, Programs(t)[0])
	conn, err := redigo.Dial("tcp", server.Addr)
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
				m.mu.Lock()
				m.held += took
				m.mu.Unlock()
			}
		}
	}()
	return m
}

// Lap returns whether the machine was prompt since the last call, or the first.
func (m *Machine) Lap() bool {
	is := m.Prompt()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since, m.held = time.Now(), 0
	return is
}

// Prompt says whether the machine was prompt since the last Lap.
func (m *Machine) Prompt() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held.Seconds() <= most*time.Since(m.since).Seconds()
}
