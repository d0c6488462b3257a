package caddymodule

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// An h2Visit is a request with a number, from its server to its handlers and back. It sees what
// the server is told to answer, after all that handlers do to it.
type h2Visit struct {
	http.ResponseWriter
	door    *h2Door
	note    h2Note
	read    *http.Request // as the server has read it, if it may be remembered
	shields int           // that it has come through
	draft   *draft
	status  int         // 0: not written
	header  http.Header // as it was then
	spoilt  bool        // the answer is more than a status and headers
}

type visitKey struct{}

// visits is a server's Handler, before any other.
type visits struct{ http.Handler }

// receiveVisits has the HTTP server of a connection's context receive visits. No
// request has been served yet, and net/http looks for the Handler at each.
func receiveVisits(ctx context.Context) {
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok && server.Handler != nil {
		server.Handler = visits{server.Handler}
	}
}

// ServeHTTP implements http.Handler.
func (v visits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number := r.Header[numberKey]
	if r.ProtoMajor != 2 || number == nil {
		v.Handler.ServeHTTP(w, r)
		return
	}
	delete(r.Header, numberKey)
	visit := &h2Visit{ResponseWriter: w}
	if c, _ := r.Context().Value(doorKey{}).(*doorConn); c != nil {
		visit.door = c.h2.Load()
	}
	visit.serve(v.Handler, number[0], r)
}

// serve has the request served, and remembers it if it was refused.
func (v *h2Visit) serve(next http.Handler, number string, r *http.Request) {
	if v.door == nil {
		next.ServeHTTP(v.ResponseWriter, r)
		return
	}
	n, _ := strconv.ParseUint(number, 10, 64)
	v.note = v.door.claim(n)
	defer func() { v.note.end() }() // a handler may panic, or take what is in hand
	if v.note.block != nil {
		v.read = r.WithContext(r.Context()) // a copy
		v.read.Header = r.Header.Clone()
	}
	next.ServeHTTP(v, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	if v.draft != nil && v.status != 0 && !v.spoilt {
		v.remember()
	}
}

// take is that of door.
func (v *h2Visit) take(h *Handler) (d shield.Decision, ok bool) {
	v.shields++
	hand := v.note.hand
	if hand == nil || hand.by != h {
		return d, false
	}
	v.note.hand = nil
	return hand.d, true
}

// refused is that of door.
func (v *h2Visit) refused(now time.Duration, h *Handler, r *http.Request, q *shield.Request, keys []limiter.Key, d *shield.Decision) {
	switch {
	case v.shields != 1 || v.note.number == 0:
	case v.note.block == nil:
		v.door.see(v.note.sum)
	case v.draft == nil && isUnchanged(v.read, r):
		v.draft = newDraft(now, h, r, q, keys, d)
		v.draft.by, v.draft.origin, v.draft.head, v.draft.sum = v.door.c.serial, v.door.c.origin, v.note.block, v.note.sum
	}
}

// remember makes a memo of the request and of its answer.
func (v *h2Visit) remember() {
	var ok bool
	if v.draft.written, ok = v.written(); !ok {
		return
	}
	slot := &v.door.slots[v.note.sum%uint64(len(v.door.slots))]
	old := slot.Load()
	if old == nil || old.table != v.note.table {
		old = new(h2Memo)
	}
	if m := v.draft.finish(old.memo); m != nil && (!old.alive(m.by, m.until-memoLife) || old.of(&m.origin, m.head)) {
		slot.Store(&h2Memo{m, v.note.table})
	}
}

// written returns the answer that the server writes, as if it were for HTTP/1.1: the headers in
// the order of net/http, with those that it adds. It reports false if the server would leave out
// one.
func (v *h2Visit) written() (b []byte, ok bool) {
	b = append(b, "HTTP/1.1 "+strconv.Itoa(v.status)+"\r\n"...)
	length := v.header["Content-Length"]
	if length == nil && v.read.Method != http.MethodHead {
		length = []string{"0"}
	}
	delete(v.header, "Content-Length")
	for name := range v.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) { // it may have come later
			return nil, false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.header)) {
		if name == "Date" || name == "Connection" || !httpguts.ValidHeaderFieldName(name) {
			return nil, false
		}
		for _, value := range v.header[name] {
			if !httpguts.ValidHeaderFieldValue(value) {
				return nil, false
			}
			b = append(b, name+": "+value+"\r\n"...)
		}
	}
	for _, value := range length {
		b = append(b, "Content-Length: "+value+"\r\n"...)
	}
	return append(b, "Date: "+dateNow()+"\r\n\r\n"...), len(length) <= 1
}

// WriteHeader implements http.ResponseWriter.
func (v *h2Visit) WriteHeader(status int) {
	if v.draft != nil {
		v.spoilt = v.spoilt || v.status != 0 || status < http.StatusOK
		v.status, v.header = status, v.Header().Clone()
	}
	v.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (v *h2Visit) Write(b []byte) (int, error) {
	v.spoilt = true
	return v.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (v *h2Visit) Flush() { _ = v.FlushError() }

// FlushError is for http.ResponseController.
func (v *h2Visit) FlushError() error {
	v.spoilt = true
	return http.NewResponseController(v.ResponseWriter).Flush()
}

// Push implements http.Pusher.
func (v *h2Visit) Push(target string, opts *http.PushOptions) error {
	v.spoilt = true
	if pusher, ok := v.ResponseWriter.(http.Pusher); ok {
		return pusher.Push(target, opts)
	}
	return http.ErrNotSupported
}

// Unwrap is for http.ResponseController.
func (v *h2Visit) Unwrap() http.ResponseWriter { return v.ResponseWriter }
