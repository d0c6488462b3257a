// Package upload keeps clients that send their requests slowly from holding permits. A body of up to MaxEarly
// bytes is read before its request asks for a permit, and the rest must come at a pace.
//
// It is not for limits on the size of a body, and not for streams in which both sides send at once: gRPC's
// clients, say, may wait for a response before they send more.
//
//	whole, done, err := early.Read(w, r, 0, 0)
//	defer done()
//	if err != nil { … } // 408
//	pacer := upload.NewPacer(w, r, whole, 0)
//	defer pacer.End()
package upload

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

const (
	// A client that holds a permit must send its body, and at an ingress read the
	// response, at MinPace bytes per second on average, after Grace. Ours: a
	// tenth of a bad mobile connection. Otherwise twenty clients that send a byte per
	// minute would hold all the permits of a small backend.
	MinPace = 1 << 10
	Grace   = 10 * time.Second
)

// A Pacer bounds how slowly a client may send while it holds a permit. Only the
// request's goroutine uses it, except for reading the body.
type Pacer struct {
	control *http.ResponseController
	conn    deadliner // the server's own, which nothing wraps

	over  atomic.Bool   // the body has ended, early or over HTTP/1: its deadline is to stay as it is
	by    time.Duration // when the server ends the request's reads; 0: never
	until time.Duration // when all of it must have come; 0: as MinPace says

	mu    sync.Mutex // guards the fields below
	set   bool       // the Pacer has set a deadline
	ended bool       // the connection may be another request's
}

// NewPacer returns a Pacer for r. whole: the body is in memory, and needs no pace. by is when the
// server's own timeout ends reads of r, as shield.Now has it; 0: never.
func NewPacer(w http.ResponseWriter, r *http.Request, whole bool, by time.Duration) *Pacer {
	p := &Pacer{control: http.NewResponseController(w), conn: unwrapped(w), by: by}
	if r.Body != nil && r.Body != http.NoBody && !whole {
		r.Body = &pacedBody{ReadCloser: r.Body, Pacer: p, drains: r.ProtoMajor == 1}
	}
	return p
}

// End stops the Pacer from setting deadlines: the transport may still be reading the body
// after the handler has returned.
func (p *Pacer) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.set && !p.over.Load() && p.by == 0 { // else the one that is set is no later than the server's
		_ = p.control.SetReadDeadline(time.Time{})
	}
}

// A deadliner is a connection, as far as reads of it end.
type deadliner interface{ SetReadDeadline(time.Time) error }

func unwrapped(w http.ResponseWriter) deadliner {
	for {
		inner, is := w.(interface{ Unwrap() http.ResponseWriter })
		if !is {
			conn, _ := w.(deadliner)
			return conn
		}
		w = inner.Unwrap()
	}
}

// unbind takes all deadlines of reads away, the server's own as well: the body has come over HTTP/1. From then on
// net/http watches the connection for the next byte, and a deadline would end the contexts of this request and
// of all later ones of the connection. It may have done so before, if another handler has read the body ahead.
func (p *Pacer) unbind() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended && p.conn != nil {
		_ = p.conn.SetReadDeadline(time.Time{})
	}
}

// readDeadline sets the deadline of the next read, the zero Time for none, or when the server ends reads if that is sooner: a
// shield does not give more time. It reports whether it could.
func (p *Pacer) readDeadline(t time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by > 0 && (t.IsZero() || shield.At(p.by).Before(t)) {
		t = shield.At(p.by)
	}
	set := !p.ended && p.control.SetReadDeadline(t) == nil
	p.set = p.set || set
	return set
}

// A pacedBody is a body that must come at MinPace. The time that reads waited counts, not
// the time between reads.
type pacedBody struct {
	io.ReadCloser
	*Pacer
	waited time.Duration
	read   int

	// drains: net/http reads what is left, from below and while a permit is held, when the response
	// begins or the proxy closes the body. So the deadline of the latest read stays; over HTTP/1 it
	// matters to reads only, and net/http sets another one for the next request.
	drains bool
}

// ReadEarly is for [pushback.ReadEarly].
func (b *pacedBody) ReadEarly() (whole, early bool) { return pushback.ReadEarly(b.ReadCloser) }

func (b *pacedBody) Read(p []byte) (int, error) {
	if b.over.Load() {
		return b.ReadCloser.Read(p)
	}
	left := Grace + time.Duration(b.read)*time.Second/MinPace - b.waited
	began := shield.Now()
	if b.until > 0 {
		left = min(left, b.until-began)
	}
	if !b.readDeadline(time.Now().Add(left)) {
		return b.ReadCloser.Read(p)
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	b.waited += shield.Now() - began
	switch {
	case err != nil && (err != io.EOF || b.drains):
		if err == io.EOF { // before the end keep the deadline, or net/http would wait for the rest
			b.unbind()
		}
		b.over.Store(true)
	case err == io.EOF || !b.drains:
		b.readDeadline(time.Time{})
	}
	return n, err
}

const (
	// A body is read up to MaxEarly before its request asks for a permit, so that few
	// requests hold one while they are being sent: most bodies are smaller. Together
	// they take up to MaxTaken; beyond that bodies are read later.
	MaxEarly = 16 << 10
	MaxTaken = 64 << 20

	// What a limit may ask for stands near the beginning of a body.
	MaxPeek = 64 << 10
)

// Early is how much has been read of bodies before their requests asked for a permit. It is ready to use,
// and safe for concurrent use.
type Early struct {
	Taken atomic.Int64 // bytes, of at most MaxTaken; only Read and Peek change it
}

// Read reads the body of r up to MaxEarly, and returns whether that is the whole
// body. The caller must call done after r. An error means that the client has broken off, or
// is too slow: also if it has not sent that much at the instant end, unless that is 0.
// by is as in NewPacer.
func (e *Early) Read(w http.ResponseWriter, r *http.Request, end, by time.Duration) (whole bool, done func(), err error) {
	if whole, before := pushback.ReadEarly(r.Body); before { // another handler has seen to it
		return whole, func() {}, nil
	}
	_, whole, done, err = e.read(w, r, MaxEarly, end, by, true, nil)
	return whole, done, err
}

// Peek is Read for up to MaxPeek, which it returns, or until a JSON object is whole: over HTTP/2 its client may wait for a response
// before it sends another. If it is paced, what follows must come at a pace, too; else the body may be as slow as it likes. After an
// error r.Body has what has come, and then the error.
func (e *Early) Peek(w http.ResponseWriter, r *http.Request, by time.Duration, paced bool) (begin []byte, whole bool, done func(), err error) {
	next := 0 // bytes, before it is checked again: a quarter more, as checking all costs time for each
	begin, whole, free, err := e.read(w, r, MaxPeek, 0, by, paced, func(p []byte) bool {
		if len(p) < next || !bytes.HasSuffix(bytes.TrimSpace(p), []byte("}")) {
			return false
		}
		next = len(p) + len(p)/4
		return json.Valid(p)
	})
	if err != nil || whole || !paced {
		return begin, whole, free, err
	}
	pacer := NewPacer(w, r, false, by)
	return begin, false, func() { pacer.End(); free() }, nil
}

// read reads up to size bytes, or until enough says so of what has come; nil: never. It is paced if it is bound.
func (e *Early) read(w http.ResponseWriter, r *http.Request, size int64, end, by time.Duration, bound bool, enough func([]byte) bool) (begin []byte, whole bool, done func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, true, func() {}, nil
	}
	if r.ContentLength > 0 {
		size = min(size, r.ContentLength)
	}
	taken := int64(0)
	done = sync.OnceFunc(func() { e.Taken.Add(-taken) })
	body := r.Body
	paced := &pacedBody{ReadCloser: body, Pacer: &Pacer{control: http.NewResponseController(w), conn: unwrapped(w), until: end, by: by}, drains: r.ProtoMajor == 1}
	inMemory, _ := pushback.ReadEarly(body) // and no deadline is to be set any more: see unbind
	paced.over.Store(inMemory || !bound)
	var early []byte
	n := 0
	for int64(n) < size && !whole && err == nil && (enough == nil || !enough(early[:n])) { // not io.ReadFull, which returns ErrUnexpectedEOF for a short body
		if n == len(early) { // as much as a client only announces must not keep others from being read early
			more := min(max(1<<10, 3*int64(n)), size-int64(n))
			if taken += more; e.Taken.Add(more) > MaxTaken {
				break
			}
			early = append(early, make([]byte, more)...)
		}
		var m int
		m, err = paced.Read(early[n:])
		n += m
		if whole = err == io.EOF; whole {
			err = nil
		}
	}
	if whole = whole || err == nil && int64(n) == r.ContentLength; whole && paced.drains && !inMemory && bound {
		paced.unbind()
	}
	rest := io.Reader(body)
	switch {
	case whole:
		rest = http.NoBody
	case err != nil:
		rest = broken{err}
	}
	r.Body = &earlyBody{io.MultiReader(bytes.NewReader(early[:n]), atEnd(done), rest), body, whole}
	return early[:n], whole, done, err
}

// A broken is what is left of a body that cannot be read.
type broken struct{ error }

func (b broken) Read([]byte) (int, error) { return 0, b.error }

// An atEnd is called when all before it has been read.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// An earlyBody is a body whose beginning, or all of it, is in memory.
type earlyBody struct {
	io.Reader
	io.Closer
	whole bool
}

// ReadEarly is for [pushback.ReadEarly].
func (b *earlyBody) ReadEarly() (whole, early bool) { return b.whole, true }
