package pushback

import (
	"io"
	"net/http"
	"time"
)

// maxDrain is how much of an unread body net/http drains before it answers, in bytes.
// It closes the connection of a longer one.
const maxDrain = 256 << 10

// maxUnread is how long a rejection in HTTP/2 or HTTP/3 may wait for a client that does not
// read it. Ours: far longer than any takes that does, and little memory for those that wait.
const maxUnread = 10 * time.Second

// ReadEarly reports whether a body was read before its request was decided on, and whether that was all of it.
// Such a body has a method of that name; bodies that wrap others pass on what these say.
func ReadEarly(body io.Reader) (whole, early bool) {
	if b, is := body.(interface{ ReadEarly() (whole, early bool) }); is {
		return b.ReadEarly()
	}
	return false, false
}

// Unblock makes sure that nothing holds back a response for long.
//
// An unread body of an HTTP/1 request might: net/http drains up to 256 KiB before it sends a
// short answer. Where the body is wrapped, as in Caddy since 2.11.5, it even waits for a
// minute for a client that itself waits for "100 Continue".
//
// A body that has arrived is drained, and the connection stays open. One that may be
// long or that was announced by Expect gets a response at once, and the connection is
// closed. The deadline leaves a slow body 100 ms. A deadline of now would make
// the kernel reset the connection, and the response could be lost with it.
//
// HTTP/2 and HTTP/3 need none of this: there "Connection: close" would also end other
// requests. But there a client can leave its stream without room for any data, and the
// answer would wait until the connection ends. After 10 s the stream is reset.
func Unblock(w http.ResponseWriter, r *http.Request, now time.Time) {
	// A writer without deadlines has no connection that could block.
	if r.ProtoMajor > 1 {
		_ = http.NewResponseController(w).SetWriteDeadline(now.Add(maxUnread))
		return
	}
	if r.ContentLength == 0 {
		return
	}
	// If the body has been read, net/http watches the connection: a deadline would end the context of this
	// request, and of all later ones of the connection.
	if whole, _ := ReadEarly(r.Body); whole {
		return
	}
	if r.ContentLength < 0 || r.ContentLength > maxDrain || r.Header.Get("Expect") != "" {
		w.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(w).SetReadDeadline(now.Add(100 * time.Millisecond))
}
