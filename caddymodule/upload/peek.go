package upload

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/herdshield/shield/pushback"
)

// A Peek shows up to MaxPeek bytes of a body, as far as they come within PeekTime. Ours: what a limit may ask for stands near the
// beginning, and a client sends that much in one or two round trips.
const (
	MaxPeek  = 64 << 10
	PeekTime = 50 * time.Millisecond
)

// A peek is a body whose beginning has been looked at, and that reads as if it had not been. A read that is pending when the time is over
// goes on in a goroutine of its own, and what it brings is read next. A deadline could not end it: after one, net/http ends the request.
type peek struct {
	io.ReadCloser   // the body
	early           *Early
	came, published http.Header // trailers: those of the server's request, and those of the one that handlers have, as of its end

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	begin   []byte // what has come and is not read; a pending read writes beyond it
	pending bool   // it is being read
	enough  bool   // no further read is to begin
	err     error  // of the last read
	taken   int64  // of MaxTaken
}

// Peek returns the beginning of the body of r, and whether it is all of it. The body of r reads as before. The caller must call done after r.
func (e *Early) Peek(r *http.Request) (begin []byte, whole bool, done func()) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, true, func() {}
	}
	p := &peek{ReadCloser: r.Body, early: e, came: r.Trailer, published: maps.Clone(r.Trailer), pending: true}
	p.changed.L = &p.mu
	r.Body, r.Trailer = p, p.published
	most := MaxPeek
	if r.ContentLength > 0 {
		most = int(min(MaxPeek, r.ContentLength))
	}
	if inMemory, _ := pushback.ReadEarly(p.ReadCloser); inMemory {
		p.fill(most)
	} else {
		go p.fill(most)
		defer time.AfterFunc(PeekTime, p.stop).Stop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.pending && !p.enough {
		p.changed.Wait()
	}
	p.enough = true
	return p.begin, p.err == io.EOF || int64(len(p.begin)) == r.ContentLength, p.release
}

func (p *peek) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enough = true
	p.changed.Broadcast()
}

// fill reads the body until there is enough of it.
func (p *peek) fill(most int) {
	p.mu.Lock()
	defer func() {
		if broken := recover(); broken != nil { // net/http would answer for a handler that panics, but not for this goroutine
			p.mu.Lock()
			p.err = fmt.Errorf("reading the request body: %v", broken)
		}
		p.pending = false
		p.changed.Broadcast()
		p.mu.Unlock()
	}()
	for !p.enough && len(p.begin) < most && p.err == nil {
		size := len(p.begin)
		if size == cap(p.begin) {
			more := min(max(1<<10, 3*size), most-size)
			if p.taken += int64(more); p.early.Taken.Add(int64(more)) > MaxTaken {
				return
			}
			p.begin = append(make([]byte, 0, size+more), p.begin...)
		}
		room := p.begin[size:cap(p.begin)]
		p.mu.Unlock()
		n, err := p.ReadCloser.Read(room)
		p.mu.Lock()
		p.begin, p.err = p.begin[:len(p.begin)+n], err
		p.changed.Broadcast()
	}
}

// Read implements io.Reader.
func (p *peek) Read(b []byte) (n int, err error) {
	p.mu.Lock()
	for len(p.begin) == 0 && p.pending {
		p.changed.Wait()
	}
	n = copy(b, p.begin)
	p.begin = p.begin[n:]
	over := len(p.begin) == 0 && !p.pending
	if over {
		p.begin, err = nil, p.err
	}
	p.mu.Unlock()
	if over {
		p.release()
	}
	if over && n == 0 && err == nil {
		n, err = p.ReadCloser.Read(b)
	}
	if err == io.EOF { // the server has the trailers since it has read the end, perhaps in fill
		maps.Copy(p.published, p.came)
	}
	return n, err
}

// release gives back what is taken of MaxTaken.
func (p *peek) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.early.Taken.Add(-p.taken)
	p.taken = 0
}

// ReadEarly is for [pushback.ReadEarly].
func (p *peek) ReadEarly() (whole, early bool) {
	whole, early = pushback.ReadEarly(p.ReadCloser)
	p.mu.Lock()
	defer p.mu.Unlock()
	return whole || p.err == io.EOF, early || p.err == io.EOF
}
