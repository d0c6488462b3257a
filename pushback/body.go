package pushback

import (
	"net/http"
	"time"
)

// What net/http drains of an unread body before it answers; it closes the
// connection of a longer one.
const drained = 256 << 10

// Unblock makes sure that an unread request body does not hold back the answer
// to an HTTP/1 request. net/http drains up to 256 KiB before it sends a short
// answer, and where the body is wrapped (as in Caddy since 2.11.5) it even waits
// for a client that itself waits for "100 Continue", for a minute.
//
// A body that is here already is drained, and the connection lives on. One that
// may be long or that was announced by Expect gets an answer at once, and the
// connection is closed. The deadlines leave a slow body 50 or 100 ms; a deadline
// of now would make the kernel reset the connection, and the answer could be
// lost with it.
//
// HTTP/2 and HTTP/3 need none of this: there "Connection: close" would end the
// requests of others too.
func Unblock(w http.ResponseWriter, r *http.Request, now time.Time) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 {
		return
	}
	patience := 50 * time.Millisecond
	if r.ContentLength < 0 || r.ContentLength > drained || r.Header.Get("Expect") != "" {
		patience = 100 * time.Millisecond
		w.Header().Set("Connection", "close")
	}
	// A writer without deadlines has no connection that could be held up.
	_ = http.NewResponseController(w).SetReadDeadline(now.Add(patience))
}
