package shield

import (
	"net/http"
	"slices"
	"strings"
)

const eventStream = "text/event-stream"

// Streams says which responses return their permit when they start, because they last as long as the client
// likes. The request has to announce that it may get one: by Upgrade (RFC 9110, section 7.8), as an extended
// CONNECT (RFC 8441), or by Accept.
type Streams string

// The values of Streams. With an EventSource, which is a GET that accepts nothing but events, the client waits
// for news. Any other event stream is usually the response to a question, such as that of a language model or an
// MCP server, which keeps the backend busy until it ends.
const (
	StreamsAuto Streams = "auto" // upgrades, CONNECT and EventSources; the same as ""
	StreamsFree Streams = "free" // also any other event stream that Accept names
	StreamsHold Streams = "hold" // none
)

// free reports whether r announces a stream, and that gives back its permit when it begins.
func (s Streams) free(r *http.Request) bool {
	if s == StreamsHold {
		return false
	}
	accept := r.Header["Accept"]
	switch {
	case extendedConnect(r) || len(r.Header["Upgrade"]) > 0,
		s == StreamsFree && slices.ContainsFunc(accept, func(types string) bool { return strings.Contains(types, eventStream) }):
		return true
	case r.Method != http.MethodGet || len(accept) != 1:
		return false
	}
	// Browsers' EventSources accept one type (HTML standard, section 9.2.2).
	only, _, _ := strings.Cut(accept[0], ";")
	return strings.EqualFold(strings.TrimSpace(only), eventStream) && !strings.Contains(accept[0], ",")
}

// extendedConnect reports whether r is a CONNECT with a :protocol: net/http
// shows it as a header of HTTP/2, and quic-go as the Proto of HTTP/3. A plain
// CONNECT holds its permit: any client can send one for any path.
func extendedConnect(r *http.Request) bool {
	return r.Method == http.MethodConnect &&
		(r.ProtoMajor == 2 && len(r.Header[":protocol"]) > 0 || r.ProtoMajor == 3 && r.Proto != "HTTP/3.0")
}

// streams reports whether a response to r with this status and header goes on for as long as
// the client likes: an upgraded connection, or a stream of events.
func streams(r *http.Request, status int, header http.Header) bool {
	return status == http.StatusSwitchingProtocols ||
		status < 300 && (extendedConnect(r) || strings.HasPrefix(header.Get("Content-Type"), eventStream))
}
