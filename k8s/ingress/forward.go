package ingress

import (
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/herdshield/shield/caddymodule/upload"
)

// forward rewrites r for the backend, as other ingress controllers do. It changes r in place:
// its header, and with a trusted proxy also its RemoteAddr.
//
// Header | Value
// -------|------
// X-Forwarded-For, X-Real-IP | address of the client, and nothing else
// X-Original-Forwarded-For | the X-Forwarded-For of a trusted proxy, unchanged
// X-Forwarded-Proto, X-Forwarded-Scheme, X-Scheme | http or https: the client's scheme
// X-Forwarded-Host, X-Forwarded-Port | as in the client's request; by default the scheme's port
// X-Request-ID | the client's, if it is 1 to 128 visible characters; else 32 random hexadecimal digits
//
// Values of trusted proxies count. X-Forwarded-* and Forwarded of clients are not passed
// on, nor is Proxy, which CGI programs take for a setting (httpoxy). Fields that the
// client's Connection names are removed first, so that it can name none of the above; of
// Connection only Upgrade remains.
//
// forward must run after everything that reads the sender of r, and before Caddy's
// reverse_proxy. That would write other values of For, Proto and Host: For with the address
// of the last proxy, which applications that trust one hop would take for the client. As it
// is, reverse_proxy writes RemoteAddr to For if there is no such header, and keeps Proto and
// Host of a trusted proxy; otherwise it writes the same values. It must have neither
// trusted_proxies nor header operations.
func forward(r *http.Request) {
	h := r.Header
	dropConnection(h)

	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	client, _ := vars[caddyhttp.ClientIPVarKey].(string)
	trusted, _ := vars[caddyhttp.TrustedProxyVarKey].(bool)
	proto := schemeOf(r, trusted)
	host, port, chain := r.Host, "", ""
	if trusted {
		if v := last(h, "X-Forwarded-Host"); v != "" {
			host = v
		}
		if v := last(h, "X-Forwarded-Port"); isPort(v) {
			port = v
		}
		chain = strings.Join(h["X-Forwarded-For"], ", ")
		r.RemoteAddr = net.JoinHostPort(client, "0")
	}
	if port == "" {
		port = portOf(host, proto)
	}
	id := last(h, "X-Request-Id")
	if !visible(id) {
		id = requestID(rand.Uint64(), rand.Uint64())
	}

	for name := range h {
		if forged(name) {
			delete(h, name)
		}
	}
	if via := h["Via"]; len(via) > 0 && strings.HasSuffix(via[len(via)-1], caddysVia) {
		delete(h, "Via") // see viaTransport
	}
	values := [...]string{client, proto, host, port, id, chain}
	own := values[:] // one allocation for all
	h["X-Real-Ip"] = own[0:1:1]
	h["X-Forwarded-Proto"] = own[1:2:2]
	h["X-Forwarded-Scheme"] = own[1:2:2]
	h["X-Scheme"] = own[1:2:2]
	h["X-Forwarded-Host"] = own[2:3:3]
	h["X-Forwarded-Port"] = own[3:4:4]
	h["X-Request-Id"] = own[4:5:5]
	if chain != "" {
		h["X-Original-Forwarded-For"] = own[5:6:6]
	}
}

// forged reports whether a client could send a header field to look like a proxy.
func forged(name string) bool {
	switch name {
	case "Forwarded", "Front-End-Https", "Proxy", "X-Forwarded-For", "X-Forwarded-Prefix", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Original-Forwarded-For":
		return true
	}
	return false
}

// scheme returns the client's scheme, "http" or "https": from a trusted proxy, else from the
// connection.
func scheme(r *http.Request) string {
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	return schemeOf(r, trusted)
}

func schemeOf(r *http.Request, trusted bool) string {
	if trusted {
		switch v := last(r.Header, "X-Forwarded-Proto"); {
		case strings.EqualFold(v, "https"), strings.EqualFold(v, "wss"):
			return "https"
		case strings.EqualFold(v, "http"), strings.EqualFold(v, "ws"):
			return "http"
		}
	}
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// last returns the last element of the header field with this canonical name: the one that
// the nearest proxy added.
func last(h http.Header, name string) string {
	values := h[name]
	if len(values) == 0 {
		return ""
	}
	v := values[len(values)-1]
	return strings.TrimSpace(v[strings.LastIndexByte(v, ',')+1:])
}

// isPort reports whether s is a port number.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && len(s) <= 5
}

// portOf returns the port of host, or the usual one of proto.
func portOf(host, proto string) string {
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 && isPort(host[colon+1:]) {
		if v6 := strings.LastIndexByte(host, ']'); v6 < 0 || v6 == colon-1 {
			return host[colon+1:]
		}
	}
	if proto == "https" {
		return "443"
	}
	return "80"
}

// visible reports whether s is a request ID that may be passed on.
func visible(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// requestID returns u1 and u2 as 32 hexadecimal digits.
func requestID(u1, u2 uint64) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], u1)
	binary.BigEndian.PutUint64(raw[8:], u2)
	var digits [32]byte
	hex.Encode(digits[:], raw[:])
	return string(digits[:])
}

// dropConnection removes the fields that Connection names, which are for this hop only (RFC
// 9110, section 7.6.1), and all of Connection except an upgrade to websocket. Any other
// upgrade would be a tunnel around the routes: in h2c, with requests for other hosts.
func dropConnection(h http.Header) {
	connection := h["Connection"]
	for _, value := range connection {
		for name := range strings.SplitSeq(value, ",") {
			name = strings.TrimSpace(name)
			// Te and Upgrade are reverse_proxy's, which passes on what it understands.
			if name != "" && !strings.EqualFold(name, "upgrade") && !strings.EqualFold(name, "te") {
				h.Del(name)
			}
		}
	}
	delete(h, "Http2-Settings")
	upgrade := h["Upgrade"]
	if len(upgrade) == 1 && strings.EqualFold(upgrade[0], "websocket") && httpguts.HeaderValuesContainsToken(connection, "upgrade") {
		h["Connection"] = connectionUpgrade
		return
	}
	delete(h, "Connection")
	delete(h, "Upgrade")
}

var connectionUpgrade = []string{"Upgrade"} // never changed

// Caddy's reverse_proxy adds itself to Via of requests, as their last proxy, and of
// responses, as the first. Other ingress controllers do not, and it has effects: nginx
// compresses no response to a request with Via. Elements of other proxies stay.

const caddysVia = " Caddy" // how its elements end

// A viaTransport keeps Caddy's Via out of requests. It wraps the Transport of a provisioned
// reverse_proxy.
type viaTransport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper. r is reverse_proxy's copy, which no other
// goroutine reads in the first attempt. Later attempts, when the one before may still be
// reading, write nothing: forward has removed all other such elements.
func (t viaTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	via := r.Header["Via"]
	switch last := len(via) - 1; {
	case last < 0 || !strings.HasSuffix(via[last], caddysVia):
	case last == 0:
		delete(r.Header, "Via")
	default:
		r.Header["Via"] = via[:last:last]
	}
	return t.RoundTripper.RoundTrip(r)
}

// A viaWriter keeps Caddy's Via out of responses, and has filters' fields in place of the
// backend's.
type viaWriter struct {
	caddyhttp.ResponseWriterWrapper
	paced bool  // the client must read at upload.MinPace
	plan  *plan // nil: none
}

// Write implements http.ResponseWriter.
func (w *viaWriter) Write(b []byte) (n int, err error) {
	err = w.pace(len(b), func() error {
		n, err = w.ResponseWriter.Write(b)
		return err
	})
	return n, err
}

// pace bounds how long it takes to write n bytes to the client, or to flush. It clears the deadline
// afterwards, since a response may pause.
func (w *viaWriter) pace(n int, do func() error) error {
	control := http.NewResponseController(w.ResponseWriter)
	if !w.paced || control.SetWriteDeadline(time.Now().Add(upload.Grace+time.Duration(n)*time.Second/upload.MinPace)) != nil {
		return do()
	}
	err := do()
	if err == nil {
		_ = control.SetWriteDeadline(time.Time{}) // it was possible a moment ago
	}
	return err
}

// FlushError is the Flush that http.ResponseController prefers. Small pieces of a response
// wait here, not in Write.
func (w *viaWriter) FlushError() error {
	return w.pace(0, http.NewResponseController(w.ResponseWriter).Flush)
}

// WriteHeader implements http.ResponseWriter.
func (w *viaWriter) WriteHeader(status int) {
	h := w.Header()
	switch via := h["Via"]; {
	case len(via) == 0 || !strings.HasSuffix(via[0], caddysVia):
	case len(via) == 1:
		delete(h, "Via")
	default:
		h["Via"] = via[1:]
	}
	if w.plan != nil {
		maps.Copy(h, w.plan.extra)
	}
	w.ResponseWriter.WriteHeader(status)
}
