package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

var errRefused = errors.New("refused by shield")

// refusalKey is where the error routes' requests carry the refusal.
type refusalKey struct{}

// refuse answers a request that is not admitted: by itself, unless somebody has
// written error routes. Those are run from here. Returning an error would run
// them too, but costs several times as much, and would leave the response empty
// where none of them matches.
//
// A gRPC client cannot read what error routes write.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, d *shield.Decision) error {
	now, ok := d.Deliver(r.Context())
	if !ok {
		w.WriteHeader(shield.GoneStatus(r.Context()))
		return nil
	}
	answers, refusal := h.guard.Answers(), d.Refusal()
	direct := h.respond == respondDirect || h.respond == respondAuto && (h.errors == nil || pushback.IsGRPC(r))
	if direct {
		answers.Write(w, r, refusal, shield.At(now))
		return nil
	}
	pushback.Unblock(w, r, shield.At(now))
	answers.SetHeaderFor(w, r, refusal)
	err := caddyhttp.HandlerError{StatusCode: answers.Status(refusal), Err: errRefused}
	if h.respond == respondError {
		return err
	}
	r = (*caddyhttp.HTTPErrorConfig)(nil).WithError(r, err)
	return h.errors().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), refusalKey{}, refusal)))
}

// errorRoutes returns what runs the server's error routes and, where none of
// them answers, writes shield's own answer; or nil if there are no routes. They
// are compiled with the first refusal, because Caddy provisions them after this
// handler.
func (h *Handler) errorRoutes(s *caddyhttp.Server) func() caddyhttp.Handler {
	if s == nil || s.Errors == nil || len(s.Errors.Routes) == 0 {
		return nil
	}
	return sync.OnceValue(func() caddyhttp.Handler {
		return s.Errors.Routes.Compile(caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			refusal, _ := r.Context().Value(refusalKey{}).(pushback.Refusal)
			h.guard.Answers().Write(w, r, refusal, shield.At(shield.Now()))
			return nil
		}))
	})
}
