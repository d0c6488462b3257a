package door

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"golang.org/x/net/http/httpguts"
)

// An h2Visit is a request with a number, from its server to its handlers and back. It sees what
// the server is told to answer, after all that handlers do to it.
type h2Visit struct {
	http.ResponseWriter
	h2 *h2Conn
	h2Note
	read   *http.Request // as the server has read it, if it may be remembered
	status int           // 0: not written
	header http.Header   // as it was then
	spoilt bool          // the answer is more than a status and headers
}

type visitKey struct{}

// visits is a server's Handler, before any other.
type visits struct{ http.Handler }

func (s visits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, h2 := r.Header[numberKey], (*h2Conn)(nil)
	if number != nil {
		delete(r.Header, numberKey)
		h2 = Of(r).h2
	}
	if h2 == nil {
		s.Handler.ServeHTTP(w, r)
		return
	}
	n, _ := strconv.ParseUint(number[0], 10, 64)
	v := &h2Visit{ResponseWriter: w, h2: h2, h2Note: h2.claim(n)}
	defer v.end() // a handler may panic, or take what is in hand
	if v.head != nil {
		v.read = r.WithContext(r.Context()) // a copy
		v.read.Header = r.Header.Clone()
	}
	s.Handler.ServeHTTP(v, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	if v.draft == nil || v.status == 0 || v.spoilt { // it was not rejected, or in another way
		return
	}
	var ok bool
	if v.draft.written, ok = v.written(); ok {
		h2.c.memos.keep(v.draft)
	}
}

// rejected is that of Visit.
func (v *h2Visit) rejected(is rejection, q *shield.Request, keys []limiter.Key, d *shield.Decision) {
	switch {
	case v.shields != 1 || v.number == 0:
	case v.head == nil:
		v.h2.c.memos.sees(v.sum)
	case v.draft == nil && isUnchanged(v.read, is.r):
		v.draft = is.draft(v.head, v.table, q, keys, d)
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
	b = time.Now().UTC().AppendFormat(append(b, "Date: "...), http.TimeFormat)
	return append(b, "\r\n\r\n"...), len(length) <= 1
}

func (v *h2Visit) WriteHeader(status int) {
	if v.draft != nil {
		v.spoilt = v.spoilt || v.status != 0 || status < http.StatusOK
		v.status, v.header = status, v.Header().Clone()
	}
	v.ResponseWriter.WriteHeader(status)
}

func (v *h2Visit) Write(b []byte) (int, error) {
	v.spoilt = true
	return v.ResponseWriter.Write(b)
}

func (v *h2Visit) Flush() {
	v.spoilt = true
	_ = http.NewResponseController(v.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (v *h2Visit) Unwrap() http.ResponseWriter { return v.ResponseWriter }
