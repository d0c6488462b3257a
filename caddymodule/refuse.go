package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

var errRefused = errors.New("refused by shield")

// refusalKey is the context key of the refusal in requests to error routes.
type refusalKey struct{}

// refuse answers a request that is not admitted. If the server has error routes, refuse
// runs them. Returning an error would run them, too, but costs several times as much, and
// leaves the response empty if no route matches.
//
// A gRPC client cannot read what error routes write.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, about *shield.Request, keys []limiter.Key, d *shield.Decision, arrived time.Duration) error {
	now, ok := d.Deliver(r.Context())
	if !ok {
		w.WriteHeader(shield.GoneStatus(r.Context()))
		return nil
	}
	answers, refusal := h.guard().Answers(), d.Refusal()
	h.record.durations.observe(outcomeRefused, answers.Status(refusal), now-arrived)
	direct := h.respond == respondDirect || h.respond == respondAuto && (h.errors == nil || pushback.IsGRPC(r))
	if direct {
		doorOf(r).refused(now, h, r, about, keys, d)
		answers.Write(w, r, refusal, shield.At(now))
		return nil
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		whole := false
		if r.Header.Get("Expect") == "" { // the routes may take longer than any deadline that is set now
			var done func()
			whole, done, _ = bodies.Read(w, r, now+50*time.Millisecond, 0)
			defer done()
		}
		if !whole {
			w.Header().Set("Connection", "close")
		}
	}
	pushback.Unblock(w, r, shield.At(now))
	answers.SetHeader(w, r, refusal)
	err := caddyhttp.HandlerError{StatusCode: answers.Status(refusal), Err: errRefused}
	if h.respond == respondError {
		return err
	}
	r = (*caddyhttp.HTTPErrorConfig)(nil).WithError(r, err)
	return h.errors().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), refusalKey{}, refusal)))
}

// errorRoutes returns a function that returns a handler, or nil if the server has no error
// routes. The handler runs the routes and, if none of them answers, writes shield's own
// answer. It is made at the first refusal, because Caddy provisions the routes after h.
func (h *Handler) errorRoutes(s *caddyhttp.Server) func() caddyhttp.Handler {
	if s == nil || s.Errors == nil || len(s.Errors.Routes) == 0 {
		return nil
	}
	return sync.OnceValue(func() caddyhttp.Handler {
		return s.Errors.Routes.Compile(caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			refusal, _ := r.Context().Value(refusalKey{}).(pushback.Refusal)
			h.guard().Answers().Write(w, r, refusal, shield.At(shield.Now()))
			return nil
		}))
	})
}
