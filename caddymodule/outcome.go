package caddymodule

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// What reverse_proxy leaves in the replacer of the request, of the last response
// that it had from an upstream. It sets the first two together, as soon as it has
// the response's head, and keeps them over whatever is made of the response
// (handle_response). Nothing is set if there was no response.
const (
	proxyLatency = "http.reverse_proxy.upstream.latency"
	proxyStatus  = "http.reverse_proxy.status_code"

	proxyContentType  = "http.reverse_proxy.header.Content-Type"
	proxyRetryAfter   = "http.reverse_proxy.header.Retry-After"
	proxyRetryAfterMs = "http.reverse_proxy.header.Retry-After-Ms"
)

// tap sees what has become of a request behind the handler, without wrapping the
// ResponseWriter: that would cost the kernel's copying of files, and more than
// these few lookups.
type tap struct {
	repl   *caddy.Replacer
	body   *shield.Body  // nil: not watched
	before time.Duration // of a response to an earlier reverse_proxy in the same request
}

func newTap(r *http.Request) tap {
	t := tap{}
	if t.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); t.repl != nil {
		t.before = t.latency()
	}
	return t
}

// latency tells one response from another: it is in nanoseconds.
func (t *tap) latency() time.Duration {
	v, _ := t.repl.Get(proxyLatency)
	d, _ := v.(time.Duration)
	return d
}

// ErrUnasked is what a handler behind a shield returns, as such or wrapped, that has not
// asked the backend: it says nothing of how the backend does.
var ErrUnasked = errors.New("the backend was not asked")

// An ending is what has become of a request.
type ending struct {
	outcome shield.Outcome
	pause   time.Duration // for how long the backend asks to be left alone
}

// end returns what has become of r, for which next returned err. whole is false
// if it did not return.
func (t *tap) end(r *http.Request, err error, whole bool) ending {
	if errors.Is(err, ErrUnasked) {
		return ending{outcome: shield.Detached}
	}
	status, answered := 0, false
	if t.repl != nil {
		if inner, _ := t.repl.Get(placeholders[0]); inner == "refuse" {
			// A shield behind this one: the backend has not even heard of it.
			return ending{outcome: shield.Detached}
		}
		if latency := t.latency(); latency != 0 && latency != t.before {
			v, _ := t.repl.Get(proxyStatus)
			status, answered = v.(int)
		}
	}
	if err != nil {
		var failed caddyhttp.HandlerError
		if errors.As(err, &failed) {
			switch failed.StatusCode {
			case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
				// The upstream could not be reached or did not answer. What is in
				// the replacer is of an earlier try, or of another proxy.
				status = failed.StatusCode
			default:
				if !answered {
					status = failed.StatusCode
				}
			}
		}
	}
	e := ending{outcome: shield.OutcomeOf(r, t.body, status)}
	switch {
	case e.outcome == shield.Served && !whole:
		e.outcome = shield.Detached // it was broken off: how long it took says nothing
	case e.outcome == shield.Served && answered && strings.HasPrefix(t.header(proxyContentType), "text/event-stream"):
		e.outcome = shield.Detached // one that the request has not announced: see shield.MayDetach
	case status == http.StatusServiceUnavailable && answered:
		e.pause = t.pause()
	}
	return e
}

// pause returns how long the response says that the backend wants to be left
// alone. One with an exact wait in it, as shields and others send it, is one
// client's appointment, and about nobody else.
func (t *tap) pause() time.Duration {
	if t.header(proxyRetryAfterMs) != "" {
		return 0
	}
	return shield.RetryAfter(t.header(proxyRetryAfter), shield.At(shield.Now()))
}

func (t *tap) header(name string) string {
	v, _ := t.repl.Get(name)
	s, _ := v.(string)
	return s
}
