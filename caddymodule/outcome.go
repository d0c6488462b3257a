package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"strings"
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

	proxyContentType  = "http.reverse_proxy.header.Content-Type"
	proxyRetryAfter   = "http.reverse_proxy.header.Retry-After"
	proxyRetryAfterMs = "http.reverse_proxy.header.Retry-After-Ms"
)

// A proxyResult sees how the reverse_proxy behind the handler has ended. To wrap the
// ResponseWriter would cost the kernel's copying of files, and more than these lookups.
type proxyResult struct {
	repl   *caddy.Replacer
	timed  bool          // the handler has a time-out
	body   *shield.Body  // nil: not watched
	before time.Duration // latency of an earlier reverse_proxy in the same request
	status int           // of the answer, as far as it is known: 0 if not
	begun  time.Duration // after which a stream of events has begun; 0: there was none
}

func newProxyResult(r *http.Request) proxyResult {
	var p proxyResult
	if p.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); p.repl != nil {
		p.before = p.latency()
	}
	return p
}

// latency tells one response from another: it is in nanoseconds.
func (p *proxyResult) latency() time.Duration {
	v, _ := p.repl.Get(proxyLatency)
	d, _ := v.(time.Duration)
	return d
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

// result returns how r has ended, and sets when a stream of events began. The next handler
// returned err or, unless returned, panicked.
func (p *proxyResult) result(r *http.Request, err error, returned bool) (outcome shield.Outcome, pause time.Duration) {
	if errors.Is(err, ErrUnasked) {
		return shield.Detached, 0
	}
	status, answered := 0, false
	if p.repl != nil {
		if inner, _ := p.repl.Get(placeholders[0]); inner == "refuse" {
			// A shield behind this one has refused it: it did not reach the backend.
			return shield.Detached, 0
		}
		if latency := p.latency(); latency != 0 && latency != p.before {
			v, _ := p.repl.Get(proxyStatus)
			status, answered = v.(int)
		}
	}
	if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		// With 502 to 504 the upstream could not be reached or did not answer. The replacer
		// has the status of an earlier try, or of another proxy.
		if s := failed.StatusCode; !answered || s >= http.StatusBadGateway && s <= http.StatusGatewayTimeout {
			status = s
		}
	}
	p.status = status
	if p.repl != nil && (p.timed || err != nil || !returned) {
		if _, late := p.repl.Get(lateKey); late {
			return shield.Overloaded, 0
		}
	}
	outcome = shield.OutcomeOf(r, p.body, status)
	if answered && status < 300 && strings.HasPrefix(p.header(proxyContentType), "text/event-stream") {
		p.begun = p.latency()
	}
	switch {
	case outcome == shield.Served && !returned:
		outcome = shield.Detached // the response broke off: its duration says nothing
	case status == http.StatusServiceUnavailable && answered:
		pause = p.pause()
	}
	return outcome, pause
}

// pause returns how long a pause the response asks for. A response with an exact wait, as
// shields and others send it, is one client's appointment and not a pause.
func (p *proxyResult) pause() time.Duration {
	if p.header(proxyRetryAfterMs) != "" {
		return 0
	}
	return shield.RetryAfter(p.header(proxyRetryAfter), shield.At(shield.Now()))
}

func (p *proxyResult) header(name string) string {
	v, _ := p.repl.Get(name)
	s, _ := v.(string)
	return s
}
