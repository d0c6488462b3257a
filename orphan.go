package shield

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/herdshield/shield/pushback"
)

// Orphans says what is done about requests whose clients hang up while the backend works
// on them.
type Orphans string

// The values of Orphans.
const (
	OrphansKeep Orphans = "keep" // the backend is not told, and its response gives back the place; the same as ""
	OrphansFree Orphans = "free" // the backend is told, and the place given back at once
)

// longestOrphan bounds how long a request is waited for whose client has gone. Ours: one
// that takes longer mostly waits itself, as long polls do.
const longestOrphan = 10 * time.Second

// A Shelter keeps the place in flight of a request whose client has hung up. The backend is
// not told, as few backends stop then, and none says when it has: it is waited for until it
// responds, for longestOrphan at most.
type Shelter struct {
	g      *Guard
	client context.Context
	ctx    context.Context // the request's
	cancel context.CancelFunc
	stop   func() bool // ends the watch of the client
	trace  httptrace.ClientTrace

	mu       sync.Mutex  // guards the fields below
	answered bool        // the response has begun
	ended    bool        // the handler has returned
	timer    *time.Timer // ends the wait for the backend; nil: the client is there
}

// Shelter returns what is to be passed to the backend instead of r, which the Guard has
// admitted. When the backend's handler has returned, and it is known how the request has
// ended, the Shelter's End is to be called. It is nil if r is not to be waited for. body is
// the result of WatchBody for r.
func (g *Guard) Shelter(r *http.Request, body *Body) (*http.Request, *Shelter) {
	if g.orphans == OrphansFree || !g.plan.Limits() && g.plan.PerClient() == 0 || r.ProtoMajor > 1 && pushback.IsGRPC(r) {
		return r, nil
	}
	s := &Shelter{g: g, client: r.Context()}
	s.ctx = context.WithoutCancel(s.client)
	if at, ok := s.client.Deadline(); ok {
		s.ctx, s.cancel = context.WithDeadline(s.ctx, at)
	} else {
		s.ctx, s.cancel = context.WithCancel(s.ctx)
	}
	s.trace.GotFirstResponseByte = s.answer
	s.ctx = httptrace.WithClientTrace(s.ctx, &s.trace)
	s.stop = context.AfterFunc(s.client, s.leave)
	if body != nil {
		body.breaks = s.breakOff
	}
	return r.WithContext(s.ctx), s
}

// answer notes that the response begins.
func (s *Shelter) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
}

// leave notes that the client has gone: a response that has begun ends, and one that has not
// is waited for.
func (s *Shelter) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended, s.timer != nil, errors.Is(s.client.Err(), context.DeadlineExceeded): // the request has the same deadline
	case s.answered:
		s.cancel()
	default:
		s.g.backend.orphans.Add(1)
		s.timer = time.AfterFunc(longestOrphan, s.cancel)
	}
}

// breakOff handles a body that has ended too early. If its client has gone, it blocks until the
// request is over: the backend may work on what it has got, and is not told.
func (s *Shelter) breakOff(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) { // the server waits no longer, and has ended the client's context as well
		return
	}
	if s.client.Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		s.leave()
		<-s.ctx.Done()
	}
}

// End is to be called when the handler has returned, even if it panics. Further calls do
// nothing.
func (s *Shelter) End() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	s.stop()
	s.cancel()
	if s.timer != nil {
		s.timer.Stop()
		s.g.backend.orphans.Add(-1)
	}
}
