package live

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// What bounds a Load. Ours: a machine that plays more is too busy to say how long
// an answer took.
const (
	MaxClients     = 20_000 // at one time
	MaxRate        = 100_000
	MaxDuration    = time.Hour
	MaxPatience    = time.Hour
	MaxTimeout     = 10 * time.Minute
	MaxRequests    = 10_000_000
	MaxAttempts    = 1000
	MaxConnections = 1000
	MaxBody        = 1 << 20

	defaultConnections = 32
)

// LoadConfig describes a Load: a herd, or clients that come all the time, or both.
// Each client wants one answer.
type LoadConfig struct {
	Target Target // of NewTarget
	Proto  Proto  // "" means H1

	// Insecure takes any TLS certificate.
	Insecure bool

	// Connections is how many connections the clients of H2, H2C and GRPC share:
	// 1 to 1000; 0 means 32. More are opened only where a server does not allow
	// as many requests at once on one; GRPC waits there, and its latencies have
	// that wait in them. In H1 every attempt has a
	// connection of its own, as from separate machines, unless KeepAlive.
	Connections int

	// KeepAlive lets clients of H1 keep connections and share them: as many as
	// there are requests at one time.
	KeepAlive bool

	// Connected opens connections beforehand: those that are shared, before the
	// run; and in H1 one for the first attempt of each of the herd, shortly before
	// it comes, as servers close connections on which nothing is asked.
	Connected bool

	// Method is an HTTP method, "" for GET; or of GRPC the full name of a unary
	// method, "" for HealthCheck, which is called with an empty message.
	Method string
	Header http.Header // more fields of every request; a Host replaces the URL's
	Body   []byte      // of every request; not for GRPC

	// Rate is how many clients come per second, without regard to what becomes of
	// those before them (an open loop): 0 for none, up to 100,000. They do so for
	// Duration, up to 1h.
	Rate     float64
	Duration time.Duration

	// Herd is how many clients come besides, together: 0 to 20,000. They come
	// within Within, up to 1m, from HerdAfter on, up to 1h.
	Herd              int
	Within, HerdAfter time.Duration

	// Even spaces arrivals evenly. Otherwise they are random and independent: a
	// Poisson process, and for a herd uniform.
	Even bool

	// Mix is how clients retry.
	Mix clients.Population

	// Timeout is how long a client waits for the whole answer to an attempt: more
	// than 0, up to 10m.
	Timeout time.Duration

	// Patience is how long after its first attempt a client may still begin
	// another, up to 1h: 0 allows none. It bounds a run, whatever clients are
	// told.
	Patience time.Duration

	// Attempts is how often a client tries at most: up to 1000; 0 means as often
	// as its policy does.
	Attempts int

	// Identities is how many addresses the clients have between them, which they
	// say in X-Forwarded-For, counting from FirstAddress, an IPv4 address. It
	// means nothing unless there is one. 0 means one for each client.
	Identities   int
	FirstAddress netip.Addr

	// Requests ends the run: after so many, retries included, none begins. 1 to
	// 10 million; 0 means 1 million.
	Requests int

	Seed uint64 // of everything that is random
}

// withDefaults returns c with its zeros replaced.
func (c LoadConfig) withDefaults() LoadConfig {
	if c.Proto == "" {
		c.Proto = H1
	}
	if c.Method == "" {
		c.Method = http.MethodGet
		if c.Proto == GRPC {
			c.Method = HealthCheck
		}
	}
	if c.Requests == 0 {
		c.Requests = 1_000_000
	}
	return c
}

// mostArrivals returns how many clients come at most. Of a Poisson process that is
// not known, but the probability that more come is below 1e-20.
func (c LoadConfig) mostArrivals() int {
	n := c.Rate * c.Duration.Seconds()
	if n > 0 && !c.Even {
		n += 10*math.Sqrt(n) + 30
	}
	return c.Herd + int(math.Ceil(n))
}

// address returns what client number i says in X-Forwarded-For, "" for nothing.
func (c LoadConfig) address(i int) string {
	if !c.FirstAddress.IsValid() {
		return ""
	}
	if c.Identities > 0 {
		i %= c.Identities
	}
	return addressAfter(c.FirstAddress, i).String()
}

// comingEnds returns when the last client is due, since the start of the run.
func (c LoadConfig) comingEnds() time.Duration {
	var end time.Duration
	if c.Herd > 0 {
		end = c.HerdAfter + c.Within
	}
	if c.Rate > 0 {
		end = max(end, c.Duration)
	}
	return end
}

// check returns an error that names every field of c that is out of range, as
// shield loadtest calls it: --herd-after is HerdAfter.
func (c LoadConfig) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	within := func(name string, n, least, most int) {
		if n < least || n > most {
			wrong("--%s is %d; want %d to %d", name, n, least, most)
		}
	}
	atMost := func(name string, d, most time.Duration) {
		if d < 0 || d > most {
			wrong("--%s is %v; want 0 to %s", name, d, brief(most))
		}
	}
	if c.Target.URL == nil || len(c.Target.Addresses) == 0 {
		return errors.New("there is no target")
	}
	scheme := c.Target.URL.Scheme
	switch {
	case !slices.Contains(Protos, c.Proto):
		wrong("--proto is %q; want h1, h2, h2c or grpc", c.Proto)
	case c.Proto == H2 && scheme != "https":
		wrong("--proto is h2, which is over TLS, and the target is %s; want https, or h2c", c.Target.URL)
	case c.Proto == H2C && scheme != "http":
		wrong("--proto is h2c, which is without TLS, and the target is %s; want http, or h2", c.Target.URL)
	}
	if c.Insecure && scheme != "https" {
		wrong("--insecure is set, and the target is %s; want https", c.Target.URL)
	}
	within("connections", c.Connections, 0, MaxConnections)
	if c.Connections > 0 && c.Proto == H1 {
		wrong("--connections is %d, and --proto is h1; want h2, h2c or grpc, or --keep-alive instead", c.Connections)
	}
	if c.KeepAlive && c.Proto != H1 {
		wrong("--keep-alive is set, and --proto is %s, which always keeps connections; want h1", c.Proto)
	}
	if c.KeepAlive && c.Connected {
		wrong("--keep-alive and --connected are both set; want one of them")
	}
	errs = append(errs, c.checkRequest()...)
	if !(c.Rate >= 0 && c.Rate <= MaxRate) { // NaN must fail too
		wrong("--rate is %v per second; want 0 to %d", c.Rate, MaxRate)
	} else if c.Rate > 0 && (c.Duration <= 0 || c.Duration > MaxDuration) {
		wrong("--duration is %v; want more than 0, at most %s", c.Duration, brief(MaxDuration))
	}
	within("herd", c.Herd, 0, MaxClients)
	if c.Herd == 0 && c.Rate == 0 {
		wrong("nobody comes: --rate and --herd are both 0; want one of them, or both")
	}
	atMost("within", c.Within, time.Minute)
	atMost("herd-after", c.HerdAfter, MaxDuration)
	if err := c.Mix.Check(); err != nil {
		errs = append(errs, fmt.Errorf("--policy: %w", err))
	}
	if c.Timeout <= 0 || c.Timeout > MaxTimeout {
		wrong("--timeout is %v; want more than 0, at most %s", c.Timeout, brief(MaxTimeout))
	}
	atMost("patience", c.Patience, MaxPatience)
	within("attempts", c.Attempts, 0, MaxAttempts)
	within("clients", c.Identities, 0, MaxRequests)
	within("requests", c.Requests, 1, MaxRequests)
	if c.FirstAddress.IsValid() && len(errs) == 0 { // else nobody knows how many come
		if n := cmp.Or(c.Identities, c.mostArrivals()); !addressAfter(c.FirstAddress, n-1).IsValid() {
			wrong("--x-forwarded-for is %v; want IPv4, with room for %d after it", c.FirstAddress, n-1)
		}
	}
	return errors.Join(errs...)
}

// checkRequest checks what clients send.
func (c LoadConfig) checkRequest() (errs []error) {
	if c.Proto == GRPC {
		service, method, ok := strings.Cut(strings.TrimPrefix(c.Method, "/"), "/")
		if !strings.HasPrefix(c.Method, "/") || !ok || service == "" || method == "" || strings.Contains(method, "/") {
			errs = append(errs, fmt.Errorf("--method is %q; want that of gRPC, as %s", c.Method, HealthCheck))
		}
		if len(c.Body) > 0 {
			errs = append(errs, errors.New("--body is set, and --proto is grpc, which sends an empty message; want none"))
		}
	} else if !httpguts.ValidHeaderFieldName(c.Method) || c.Method == http.MethodConnect {
		errs = append(errs, fmt.Errorf("--method is %q; want one of HTTP, as GET or POST", c.Method))
	}
	if len(c.Body) > MaxBody {
		errs = append(errs, fmt.Errorf("--body has %d bytes; want at most %d", len(c.Body), MaxBody))
	}
	for name, values := range c.Header {
		switch name := http.CanonicalHeaderKey(name); {
		case name == "Content-Length", name == "Transfer-Encoding":
			errs = append(errs, fmt.Errorf("--header has %s, which follows from the body; want none", name))
		case name == "Host" && len(values) > 1:
			errs = append(errs, fmt.Errorf("--header has %d values of Host, %q; want one", len(values), values))
		}
		if !httpguts.ValidHeaderFieldName(name) || len(values) == 0 {
			errs = append(errs, fmt.Errorf("--header has the field name %q; want one of HTTP, and a value", name))
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				errs = append(errs, fmt.Errorf("--header %s has the value %q; want no control characters", name, v))
			}
		}
	}
	return errs
}

// brief writes a Duration as people do: 1m, not 1m0s.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// addressAfter returns the address n after first, the zero Addr if there is none.
func addressAfter(first netip.Addr, n int) netip.Addr {
	if !first.Is4() || n < 0 {
		return netip.Addr{}
	}
	bytes := first.As4()
	sum := uint64(binary.BigEndian.Uint32(bytes[:])) + uint64(n)
	if sum > math.MaxUint32 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(sum))))
}

// A Load runs its clients once. It is safe for concurrent use, except that Run
// must be called only once.
//
// The clients that come by rate do not wait for each other: when answers become
// slow they come all the same, and their latencies run from the instant at which
// they were due. So neither a slow server nor this process can hide waits by
// sending less (coordinated omission: Tene, "How NOT to Measure Latency", 2013).
type Load struct {
	cfg    LoadConfig
	wire   wire
	dialer *dialer
	open   func(context.Context) (net.Conn, error) // for Connected: dialer.open

	mu           sync.Mutex // guards what follows
	came         time.Time  // the start of the run; zero before it
	all          counter
	herd, others counter
	shares       []counter
	begun        []budget // by share
	series       series
	herdCame     time.Duration // see LoadResult.HerdCame
	sent         int           // requests begun
	coming       time.Duration // until nobody came any more; 0 before that
	broken       string        // why the last connection failed
}

// A budget is what Refused.Requests and Refused.Retries count.
type budget struct{ requests, retries int64 }

// Causes for which a run ends before its clients have.
var (
	// ErrStopped says that Run's context ended.
	ErrStopped = errors.New("stopped")
	// ErrRequests says that LoadConfig.Requests were sent.
	ErrRequests = errors.New("the limit of requests was reached")
)

// LoadResult is what the clients of a Load have met with so far.
type LoadResult struct {
	Started time.Time     // zero before that
	Took    time.Duration // of the run
	Coming  time.Duration // of the part of it in which clients came; 0 while it lasts
	Stopped error         // nil, or ErrStopped or ErrRequests

	All, Herd, Others Tally // Others come by Rate
	Policies          []PolicyTally
	Seconds           []Second

	Tenths   []int         // requests begun in each tenth of a second; those after 20 minutes are in the last
	HerdCame time.Duration // from the start until the last of the herd so far had sent its first request, in HTTP

	// Faults counts connections that could not be opened because this machine,
	// or what this process may use of it, is too small. Fault says why.
	Faults int64
	Fault  string

	Broken string // what was wrong with the last connection of an Unreachable request
}

// RateReached returns how many of the Others came per second, while they did: 0
// if that is not over.
func (r *LoadResult) RateReached() float64 {
	if r.Coming <= 0 {
		return 0
	}
	return float64(r.Others.Clients) / r.Coming.Seconds()
}

// A PolicyTally is how the clients of one share of the Mix fared.
type PolicyTally struct {
	Policy clients.Policy
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
	l.open = l.dialer.open
	var err error
	l.wire, err = newWire(c, l.dialer)
	return l, err
}

// grace is how long after the last client was due clients may still come. Ours:
// long enough for the hiccups of a machine that keeps up.
const grace = 500 * time.Millisecond

// Run starts the clients and returns when each of them is served or has given up,
// when ctx ends, or when enough requests were sent. All its goroutines have ended
// then. A run ends within Timeout (of connecting beforehand), Duration or HerdAfter
// and Within, half a second, Patience and Timeout, and what it takes this machine
// to start a herd. Others that it has not started in that time are Skipped.
func (l *Load) Run(ctx context.Context) LoadResult {
	defer l.wire.close()
	var spares *spares
	if l.cfg.Connected && l.cfg.Proto == H1 {
		spares = newSpares(newArrivals(l.cfg).herd, l.cfg.Timeout, l.open)
		spares.openFirst(ctx)
	} else if l.cfg.Connected {
		c, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		l.wire.connect(c)
		cancel()
	}
	return l.run(ctx, spares)
}

// run is Run once everything is connected.
func (l *Load) run(ctx context.Context, spares *spares) LoadResult {
	going, enough := context.WithCancelCause(ctx) // ends before ctx when enough requests were sent
	defer enough(nil)
	l.mu.Lock()
	start := time.Now()
	l.came = start
	l.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { spares.openLater(going, start) })
	l.arrive(going, start, func(c *client) {
		if c.isHerd {
			c.conn = spares.next()
		}
		if !l.enter(c) {
			c.conn.close()
			return
		}
		all.Go(func() {
			c.live(ctx, going, enough)
			c.conn.close() // unless it has been used
		})
	})
	spares.close()
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

// arrive calls come with each client when it is due, or as soon as it can if that
// has passed. It returns when all have come, or when going ends. When the time in
// which they come is over, and the grace, those by Rate who have not come are
// counted instead: there may be millions of them. A herd is few, and comes.
func (l *Load) arrive(going context.Context, start time.Time, come func(*client)) {
	arrivals := newArrivals(l.cfg)
	last := l.cfg.comingEnds() + grace
	overdue := make([]int, len(l.cfg.Mix)) // by share
	source := rand.NewPCG(0, 0)
	random := rand.New(source) // of clients that do not come
	for i := 0; ; i++ {
		at, herd, ok := arrivals.next()
		if !ok {
			break
		}
		if !herd && time.Since(start) > last && going.Err() == nil {
			source.Seed(l.cfg.Seed, uint64(i)+1)
			overdue[l.cfg.Mix.Pick(random.Float64())]++
			continue
		}
		// Who is late does not wait: thousands of clients that are ready to run
		// would have their turn before this.
		if d := at - time.Since(start); going.Err() != nil || d > 0 && !wait(going, d) {
			break
		}
		c := &client{load: l, start: start, index: i, isHerd: herd, due: at, random: rand.New(rand.NewPCG(l.cfg.Seed, uint64(i)+1))}
		c.share = l.cfg.Mix.Pick(c.random.Float64())
		come(c)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coming = time.Since(start)
	for share, n := range overdue {
		for _, counter := range l.counters(&client{share: share}) {
			counter.Skipped += n
			counter.Overdue += n
		}
	}
}

// Result returns a copy of the counts so far, for use while Run is on. It takes
// some time: see Progress.
func (l *Load) Result() LoadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := LoadResult{All: l.all.tally(), Herd: l.herd.tally(), Others: l.others.tally(), Seconds: slices.Clone(l.series.seconds), Broken: l.broken, Started: l.came, Coming: l.coming,
		Tenths: slices.Clone(l.series.tenths), HerdCame: l.herdCame}
	if n := len(r.Seconds); n > 0 {
		r.Seconds[n-1].InFlight = l.series.inFlight
	}
	if !l.came.IsZero() {
		r.Took = time.Since(l.came)
	}
	for i := range l.shares {
		r.Policies = append(r.Policies, PolicyTally{l.cfg.Mix[i].Policy, l.shares[i].tally()})
	}
	r.Faults = l.dialer.faults.Load()
	r.Fault, _ = l.dialer.fault.Load().(string)
	return r
}

// A Progress is what a run's clients have met with so far, in a few numbers.
type Progress struct {
	At                           time.Duration // since the start of the run
	Came, Served, Trying, GaveUp int           // clients
	Requests                     int           // begun
}

// Progress is cheap, for use while Run is on.
func (l *Load) Progress() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := Progress{Requests: l.sent}
	if !l.came.IsZero() {
		p.At = time.Since(l.came)
	}
	p.Came, p.Served, p.Trying, p.GaveUp = l.all.Clients, l.all.Served, l.all.Trying, l.all.GaveUp
	return p
}

// counters returns those that c counts in.
func (l *Load) counters(c *client) [3]*counter {
	group := &l.others
	if c.isHerd {
		group = &l.herd
	}
	return [...]*counter{&l.all, group, &l.shares[c.share]}
}

// enter counts a client that comes, and reports whether there is room for it.
func (l *Load) enter(c *client) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := l.all.Trying < MaxClients
	for _, n := range l.counters(c) {
		if room {
			n.begin()
		} else {
			n.Skipped++
		}
	}
	return room
}

// begin counts a request that is sent, unless enough have been.
func (l *Load) begin(c *client, retry bool, at time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent >= l.cfg.Requests {
		return false
	}
	l.sent++
	l.begun[c.share].requests++
	l.series.begin(at, c.isHerd, retry)
	return true
}

// wrote notes that one of the herd has sent its first request, at a time since the start.
func (l *Load) wrote(at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.herdCame = max(l.herdCame, at)
}

// cut counts a request of c that was under way when the run was stopped.
func (l *Load) cut(c *client, e end) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.counters(c) {
		n.cut(e)
	}
	l.series.cut(e)
}

// retries counts one that a client of c's share has decided on: all of a herd decide
// before the first of them comes back.
func (l *Load) retries(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun[c.share].retries++
}

// budget returns what the clients of c's share have sent and decided on so far.
func (l *Load) budget(c *client) budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun[c.share]
}

// record counts an attempt of c that ended.
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

// A verdict is what a client does after an attempt.
type verdict int

const (
	served verdict = iota // it has what it came for
	retry                 // it tries again after a wait
	gaveUp                // it goes away without
)

// A client wants one answer.
type client struct {
	load   *Load
	start  time.Time // of the run
	index  int       // among all that come
	isHerd bool
	share  int
	random *rand.Rand
	due    time.Duration // when it comes, since start
	conn   *spare        // for its first attempt, or nil
}

// live is the life of c. Attempts are cut off when ctx ends; none begins when
// going has ended, which enough does.
func (c *client) live(ctx, going context.Context, enough context.CancelCauseFunc) {
	l := c.load
	s := sender{index: c.index, address: l.cfg.address(c.index), precise: l.cfg.Mix[c.share].Precise, conn: c.conn}
	due, gap := c.due, time.Duration(0)
	if c.isHerd {
		s.wrote = func() { l.wrote(time.Since(c.start)) }
	}
	for n := 1; ; n++ {
		began := time.Since(c.start)
		if !l.begin(c, n > 1, began) {
			enough(ErrRequests)
			return
		}
		attempt, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		r := l.wire.send(attempt, s)
		cancel()
		e := end{reply: r, due: due, began: began, ended: time.Since(c.start), firstTime: c.due}
		if ctx.Err() != nil && r.status < 0 { // the run was cut off, and nobody knows how this would have ended
			l.cut(c, e)
			return
		}
		e.verdict, gap = c.decide(r, n, gap, e.ended-c.due)
		l.record(c, e)
		due = e.ended + gap
		if e.verdict != retry || !wait(going, due-time.Since(c.start)) {
			return
		}
		s.conn, s.wrote = nil, nil
	}
}

// decide returns what c does after its attempt number n, before which it waited
// for gap, and which ended elapsed after its first one was due; and how long it
// waits before it tries again.
func (c *client) decide(r reply, n int, gap, elapsed time.Duration) (verdict, time.Duration) {
	cfg := &c.load.cfg
	policy := cfg.Mix[c.share].Policy
	if r.status >= 200 && r.status < 300 {
		return served, 0
	}
	failed := cmp.Or(r.failed, r.status)
	hint, ask := asks(policy, failed, r.hint)
	if n == cfg.Attempts || !ask {
		return gaveUp, 0
	}
	sent := c.load.budget(c)
	after, again := policy.Next(clients.Refused{
		Attempt: n, Hint: hint, Gap: gap, Elapsed: elapsed, U: c.random.Float64(),
		Status: failed, Retries: sent.retries, Requests: sent.requests,
	})
	if !again || after > cfg.Patience-elapsed { // not elapsed+after, which may overflow
		return gaveUp, 0
	}
	c.load.retries(c)
	return retry, max(after, 0)
}

// asks reports whether p is asked after a failure, and what it may know of the
// hint. A clients.Client says itself which failures it retries, and in which
// answers it obeys a hint; a clients.Only says the former. Others are asked after
// those that may go away, and know the hints of 429 (RFC 6585, section 4) and 503.
func asks(p clients.Policy, status int, hint pushback.Hint) (pushback.Hint, bool) {
	statuses, hints := knows(p)
	if !hints && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		hint = pushback.Hint{}
	}
	return hint, statuses || mayRetry(status)
}

// knows reports whether p says itself which failures it retries, and in which
// answers it obeys a hint.
func knows(p clients.Policy) (statuses, hints bool) {
	switch p := p.(type) {
	case clients.Client:
		return true, true
	case clients.Only:
		_, hints = knows(p.Policy)
		return true, hints
	case clients.Named:
		return knows(p.Policy)
	case clients.MaxAttempts:
		return knows(p.Policy)
	case clients.Budgeted:
		return knows(p.Policy)
	}
	return false, false
}

// mayRetry reports whether other policies are asked at all: what is wrong with
// the request itself stays wrong.
func mayRetry(status int) bool {
	switch status {
	case clients.NoAnswer, clients.NoConnection,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return status >= 500
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
