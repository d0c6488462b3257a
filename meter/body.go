package meter

import (
	"bufio"
	"bytes"
	"cmp"
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
	// A body may grow so much when it is decoded, beyond what is free: few bytes could keep a processor busy for long. What comes
	// behind that is not read. Ours: events with tokens grow tenfold, and a text that repeats itself stays in what is free.
	growth, freely = 100, 16 << 20
	mostHeld       = 512 << 20 // by all decoders. Ours: bodies that would need more are not read
)

var held atomic.Int64

// open returns what decodes gzip or zstd, and how much memory that holds, as measured.
func open(encoding string, r *bufio.Reader) (d io.WriterTo, holds int64, err error) {
	if encoding == "gzip" {
		d, err = gzip.NewReader(r)
		return d, 48 << 10, err
	}
	var h zstd.Header
	start, _ := r.Peek(zstd.HeaderMaxSize) // there may be less, and no header
	_ = h.Decode(start)
	window := min(max(cmp.Or(h.WindowSize, h.FrameContentSize), zstd.MinWindowSize), 8<<20) // RFC 9659 allows no more
	d, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	return d, int64(256<<10 + window + min(window, 1<<20)), err
}

// A body is of JSON values, one after the other as in NDJSON, or of events with one in each.
type body struct {
	json   scanner
	events bool
	column int      // in a line of events: of "data:", behind it, or in another field
	cr     bool     // the line before has ended with a carriage return
	start  [24]byte // of the data in a line of events
	length int      // of that
	whole  bool     // there is one value, or the last event has come

	// Decoders want to read, so one runs in a coroutine, which waits where it is for the next part of the body.
	next    func() (struct{}, bool)
	stop    func()              // nil: there is no Content-Encoding
	wait    func(struct{}) bool // nil: the body has ended
	part    []byte              // yet to be read
	in, out int64               // bytes
}

// newBody returns nil for an encoding that is not known.
func newBody(wanted paths, h http.Header) *body {
	kind := strings.ToLower(h.Get("Content-Type"))
	b := &body{json: newScanner(wanted), events: strings.HasPrefix(kind, "text/event-stream"), whole: strings.HasPrefix(kind, "application/json")}
	encoding := strings.ToLower(strings.Join(h["Content-Encoding"], ","))
	switch encoding {
	case "", "identity":
		return b
	case "gzip", "zstd":
	default:
		return nil
	}
	b.next, b.stop = iter.Pull(func(yield func(struct{}) bool) {
		b.wait = yield
		d, holds, err := open(encoding, bufio.NewReader(pipe{b}))
		defer held.Add(-holds)
		if held.Add(holds) <= mostHeld && err == nil {
			_, _ = d.WriteTo(pipe{b}) // until an error, it has decoded what there was
		}
	})
	return b
}

// isLast reports whether an event is the last one by how its data begins: OpenAI's chat and other APIs like it, Anthropic's, and
// OpenAI's responses. An expression would link package regexp into the playground, which is to stay small.
func isLast(data []byte) bool {
	data = bytes.TrimPrefix(data, []byte(" "))
	object, ok := bytes.CutPrefix(data, []byte(`{"type":`))
	if !ok {
		return bytes.HasPrefix(data, []byte("[DONE]"))
	}
	kind := bytes.TrimPrefix(object, []byte(" "))
	return bytes.HasPrefix(kind, []byte(`"message_stop"`)) || bytes.HasPrefix(kind, []byte(`"response.comp`))
}

// over reports whether the body has told its end.
func (b *body) over() bool { return b.whole && (b.events || b.json.isOver()) }

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

// A pipe is a body as its decoder sees it.
type pipe struct{ *body }

// Read gives the decoder what is to be decoded.
func (b pipe) Read(p []byte) (int, error) {
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
func (b pipe) Write(p []byte) (int, error) {
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
			if b.column == len(data) && isLast(b.start[:b.length]) {
				b.whole = true
			}
			b.length = 0
			b.column, b.cr = 0, c == '\r'
		case b.column >= len(data):
			if n = bytes.IndexAny(p, "\r\n"); n < 0 {
				n = len(p)
			}
			if b.column == len(data) {
				b.length += copy(b.start[b.length:], p[:n])
				b.json.scan(p[:n])
			}
		default:
			if b.column++; c != data[b.column-1] {
				b.column = len(data) + 1
			}
		}
	}
}
