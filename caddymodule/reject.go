package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/door"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

var errRejected = errors.New("rejected by shield")

// rejectionKey is the context key of the rejection in requests to error routes.
type rejectionKey struct{}

// reject answers a request that is not admitted. If the server has error routes, reject
// runs them. Returning an error would run them, too, but costs several times as much, and
// leaves the response empty if no route matches.
//
// A gRPC client cannot read what error routes write.
func (h *Handler) reject(w http.ResponseWriter, r *http.Request, g *shield.Guard, about *shield.Request, keys []limiter.Key, d *shield.Decision, arrived time.Duration) error {
	now, ok := d.Deliver(r.Context())
	if !ok {
		w.WriteHeader(shield.GoneStatus(r.Context()))
		return nil
	}
	answers, rejection := g.Responses(), d.Rejection()
	h.record.durations.observe(outcomeRejected, answers.Status(rejection), now-arrived)
	direct := h.respond == respondDirect || h.respond == respondAuto && (h.errors == nil || pushback.IsGRPC(r))
	if direct {
		door.Of(r).Rejected(now, h.atDoor, r, about, keys, d)
		answers.Write(w, r, rejection, shield.At(now))
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
	answers.SetHeader(w, r, rejection)
	err := caddyhttp.HandlerError{StatusCode: answers.Status(rejection), Err: errRejected}
	if h.respond == respondError {
		return err
	}
	r = (*caddyhttp.HTTPErrorConfig)(nil).WithError(r, err)
	return h.errors().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), rejectionKey{}, rejection)))
}

// errorRoutes returns a function that returns a handler, or nil if the server has no error
// routes. The handler runs the routes and, if none of them answers, writes shield's own
// answer. It is made at the first rejection, because Caddy provisions the routes after h.
func (h *Handler) errorRoutes(s *caddyhttp.Server) func() caddyhttp.Handler {
	if s.Errors == nil || len(s.Errors.Routes) == 0 {
		return nil
	}
	return sync.OnceValue(func() caddyhttp.Handler {
		return s.Errors.Routes.Compile(caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			rejection, _ := r.Context().Value(rejectionKey{}).(pushback.Rejection)
			h.guard().Responses().Write(w, r, rejection, shield.At(shield.Now()))
			return nil
		}))
	})
}

// forDoor returns what the listener wrapper knows of h.
func (h *Handler) forDoor(byAddress bool) *door.Shield {
	return &door.Shield{Guard: h.guard, Rejected: h.rejectedAtDoor, Handler: h, ByAddress: byAddress}
}

// rejectedAtDoor counts a request that was rejected there, at once.
func (h *Handler) rejectedAtDoor(q *shield.Request, d *shield.Decision, major int) {
	h.countRejected(nil, q, d)
	h.record.durations.observe(outcomeRejected, h.guard().Responses().Status(d.Rejection()), 0)
	h.record.atDoor[major-1].Add(1)
}

// isByAddress reports whether h decides on all requests of an address to one host alike, but for
// those parts that the door reads.
func (h *Handler) isByAddress(server *caddyhttp.Server) bool {
	if len(h.classes) > 0 || len(server.ExpectedUnderscoreHeaders)+len(server.ExpectedDotHeaders) > 0 {
		return false // those headers hide others
	}
	if list := trustedSource(server); list != nil && list != reflect.TypeFor[*caddyhttp.StaticIPRange]() {
		return false // it may depend on more than the address
	}
	return !slices.ContainsFunc(h.zones, func(z handlerZone) bool { return len(z.matchers) > 0 }) &&
		!slices.ContainsFunc(h.identities(), func(is identity) bool { return !is.by.isMadeOfAddresses("http.request.host") })
}
