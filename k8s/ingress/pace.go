package ingress

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield"
)

const (
	// A client that holds a place at an endpoint must send its body, and read the
	// response, at minPace bytes per second on average, after paceGrace. Ours: a
	// tenth of a bad mobile connection. Otherwise twenty clients that send a byte per
	// minute would hold all the places of a small Service.
	minPace   = 1 << 10
	paceGrace = 10 * time.Second
)

// A pacer bounds how slowly a client may send and read while it holds a place. Only the
// request's goroutine uses it, except for reading the body.
type pacer struct {
	control *http.ResponseController

	broken atomic.Bool   // the body has ended early
	until  time.Duration // when all of it must have come; 0: as minPace says

	mu    sync.Mutex // guards the fields below
	set   bool       // the pacer has set a deadline
	ended bool       // the connection may be another request's
}

// newPacer returns a pacer for r. whole: the body is in memory, and needs no pace.
func newPacer(w http.ResponseWriter, r *http.Request, whole bool) *pacer {
	p := &pacer{control: http.NewResponseController(w)}
	if r.Body != nil && r.Body != http.NoBody && !whole {
		r.Body = &pacedBody{ReadCloser: r.Body, pacer: p}
	}
	return p
}

// end stops the pacer from setting deadlines: the transport may still be reading the body
// after the handler has returned.
func (p *pacer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.set && !p.broken.Load() {
		_ = p.control.SetReadDeadline(time.Time{})
	}
}

// readDeadline sets the deadline of the next read, the zero Time for none, and reports
// whether it could.
func (p *pacer) readDeadline(t time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.control.SetReadDeadline(t) != nil {
		return false
	}
	p.set = true
	return true
}

// write bounds one write of n bytes to the client, or a flush. It clears its deadline
// afterwards, since a response may pause.
func (p *pacer) write(n int, do func() error) error {
	if p.control.SetWriteDeadline(time.Now().Add(paceGrace+time.Duration(n)*time.Second/minPace)) != nil {
		return do()
	}
	err := do()
	if err == nil {
		_ = p.control.SetWriteDeadline(time.Time{}) // it was possible a moment ago
	}
	return err
}

// A pacedBody is a body that must come at minPace. The time that reads waited counts, not
// the time between reads.
type pacedBody struct {
	io.ReadCloser
	*pacer
	waited time.Duration
	read   int
}

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	left := paceGrace + time.Duration(b.read)*time.Second/minPace - b.waited
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
	if err == nil || err == io.EOF {
		b.readDeadline(time.Time{})
	} else {
		b.broken.Store(true) // keep the deadline, or net/http would wait for the rest
	}
	return n, err
}

const (
	// A body is read up to maxEarlyBody before its request asks for a place, so that few
	// requests hold one while they are being sent: most bodies are smaller. Together
	// they take up to maxEarlyBodies.
	maxEarlyBody   = 16 << 10
	maxEarlyBodies = 64 << 20
)

// readEarly reads the body of r up to maxEarlyBody, and returns whether that is the whole
// body. The caller must call done after r. An error means that the client has broken off, or
// is too slow: also if it has not sent that much at the instant end, unless that is 0.
func (c *controller) readEarly(w http.ResponseWriter, r *http.Request, end time.Duration) (whole bool, done func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return true, func() {}, nil
	}
	size := int64(maxEarlyBody)
	if r.ContentLength > 0 {
		size = min(size, r.ContentLength)
	}
	done = func() { c.bodies.Add(-size) }
	if c.bodies.Add(size) > maxEarlyBodies {
		return false, done, nil
	}
	body := r.Body
	paced := &pacedBody{ReadCloser: body, pacer: &pacer{control: http.NewResponseController(w), until: end}}
	early := make([]byte, size)
	n := 0
	for n < len(early) && !whole { // not io.ReadFull, which returns ErrUnexpectedEOF for a short body
		m, err := paced.Read(early[n:])
		n += m
		if whole = err == io.EOF; err != nil && !whole {
			return false, done, err
		}
	}
	whole = whole || int64(n) == r.ContentLength
	rest := io.Reader(body)
	if whole {
		rest = http.NoBody
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(early[:n]), rest), body}
	return whole, done, nil
}
