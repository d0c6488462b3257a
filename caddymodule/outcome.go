package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/pushback"
)

// reverse_proxy sets these placeholders from the last response that it had from an
// upstream. It sets the first two together, when it has the response's head, and keeps
// them whatever handle_response does. Without a response it sets nothing.
const (
	proxyLatency = "http.reverse_proxy.upstream.latency"
	proxyStatus  = "http.reverse_proxy.status_code"
	proxyHeader  = "http.reverse_proxy.header."
	lateKey      = "shield.late" // by NoteTimeout
)

// A proxyResult sees what the reverse_proxy behind the handler got from the backend, whatever
// handle_response makes of it.
type proxyResult struct {
	repl          *caddy.Replacer // nil: there is none
	before        any             // latency of an earlier reverse_proxy in the same request
	decided, late any             // in error routes: by the shield before, and what NoteTimeout had noted
}

// ErrUnasked is the error, as such or wrapped, of a handler behind a shield that has not
// sent the request to the backend. It says nothing about the backend.
var ErrUnasked = errors.New("the request never reached the backend")

// NoteTimeout notes that the request of a context has been ended because the backend was late.
// For shields before, that is its failure, also if the response had begun. It is safe for
// concurrent use. Caddy's variables are not: a Transport that still dials for a request that
// has ended reads them.
func NoteTimeout(ctx context.Context) {
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set(lateKey, new(int)) // each is another
	}
}

// result returns how an exchange has ended, with what status, and the pause that the backend asks
// for. timed: the shield has a timeout. The next handler returned err or, unless returned, panicked.
func (p proxyResult) result(x *shield.Exchange, timed bool, err error, returned bool) (outcome shield.Outcome, status int, pause time.Duration) {
	if errors.Is(err, ErrUnasked) {
		return shield.Detached, 0, 0
	}
	backend, header, answered, late := 0, x.Header().Get, false, false // what another handler answers is not the backend's
	if p.repl != nil {
		if inner, _ := p.repl.Get(placeholders[0]); inner == "reject" && inner != p.decided {
			// A shield behind this one has rejected it: it did not reach the backend.
			return shield.Detached, 0, 0
		}
		if latency, ok := p.repl.Get(proxyLatency); ok && latency != p.before { // in nanoseconds, it tells one response from another
			v, _ := p.repl.Get(proxyStatus)
			backend, answered = v.(int)
			header = func(name string) string {
				s, _ := p.repl.GetString(proxyHeader + name)
				return s
			}
		}
		if timed || err != nil || !returned {
			noted, _ := p.repl.Get(lateKey)
			late = noted != p.late
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

// orTimeout returns the error of the handler behind, or that of the timeout, which ends requests whose handlers obey their contexts,
// as reverse_proxy does. A response that others begin later is dropped. If one has begun then, and cannot be complete, orTimeout
// panics as reverse_proxy does.
func orTimeout(x *shield.Exchange, r *http.Request, err error) error {
	late, slow := x.Late()
	if !late || x.Status() == http.StatusSwitchingProtocols {
		return err
	}
	if x.Status() != 0 {
		panic(http.ErrAbortHandler)
	}
	header := x.Header()
	switch {
	case slow:
		header.Set("Connection", "close")
		return caddyhttp.HandlerError{StatusCode: http.StatusRequestTimeout, Err: shield.ErrTimeout}
	case pushback.IsGRPC(r): // its clients do not read 504
		header.Set("Content-Type", "application/grpc")
		header.Set("Grpc-Status", "4")
		header.Set("Grpc-Message", shield.ErrTimeout.Error())
		x.ResponseWriter.WriteHeader(http.StatusOK)
		return nil
	}
	header.Set("Proxy-Status", "shield; error=http_response_timeout") // RFC 9209, section 2.3
	return caddyhttp.Error(http.StatusGatewayTimeout, shield.ErrTimeout)
}

// durations are how long requests took, by what became of them. The zero durations are ready; a
// histogram is made at the first request that it counts.
type durations [2][len(statusClasses)]atomic.Pointer[prometheus.Histogram]

// The first index of durations, and the names of both.
const (
	outcomeAdmitted = iota
	outcomeRejected
)

var (
	outcomes      = [...]string{"admitted", "rejected"}
	statusClasses = [...]string{"unknown", "1xx", "2xx", "3xx", "4xx", "5xx"}
)

// durationOpts have the native buckets that a scrape may ask for, and the classic ones of
// client_golang's DefBuckets, with two more for what is fast, and one for what is slow.
var durationOpts = prometheus.HistogramOpts{
	Name: metrics.Prefix + "request_duration_seconds", Help: "Time from a request's arrival to the end of its response, by decision (admitted or rejected) and status (1xx to 5xx, or unknown). Includes streams and upgraded connections, such as WebSockets, until they end.",
	Buckets:                     []float64{.0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
}

// took counts a request that took so long, with the status of its response; 0: not known.
func (h *Handler) took(outcome, status int, took time.Duration) {
	class := status / 100
	if class < 0 || class >= len(statusClasses) {
		class = 0
	}
	at := &h.record.durations[outcome][class]
	if at.Load() == nil {
		all := prometheus.NewHistogramVec(durationOpts, []string{"shield", "outcome", "code"})
		at.CompareAndSwap(nil, new(all.WithLabelValues(h.Name, outcomes[outcome], statusClasses[class]).(prometheus.Histogram)))
	}
	(*at.Load()).Observe(took.Seconds())
}

// statusOf returns the status of a response: that of an error, or what has been written, if Caddy has
// wrapped the ResponseWriter for its access logs or its metrics. Else it is 0: to wrap it costs an
// allocation, and to ask the Replacer for that of a reverse_proxy takes longer than all the rest.
func statusOf(w http.ResponseWriter, err error) int {
	if err != nil {
		if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
			return failed.StatusCode
		}
		return http.StatusInternalServerError // as Caddy answers it
	}
	if recorder, ok := w.(caddyhttp.ResponseRecorder); ok {
		return recorder.Status()
	}
	return 0
}
