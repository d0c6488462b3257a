package caddymodule

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
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

// A trial is a request that only asks whether Caddy lets a change through.
type trial struct{}

// mayPost reports whether Caddy's remote administration lets the client of a request make changes. Its
// access control by certificate, path and method is known to its server only, so that is asked: with a
// change that does nothing.
func mayPost(r *http.Request) bool {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || !ok || server.Handler == nil {
		return true // there is no access control
	}
	return remotely.may(server, r.TLS.PeerCertificates[0].Raw, func() bool {
		change := r.Clone(context.WithValue(r.Context(), trial{}, true))
		change.Method, change.Header, change.Body = http.MethodPost, http.Header{}, http.NoBody
		change.URL.Path, change.RequestURI = "/shield/overrides", "/shield/overrides"
		answer := verdict{sample: sample{header: http.Header{}}}
		server.Handler.ServeHTTP(&answer, change)
		return answer.status == http.StatusNoContent
	})
}

// remotely is what certificates may do, so that each is tried once: Caddy logs an error for one that
// may not.
var remotely permissions

type permissions struct {
	mu     sync.Mutex
	server *http.Server // a reload makes another
	of     map[[sha256.Size]byte]bool
}

// maxPermissions is how many certificates are remembered. Ours: more than there are people on call.
const maxPermissions = 64

func (p *permissions) may(server *http.Server, certificate []byte, try func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if server != p.server || len(p.of) >= maxPermissions {
		p.server, p.of = server, map[[sha256.Size]byte]bool{}
	}
	key := sha256.Sum256(certificate)
	is, known := p.of[key]
	if !known {
		is = try()
		p.of[key] = is
	}
	return is
}

// A verdict is an http.ResponseWriter that keeps the status only.
type verdict struct {
	sample
	status int
}

func (v *verdict) WriteHeader(status int) { v.status = status }

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
	if r.Method != http.MethodPost {
		return badRequest(http.StatusMethodNotAllowed, "method is %s; want POST", r.Method)
	}
	if !mayChange(r) {
		return errReadOnly
	}
	return readObject(w, r, to)
}

// readObject reads the body of a request.
func readObject(w http.ResponseWriter, r *http.Request, to any) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		return badRequest(http.StatusUnsupportedMediaType, "Content-Type is %.100q; want application/json", kind)
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange))
	in.DisallowUnknownFields()
	if err := in.Decode(to); err != nil {
		return badRequest(http.StatusBadRequest, "the body is no such object: %w", err)
	}
	if _, err := in.Token(); err != io.EOF {
		return badRequest(http.StatusBadRequest, "the body has more after its object; want one object")
	}
	return nil
}

var errReadOnly = caddy.APIError{
	HTTPStatus: http.StatusForbidden,
	Err:        fmt.Errorf("the admin endpoint is read-only at this address; want a loopback address, a Unix socket, or remote administration with a client certificate"),
}

func serveForgive(w http.ResponseWriter, r *http.Request) error {
	var ask struct {
		Client string `json:"client"`
		Handle string `json:"handle"` // of GET /shield/who, in place of the client
		Shield string `json:"shield"`
	}
	if err := readChange(w, r, &ask); err != nil {
		return err
	}
	handlers, c, err := concerned(ask.Shield, ask.Client, ask.Handle)
	if err != nil {
		return err
	}
	now, by := shield.Now(), askedBy(r)
	blocks, err := changes.forgive(ask.Shield, c, r.Header.Get("If-Match"))
	if err != nil {
		return err
	}
	status := adminapi.ForgivenStatus{Client: c.shown, Ended: blocks.ended, Continued: blocks.continued}
	for _, h := range handlers {
		q, unknown := h.asks(c)
		f := h.guard().Forgive(now, q)
		blocked := f.Blocked || blocks.of[h.Name]
		if f.Zones == nil {
			f.Zones = []string{}
		}
		status.Shields = append(status.Shields, adminapi.ForgivenByOne{Name: h.Name, Zones: f.Zones, Promises: f.Promises, Blocked: blocked, Unknown: unknown})
	}
	changes.log("a client is forgiven", ask.Shield, c.shown, by)
	return writeJSON(w, http.StatusOK, status)
}
