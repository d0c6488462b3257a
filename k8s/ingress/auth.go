package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/policy"
)

const (
	// authTimeout is how long the answer to one question may take. Ours: it delays every
	// request, and a permit of the Service may be taken meanwhile.
	authTimeout = 5 * time.Second

	// maxAuthBody is how much of a response is read to keep its connection.
	maxAuthBody = 64 << 10

	// asking is a field of questions. A question that comes to a target with questions of its
	// own is rejected, or it would never end.
	asking = "X-Shield-Auth"
)

// errAnswered is the error of a request that a filter has answered.
var errAnswered = fmt.Errorf("%w: a filter has answered", caddymodule.ErrUnasked)

// askAuth asks whether r is let in, after forward. If not it answers r, and returns
// errAnswered: in doubt, nothing is let in. The error is another one if the time for r is over.
func (h *Handler) askAuth(w http.ResponseWriter, r *http.Request, a *policy.Auth) error {
	if a == nil {
		return nil
	}
	proto, uri := scheme(r), r.URL.RequestURI()
	answer, err := ask(r, a, proto, uri)
	switch {
	case err != nil && errors.Is(r.Context().Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", caddymodule.ErrUnasked, context.DeadlineExceeded)
	case err != nil:
		_ = h.unavailable(w, r, "the authentication does not answer")
		return errAnswered
	}
	for _, name := range a.Headers {
		if delete(r.Header, name); answer.Header[name] != nil {
			r.Header[name] = answer.Header[name]
		}
	}
	for _, cookie := range answer.Header["Set-Cookie"] {
		w.Header().Add("Set-Cookie", cookie)
	}
	switch status := answer.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusUnauthorized && a.Signin != "":
		w.Header().Set("Location", a.SigninFor(proto, r.Host, uri))
		_ = respond(w, r, http.StatusFound, "sign in")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if challenge := answer.Header["Www-Authenticate"]; challenge != nil {
			w.Header()["Www-Authenticate"] = challenge
		}
		_ = respond(w, r, status, http.StatusText(status))
	default:
		_ = h.unavailable(w, r, "the authentication does not answer")
	}
	return errAnswered
}

// ask returns the answer to one question, without its body. It has the fields of r, without those
// of the connection and the body.
func ask(r *http.Request, a *policy.Auth, proto, uri string) (*http.Response, error) {
	// In HTTP/2 a host may have a slash, which would end the host that $host stands for.
	if a.URL == "" || r.Header[asking] != nil || !httpguts.ValidHostHeader(r.Host) {
		return nil, errors.New("not to be asked")
	}
	ctx, cancel := context.WithTimeout(r.Context(), authTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, a.Ask(proto, hostOf(r.Host), uri), nil)
	if err != nil {
		return nil, err
	}
	q.Header = r.Header.Clone()
	for name := range q.Header {
		if slices.Contains(notForAuth, name) || strings.HasPrefix(name, "Sec-Websocket-") {
			delete(q.Header, name)
		}
	}
	for name, value := range map[string]string{
		asking: "1", "X-Original-Method": r.Method, "X-Original-Url": proto + "://" + r.Host + uri, "X-Auth-Request-Redirect": uri,
		"X-Forwarded-Method": r.Method, "X-Forwarded-Uri": uri,
	} {
		q.Header[name] = []string{value}
	}
	answer, err := authTransport.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	_, _ = io.CopyN(io.Discard, answer.Body, maxAuthBody)
	return answer, answer.Body.Close()
}

// notForAuth are the fields of r's connection and body.
var notForAuth = []string{"Connection", "Content-Length", "Content-Type", "Content-Encoding", "Expect", "Keep-Alive", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// authTransport follows no redirect and asks no proxy.
var authTransport = &http.Transport{
	DialContext: (&net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err == nil && !mayAsk(to.Addr()) {
			err = fmt.Errorf("%s is not for authentication", to.Addr())
		}
		return err
	}}).DialContext,
	ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTimeout, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleFor, MaxResponseHeaderBytes: maxHeaderBytes,
}

// mayAsk reports whether the owner of an Ingress may have shield ask an address. It may not be
// the pod itself, nor a service of the cloud for the node, which may give its credentials out:
// those have link-local addresses, and some others.
var mayAsk = func(a netip.Addr) bool {
	if a = a.Unmap().WithZone(""); nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified() &&
		!slices.ContainsFunc(clouds, func(p netip.Prefix) bool { return p.Contains(a) })
}

// nat64 has IPv4 in its last 32 bits (RFC 6052, section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// clouds are the addresses of clouds' services for a node that are not link-local, and forms of
// IPv6 that stand for any of IPv4 in ways of which one is a site's own choice.
var clouds = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
	netip.MustParsePrefix("fd00:42::42/128"),    // Scaleway
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	netip.MustParsePrefix("64:ff9b:1::/48"),     // NAT64 of a site (RFC 8215)
	netip.MustParsePrefix("2002::/16"),          // 6to4
	netip.MustParsePrefix("::/96"),              // IPv4-compatible
}
