package caddymodule

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield"
)

// An h2Writer writes a door's answers between the frames of its server, which writes in pieces of
// any length. Whichever of the two is writing writes what the other has meanwhile: the door
// does not wait, because the server reads through it.
type h2Writer struct {
	conn    net.Conn
	leaving atomic.Bool // the server has sent GOAWAY
	onLeave func()
	onReset func(stream uint32) // the server has reset one

	// settled is for how many settings of the client the server has written a header block. The first
	// block after new ones may have to begin with the size of its table: RFC 7541, section 4.2.
	settled atomic.Uint32

	mu        sync.Mutex    // held while writing
	reset     []uint32      // streams that a write of the server resets; guarded by mu
	left      int           // bytes of the server's frame that are not written yet; guarded by mu
	continued bool          // its next frame belongs to this one; guarded by mu
	acked     uint32        // settings of the client; guarded by mu
	head      []byte        // of its next frame, until it is whole; guarded by mu
	by        time.Duration // the write deadline; 0: none of ours; guarded by mu
	spare     []byte        // for answers; guarded by mu

	waiting struct {
		sync.Mutex
		answers []byte // guarded by the Mutex
	}
}

// maxWaiting is how many bytes of answers wait for the server before requests go to it.
const maxWaiting = 32 << 10

// Write writes what the server has to say.
func (w *h2Writer) Write(p []byte) (n int, err error) {
	w.mu.Lock()
	if w.by > 0 {
		w.by = 0
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
	n, err = w.conn.Write(p)
	leaves := w.walk(p[:n])
	var reset []uint32
	reset, w.reset = w.reset, nil
	w.mu.Unlock()
	for _, stream := range reset {
		w.onReset(stream)
	}
	if leaves && !w.leaving.Swap(true) {
		w.onLeave()
	}
	w.relay()
	return n, err
}

// walk finds out where the server's frames end. It reports whether a GOAWAY has begun.
func (w *h2Writer) walk(p []byte) (leaves bool) {
	for len(p) > 0 {
		if w.left > 0 {
			n := min(w.left, len(p))
			w.left, p = w.left-n, p[n:]
			continue
		}
		n := min(frameHead-len(w.head), len(p))
		w.head, p = append(w.head, p[:n]...), p[n:]
		if len(w.head) == frameHead {
			f := frameAt(w.head)
			w.left, w.head = int(f.Length), w.head[:0]
			switch f.Type {
			case http2.FrameGoAway:
				leaves = true
			case http2.FrameRSTStream:
				w.reset = append(w.reset, f.StreamID)
			case http2.FrameSettings:
				if f.Flags.Has(http2.FlagSettingsAck) {
					w.acked++
				}
			case http2.FrameHeaders, http2.FramePushPromise, http2.FrameContinuation: // all have the flag
				w.continued = !f.Flags.Has(http2.FlagHeadersEndHeaders)
				w.settled.Store(w.acked)
			}
		}
	}
	return leaves
}

// add adds answers to those that wait, and reports whether they are the first, so that someone has to
// relay them, and whether there are many: the client does not read, or the server is slow.
func (w *h2Writer) add(answers []byte) (first, many bool) {
	w.waiting.Lock()
	defer w.waiting.Unlock()
	first = len(w.waiting.answers) == 0
	w.waiting.answers = append(w.waiting.answers, answers...)
	return first, len(w.waiting.answers) > maxWaiting
}

// post has answers of the reader written, now or when the server is done with a frame. It waits for
// nothing: a client that reads on only once it has written needs a reader that reads on.
func (w *h2Writer) post(answers []byte) {
	if first, _ := w.add(answers); first {
		go w.relay()
	}
}

// tell writes answers, and waits if there are many.
func (w *h2Writer) tell(answers []byte) {
	if _, many := w.add(answers); many {
		w.mu.Lock()
		w.send()
		w.mu.Unlock()
	}
	w.relay()
}

// relay writes the answers that wait, unless they wait for a frame of the server. The holder of mu
// calls it afterwards, too.
func (w *h2Writer) relay() {
	for sent := true; sent && w.waits() > 0 && w.mu.TryLock(); w.mu.Unlock() {
		sent = w.send()
	}
}

// send writes the answers that wait. It reports false if the server is in the middle of a frame, or
// of a header block. The caller holds mu.
func (w *h2Writer) send() bool {
	if w.left > 0 || len(w.head) > 0 || w.continued {
		return false
	}
	w.waiting.Lock()
	answers := w.waiting.answers
	w.waiting.answers, w.spare = w.spare[:0], answers
	w.waiting.Unlock()
	if now := shield.Now(); w.by < now+readerTakes*2/3 { // not for every answer
		w.by = now + readerTakes
		_ = w.conn.SetWriteDeadline(shield.At(w.by))
	}
	if _, err := w.conn.Write(answers); err != nil {
		_ = w.conn.Close() // what is written from now on makes no sense; reading fails, too
	}
	return true
}

// waits returns how many bytes of answers wait.
func (w *h2Writer) waits() int {
	w.waiting.Lock()
	defer w.waiting.Unlock()
	return len(w.waiting.answers)
}
