package dialect

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// IsEventSource reports whether a request is that of a browser's EventSource. It accepts nothing but events and asks no
// cache (HTML standard, section 9.2.2), and browsers say that a script fetches it (Fetch Metadata), but not over plain HTTP from
// another machine. Scripts that read events by fetch have the headers that they like, and obey a 503: those of MCP and of
// @microsoft/fetch-event-source, which sends no Cache-Control, and takes the end of a stream for the end of all.
func IsEventSource(r *http.Request) bool {
	h := r.Header
	if accept := h["Accept"]; len(accept) != 1 || accept[0] != "text/event-stream" || r.Method != http.MethodGet || first(h, "Cache-Control") != "no-cache" {
		return false
	}
	if len(h["Mcp-Protocol-Version"]) > 0 || len(h["Mcp-Session-Id"]) > 0 || strings.HasPrefix(first(h, "Authorization"), "Bearer ") {
		return false
	}
	if mode := h["Sec-Fetch-Mode"]; len(mode) > 0 {
		return mode[0] == "cors" && first(h, "Sec-Fetch-Dest") == "empty"
	}
	return strings.HasPrefix(first(h, "User-Agent"), "Mozilla/")
}

// AppendEvents appends the stream that has an EventSource return after ms milliseconds: the reconnection time
// alone, and the end. To an error it does not return at all (HTML standard, section 9.2.3).
func AppendEvents(b []byte, ms int) []byte {
	return append(strconv.AppendInt(append(b, "retry: "...), int64(ms), 10), "\n\n"...)
}

// usualRetry is after how many milliseconds an EventSource reconnects that was told nothing: Chromium's and
// Safari's; Firefox has 5,000.
const usualRetry = 3000

// Restore returns the ResponseWriter for an admitted request. It is w, but for that of an EventSource. A browser keeps
// the time that it was told for all later interruptions: one that had to wait for a quota of an hour would come back an
// hour after a dropped connection. Whether it was told one is not known any more, so each stream begins with the usual
// time. A backend that tells a time of its own says so later, and that counts.
func Restore(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if !IsEventSource(r) {
		return w
	}
	return &restoring{ResponseWriter: w}
}

type restoring struct {
	http.ResponseWriter
	begun bool
}

func (w *restoring) WriteHeader(status int) {
	h := w.Header()
	media, _, _ := mime.ParseMediaType(first(h, "Content-Type"))
	stream := !w.begun && status == http.StatusOK && media == "text/event-stream" && first(h, "Content-Encoding") == ""
	if stream {
		delete(h, "Content-Length")
	}
	w.ResponseWriter.WriteHeader(status)
	if stream {
		_, _ = w.ResponseWriter.Write(AppendEvents(nil, usualRetry)) // the next Write has the error, too
	}
	w.begun = w.begun || status >= 200
}

func (w *restoring) Write(b []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(b)
}

func (w *restoring) begin() {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
}

// Flush implements http.Flusher.
func (w *restoring) Flush() { _ = w.FlushError() }

// FlushError is the Flush that http.ResponseController prefers.
func (w *restoring) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *restoring) Unwrap() http.ResponseWriter { return w.ResponseWriter }
