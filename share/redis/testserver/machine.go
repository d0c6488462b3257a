package testserver

import (
	"sync"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// A Machine says whether the machine was fast enough for what a test measures: how much of
// a limit is used, and what is told of a store, depend on answers within some milliseconds,
// and a busy machine gives no process its time so soon. A server that does nothing else is
// pinged, so it waits for the same things as a replica does, but not for shield.
type Machine struct {
	mu    sync.Mutex // guards what follows
	since time.Time
	held  time.Duration // of pings, until then
}

const (
	pingEvery = 5 * time.Millisecond
	prompt    = 8 * time.Millisecond
	most      = 0.05 // of the time, that prompt machines spend in other pings
)

// pings go to one server of a process: tests that run beside each other wait for the same machine.
var pings struct {
	mu      sync.Mutex       // guards what follows
	watched int              // by so many tests
	stop    func(testing.TB) // ends server and pings
	held    time.Duration    // in all, of pings that took longer than prompt
}

// Watch begins to watch the machine, until the test ends.
func Watch(t testing.TB) *Machine {
	t.Helper()
	pings.mu.Lock()
	defer pings.mu.Unlock()
	if pings.watched == 0 {
		startPings(t)
	}
	pings.watched++
	t.Cleanup(func() {
		pings.mu.Lock()
		defer pings.mu.Unlock()
		if pings.watched--; pings.watched == 0 {
			pings.stop(t)
		}
	})
	return &Machine{since: time.Now(), held: pings.held}
}

// startPings starts the server, which may outlive the test that is the first to need it.
func startPings(t testing.TB) {
	t.Helper()
	server := newServer(t, Programs(t)[0])
	server.Restart()
	conn, err := redigo.Dial("tcp", server.Addr)
	if err != nil {
		server.Kill()
		t.Fatal(err)
	}
	pings.stop = func(last testing.TB) {
		conn.Close()
		server.t = last
		server.Kill()
	}
	go func() {
		for at := time.Now(); ; at = time.Now() {
			time.Sleep(pingEvery)
			if _, err := conn.Do("PING"); err != nil {
				return
			}
			if took := time.Since(at) - pingEvery; took > prompt {
				pings.mu.Lock()
				pings.held += took
				pings.mu.Unlock()
			}
		}
	}()
}

func held() time.Duration {
	pings.mu.Lock()
	defer pings.mu.Unlock()
	return pings.held
}

// Lap returns whether the machine was prompt since the last call, or the first.
func (m *Machine) Lap() bool {
	is := m.Prompt()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since, m.held = time.Now(), held()
	return is
}

// Prompt says whether the machine was prompt since the last Lap.
func (m *Machine) Prompt() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return (held() - m.held).Seconds() <= most*time.Since(m.since).Seconds()
}
