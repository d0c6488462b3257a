package meter

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// A body may grow a hundredfold when it is decoded, beyond what is free. The rest is not read, as few bytes could keep a
	// processor busy for long. Ours: tokens grow tenfold, and a model that repeats itself stays in what is free.
	growth, freely = 100, 16 << 20
	// All decoders together may hold so much memory. Ours: bodies beyond that are not read.
	mostHeld = 512 << 20
)

var held atomic.Int64

// A decoder is one for a Content-Encoding. It holds up to so much memory: for zstd, the widest window that RFC 9659 allows.
type decoder struct {
	holds int64
	open  func(io.Reader) (io.WriterTo, error)
}

var decoders = map[string]decoder{
	"gzip": {48 << 10, func(r io.Reader) (io.WriterTo, error) { return gzip.NewReader(r) }},
	"zstd": {10 << 20, func(r io.Reader) (io.WriterTo, error) {
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	}},
}

// A body is of JSON values, one after the other as in NDJSON, or of events with one in each.
type body struct {
	json   scanner
	events bool
	column int  // in a line of events: of "data:", behind it, or in another field
	cr     bool // the line before has ended with a carriage return

	// Decoders want to read, so one runs in a coroutine, which waits where it is for the next part of the body.
	next    func() (struct{}, bool)
	stop    func()              // nil: there is no Content-Encoding
	wait    func(struct{}) bool // nil: the body has ended
	part    []byte              // yet to be read
	in, out int64               // bytes
}

// newBody returns nil for an encoding that is not known.
func newBody(wanted paths, h http.Header) *body {
	b := &body{json: newScanner(wanted), events: strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/event-stream")}
	encoding := strings.ToLower(strings.Join(h["Content-Encoding"], ","))
	decoder, ok := decoders[encoding]
	switch {
	case encoding == "", encoding == "identity":
		return b
	case !ok:
		return nil
	}
	b.next, b.stop = iter.Pull(func(yield func(struct{}) bool) {
		b.wait = yield
		defer held.Add(-decoder.holds)
		if held.Add(decoder.holds) > mostHeld {
			return
		}
		if d, err := decoder.open(b); err == nil {
			_, _ = d.WriteTo(b) // until an error, it has decoded what there was
		}
	})
	return b
}

// put puts in a part of the body.
func (b *body) put(p []byte) {
	if b.stop == nil {
		b.read(p)
		return
	}
	b.part = p
	b.in += int64(len(p))
	b.next() // nothing happens after the decoder's end
	b.part = nil
}

// Read gives the decoder what is to be decoded.
func (b *body) Read(p []byte) (int, error) {
	for len(b.part) == 0 {
		if b.wait == nil || !b.wait(struct{}{}) {
			b.wait = nil
			return 0, io.EOF
		}
	}
	n := copy(p, b.part)
	b.part = b.part[n:]
	return n, nil
}

// Write takes from the decoder what is decoded.
func (b *body) Write(p []byte) (int, error) {
	b.out += int64(len(p))
	if b.out > freely+growth*b.in {
		return 0, errors.New("the body grows too much")
	}
	b.read(p)
	return len(p), nil
}

// read reads a part of the body without its Content-Encoding.
func (b *body) read(p []byte) {
	if !b.events {
		b.json.scan(p)
		return
	}
	const data = "data:"
	for n := 1; len(p) > 0; p, n = p[n:], 1 {
		switch c := p[0]; {
		case c == '\n' || c == '\r':
			if b.column == 0 && (c == '\r' || !b.cr) { // the line is blank: the event ends
				b.json.restart()
			}
			b.column, b.cr = 0, c == '\r'
		case b.column >= len(data):
			if n = bytes.IndexAny(p, "\r\n"); n < 0 {
				n = len(p)
			}
			if b.column == len(data) {
				b.json.scan(p[:n])
			}
		default:
			if b.column++; c != data[b.column-1] {
				b.column = len(data) + 1
			}
		}
	}
}
