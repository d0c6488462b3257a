// Package upload keeps clients that send their requests slowly from holding permits. A body of up to MaxEarly
// bytes is read before its request asks for a permit, and the rest must come at a pace.
//
// It is not for limits on the size of a body, and not for streams in which both sides send at once: gRPC's
// clients, say, may wait for a response before they send more.
//
//	whole, done, err := early.Read(r, 0)
//	defer done()
//	if err != nil { … } // 408
//	defer upload.Pace(r, whole)()
package upload

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

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

// A pacedBody is a body that must come at MinPace. The time that reads waited counts, not
// the time between reads.
type pacedBody struct {
	io.ReadCloser
	idle   *caddyhttp.IdleTimeoutReader // below it, which ends reads, and at read_body at the latest
	most   time.Duration                // that the server waits for a read
	until  time.Duration                // when all of it must have come; 0: as MinPace says
	waited time.Duration
	read   int
}

// Pace has the body of r come at a pace. whole: it is in memory, and needs none. end is to be called after r: over HTTP/1
// net/http reads what is left then, for which it has as long as without a pace. A deadline of the past would end later requests
// of the connection. Nothing has a pace at a server whose read_body_idle timeout is off.
func Pace(r *http.Request, whole bool) (end func()) {
	idle, _ := caddyhttp.IdleTimeoutsFromContext(r.Context())
	if r.Body == nil || r.Body == http.NoBody || whole || idle == nil {
		return func() {}
	}
	r.Body = &pacedBody{ReadCloser: r.Body, idle: idle, most: idle.Deadline.Timeout}
	restore := idle.Override(Grace, 0)
	return func() {
		if idle.Deadline.HardDeadline.IsZero() {
			restore()
		}
	}
}

// ReadEarly is for [pushback.ReadEarly].
func (b *pacedBody) ReadEarly() (whole, early bool) { return pushback.ReadEarly(b.ReadCloser) }

func (b *pacedBody) Read(p []byte) (int, error) {
	left := min(b.most, Grace+time.Duration(float64(b.read)/MinPace*float64(time.Second))-b.waited)
	began := shield.Now()
	if b.until > 0 {
		left = min(left, b.until-began)
	}
	b.idle.Override(left, 0)
	n, err := b.ReadCloser.Read(p)
	b.read += n
	b.waited += shield.Now() - began
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
func (e *Early) Read(r *http.Request, end time.Duration) (whole bool, done func(), err error) {
	if whole, before := pushback.ReadEarly(r.Body); before { // another handler has seen to it
		return whole, func() {}, nil
	}
	_, whole, done, err = e.read(r, MaxEarly, end, true, nil)
	return whole, done, err
}

// Peek is Read for up to MaxPeek, which it returns, or until a JSON object is whole: over HTTP/2 its client may wait for a response
// before it sends another. If it is bound, what follows must come at a pace, too; else the body may be as slow as it likes. After an
// error r.Body has what has come, and then the error.
func (e *Early) Peek(r *http.Request, bound bool) (begin []byte, whole bool, done func(), err error) {
	next := 0 // bytes, before it is checked again: a quarter more, as checking all costs time for each
	begin, whole, free, err := e.read(r, MaxPeek, 0, bound, func(p []byte) bool {
		if len(p) < next || !bytes.HasSuffix(bytes.TrimSpace(p), []byte("}")) {
			return false
		}
		next = len(p) + len(p)/4
		return json.Valid(p)
	})
	if err != nil || !bound {
		return begin, whole, free, err
	}
	end := Pace(r, whole)
	return begin, whole, func() { end(); free() }, nil
}

// read reads up to size bytes, or until enough says so of what has come; nil: never. It is paced if it is bound.
func (e *Early) read(r *http.Request, size int64, end time.Duration, bound bool, enough func([]byte) bool) (begin []byte, whole bool, done func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, true, func() {}, nil
	}
	if r.ContentLength > 0 {
		size = min(size, r.ContentLength)
	}
	taken := int64(0)
	done = sync.OnceFunc(func() { e.Taken.Add(-taken) })
	body := r.Body
	from := body
	if idle, _ := caddyhttp.IdleTimeoutsFromContext(r.Context()); bound && idle != nil {
		from = &pacedBody{ReadCloser: body, idle: idle, most: idle.Deadline.Timeout, until: end}
		defer idle.Override(Grace, 0)()
	}
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
		m, err = from.Read(early[n:])
		n += m
		if whole = err == io.EOF; whole {
			err = nil
		}
	}
	whole = whole || err == nil && int64(n) == r.ContentLength
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
