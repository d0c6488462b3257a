// Package live is a load generator with real sockets, and a fragile backend to aim it at.
//
// A [Load] sends clients in an open loop at a rate, together as a herd, or both, over
// HTTP/1.1. They retry by the policies of package clients. Latencies run
// from the instant at which a request was due. The result second by second compares
// directly with a simulation of package sim.
//
// A herd and a fragile [Backend] make a demonstration.
//
// Arrivals and waits are random, from a seed. Other differences between two runs come
// from the server, and from the scheduler.
//
// The package reads the real clock and waits with timers. Tests run it in testing/synctest
// bubbles, where a minute passes at once.
package live

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Load runs its clients once. All methods but Run are safe for concurrent use.
//
// Clients by Rate come in an open loop: slow answers do not delay later clients, and
// latencies run from the instant at which a request was due. So neither a slow server nor
// this process can hide waits by sending less (coordinated omission: Tene, "How NOT to
// Measure Latency", 2013).
type Load struct {
	cfg       LoadConfig
	transport *http.Transport
	send      func(context.Context, *client) reply // exchange
	dialer    *dialer
	begun     []budget // by share

	mu           sync.Mutex // guards what follows
	came         time.Time  // the start of the run; zero before it
	all          counter
	herd, others counter
	shares       []counter
	series       series
	sent         int           // requests begun
	coming       time.Duration // until the last client came; 0 before that
	broken       string        // why the last connection failed
}

// A budget is what Rejected.Requests and Rejected.Retries count.
type budget struct{ requests, retries atomic.Int64 }

// A reason is why a run ends before its clients have.
type reason string

func (r reason) Error() string { return string(r) }

// The reasons.
const (
	ErrStopped  reason = "stopped"                           // Run's context ended
	ErrRequests reason = "the limit of requests was reached" // LoadConfig.Requests
)

// LoadResult is the outcome of a Load so far. In JSON, times are in nanoseconds, as those of a sim.Result.
type LoadResult struct {
	Started time.Time     `json:"started"`   // zero before that
	Took    time.Duration `json:"took_ns"`   // of the run
	Coming  time.Duration `json:"coming_ns"` // of the part in which clients came; 0 while it lasts
	Stopped error         `json:"stopped"`   // nil, or ErrStopped or ErrRequests

	All      Tally         `json:"all"`
	Herd     Tally         `json:"herd"`
	Others   Tally         `json:"others"` // that come by Rate
	Policies []PolicyTally `json:"policies"`
	Seconds  []Second      `json:"seconds"`

	Tenths []int `json:"-"` // requests begun in each tenth of a second; those after 20 minutes are in the last

	Broken string `json:"last_broken"` // the error of the last Unreachable request
}

// A PolicyTally is how the clients of one share of the Mix fared.
type PolicyTally struct {
	Policy string `json:"policy"`
	Tally
}

// NewLoad returns a load that is ready to Run.
func NewLoad(c LoadConfig) (*Load, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	l := &Load{
		cfg: c, dialer: &dialer{addresses: c.Target.Addresses},
		shares: make([]counter, len(c.Mix)), begun: make([]budget, len(c.Mix)),
	}
	l.transport = newTransport(c, l.dialer)
	l.send = l.exchange
	return l, nil
}

// grace is how long after the last due instant clients may still come. Ours: long enough
// for the hiccups of a machine that keeps up.
const grace = 500 * time.Millisecond

// Run starts the clients and returns when each of them is served or has given up, when ctx
// ends, or when enough requests were sent. All its goroutines have ended then.
//
// A run takes at most Timeout (to connect beforehand), Duration or HerdAfter and Within,
// half a second, Patience and Timeout, and the time that this machine needs to start a
// herd. Others that it has not started by then are Skipped.
func (l *Load) Run(ctx context.Context) LoadResult {
	defer l.transport.CloseIdleConnections()
	going, enough := context.WithCancelCause(ctx) // ends before ctx when enough requests were sent
	defer enough(nil)
	var all sync.WaitGroup
	spares := make(chan net.Conn, l.cfg.Herd)
	defer func() {
		close(spares)
		for conn := range spares {
			conn.Close()
		}
	}()
	if l.cfg.Connected {
		if early := l.cfg.HerdAfter - ahead; early <= 0 {
			l.connect(going, spares)
		} else {
			all.Go(func() {
				if wait(going, early) {
					l.connect(going, spares)
				}
			})
		}
	}
	l.mu.Lock()
	start := time.Now()
	l.came = start
	l.mu.Unlock()
	l.arrive(going, start, func(c *client) {
		if c.isHerd {
			c.spares = spares
		}
		if l.enter(c) {
			all.Go(func() { c.live(ctx, going, enough) })
		}
	})
	all.Wait()
	r := l.Result()
	switch {
	case ctx.Err() != nil:
		r.Stopped = ErrStopped
	case going.Err() != nil:
		r.Stopped = context.Cause(going)
	}
	return r
}

const (
	// ahead is how long before the herd its connections are opened. Ours: servers wait longer
	// than that for a request, and even a slow machine opens 10,000 connections in a second.
	ahead = 3 * time.Second

	// connecting bounds how many connections are opened at one time. More would overflow the
	// accept queue of a busy listener.
	connecting = 64
)

// connect opens a connection for each client of the herd, as far as it can within the timeout.
func (l *Load) connect(ctx context.Context, spares chan<- net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	var left atomic.Int64
	left.Store(int64(l.cfg.Herd))
	var all sync.WaitGroup
	for range connecting {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				conn, err := l.dialer.dial(ctx, "", "")
				if err != nil {
					return
				}
				spares <- conn
			}
		})
	}
	all.Wait()
}

// arrive calls come with each client when it is due, or at once if it is late. It returns
// when all have come, or when going ends. After the last due instant and the grace,
// clients by Rate are only counted as skipped: there may be millions. Clients of the herd
// are few, and still come.
func (l *Load) arrive(going context.Context, start time.Time, come func(*client)) {
	last := l.cfg.comingEnds() + grace
	skipped := make([]int, len(l.cfg.Mix)) // by share
	source := rand.NewPCG(0, 0)
	random := rand.New(source) // of clients that do not come
	i := uint64(0)
	for at, herd := range l.cfg.arrivals() {
		i++
		if !herd && time.Since(start) > last && going.Err() == nil {
			source.Seed(l.cfg.Seed, i)
			skipped[l.cfg.Mix.Pick(random.Float64())]++
			continue
		}
		// A late client does not wait: a timer would give thousands of clients that are
		// ready to run their turn first.
		if d := at - time.Since(start); going.Err() != nil || d > 0 && !wait(going, d) {
			break
		}
		c := &client{load: l, start: start, index: int(i - 1), isHerd: herd, due: at, random: rand.New(rand.NewPCG(l.cfg.Seed, i))}
		c.share = l.cfg.Mix.Pick(c.random.Float64())
		come(c)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coming = time.Since(start)
	for share, n := range skipped {
		for _, counter := range l.counters(&client{share: share}) {
			counter.Skipped += n
		}
	}
}

// Result returns a copy of the counts so far. It is slower than Progress.
func (l *Load) Result() LoadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := LoadResult{
		All: l.all.tally(), Herd: l.herd.tally(), Others: l.others.tally(), Seconds: slices.Clone(l.series.seconds),
		Tenths: slices.Clone(l.series.tenths), Broken: l.broken, Started: l.came, Coming: l.coming,
	}
	if n := len(r.Seconds); n > 0 {
		r.Seconds[n-1].InFlight = l.series.inFlight
	}
	if !l.came.IsZero() {
		r.Took = time.Since(l.came)
	}
	for i := range l.shares {
		r.Policies = append(r.Policies, PolicyTally{fmt.Sprint(l.cfg.Mix[i].Policy), l.shares[i].tally()})
	}
	return r
}

// Progress returns the state of the run, without quantiles, and how long it has lasted. It is cheap, for use during Run.
func (l *Load) Progress() (all Tally, lasted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all = l.all.Tally
	all.Requests, all.Responses = l.sent, nil // begun; the map is still written
	if !l.came.IsZero() {
		lasted = time.Since(l.came)
	}
	return all, lasted
}

func (l *Load) counters(c *client) [3]*counter {
	group := &l.others
	if c.isHerd {
		group = &l.herd
	}
	return [...]*counter{&l.all, group, &l.shares[c.share]}
}

// enter counts a client that comes. It is false if MaxClients are there already.
func (l *Load) enter(c *client) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	admitted := l.all.Trying < MaxClients
	for _, n := range l.counters(c) {
		if admitted {
			n.Clients++
			n.Trying++
		} else {
			n.Skipped++
		}
	}
	return admitted
}

// begin counts a request that is about to be sent. It is false if enough have been.
func (l *Load) begin(c *client, retry bool, at time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent >= l.cfg.Requests {
		return false
	}
	l.sent++
	l.begun[c.share].requests.Add(1)
	l.series.begin(at, c.isHerd, retry)
	return true
}

func (l *Load) record(c *client, e end) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.counters(c) {
		n.record(e)
	}
	l.series.record(e, c.isHerd)
	if e.why != "" {
		l.broken = e.why
	}
}

// herdTimes returns when the herd comes, since the start of the run, ascending.
func (c LoadConfig) herdTimes(random *rand.Rand) []time.Duration {
	at := make([]time.Duration, c.Herd)
	for i := range at {
		share := float64(i) / float64(c.Herd)
		if !c.Even {
			share = random.Float64()
		}
		at[i] = c.HerdAfter + time.Duration(share*float64(c.Within))
	}
	slices.Sort(at)
	return at
}

// arrivals yields when clients come, since the start of the run, and whether in the herd. The same LoadConfig
// gives the same instants.
func (c LoadConfig) arrivals() iter.Seq2[time.Duration, bool] {
	return func(yield func(time.Duration, bool) bool) {
		random := rand.New(rand.NewPCG(c.Seed, 0))
		herd := c.herdTimes(random)
		for n, at := 0, time.Duration(0); c.Rate > 0; n++ {
			if c.Even { // from the start, so that rounding does not add up
				at = within(float64(n) / c.Rate)
			} else {
				at += within(random.ExpFloat64() / c.Rate)
			}
			if at >= c.Duration {
				break
			}
			for len(herd) > 0 && herd[0] <= at {
				if !yield(herd[0], true) {
					return
				}
				herd = herd[1:]
			}
			if !yield(at, false) {
				return
			}
		}
		for _, at := range herd {
			if !yield(at, true) {
				return
			}
		}
	}
}

// within returns seconds as a Duration, bounded so that the sum of two does not overflow.
func within(seconds float64) time.Duration {
	return time.Duration(min(seconds, 2*MaxDuration.Seconds()) * float64(time.Second))
}
