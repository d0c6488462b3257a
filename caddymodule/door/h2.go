package door

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield"
)

// An h2Conn stands between an HTTP/2 client and its server. It answers a request whose header
// block is, byte for byte, one that has just been rejected. All other frames it passes on.
//
// The same bytes mean the same request as long as the HPACK table is the same. So a block counts
// only if it changes nothing in the client's table, and only until another one does. The
// server does not miss it: its own table stays the same, too. The answer is one HEADERS frame
// that ends the stream. It changes nothing in the server's table, and no DATA frame
// means that no flow control is touched.
//
// The server has never heard of the stream. It does not miss that either: streams that
// were left out are closed for it as soon as a later one begins, and frames that cancel them
// are left out as well.
type h2Conn struct {
	c    *conn
	out  h2Writer
	warm atomic.Int64 // until when requests are numbered, as shield.Now has it: one was rejected

	mu    sync.Mutex
	notes []h2Note // of numbered requests, by number; guarded by mu

	// Only Read uses what follows.
	buffer  [maxHead]byte
	in      []byte // what was read and not looked at yet, in buffer
	rest    []byte // to be passed on before in: what is left of changed
	changed []byte // a frame with a number
	pass    int    // so many bytes are to be passed on as they come
	answers []byte // to be written

	table     uint64 // changes when the meaning of a block may have changed
	off       bool   // all is passed on as it is from now on
	continued bool   // a header block goes on in the next frame
	numbered  uint64 // requests that were passed on with a number
	last      uint32 // the latest stream
	passed    uint32 // the latest one that the server has heard of

	// told has the streams that were answered here, by number: as many as a client may have open, so
	// that it has heard of the end of any other.
	told [256]uint32
}

// An h2Note is what a connection knows of a request that was passed on with a number.
type h2Note struct {
	number uint64
	table  uint64
	visit
	giveUp *time.Timer // for the hand
}

const (
	frameHead = 9 // bytes

	// maxNotes is how many requests may be on their way to their handlers. Ours: browsers have
	// fewer at once, and a request without a note is only not remembered.
	maxNotes = 64
)

func (h *h2Conn) read(p []byte) (n int, err error) {
	for len(h.rest) == 0 && h.pass == 0 {
		if err := h.next(); err != nil {
			return 0, err
		}
	}
	h.flush()
	switch {
	case len(h.rest) > 0:
		n = copy(p, h.rest)
		h.rest = h.rest[n:]
	case len(h.in) > 0:
		n = copy(p, h.in[:min(len(h.in), h.pass)])
		h.in, h.pass = h.in[n:], h.pass-n
	default:
		n, err = h.c.Conn.Read(p[:min(len(p), h.pass)])
		h.pass -= n
	}
	return n, err
}

// flush has the answers written. If that fails, reading fails, too.
func (h *h2Conn) flush() {
	if len(h.answers) > 0 {
		h.out.post(h.answers)
		h.answers = spared(h.answers)
	}
}

// fill reads more. It is called where a frame begins.
func (h *h2Conn) fill() error {
	h.flush()
	have := copy(h.buffer[:], h.in)
	n, err := h.c.Conn.Read(h.buffer[have:])
	h.in = h.buffer[:have+n]
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// A frame is one that begins in bytes that were read.
type frame struct {
	http2.FrameHeader
	bytes []byte // of all that is needed
}

// frameAt reads the head of a frame.
func frameAt(b []byte) frame {
	return frame{FrameHeader: http2.FrameHeader{
		Length: uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]),
		Type:   http2.FrameType(b[3]), Flags: http2.Flags(b[4]), StreamID: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}}
}

// next looks at a frame: it is passed on, or answered.
func (h *h2Conn) next() error {
	if len(h.in) < frameHead {
		return h.fill()
	}
	f := frameAt(h.in)
	size, needed := frameHead+int(f.Length), false // all of it, to see what to do with it
	switch f.Type {
	case http2.FrameHeaders:
		needed = f.Flags.Has(http2.FlagHeadersEndHeaders) && !f.Flags.Has(http2.FlagHeadersPadded)
	case http2.FrameRSTStream, http2.FrameWindowUpdate:
		needed = f.Length == 4
	}
	if needed && size <= len(h.buffer) {
		if len(h.in) < size {
			return h.fill()
		}
		f.bytes = h.in[:size]
	}
	if h.look(&f) {
		h.in = h.in[size:]
	} else {
		h.pass = size
	}
	return nil
}

// look reports whether a frame is left out: its request was answered, or it belongs to
// one that was, or goes on with a number.
func (h *h2Conn) look(f *frame) (leaveOut bool) {
	if h.continued && f.Type != http2.FrameContinuation {
		return false // an error: RFC 9113, section 6.10
	}
	mine := f.StreamID > 0 && (h.told[f.StreamID/2%uint32(len(h.told))] == f.StreamID || h.passed < f.StreamID && f.StreamID <= h.last)
	switch f.Type {
	case http2.FrameHeaders:
		if mine { // a stream is used again, which must be an error
			clear(h.in[5:frameHead]) // for the server it would be a new one, but stream 0 is none
			return false
		}
		h.continued = !f.Flags.Has(http2.FlagHeadersEndHeaders)
		if f.bytes != nil && f.Flags.Has(http2.FlagHeadersEndStream) && f.StreamID > h.last && f.StreamID%2 == 1 {
			return h.request(f)
		}
		h.last, h.passed = max(h.last, f.StreamID), max(h.passed, f.StreamID)
		if whole, changes := lookAtBlock(f.block()); !whole || changes {
			h.table++
		}
	case http2.FrameContinuation:
		h.continued = h.continued && !f.Flags.Has(http2.FlagContinuationEndHeaders)
		h.table++
	case http2.FrameSettings:
		// After a change the server's next header block may have to begin with the size of its table
		// (RFC 7541, section 4.2), which an answer has not.
		h.off = h.off || h.last > 0 && !f.Flags.Has(http2.FlagSettingsAck)
	case http2.FrameRSTStream, http2.FrameWindowUpdate:
		return f.bytes != nil && mine
	}
	return false
}

// block returns the header block of a HEADERS frame, or nil if it was not read, is malformed, or its
// stream depends on itself, which is an error: RFC 7540, section 5.3.1.
func (f *frame) block() []byte {
	if f.bytes == nil {
		return nil
	}
	b := f.bytes[frameHead:]
	if f.Flags.Has(http2.FlagHeadersPriority) {
		if len(b) < 5 || binary.BigEndian.Uint32(b)&^(1<<31) == f.StreamID {
			return nil
		}
		b = b[5:]
	}
	return b
}

// request answers a request that it has a memo of, or passes it on, with a number if one
// has been rejected on this connection. It reports whether the frame is left out: it was answered,
// or has changed.
//
// A malformed block gets no number, because its last field might swallow it.
func (h *h2Conn) request(f *frame) (leaveOut bool) {
	block := f.block()
	whole, changes := lookAtBlock(block)
	h.last = f.StreamID
	now := shield.Now()
	numbered := whole && !h.off && int64(now) < h.warm.Load()
	var in *hand
	if numbered && !changes && h.out.isReady() {
		if m := h.c.memos.find(now, h.table, block); m != nil {
			d := m.of.Guard().Admit(now, m.q)
			if told := h.c.memos.telling(m, &d, now); told != nil {
				told.of.Rejected(&m.q, &d, told.page.status, 2)
				h.answers = told.page.appendFrame(h.answers, f.StreamID, d.Hint)
				h.told[f.StreamID/2%uint32(len(h.told))] = f.StreamID
				return true
			}
			in = &hand{m.of, d}
		}
	}
	h.passed = f.StreamID
	if !whole || changes {
		h.table++
	}
	if numbered {
		h.number(f, block, changes, in)
	}
	return numbered
}

// number passes a request on with its number, by which the handler finds the note.
func (h *h2Conn) number(f *frame, block []byte, changes bool, in *hand) {
	h.numbered++
	note := h2Note{number: h.numbered, table: h.table, visit: visit{sum: sum(block), hand: in}}
	if !changes && h.c.memos.knows(note.sum) {
		note.head = append(note.head, block...)
	}
	h.changed = appendNumbered(h.changed[:0], f.bytes, note.number)
	h.rest = h.changed
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notes == nil {
		h.notes = make([]h2Note, maxNotes)
	}
	at := &h.notes[note.number%maxNotes]
	at.end()
	if in != nil {
		// Ours: servers begin with a request at once, or reject its stream, or keep it waiting: then its handler asks again.
		note.giveUp = time.AfterFunc(250*time.Millisecond, func() {
			late := h.claim(note.number)
			late.end()
		})
	}
	*at = note
}

// claim returns the note of a request, once.
func (h *h2Conn) claim(number uint64) (note h2Note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notes != nil && h.notes[number%maxNotes].number == number {
		at := &h.notes[number%maxNotes]
		note, *at = *at, h2Note{}
	}
	return note
}

// end gives back what no handler has asked for.
func (n *h2Note) end() {
	if n.giveUp != nil {
		n.giveUp.Stop()
	}
	n.hand.drop()
}
