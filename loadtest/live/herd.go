package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"
)

// maxTenths bounds Result.Sent: what is sent after twenty minutes is added to
// its last entry. Ours: no run lasts longer, see HerdConfig.Patience.
const maxTenths = 20 * 60 * 10

// HerdConfig describes a herd: many clients that want one answer each.
type HerdConfig struct {
	// URL is what every client asks for, by GET. http only.
	URL string

	// Clients is how many there are: 1 to 10000. Each may hold one socket here
	// and, if all run in one process, three more on the way to the backend.
	Clients int

	// Window is the time within which the clients start, evenly spread: 0 (all
	// at once) to one minute.
	Window time.Duration

	// Seed, unless it is 0, starts each client at a random time in Window
	// instead, the same for the same seed: a Poisson process, given how many
	// come. It makes of a herd what comes anyhow.
	Seed uint64

	// FirstAddress makes the clients different ones to a proxy that trusts the
	// address that they come from: the first says in X-Forwarded-For that it is
	// this one, the others count on from there. IPv4; the zero Addr sends none.
	FirstAddress netip.Addr

	// Connected lets each client open the connection of its first attempt before
	// the run starts, so that many of them can come within a moment: a machine
	// that plays them all is not fast enough at opening sockets.
	Connected bool

	// Timeout is how long a client waits for the answer to one attempt: more
	// than 0, at most one minute.
	Timeout time.Duration

	// RetryDelay is how long a client waits after an attempt that failed
	// without a Retry-After: 0 to one minute. It is the same for all clients
	// and attempts, as in naive clients.
	RetryDelay time.Duration

	// Attempts is how often a client tries at most: 1 to 100.
	Attempts int

	// Patience is how long after its first attempt a client may still begin
	// another: 0 to ten minutes. It bounds a run whatever clients are told:
	// every run ends within Window + Patience + Timeout, and if Connected within
	// one Timeout more.
	Patience time.Duration
}

// check returns an error that names every field of c that is out of range.
func (c HerdConfig) check() error {
	var errs []error
	if u, err := url.Parse(c.URL); err != nil || u.Scheme != "http" || u.Host == "" {
		errs = append(errs, fmt.Errorf("url is %q; want http://host:port", c.URL))
	}
	if c.Clients < 1 || c.Clients > 10000 {
		errs = append(errs, fmt.Errorf("clients is %d; want 1 to 10000", c.Clients))
	}
	if c.Window < 0 || c.Window > time.Minute {
		errs = append(errs, fmt.Errorf("window is %v; want 0 to 1m", c.Window))
	}
	if c.FirstAddress != (netip.Addr{}) && !c.address(c.Clients-1).IsValid() {
		errs = append(errs, fmt.Errorf("first address is %v; want IPv4, with room for %d after it", c.FirstAddress, c.Clients-1))
	}
	if c.Timeout <= 0 || c.Timeout > time.Minute {
		errs = append(errs, fmt.Errorf("timeout is %v; want more than 0, at most 1m", c.Timeout))
	}
	if c.RetryDelay < 0 || c.RetryDelay > time.Minute {
		errs = append(errs, fmt.Errorf("retry delay is %v; want 0 to 1m", c.RetryDelay))
	}
	if c.Attempts < 1 || c.Attempts > 100 {
		errs = append(errs, fmt.Errorf("attempts is %d; want 1 to 100", c.Attempts))
	}
	if c.Patience < 0 || c.Patience > 10*time.Minute {
		errs = append(errs, fmt.Errorf("patience is %v; want 0 to 10m", c.Patience))
	}
	return errors.Join(errs...)
}

// address returns the address that client i says it has, the zero Addr if there
// is none.
func (c HerdConfig) address(i int) netip.Addr { return addressAfter(c.FirstAddress, i) }

// begins returns when client i starts, from the start of the run.
func (c HerdConfig) begins(i int) time.Duration {
	if c.Seed == 0 {
		return c.Window * time.Duration(i) / time.Duration(c.Clients)
	}
	return time.Duration(rand.New(rand.NewPCG(c.Seed, uint64(i))).Float64() * float64(c.Window))
}

// A Herd runs its clients once. It is safe for concurrent use, except that Run
// must be called only once.
type Herd struct {
	cfg       HerdConfig
	transport http.RoundTripper // follows no redirects

	mu     sync.Mutex
	result Result // guarded by mu
}

// Result is what the clients of a Herd have met with so far.
//
// Served + GaveUp + Trying() = Clients at every moment, and
// Attempts = TimedOut + Unreachable + all Answers.
type Result struct {
	Clients     int
	Served      int           // clients that got a 2xx
	GaveUp      int           // clients that went away without
	Attempts    int           // requests that ended; one cut off by the end of Run's context is not counted
	Answers     map[int]int   // attempts by HTTP status
	TimedOut    int           // attempts without a complete answer in time
	Unreachable int           // attempts whose connection was refused or broken
	Sent        []int         // requests begun in each tenth of a second of the run
	LastCame    time.Duration // from the start of the run until the last client so far had sent its first request
	LastServed  time.Duration // from the start of the run until the last client so far was served
}

// Drained returns the time until the last client was served. It is false if one
// was not: the time of the last success would flatter a backend that died early.
func (r Result) Drained() (time.Duration, bool) { return r.LastServed, r.Served == r.Clients }

// PerSuccess returns how many requests were sent for each client served: 0 if
// none was.
func (r Result) PerSuccess() float64 {
	if r.Served == 0 {
		return 0
	}
	return float64(r.Attempts) / float64(r.Served)
}

// Trying returns how many clients are neither served nor have given up. After
// Run it is 0 unless the context ended first.
func (r Result) Trying() int { return r.Clients - r.Served - r.GaveUp }

// NewHerd returns a herd that is ready to Run.
func NewHerd(c HerdConfig) (*Herd, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	return &Herd{
		cfg: c,
		// Each attempt is a connection of its own, as from separate machines.
		// No Proxy: the environment must not send the herd elsewhere.
		transport: &http.Transport{DisableKeepAlives: true, DialContext: dial},
		result:    Result{Clients: c.Clients, Answers: map[int]int{}},
	}, nil
}

// Run starts the clients and returns when each of them is served or has given
// up, or when ctx ends. All its goroutines have ended then.
func (h *Herd) Run(ctx context.Context) Result {
	conns := h.connect(ctx)
	start := time.Now()
	var clients sync.WaitGroup
	for i := range h.cfg.Clients {
		clients.Go(func() {
			if wait(ctx, h.cfg.begins(i)) {
				h.client(ctx, i, start, conns[i])
			}
		})
	}
	clients.Wait()
	for _, conn := range conns {
		conn.close() // unless its client has taken it
	}
	return h.Result()
}

// Result returns a copy of the counts so far, for use while Run is on.
func (h *Herd) Result() Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.result
	r.Answers, r.Sent = maps.Clone(r.Answers), slices.Clone(r.Sent)
	return r
}

// client is the life of client i in a run that began at start. conn is for its
// first attempt, unless it is nil.
func (h *Herd) client(ctx context.Context, i int, start time.Time, conn *spare) {
	first := time.Now()
	for n := 1; ; n++ {
		h.send(time.Since(start))
		attempt := ctx
		if n == 1 {
			attempt = httptrace.WithClientTrace(withConn(ctx, conn), &httptrace.ClientTrace{
				WroteRequest: func(httptrace.WroteRequestInfo) { h.came(time.Since(start)) },
			})
		}
		a := h.attempt(attempt, i)
		if ctx.Err() != nil { // the run was cut off, which says nothing about the server
			return
		}
		now := time.Now()
		verdict, delay := h.cfg.decide(a, n, now.Sub(first))
		h.record(a, verdict, now.Sub(start))
		if verdict != retry || !wait(ctx, delay) {
			return
		}
	}
}

// attempt sends one request of client i and reads the whole answer.
func (h *Herd) attempt(ctx context.Context, i int) answer {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.cfg.URL, nil)
	if err != nil {
		return answer{status: unreachable} // cannot be: NewHerd has parsed the URL
	}
	if a := h.cfg.address(i); a.IsValid() {
		req.Header.Set("X-Forwarded-For", a.String())
	}
	resp, err := exchange(h.transport, req)
	switch {
	case err == nil:
		return answer{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After")}
	case ctx.Err() != nil:
		return answer{status: timedOut}
	default:
		return answer{status: unreachable}
	}
}

// send counts a request that begins at the time since the start of the run.
func (h *Herd) send(at time.Duration) {
	tenth := min(int(at/(100*time.Millisecond)), maxTenths-1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.result.Sent) <= tenth {
		h.result.Sent = append(h.result.Sent, 0)
	}
	h.result.Sent[tenth]++
}

// came notes that a client has sent its first request at the time since the
// start of the run.
func (h *Herd) came(at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.result.LastCame = max(h.result.LastCame, at)
}

// record counts an attempt that ended at the time since the start of the run.
func (h *Herd) record(a answer, v verdict, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.result
	r.Attempts++
	switch a.status {
	case timedOut:
		r.TimedOut++
	case unreachable:
		r.Unreachable++
	default:
		r.Answers[a.status]++
	}
	switch v {
	case served:
		r.Served++
		r.LastServed = max(r.LastServed, at)
	case gaveUp:
		r.GaveUp++
	}
}

// wait returns true after d, or false as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
