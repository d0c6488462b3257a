package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// reverse_proxy sets these placeholders from the last response that it had from an
// upstream. It sets the first two together, when it has the response's head, and keeps
// them whatever handle_response does. Without a response it sets nothing.
const (
	proxyLatency = "http.reverse_proxy.upstream.latency"
	proxyStatus  = "http.reverse_proxy.status_code"

	proxyHeader = "http.reverse_proxy.header."
)

// A proxyResult sees what the reverse_proxy behind the handler got from the backend, whatever
// handle_response makes of it.
type proxyResult struct {
	repl   *caddy.Replacer
	before time.Duration // latency of an earlier reverse_proxy in the same request
}

func newProxyResult(r *http.Request) (p proxyResult) {
	if p.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); p.repl != nil {
		p.before = p.latency()
	}
	return p
}

// latency tells one response from another: it is in nanoseconds.
func (p proxyResult) latency() time.Duration {
	v, _ := p.repl.Get(proxyLatency)
	d, _ := v.(time.Duration)
	return d
}

// header returns a field of the response.
func (p proxyResult) header(name string) string {
	s, _ := p.repl.GetString(proxyHeader + name)
	return s
}

// ErrUnasked is the error, as such or wrapped, of a handler behind a shield that has not
// sent the request to the backend. It says nothing about the backend.
var ErrUnasked = errors.New("the backend was not asked")

// NoteTimeout notes that the request of a context has been ended because the backend was late.
// For shields before, that is its failure, also if the response had begun. It is safe for
// concurrent use. Caddy's variables are not: a Transport that still dials for a request that
// has ended reads them.
func NoteTimeout(ctx context.Context) {
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set(lateKey, true)
	}
}

const lateKey = "shield.late"

// result returns how an exchange has ended, with what status, and the pause that the backend asks
// for. timed: the shield has a time-out. The next handler returned err or, unless returned, panicked.
func (p proxyResult) result(x *shield.Exchange, timed bool, err error, returned bool) (outcome shield.Outcome, status int, pause time.Duration) {
	if errors.Is(err, ErrUnasked) {
		return shield.Detached, 0, 0
	}
	backend, header, answered, late := 0, x.Header().Get, false, false // what another handler answers is not the backend's
	if p.repl != nil {
		if inner, _ := p.repl.Get(placeholders[0]); inner == "reject" {
			// A shield behind this one has rejected it: it did not reach the backend.
			return shield.Detached, 0, 0
		}
		if latency := p.latency(); latency != 0 && latency != p.before {
			v, _ := p.repl.Get(proxyStatus)
			backend, answered = v.(int)
			header = p.header
		}
		if timed || err != nil || !returned {
			_, late = p.repl.Get(lateKey)
		}
	}
	if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		// With 502 to 504 the upstream could not be reached or did not answer. The replacer
		// has the status of an earlier try, or of another proxy.
		if s := failed.StatusCode; !answered || s >= http.StatusBadGateway && s <= http.StatusGatewayTimeout {
			backend = s
		}
	}
	status = cmp.Or(backend, x.Status())
	outcome, pause = x.Result(backend, header)
	switch {
	case late:
		return shield.Overloaded, status, 0
	case outcome == shield.Served && !returned:
		outcome = shield.Detached // the response broke off: its duration says nothing
	case err != nil && !answered:
		pause = 0 // the error is not the backend's
	}
	return outcome, status, pause
}
