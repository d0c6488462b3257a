package dialect

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http/httpguts"
)

// IsWebSocket reports whether a request is the handshake of a WebSocket that can be accepted: RFC 6455, section 4.2.1.
// Over HTTP/2 it is a CONNECT, and its connection is not the handler's.
func IsWebSocket(r *http.Request) bool {
	h := r.Header
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor > 0 && strings.EqualFold(first(h, "Upgrade"), "websocket") &&
		len(h["Sec-Websocket-Key"]) == 1 && len(first(h, "Sec-Websocket-Key")) == 24 && first(h, "Sec-Websocket-Version") == "13" &&
		httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade")
}

// CloseWebSocket accepts a handshake and closes the WebSocket with 1013 (try again later) and the reason
// retry-after-ms=N, or with 1008 (policy violation) for ms of 0: never. A script reads both, and of a 503 nothing but the
// code 1006, which is that of a broken connection, too. It takes as long as the client needs to answer, and no longer than until
// the deadline.
func CloseWebSocket(w http.ResponseWriter, r *http.Request, ms int, deadline time.Time) error {
	// A browser breaks off if none of the protocols that it offers is chosen. There is no page to protect from
	// another's: nothing is said to it but when to return.
	c, err := websocket.Accept(hijacker{w, deadline}, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: offered(r.Header)})
	if err != nil {
		return err
	}
	if ms == 0 {
		return c.Close(websocket.StatusPolicyViolation, "do not come back soon")
	}
	return c.Close(websocket.StatusTryAgainLater, "retry-after-ms="+strconv.Itoa(ms))
}

// A hijacker gives away a connection with a deadline: net/http clears it, and Close has none for what a client sends instead of
// the rest of a frame.
type hijacker struct {
	http.ResponseWriter
	deadline time.Time
}

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err == nil {
		err = conn.SetDeadline(h.deadline)
	}
	return conn, rw, err
}

// offered returns the first subprotocol that a client offers.
func offered(h http.Header) []string {
	protocol, _, _ := strings.Cut(first(h, "Sec-Websocket-Protocol"), ",")
	if protocol = strings.TrimSpace(protocol); protocol == "" {
		return nil
	}
	return []string{protocol}
}
