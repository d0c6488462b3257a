package shield

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/herdshield/shield/meter"
	"github.com/herdshield/shield/pushback"
)

// Disconnected says what happens to a request if its client disconnects while the backend works on it.
type Disconnected string

// The values of Disconnected.
const (
	DisconnectedKeep Disconnected = "keep" // the request keeps its permit until the backend responds, and the backend isn't told; the same as ""
	DisconnectedFree Disconnected = "free" // the permit is returned immediately, and the backend is told
)

// longestDisconnected bounds how long shield waits for a request after its client disconnected. We chose 10 s
// because anything longer is usually an idle long poll.
const longestDisconnected = 10 * time.Second

// An Exchange follows an admitted request until its end. It is the ResponseWriter of the handler behind the
// Guard, and it watches the body and the context of its request. Whatever happens, it returns the request's
// permit exactly once:
//
//	event                            the permit                        the backend                  the outcome
//	response starts                  kept
//	it is an announced stream        returned: see Streams                                          Detached
//	it is another stream             kept, but only the time so far counts
//	client disconnects before that   kept for the response, ≤ 10 s     isn't told: see Disconnected by status, or Aborted; Left
//	client disconnects afterwards    kept until the handler returns    told                         Detached
//	body breaks off                  as if its client disconnected                                  Detached
//	timeout, backend late           kept until the handler returns    told                         Overloaded
//	timeout, client too slow        kept until the handler returns    told                         Detached
//	handler returns                  returned                                                       by status
//	handler panics                   returned                                                       Detached, except for late backends
//
// The exchange's end also settles what zones settle: see [Zone.Settle].
//
// If a client disconnects before the response, the Exchange waits for the response instead of telling the
// backend, because few backends stop when told, and none says when it has. Don't call its methods concurrently.
type Exchange struct {
	http.ResponseWriter

	// Failed is the status that the server will answer for a handler that has returned an error, without a response. It is
	// to be set before End.
	Failed int

	// Then is called, if it is set, just before the permit in flight is given back. It is for a
	// proxy that has permits of its own, and has to be set before the response begins.
	Then func()

	g      *Guard
	d      Decision
	r      *http.Request
	client context.Context
	began  time.Duration
	dog    *Watchdog   // nil: there is no timeout
	free   bool        // a stream gives back what is held
	given  atomic.Bool // it has been given back

	body   io.ReadCloser
	broken atomic.Bool // the body ended too early
	closed atomic.Bool // by a handler: what the body says after that is not the client's doing

	kept    context.Context // of a request that goes on when its client hangs up; nil: it does not
	cancel  context.CancelFunc
	unwatch func() bool // ends the watch for the hang-up

	mu     sync.Mutex    // guards the fields below
	status int           // of the response, once it has begun; set by the handler's goroutine alone
	ended  bool          // by End
	timer  *time.Timer   // ends the wait for the backend; nil: the client is there
	left   time.Duration // when it went
}

// Begin starts the Exchange of an admitted request, which takes over its Done. It returns what the handler
// behind it should serve instead of r, maybe r itself. Set proxied if that handler passes requests on to a
// backend; others return when they are done. The backend can pause for timeout, 0 meaning forever: see
// Watchdog. Always call End, even if the handler panics.
func (g *Guard) Begin(w http.ResponseWriter, r *http.Request, d *Decision, proxied bool, timeout time.Duration) (*Exchange, *http.Request) {
	x := &Exchange{ResponseWriter: w, g: g, d: *d, began: Now(), r: r, client: r.Context(), free: g.streams.free(r)}
	ctx, body := x.client, r.Body
	if body != nil && body != http.NoBody {
		x.body, body = body, (*exchangeBody)(x)
	}
	limits := g.plan.Limits() || g.plan.PerClient > 0
	if proxied && d.permit.Held() && limits && g.disconnected != DisconnectedFree && (r.ProtoMajor == 1 || !pushback.IsGRPC(r)) {
		ctx = context.WithoutCancel(x.client) // does not end when the client hangs up
		if at, ok := x.client.Deadline(); ok {
			ctx, x.cancel = context.WithDeadline(ctx, at)
		} else {
			ctx, x.cancel = context.WithCancel(ctx)
		}
		x.kept, x.unwatch = ctx, context.AfterFunc(x.client, x.leave)
	}
	if timeout > 0 {
		ctx, x.dog = Watch(ctx, w, 0, timeout, Now())
		body = x.dog.Body(body)
	}
	if ctx != x.client || x.body != nil || d.charges.read() { // net/http looks at the type of the body of its own request
		r = r.WithContext(ctx)
		if r.Body = body; d.charges.read() {
			r.Header = decodable(r.Header)
		}
	}
	x.d.charges, d.charges = d.charges, nil
	return x, r
}

// leave notes that the client has gone: a response that has begun ends, and one that has not
// is waited for.
func (x *Exchange) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.ended, x.timer != nil, errors.Is(x.client.Err(), context.DeadlineExceeded): // the request has the same deadline
	case x.status != 0:
		x.cancel()
	default:
		x.g.backend.disconnected.Add(1)
		x.left = Now()
		x.timer = time.AfterFunc(longestDisconnected, x.cancel)
	}
}

// End ends the exchange with what Result returned, or with Detached and 0. Further calls do nothing.
func (x *Exchange) End(o Outcome, pause time.Duration) {
	x.mu.Lock()
	again := x.ended
	x.ended = true
	x.mu.Unlock()
	if again {
		return
	}
	if x.kept != nil {
		x.unwatch()
		x.cancel()
	}
	if x.timer != nil {
		x.timer.Stop()
		x.g.backend.disconnected.Add(-1)
		x.d.permit.Left(x.left)
	}
	x.g.settle(Now(), x.d.charges, o, meter.End{Status: cmp.Or(x.status, x.Failed), Header: x.Header(), Took: Now() - x.began})
	if x.dog != nil {
		x.dog.Stop()
	}
	x.giveBack(o)
	if pause > 0 {
		x.d.Pause(Now(), pause)
	}
}

// giveBack gives back what the request holds, at the first call.
func (x *Exchange) giveBack(o Outcome) {
	if x.given.Swap(true) {
		return
	}
	if x.Then != nil {
		x.Then()
	}
	x.d.permit.Leave(Now(), o)
}

// Result returns how a finished handler served the request, judging by the status and header of the backend's
// response, and the pause that response asks for. Pass status 0 if the response is unknown.
//
// Gateways send 502, 503 and 504 if a backend is unreachable, rejects, or is late. A 500 is about the request,
// not about the backend's load, and a 429 can be about either: see load. If a body broke off, or the client
// left during the response, the request took as long as the client liked, so it says nothing about the backend,
// whatever status a proxy reports.
func (x *Exchange) Result(status int, header func(string) string) (o Outcome, pause time.Duration) {
	ctx := x.client
	if x.kept != nil {
		ctx = x.kept // what is answered after the hang-up tells as much of the backend
	}
	err := ctx.Err()
	gone := errors.Is(err, context.Canceled)
	late, slow := x.Late()
	switch {
	case slow, x.broken.Load(), gone && status >= 200 && status < 400:
		return Detached, 0
	case late:
		return Overloaded, 0
	case gone:
		return Aborted, 0
	}
	switch o, pause = load(status, pushback.IsGRPC(x.r), header); {
	case o != Served:
		return o, pause
	case status == http.StatusGatewayTimeout, err != nil: // the server's own deadline
		return TimedOut, 0
	}
	return Served, 0
}

// load returns what a status and its header say of the backend's load, Served if nothing. A shield says
// by Proxy-Status whether it rejects for an overload or because of its client; if its clients speak gRPC,
// with status 200. 529 is what Anthropic's API and NVIDIA Dynamo answer in an overload. A 429 may mean
// that or a quota. llm-d's router has reasons, of which none is a quota; else it is one if nothing is left of that. Who
// names an exact wait makes an appointment with one client, and asks for no pause.
func load(status int, grpc bool, header func(string) string) (o Outcome, pause time.Duration) {
	if status >= http.StatusBadRequest || grpc {
		_, details, ok := strings.Cut(header("Proxy-Status"), "shield; error=http_request_denied; details=")
		switch {
		case strings.HasPrefix(details, `"overload"`):
			return Overloaded, 0
		case ok:
			return Detached, 0
		}
	}
	asks := false
	switch status {
	case http.StatusBadGateway:
		o = Overloaded
	case http.StatusServiceUnavailable, 529:
		o, asks = Overloaded, true
	case http.StatusTooManyRequests:
		o, asks = Limited, header("X-Llm-D-Request-Dropped-Reason") != ""
		if !asks && (strings.Contains(header("Ratelimit"), "r=0") || header("X-Ratelimit-Remaining") == "0") {
			return Detached, 0
		}
	}
	if asks && header("Retry-After-Ms") == "" {
		pause = RetryAfter(header("Retry-After"), At(Now()))
	}
	return o, pause
}

// Status returns the status of the response: 0 if it hasn't started, 101 if the connection was hijacked.
func (x *Exchange) Status() int { return x.status }

// Late reports whether the timeout has passed, and whether it was the client's turn to send or to read.
func (x *Exchange) Late() (late, slow bool) {
	if x.dog != nil {
		late, slow = x.dog.Late()
	}
	return late, slow
}

// begin looks at the header of the response, at the first that is final, be it explicit or the
// 200 that a first Write or Flush implies. It reports whether the response may begin: it may not
// if the timeout has passed.
func (x *Exchange) begin(status int) bool {
	if x.dog != nil && !x.dog.Begin(x.r, status, x.Header()) {
		return false
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		return true
	}
	x.mu.Lock()
	x.status = status
	x.mu.Unlock()
	x.d.charges.begin(x.Header())
	switch {
	case !streams(x.r, status, x.Header()):
	case x.free:
		x.d.permit.Serves(Now())
		x.giveBack(Detached)
	default:
		x.d.permit.Streams(Now())
	}
	return true
}

// WriteHeader implements http.ResponseWriter.
func (x *Exchange) WriteHeader(status int) {
	if x.status != 0 || x.begin(status) {
		x.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (x *Exchange) Write(b []byte) (n int, err error) {
	err = x.send(func() error { n, err = x.ResponseWriter.Write(b); return err })
	for _, c := range x.d.charges {
		if c.meter != nil { // the response has begun
			c.meter.Write(b[:n])
		}
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom, so that the kernel can still send files, unless the response reports its
// cost.
func (x *Exchange) ReadFrom(r io.Reader) (n int64, err error) {
	if x.d.Charged() {
		return io.Copy(struct{ io.Writer }{x}, r)
	}
	err = x.send(func() error { n, err = io.Copy(x.ResponseWriter, r); return err })
	return n, err
}

// Flush implements http.Flusher.
func (x *Exchange) Flush() { _ = x.FlushError() }

// FlushError is the Flush that http.ResponseController prefers.
func (x *Exchange) FlushError() error {
	return x.send(http.NewResponseController(x.ResponseWriter).Flush)
}

// send sends a part of the response. Meanwhile it is the client's turn.
func (x *Exchange) send(part func() error) error {
	if x.status == 0 && !x.begin(http.StatusOK) {
		return ErrTimeout
	}
	if x.dog == nil {
		return part()
	}
	x.dog.Reads(true)
	defer x.dog.Reads(false)
	return part()
}

// Hijack implements http.Hijacker. Hijacked connections have no timeout.
func (x *Exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if err == nil {
		x.begin(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// Unwrap is for http.ResponseController.
func (x *Exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// An exchangeBody is the body of the request of an Exchange. Any goroutine may read and close it.
type exchangeBody Exchange

// ReadEarly is for [pushback.ReadEarly].
func (b *exchangeBody) ReadEarly() (whole, early bool) { return pushback.ReadEarly(b.body) }

// Close implements io.Closer.
func (b *exchangeBody) Close() error {
	b.closed.Store(true)
	return b.body.Close()
}

// Read implements io.Reader. If the client of a request that is kept has gone, Read blocks until
// that is over: the backend may work on what it has got, and is not told.
func (b *exchangeBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err == nil || err == io.EOF || b.closed.Load() {
		return n, err
	}
	b.broken.Store(true)
	if b.kept == nil {
		return n, err
	}
	left := b.client.Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
	if left && !errors.Is(err, os.ErrDeadlineExceeded) { // after a deadline the server waits no longer, and ends the client's context as well
		(*Exchange)(b).leave()
		<-b.kept.Done()
	}
	return n, context.Canceled // to proxies it is no failure of the backend
}

// RetryAfter returns how long a Retry-After field (RFC 9110, section 10.2.3)
// says to wait: seconds, or an HTTP date, which is compared with now. 0 if there is
// none or it cannot be read.
func RetryAfter(field string, now time.Time) time.Duration {
	field = strings.TrimSpace(field)
	if s, err := strconv.ParseUint(field, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(field); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
