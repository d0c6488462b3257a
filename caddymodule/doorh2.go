package caddymodule

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield"
)

// An h2Door stands between an HTTP/2 client and its server. It answers a request whose header
// block is, byte for byte, one that has just been refused. All other frames it passes on.
//
// The same bytes mean the same request as long as the HPACK table is the same. So a block counts
// only if it changes nothing in the client's table, and only until another one does. The
// server does not miss it: its own table stays the same, too. The answer is one HEADERS frame
// that ends the stream. It changes nothing in the server's table, and no DATA frame
// means that no flow control is touched.
//
// The server has never heard of the stream. It does not miss that either: streams that
// were left out are closed for it as soon as a later one begins, and until then frames that
// cancel them are left out as well.
type h2Door struct {
	c    *doorConn
	out  h2Writer
	warm atomic.Int64 // until when requests are numbered, as shield.Now has it: one was refused
	h2Reader

	slots [4]atomic.Pointer[h2Memo]
	seen  [4]atomic.Uint64 // sums of blocks that were refused

	mu     sync.Mutex
	closed bool                               // guarded by mu
	notes  []h2Note                           // of numbered requests, by number; guarded by mu
	held   map[uint32]context.CancelCauseFunc // refusals that are held back, by stream; guarded by mu
}

// h2Reader is what only Read uses.
type h2Reader struct {
	buffer  *headBuffer
	in      []byte // what was read and not looked at yet, in buffer
	rest    []byte // to be passed on before in: what is left of changed
	changed []byte // a frame with a number
	pass    int    // so many bytes are to be passed on as they come
	answers []byte // to be written

	table     uint64      // changes when the meaning of a block may have changed
	settings  uint32      // frames of them
	continued bool        // a header block goes on in the next frame
	numbered  uint64      // requests that were passed on with a number
	passed    uint32      // the latest stream that the server has heard of
	answered  uint32      // the latest stream that was answered here
	told      [128]uint32 // the latest streams that were, by number: as many as are held back at once, and more
}

// An h2Memo is a memo of a header block, which counts as long as the table is the same.
type h2Memo struct {
	*memo
	table uint64
}

// An h2Note is what a connection knows of a request that was passed on with a number.
type h2Note struct {
	number uint64
	stream uint32
	sum    uint64
	table  uint64
	block  []byte // a copy, if the sum is known
	hand   *inHand
	giveUp *time.Timer // for hand
}

const (
	frameHead = 9 // bytes

	// maxNotes is how many requests may be on their way to their handlers. Ours: browsers have
	// fewer at once, and a request without a note is only not remembered.
	maxNotes = 64

	// maxHeld is how many refusals of one connection may be held back at once.
	maxHeld = 100

	// handLife is how long a decision is kept for a handler. Ours: servers begin with a request at once, or
	// refuse its stream, which is seen, or keep it waiting: then its handler asks again.
	handLife = 250 * time.Millisecond
)

// newH2Door begins with what has been read: the client's preface and more.
func newH2Door(c *doorConn, buffer *headBuffer, in []byte) *h2Door {
	h := &h2Door{c: c}
	h.out.conn, h.out.onLeave, h.out.onReset = c.Conn, h.hurry, h.unhand
	h.buffer, h.in, h.pass = buffer, in, len(http2.ClientPreface)
	return h
}

// read implements net.Conn's Read.
func (h *h2Door) read(p []byte) (n int, err error) {
	for {
		if len(h.rest) == 0 && h.pass == 0 {
			if err := h.next(); err != nil {
				return 0, err
			}
			continue
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
}

// flush has the answers written. If that fails, reading fails, too.
func (h *h2Door) flush() {
	if len(h.answers) > 0 {
		h.out.post(h.answers)
		h.answers = h.answers[:0]
	}
}

// fill reads more. It is called where a frame begins.
func (h *h2Door) fill() error {
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
func (h *h2Door) next() error {
	if len(h.in) < frameHead {
		return h.fill()
	}
	f := frameAt(h.in)
	size := frameHead + int(f.Length)
	if size <= len(h.buffer) && f.mayBeLeftOut() {
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

// mayBeLeftOut reports whether all of the frame is needed to see what to do with it.
func (f *frame) mayBeLeftOut() bool {
	switch f.Type {
	case http2.FrameHeaders:
		return f.Flags.Has(http2.FlagHeadersEndHeaders) && !f.Flags.Has(http2.FlagHeadersPadded)
	case http2.FrameRSTStream, http2.FrameWindowUpdate:
		return f.Length == 4
	}
	return false
}

// look reports whether a frame is left out: its request was answered, or it belongs to
// one that was.
func (h *h2Door) look(f *frame) (leaveOut bool) {
	here := h.passed < f.StreamID && f.StreamID <= h.answered // the server has not heard of it
	switch {
	case h.continued && f.Type != http2.FrameContinuation:
		return false // an error: RFC 9113, section 6.10
	case here && f.Type == http2.FrameHeaders: // a stream is used again, which must be an error
		clear(h.in[5:frameHead]) // for the server it would be a new one, but stream 0 is none
		return false
	}
	switch f.Type {
	case http2.FrameHeaders:
		h.continued = !f.Flags.Has(http2.FlagHeadersEndHeaders)
		if f.bytes != nil && f.Flags.Has(http2.FlagHeadersEndStream) && f.StreamID > h.passed && f.StreamID%2 == 1 {
			return h.request(f)
		}
		h.passed = max(h.passed, f.StreamID)
		if whole, changes := lookAtBlock(f.block()); !whole || changes {
			h.table++
		}
	case http2.FrameContinuation:
		h.continued = h.continued && !f.Flags.Has(http2.FlagContinuationEndHeaders)
		h.table++
	case http2.FramePushPromise:
		h.table++
	case http2.FrameSettings:
		if !f.Flags.Has(http2.FlagSettingsAck) {
			h.settings++
			h.table++
		}
	case http2.FrameRSTStream:
		h.reset(f.StreamID)
		return f.bytes != nil && (here || h.hasTold(f.StreamID))
	case http2.FrameWindowUpdate:
		return f.bytes != nil && (here || h.hasTold(f.StreamID))
	}
	return false
}

// hasTold reports whether a stream was answered here not long ago. The server may not have heard of a
// later one either: it counts no request that it cannot read.
func (h *h2Door) hasTold(stream uint32) bool {
	return stream > 0 && h.told[int(stream/2)%len(h.told)] == stream
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
// has been refused on this connection. It reports whether the frame is left out: it was answered,
// or has changed.
//
// A malformed block gets no number, because its last field might swallow it.
func (h *h2Door) request(f *frame) (leaveOut bool) {
	block := f.block()
	whole, changes := lookAtBlock(block)
	now := shield.Now()
	numbered := whole && int64(now) < h.warm.Load()
	var sum uint64
	var hand *inHand
	if numbered {
		sum = h.c.origin.sum(block)
		if !changes && !h.out.leaving.Load() && h.out.settled.Load() == h.settings && h.out.waits() <= maxWaiting {
			if leaveOut, hand = h.again(now, f.StreamID, sum, block); leaveOut {
				h.answered = f.StreamID
				h.told[int(f.StreamID/2)%len(h.told)] = f.StreamID
				return true
			}
		}
	}
	h.passed = f.StreamID
	if !whole || changes {
		h.table++
	}
	if numbered {
		h.number(f, sum, block, changes, hand)
	}
	return numbered
}

// again decides on a request that it has a memo of, and answers it. A decision that it cannot
// tell is for the handler.
func (h *h2Door) again(now time.Duration, stream uint32, sum uint64, block []byte) (answered bool, hand *inHand) {
	m := h.slots[sum%uint64(len(h.slots))].Load()
	if m == nil || m.table != h.table || !m.counts(&h.c.origin, h.c.serial, block, now) {
		return false, nil
	}
	d := m.admit(now, m.q)
	told := m.answer(&d, h.c.serial, now)
	if told == nil || d.Hold > 0 && !h.hold(stream, told, d) {
		return false, &inHand{m.h, d}
	}
	m.h.countRefused(&m.q, &d)
	if d.Hold == 0 {
		h.answers = h.tell(h.answers, stream, told, &d, now)
	}
	return true, nil
}

// tell appends an answer, which is about to be written.
func (h *h2Door) tell(to []byte, stream uint32, m *memo, d *shield.Decision, now time.Duration) []byte {
	m.h.record.atDoorH2.Add(1)
	m.observe(d, now-d.At())
	return m.page.appendFrame(to, stream, d.Hint, dateNow())
}

// number passes a request on with its number, by which the handler finds the note.
func (h *h2Door) number(f *frame, sum uint64, block []byte, changes bool, hand *inHand) {
	h.numbered++
	note := h2Note{number: h.numbered, stream: f.StreamID, sum: sum, table: h.table, hand: hand}
	if !changes && h.knows(sum) {
		note.block = append(note.block, block...)
	}
	h.changed = appendNumbered(h.changed[:0], f.bytes, note.number)
	h.rest = h.changed
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		hand.drop()
		return
	}
	if h.notes == nil {
		h.notes = make([]h2Note, maxNotes)
	}
	at := &h.notes[note.number%maxNotes]
	at.end()
	if hand != nil {
		note.giveUp = time.AfterFunc(handLife, func() { h.claim(note.number).end() })
	}
	*at = note
}

// claim returns the note of a request, once.
func (h *h2Door) claim(number uint64) (note h2Note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notes != nil && h.notes[number%maxNotes].number == number {
		at := &h.notes[number%maxNotes]
		note, *at = *at, h2Note{}
	}
	return note
}

// end gives back what no handler has asked for.
func (n h2Note) end() {
	if n.giveUp != nil {
		n.giveUp.Stop()
	}
	n.hand.drop()
}

// errHurry ends the hold of a refusal that is to be sent at once.
var errHurry = errors.New("the connection is about to end")

// hold has a refusal sent later, without keeping the connection's other requests waiting. It
// reports false if there are too many.
func (h *h2Door) hold(stream uint32, m *memo, d shield.Decision) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.held) >= maxHeld {
		return false
	}
	if h.held == nil {
		h.held = map[uint32]context.CancelCauseFunc{}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	h.held[stream] = cancel
	go func() {
		now, sent := d.Deliver(ctx)
		if sent || context.Cause(ctx) == errHurry {
			h.out.tell(h.tell(nil, stream, m, &d, now)) // it waits if the client does not read
		}
		h.mu.Lock()
		delete(h.held, stream)
		h.mu.Unlock()
		cancel(nil)
	}()
	return true
}

// reset forgets a refusal that is held back, or a decision in hand: its client has left.
func (h *h2Door) reset(stream uint32) {
	h.mu.Lock()
	if cancel := h.held[stream]; cancel != nil {
		cancel(nil)
	}
	h.mu.Unlock()
	h.unhand(stream)
}

// unhand gives back the decision on a stream that has been reset, if no handler has taken it.
func (h *h2Door) unhand(stream uint32) {
	h.mu.Lock()
	var note h2Note
	for i := range h.notes {
		if h.notes[i].stream == stream && h.notes[i].hand != nil {
			note, h.notes[i] = h.notes[i], h2Note{}
		}
	}
	h.mu.Unlock()
	note.end()
}

// hurry sends all refusals that are held back: the server is about to close the connection.
func (h *h2Door) hurry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cancel := range h.held {
		cancel(errHurry)
	}
}

// close gives back what the connection's requests have left.
func (h *h2Door) close() {
	h.mu.Lock()
	notes := h.notes
	h.closed, h.notes = true, nil
	for _, cancel := range h.held {
		cancel(nil)
	}
	h.mu.Unlock()
	for i := range notes {
		notes[i].end()
	}
}

// knows reports whether see was called for the sum: see memos.
func (h *h2Door) knows(sum uint64) bool {
	return h.seen[sum%uint64(len(h.seen))].Load() == sum
}

func (h *h2Door) see(sum uint64) { h.seen[sum%uint64(len(h.seen))].Store(sum) }
