package door

import (
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield"
)

// An h2Writer writes a door's answers between the frames of its server, which writes in pieces of
// any length. Whichever of the two is writing writes what the other has meanwhile: the door
// does not wait, because the server reads through it.
type h2Writer struct {
	conn    net.Conn
	leaving atomic.Bool // the server has sent GOAWAY
	settled atomic.Bool // the server has written a header block

	turn      chan struct{} // full while one writes, who owns what follows: unlike for a Mutex, time passes in a test while another waits
	left      int           // bytes of the server's frame that are not written yet
	continued bool          // its next frame belongs to this one
	head      []byte        // of its next frame, until it is whole
	by        writeDeadline
	spare     []byte // for answers

	waiting struct {
		sync.Mutex
		answers []byte // guarded by the Mutex
	}
}

// isReady reports whether requests may be answered: 32 KiB of answers wait for the server before requests go to it.
func (w *h2Writer) isReady() bool {
	return w.settled.Load() && !w.leaving.Load() && w.waits() <= 32<<10
}

// Write writes what the server has to say.
func (w *h2Writer) Write(p []byte) (n int, err error) {
	w.turn <- struct{}{}
	w.by.end(w.conn)
	n, err = w.conn.Write(p)
	w.walk(p[:n])
	<-w.turn
	w.relay()
	return n, err
}

// walk finds out where the server's frames end.
func (w *h2Writer) walk(p []byte) {
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
				w.leaving.Store(true)
			case http2.FrameHeaders, http2.FramePushPromise, http2.FrameContinuation: // all have the flag
				w.continued = !f.Flags.Has(http2.FlagHeadersEndHeaders)
				w.settled.Store(true)
			}
		}
	}
}

// post has answers written, now or when the server is done with a frame. It waits for nothing: a client
// that reads on only once it has written needs a reader that reads on.
func (w *h2Writer) post(answers []byte) {
	w.waiting.Lock()
	defer w.waiting.Unlock()
	if len(w.waiting.answers) == 0 {
		go w.relay()
	}
	w.waiting.answers = append(w.waiting.answers, answers...)
}

// relay writes the answers that wait, unless they wait for a frame of the server. Who has had the turn
// calls it afterwards, too.
func (w *h2Writer) relay() {
	for sent := true; sent && w.waits() > 0; {
		select {
		case w.turn <- struct{}{}:
			sent = w.send()
			<-w.turn
		default:
			return
		}
	}
}

// send writes the answers that wait. It reports false if the server is in the middle of a frame, or
// of a header block. It is the caller's turn.
func (w *h2Writer) send() bool {
	if w.left > 0 || len(w.head) > 0 || w.continued {
		return false
	}
	w.waiting.Lock()
	answers := w.waiting.answers
	w.waiting.answers, w.spare = w.spare, nil
	w.waiting.Unlock()
	w.by.begin(w.conn, shield.Now())
	if _, err := w.conn.Write(answers); err != nil {
		_ = w.conn.Close() // what is written from now on makes no sense; reading fails, too
	}
	w.spare = spared(answers)
	return true
}

// spared returns a buffer that is to be used again: none that a burst has made long, so that an idle connection
// keeps little.
func spared(b []byte) []byte {
	if cap(b) > maxPage {
		return nil
	}
	return b[:0]
}

// waits returns how many bytes of answers wait.
func (w *h2Writer) waits() int {
	w.waiting.Lock()
	defer w.waiting.Unlock()
	return len(w.waiting.answers)
}
