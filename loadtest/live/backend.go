package live

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
)

// BackendConfig describes a fragile backend. Instants of the plant.Config are since the
// Backend's start. Its Queue should be bounded, to protect the machine of the experiment,
// and generous: a short queue would protect the backend.
type BackendConfig struct {
	plant.Config
	Service time.Duration // the work of one request in an empty backend
}

// Capacity returns how many requests per second the uncrowded backend can serve.
func (c BackendConfig) Capacity() float64 { return float64(c.Workers) / c.Service.Seconds() }

// A Backend is a plant in real time: an http.Handler that behaves as many real backends do
// under overload. A first-in first-out queue feeds a fixed number of workers, which are
// slower when crowded and do not notice clients that have gone. Once the queue is longer
// than its clients' patience, all work is wasted, and retries keep it so after the rush is
// over (a metastable failure).
//
// It is safe for concurrent use.
type Backend struct {
	service time.Duration
	started time.Time
	closing context.Context
	close   func()

	mu     sync.Mutex // guards what follows
	plant  *plant.Plant[job]
	stats  Stats
	second second
}

type job struct {
	client context.Context // ends when the client goes, or has its response
	done   chan struct{}   // closed when the work is done
}

func (j job) gone() bool { return j.client.Err() != nil }

// Stats is what a Backend has counted since it started.
type Stats struct {
	Inside   int // requests queued and in work at this moment, those of clients that have gone included
	Peak     int // the most that Inside has been
	Busiest  int // the most that came within any second, in steps of 10 ms
	Served   int // requests finished for a client that was still there
	Wasted   int // requests finished after the client had gone
	Rejected int // requests answered 503 because the queue was full
}

// NewBackend returns an idle backend. The caller must Close it.
func NewBackend(c BackendConfig) *Backend {
	b := &Backend{service: c.Service, started: time.Now(), plant: plant.New[job](c.Config)}
	b.closing, b.close = context.WithCancel(context.Background())
	return b
}

// Close drops the work: requests get a 503 from now on. It may be called more than once.
func (b *Backend) Close() { b.close() }

func (b *Backend) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Inside = b.plant.Busy() + b.plant.Waiting()
	return s
}

// ServeHTTP queues the request and waits for a worker. If the queue is full, the response is
// 503 without Retry-After: this backend cannot tell when it will have room.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	j := job{client: r.Context(), done: make(chan struct{})}
	if !b.enter(j) {
		http.Error(w, "queue is full", http.StatusServiceUnavailable)
		return
	}
	select {
	case <-j.done:
		io.WriteString(w, "served\n") // an error here is a client that has just gone
	case <-b.closing.Done():
		http.Error(w, "closing", http.StatusServiceUnavailable)
	}
}

// enter counts the arrival of j and submits it. It is false if the queue is full.
func (b *Backend) enter(j job) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Since(b.started)
	b.stats.Busiest = max(b.stats.Busiest, b.second.add(now))
	fate, end := b.plant.Submit(now, j, b.service)
	switch fate {
	case plant.Begun:
		b.work(j, end-now)
	case plant.NoRoom, plant.Unavailable:
		b.stats.Rejected++
		return false
	}
	b.stats.Peak = max(b.stats.Peak, b.plant.Busy()+b.plant.Waiting())
	return true
}

func (b *Backend) work(j job, d time.Duration) { time.AfterFunc(d, func() { b.finish(j) }) }

// finish counts j as done, lets its handler answer, and begins with the next. A client that
// goes between the two counts as served, because the backend cannot see it go.
func (b *Backend) finish(j job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing.Err() != nil {
		return
	}
	if j.gone() {
		b.stats.Wasted++
	} else {
		b.stats.Served++
	}
	close(j.done)
	b.plant.Done()
	now := time.Since(b.started)
	for next, end, ok := b.plant.Next(now); ok; next, end, ok = b.plant.Next(now) {
		b.work(next, end-now)
	}
}

// step is the resolution of a second.
const step = 10 * time.Millisecond

// A second has the times of the events within a sliding second, in steps: seconds that
// begin within a step are not considered.
type second []time.Duration

// add counts an event at now, which does not go back, and returns the count of the last second.
func (s *second) add(now time.Duration) int {
	now = now.Truncate(step)
	*s = append(*s, now)
	for (*s)[0] <= now-time.Second {
		*s = (*s)[1:]
	}
	return len(*s)
}
