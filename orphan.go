package shield

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/pushback"
)

// Orphans says what is done about requests whose clients hang up while the backend works
// on them.
type Orphans string

// The values of Orphans.
const (
	OrphansKeep   Orphans = "keep"   // the backend is told, if it can be, and the place kept until it is done; the same as ""
	OrphansFinish Orphans = "finish" // the backend is not told; its answer gives back the place
	OrphansFree   Orphans = "free"   // the backend is told, and the place given back at once
)

// check returns an error if o is none of the values above.
func (o Orphans) check() error {
	switch o {
	case "", OrphansKeep, OrphansFinish, OrphansFree:
		return nil
	}
	return fmt.Errorf("orphans is %q; want %s, %s or %s", string(o), OrphansKeep, OrphansFinish, OrphansFree)
}

// longestOrphan bounds how long a request is waited for whose client has gone. Ours: one
// that takes longer mostly waits itself, as long polls do.
const longestOrphan = 10 * time.Second

// A Shelter finds out when the backend is done with a request whose client has hung up,
// so that its place in flight is kept until then.
//
// The backend learns of the hang-up as it would from a client of its own: shield closes
// its direction of the connection. The other direction tells when the backend is done: it
// answers. A backend that does not answer but closes the connection may work on, as event
// loops and proxies do. Then, and where a connection cannot be closed in one direction, as
// with TLS and HTTP/2, the backend is not told of hang-ups: its answer decides.
type Shelter struct {
	g      *Guard
	began  time.Duration
	client context.Context
	stop   func() bool // ends the watch of the client; nil when End has been called, guarded by mu
	cancel context.CancelFunc
	trace  httptrace.ClientTrace

	mu    sync.Mutex    // guards what follows
	conn  net.Conn      // that the request is sent on; nil: none, or one that other requests use, too
	is    progress      // of the request on it
	left  time.Duration // when the client hung up; 0: it has not, or the backend has nothing to do
	line  *line         // to the backend, if that is told
	timer *time.Timer   // ends the wait for the backend
}

// A line is another handle of a connection, which stays open when the Transport closes its
// own.
type line struct {
	net.Conn
	free  chan struct{} // closed when the Transport has closed its handle
	short bool          // the backend has not got all of the request
	once  sync.Once
	ended Outcome // set by once
}

// progress is how far a request to the backend is.
type progress uint8

const (
	unsent   progress = iota
	begun             // to be sent on a connection that other requests use, too
	sent              // all of it
	late              // it may be sent although it has been cancelled
	answered          // the response has begun
	ended             // the handler has returned
)

// Shelter returns what is to be passed to the backend instead of r, which the Guard has
// admitted as d. When the backend's handler has returned, the Shelter's End is to be called.
// It is nil if r is not to be waited for. body is the result of WatchBody for r.
func (g *Guard) Shelter(r *http.Request, body *Body, d *Decision) (*http.Request, *Shelter) {
	if g.orphans == OrphansFree || !g.plan.Limits() && g.plan.PerClient() == 0 || r.ProtoMajor > 1 && pushback.IsGRPC(r) {
		return r, nil
	}
	s := &Shelter{g: g, began: d.at, client: r.Context()}
	var ctx context.Context
	if at, ok := s.client.Deadline(); ok {
		ctx, s.cancel = context.WithDeadline(sheltered{s}, at)
	} else {
		ctx, s.cancel = context.WithCancel(sheltered{s})
	}
	s.stop = context.AfterFunc(s.client, s.leave)
	s.trace.GotConn, s.trace.WroteHeaderField = s.gotConn, s.wroteHeaderField
	s.trace.WroteRequest, s.trace.GotFirstResponseByte = s.wroteRequest, s.gotFirstResponseByte
	if body != nil {
		body.breaks = s.breakOff
	}
	return r.WithContext(httptrace.WithClientTrace(ctx, &s.trace)), s
}

// gotConn notes on which connection the request will be sent. One whose client has gone is
// not sent again.
func (s *Shelter) gotConn(info httptrace.GotConnInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.is = info.Conn, unsent
	if s.left > 0 {
		s.cancel()
	}
}

// wroteHeaderField tells HTTP/2 by its pseudo-header fields. The Transport may write a request
// although its context has just ended, and the backend would work on what is not waited for.
// Over HTTP/1, where Host comes first, it is not sent; over HTTP/2 that is too late.
func (s *Shelter) wroteHeaderField(name string, _ []string) {
	shared := strings.HasPrefix(name, ":")
	if !shared && name != "Host" {
		return
	}
	s.mu.Lock()
	conn, unwanted := s.conn, s.left > 0
	if shared {
		if s.is == unsent {
			s.is = begun
			if unwanted {
				s.is = late
			}
		}
		s.conn = nil
	}
	told := s.line != nil
	s.mu.Unlock()
	if unwanted && !shared && conn != nil && !told {
		s.cancel()
		unsend(conn) // before the buffer is flushed for the first time
	}
}

// unsend waits until the Transport has closed the connection of a request that is cancelled.
// Were it closed here, the Transport might report that, and not the cancellation: a proxy
// would count it as a failure of the backend. Meanwhile nothing can be sent.
func unsend(conn net.Conn) {
	for range 1000 { // a Transport of another make may not close it
		if conn.SetWriteDeadline(time.Unix(1, 0)) != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	conn.Close()
}

func (s *Shelter) wroteRequest(info httptrace.WroteRequestInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if info.Err == nil && s.is <= begun {
		if s.is = sent; s.left > 0 {
			s.depart()
		}
	}
}

// gotFirstResponseByte notes that the response begins. If the backend is to be told of the
// hang-up the Transport is about to close the connection, and must not read on before it
// has: it would keep the connection for other requests.
func (s *Shelter) gotFirstResponseByte() {
	s.mu.Lock()
	s.is = answered
	line := s.line
	s.mu.Unlock()
	if line != nil {
		<-line.free
	}
}

// leave decides what becomes of the request, now that its client has gone.
func (s *Shelter) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.is == ended, errors.Is(s.client.Err(), context.DeadlineExceeded): // the request has the same deadline
	case s.is == answered:
		s.cancel()
	case s.conn == nil && s.is == unsent:
		s.orphan() // it may get a connection just now
		s.cancel()
	default:
		s.orphan()
		if s.timer = time.AfterFunc(longestOrphan, s.cancel); s.is == sent { // else when it is
			s.depart()
		}
	}
}

// breakOff keeps a line to the backend, which may work on what it has got: the Transport
// is about to close the connection, as there is no more of the body.
func (s *Shelter) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is != unsent || s.conn == nil || s.line != nil {
		return
	}
	s.orphan()
	if s.dial() {
		s.line.short = true
	}
}

// orphan counts the request as one whose client has gone, once.
func (s *Shelter) orphan() {
	if s.left == 0 {
		s.left = Now()
		s.g.backend.orphans.Add(1)
	}
}

// depart tells the backend that the client has gone, if it is to be told.
func (s *Shelter) depart() {
	candour := &s.g.backend.candour
	if _, ok := s.conn.(filed); !ok || s.g.orphans == OrphansFinish || !candour.trusts(s.left) {
		return
	}
	if s.dial() {
		s.cancel()
	} else {
		candour.unsure(s.left)
	}
}

// filed is what *net.TCPConn and *net.UnixConn have, but not *tls.Conn.
type filed interface{ File() (*os.File, error) }

// dial makes the line to the backend, if there can be one.
func (s *Shelter) dial() bool {
	conn, ok := s.conn.(filed)
	if !ok {
		return false
	}
	file, err := conn.File()
	if err != nil {
		return false
	}
	defer file.Close()
	again, err := net.FileConn(file)
	if err != nil {
		return false
	}
	s.line = &line{Conn: again, free: make(chan struct{})}
	return true
}

// End is to be called when the handler has returned, even if it panics, with how the
// request has ended as far as that is known. It returns what to pass to Decision.Done,
// after it has waited for the backend if need be. Further calls do nothing.
func (s *Shelter) End(o Outcome) Outcome {
	if s == nil {
		return o
	}
	s.mu.Lock()
	stop := s.stop
	if stop == nil {
		s.mu.Unlock()
		return o
	}
	s.stop = nil
	left, line, timer := s.left, s.line, s.timer
	if s.is != answered {
		s.is = ended
	}
	s.mu.Unlock()
	stop()
	s.cancel()
	if timer != nil {
		timer.Stop()
	}
	if line != nil {
		if ended := s.finish(line); !line.short { // else the time says nothing
			o = ended
		}
	}
	if left > 0 {
		s.g.backend.orphans.Add(-1)
	}
	return o
}

// sheltered is the context of a request in a Shelter: its client's, without its end.
type sheltered struct{ *Shelter }

type shelterKey struct{}

func (sheltered) Deadline() (at time.Time, ok bool) { return at, false }
func (sheltered) Done() <-chan struct{}             { return nil }
func (sheltered) Err() error                        { return nil }

// Value implements context.Context. The Shelter itself is under shelterKey.
func (c sheltered) Value(key any) any {
	if key == (shelterKey{}) {
		return c.Shelter
	}
	return c.client.Value(key)
}

// AwaitBackend waits for the backend as Shelter.End does, if it is to be told that the
// client has gone, and reports whether it was. It is for a proxy that counts what each of
// several servers has, with the context of a request from Shelter whose round trip is over.
func AwaitBackend(ctx context.Context) (told bool) {
	s, ok := ctx.Value(shelterKey{}).(*Shelter)
	if !ok {
		return false
	}
	s.mu.Lock()
	line := s.line
	s.mu.Unlock()
	if line != nil {
		s.finish(line)
	}
	return line != nil
}

// finish awaits the end of a request whose backend is to be told, once.
func (s *Shelter) finish(l *line) Outcome {
	l.once.Do(func() {
		close(l.free)
		l.ended = s.await(l)
		l.Close()
	})
	return l.ended
}

// await tells the backend that the client has gone, and waits until it is done.
func (s *Shelter) await(line *line) Outcome {
	candour := &s.g.backend.candour
	if s.progress() == answered {
		candour.unsure(s.left)
		return Aborted
	}
	if half, ok := line.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = line.SetReadDeadline(At(s.left + longestOrphan))
	status, err := readStatus(line)
	overdue := errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && s.progress() == answered { // the Transport has the answer, which came just then
		candour.unsure(s.left)
		return Aborted
	}
	silent := err != nil && !overdue || speaksForOthers(status)
	if !line.short { // what the backend makes of half a request is another matter
		candour.learn(s.left, !silent)
	}
	switch {
	case silent:
		return Aborted
	case !overdue && Now()-s.left > s.left-s.began:
		return outcomeOf(status) // it was not the hang-up that ended it: it has taken what such requests take
	}
	return Aborted
}

func (s *Shelter) progress() progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is
}

// readStatus returns the status of the response that is read from a connection.
func readStatus(from io.Reader) (int, error) {
	head := bufio.NewReader(io.LimitReader(from, 1<<16))
	for {
		resp, err := http.ReadResponse(head, nil)
		if err != nil {
			return 0, err
		}
		if resp.StatusCode >= http.StatusOK {
			return resp.StatusCode, nil
		}
	}
}

// speaksForOthers reports whether a status is what gateways answer for a backend that they
// have left alone: it may work on.
func speaksForOthers(status int) bool {
	return status == StatusClientGone || status >= http.StatusBadGateway
}

// candour is whether a backend that is told of a hang-up says when it is done. One request
// finds that out. Until then, and for a minute after a connection was closed without an
// answer, the backend is not told.
type candour struct {
	known   atomic.Bool
	doubted atomic.Int64 // until when
}

const doubtful = time.Minute

func (c *candour) trusts(now time.Duration) bool {
	until := c.doubted.Load()
	return c.known.Load() || int64(now) >= until && c.doubted.CompareAndSwap(until, int64(now+doubtful))
}

// unsure is called with the time for which trusts said yes, if that request finds out nothing,
// as one that is answered when its client hangs up: the next one may.
func (c *candour) unsure(now time.Duration) { c.doubted.CompareAndSwap(int64(now+doubtful), 0) }

func (c *candour) learn(now time.Duration, answers bool) {
	c.known.Store(answers)
	if !answers {
		c.doubted.Store(int64(now + doubtful))
	}
}
