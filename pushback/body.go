package pushback

import (
	"net/http"
	"time"
)

// maxDrain is how much of an unread body net/http drains before it answers, in bytes.
// It closes the connection of a longer one.
const maxDrain = 256 << 10

// Unblock makes sure that an unread request body does not hold back the answer
// to an HTTP/1 request. net/http drains up to 256 KiB before it sends a short
// answer, and where the body is wrapped (as in Caddy since 2.11.5) it even waits
// for a client that itself waits for "100 Continue", for a minute.
//
// A body that has arrived is drained, and the connection stays open. One that may be
// long or that was announced by Expect gets an answer at once, and the connection is
// closed. The deadlines leave a slow body 50 or 100 ms. A deadline of now would make
// the kernel reset the connection, and the answer could be lost with it.
//
// HTTP/2 and HTTP/3 need none of this: there "Connection: close" would also end other
// requests.
func Unblock(w http.ResponseWriter, r *http.Request, now time.Time) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 {
		return
	}
	timeout := 50 * time.Millisecond
	if r.ContentLength < 0 || r.ContentLength > maxDrain || r.Header.Get("Expect") != "" {
		timeout = 100 * time.Millisecond
		w.Header().Set("Connection", "close")
	}
	// A writer without deadlines has no connection that could block.
	_ = http.NewResponseController(w).SetReadDeadline(now.Add(timeout))
}
