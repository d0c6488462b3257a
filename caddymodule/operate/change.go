package operate

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// mayChange reports whether a request to the admin endpoint may change what the shields do: it
// comes over a loopback address or a Unix socket, or its client has a certificate that Caddy's
// remote administration has verified. Other listeners are read-only. Ours: a page that is on a
// network for all to see must not be a switch for all.
func mayChange(r *http.Request) bool {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	switch at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); at := at.(type) {
	case *net.TCPAddr:
		return at.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// askedBy says who has sent a request to the admin endpoint, as far as that is known.
func askedBy(r *http.Request) string {
	who := r.RemoteAddr
	if who == "" || who == "@" {
		who = "a Unix socket"
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who += fmt.Sprintf(", certificate %q", r.TLS.PeerCertificates[0].Subject)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		who += fmt.Sprintf(", origin %.200q", origin)
	}
	return who
}

// maxChange is how long the body of a change may be, in bytes.
const maxChange = 16 << 10

// readChange reads the body of a change, if the request may make one.
func readChange(w http.ResponseWriter, r *http.Request, to any) error {
	if err := only(r, http.MethodPost); err != nil {
		return err
	}
	if !mayChange(r) {
		return errReadOnly
	}
	return readObject(w, r, to)
}

// readObject reads the body of a request.
func readObject(w http.ResponseWriter, r *http.Request, to any) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		return BadRequest(http.StatusUnsupportedMediaType, "Content-Type is %.100q; want application/json", kind)
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange))
	in.DisallowUnknownFields()
	if err := in.Decode(to); err != nil {
		return BadRequest(http.StatusBadRequest, "the body is no such object: %w", err)
	}
	if _, err := in.Token(); err != io.EOF {
		return BadRequest(http.StatusBadRequest, "the body has more after its object; want one object")
	}
	return nil
}

var errReadOnly = caddy.APIError{
	HTTPStatus: http.StatusForbidden,
	Err:        fmt.Errorf("the admin endpoint is read-only at this address; want a loopback address, a Unix socket, or remote administration with a client certificate"),
}
