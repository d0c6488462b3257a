package ingress

import (
	"bytes"
	"io"
	"net/http"
	"time"

	"github.com/herdshield/shield"
)

const (
	// A client that holds a place at an endpoint must send its body, and read the
	// response, at leastPace bytes per second in the mean, after paceGrace. Ours: a
	// tenth of a bad mobile connection. Twenty clients that send a byte per minute
	// would hold all the places of a small Service otherwise.
	leastPace = 1 << 10
	paceGrace = 10 * time.Second
)

// A pacer bounds how slowly a client may send and read while it holds a place. It is
// for the request's own goroutine, but for the reading of the body.
type pacer struct{ control *http.ResponseController }

func newPacer(w http.ResponseWriter, r *http.Request) *pacer {
	p := &pacer{control: http.NewResponseController(w)}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &pacedBody{ReadCloser: r.Body, control: p.control, began: shield.Now()}
	}
	return p
}

// write bounds one write of n bytes to the client, or a flush. Deadlines are set for its
// time only: a response may pause.
func (p *pacer) write(n int, do func() error) error {
	if p.control.SetWriteDeadline(time.Now().Add(paceGrace+time.Duration(n)*time.Second/leastPace)) != nil {
		return do()
	}
	err := do()
	if err == nil {
		_ = p.control.SetWriteDeadline(time.Time{}) // it was possible a moment ago
	}
	return err
}

// A pacedBody is a body that must come at the least pace.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	began   time.Duration
	read    int
}

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	left := paceGrace + time.Duration(b.read)*time.Second/leastPace - (shield.Now() - b.began)
	if b.control.SetReadDeadline(time.Now().Add(left)) != nil {
		return b.ReadCloser.Read(p)
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	if err == nil || err == io.EOF {
		_ = b.control.SetReadDeadline(time.Time{}) // it was possible a moment ago
	}
	return n, err
}

const (
	// A body is read up to earlyBody before its request asks for a place, so that few
	// requests hold one while they are being sent: most bodies are smaller. Together
	// they take up to earlyBodies.
	earlyBody   = 16 << 10
	earlyBodies = 64 << 20
)

// readEarly reads what there is of the body of r, up to earlyBody, and returns what is
// to be called when r is done with. The error is the client's: it has broken off, or is
// too slow.
func (c *controller) readEarly(w http.ResponseWriter, r *http.Request) (done func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return func() {}, nil
	}
	size := int64(earlyBody)
	if r.ContentLength > 0 {
		size = min(size, r.ContentLength)
	}
	done = func() { c.bodies.Add(-size) }
	if c.bodies.Add(size) > earlyBodies {
		return done, nil
	}
	body := r.Body
	paced := &pacedBody{ReadCloser: body, control: http.NewResponseController(w), began: shield.Now()}
	early := make([]byte, size)
	n, rest := 0, io.Reader(body)
	for n < len(early) { // not io.ReadFull, which has its own meaning of ErrUnexpectedEOF
		m, err := paced.Read(early[n:])
		n += m
		if err == io.EOF {
			rest = http.NoBody
			break
		}
		if err != nil {
			return done, err
		}
	}
	if int64(n) == r.ContentLength {
		rest = http.NoBody
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(early[:n]), rest), body}
	return done, nil
}
