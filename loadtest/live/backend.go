package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// BackendConfig describes a fragile backend.
type BackendConfig struct {
	// Workers is how many requests are worked on at once: 1 to 10000.
	Workers int

	// Service is the work of one request in an empty backend: more than 0,
	// at most one minute.
	Service time.Duration

	// Crowd is the contention: each Crowd queued requests make the work of a
	// request longer by one Service. At least 1.
	Crowd int

	// MaxSlowdown bounds the contention: work takes at most MaxSlowdown times
	// Service. From 1 (no contention) to 100.
	MaxSlowdown float64

	// Queue is how many requests can wait for a worker: 1 to 1e6. It is bounded because
	// real ones are (accept queues, connection pools, memory), and to protect the machine
	// of the experiment. Make it generous: a short queue would protect the backend.
	Queue int
}

// check returns an error that names every field of c that is out of range.
func (c BackendConfig) check() error {
	var f faults
	f.add(c.Workers < 1 || c.Workers > 10000, "workers is %d; want 1 to 10000", c.Workers)
	f.add(c.Service <= 0 || c.Service > time.Minute, "service is %v; want more than 0, at most 1m", c.Service)
	f.add(c.Crowd < 1, "crowd is %d requests; want at least 1", c.Crowd)
	f.add(!(c.MaxSlowdown >= 1 && c.MaxSlowdown <= 100), "max slowdown is %v; want 1 to 100", c.MaxSlowdown) // NaN must fail too
	f.add(c.Queue < 1 || c.Queue > 1e6, "queue is %d requests; want 1 to 1000000", c.Queue)
	return errors.Join(f...)
}

// Capacity returns what the backend can serve when it is not crowded, in
// requests per second.
func (c BackendConfig) Capacity() float64 {
	return float64(c.Workers) / c.Service.Seconds()
}

// serviceTime returns how long a request is in work that leaves queued others waiting.
func (c BackendConfig) serviceTime(queued int) time.Duration {
	slowdown := 1 + float64(queued)/float64(c.Crowd)
	return time.Duration(float64(c.Service) * min(slowdown, c.MaxSlowdown))
}

// A Backend is an http.Handler that behaves as many real backends do under overload. A
// first-in first-out queue feeds a fixed number of workers, which are slower when crowded
// and do not notice clients that have gone. Once the queue is longer than its clients'
// patience, all work is wasted, and retries keep it so after the rush is over (a
// metastable failure).
//
// It is safe for concurrent use.
type Backend struct {
	cfg     BackendConfig
	started time.Time
	queue   chan job
	closing <-chan struct{}
	close   func()
	workers sync.WaitGroup

	mu     sync.Mutex
	stats  Stats  // guarded by mu
	second second // guarded by mu
}

// A job is one request in the queue.
type job struct {
	client context.Context // ends when the client goes, or has its answer
	done   chan struct{}   // closed when the work is done
}

// Stats is what a Backend has counted since it started.
type Stats struct {
	Inside  int // requests queued and in work at this moment, those of clients that have gone included
	Peak    int // the most that Inside has been
	Arrived int // requests that came
	Busiest int // the most that came within any second, in steps of 10 ms
	Served  int // requests finished for a client that was still there
	Wasted  int // requests finished after the client had gone
	Refused int // requests answered 503 because the queue was full
}

// NewBackend starts the backend's workers. The caller must Close it.
func NewBackend(c BackendConfig) (*Backend, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &Backend{cfg: c, started: time.Now(), queue: make(chan job, c.Queue), closing: ctx.Done(), close: cancel}
	for range c.Workers {
		b.workers.Go(b.work)
	}
	return b, nil
}

// Close drops the queue and returns when the workers have ended. Requests that wait or
// come later get a 503. It may be called more than once.
func (b *Backend) Close() {
	b.close()
	b.workers.Wait()
}

// Stats returns a copy of the counts so far.
func (b *Backend) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// ServeHTTP queues the request and waits for a worker. If the queue is full, the answer is
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
	case <-j.client.Done(): // the job stays in the queue: its worker will not look
	case <-b.closing:
		http.Error(w, "closing", http.StatusServiceUnavailable)
	}
}

// enter counts the arrival of j and queues it. It is false if the queue is full.
func (b *Backend) enter(j job) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Arrived++
	b.stats.Busiest = max(b.stats.Busiest, b.second.add(time.Since(b.started)))
	select {
	case b.queue <- j:
		b.stats.Inside++
		b.stats.Peak = max(b.stats.Peak, b.stats.Inside)
		return true
	default:
		b.stats.Refused++
		return false
	}
}

// step is the resolution of a second.
const step = 10 * time.Millisecond

// A second has the times of the events within a sliding second, in steps: seconds that
// begin within a step are not considered.
type second []time.Duration

// add counts an event at now, which does not go back, and returns the count of the second
// that ends with it.
func (s *second) add(now time.Duration) int {
	now = now.Truncate(step)
	*s = append(*s, now)
	for (*s)[0] <= now-time.Second {
		*s = (*s)[1:]
	}
	return len(*s)
}

// work is one worker: it does queued jobs until the backend closes.
func (b *Backend) work() {
	for {
		select {
		case j := <-b.queue:
			busy := time.NewTimer(b.cfg.serviceTime(len(b.queue)))
			select {
			case <-busy.C:
				b.finish(j)
			case <-b.closing:
				busy.Stop()
				return
			}
		case <-b.closing:
			return
		}
	}
}

// finish counts j as done and lets its handler answer. A client that goes between the two
// counts as served, because the backend cannot see it go.
func (b *Backend) finish(j job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Inside--
	if j.client.Err() != nil {
		b.stats.Wasted++
	} else {
		b.stats.Served++
	}
	close(j.done)
}
