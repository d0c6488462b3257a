package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/door"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// rejectionKey is the context key of the rejection in requests to error routes.
type rejectionKey struct{}

// reject answers a request that is not admitted: by the server's error routes if there are any, unless h is in them or the client
// cannot read what they write, as gRPC's. Returning an error would run them, too, at several times the cost, and leave the response empty if none matches.
func (h *Handler) reject(w http.ResponseWriter, r *http.Request, g *shield.Guard, about *shield.Request, keys []limiter.Key, d *shield.Decision, arrived time.Duration) error {
	now, ok := d.Deliver(r.Context())
	if !ok {
		w.WriteHeader(shield.GoneStatus(r.Context()))
		return nil
	}
	answers, rejection := g.Responses(), d.Rejection()
	if h.errors == nil || answers.Alone(r) || r.Context().Value(caddyhttp.ErrorCtxKey) != nil { // by which h would reject it again
		door.Of(r).Rejected(now, h.atDoor, r, about, keys, d)
		status := answers.Write(w, r, rejection, shield.At(now))
		h.took(outcomeRejected, status, now-arrived)
		return nil
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		whole := false
		// The routes may take longer than any deadline that is set now, and without an idle timeout none could end the read.
		if idle, _ := caddyhttp.IdleTimeoutsFromContext(r.Context()); idle != nil && r.Header.Get("Expect") == "" {
			var done func()
			whole, done, _ = bodies.Read(r, now+50*time.Millisecond)
			defer done()
		}
		if !whole {
			w.Header().Set("Connection", "close")
		}
	}
	pushback.Unblock(w, r, shield.At(now))
	status := answers.SetHeader(w, r, rejection)
	h.took(outcomeRejected, status, now-arrived)
	r = (*caddyhttp.HTTPErrorConfig)(nil).WithError(r, caddyhttp.HandlerError{StatusCode: status, Err: errors.New("rejected by shield")})
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
func (h *Handler) forDoor() *door.Shield {
	return &door.Shield{Guard: h.guard, Rejected: func(q *shield.Request, d *shield.Decision, status, major int) {
		h.countRejected(nil, q, d)
		h.took(outcomeRejected, status, 0) // at once
		h.record.atDoor[major-1].Add(1)
	}}
}

// placeholders are the names of an annotation's values.
var placeholders = [...]string{
	"http.shield.decision", "http.shield.reason", "http.shield.zone", "http.shield.retry_after", "http.shield.retry_after_ms",
	"http.shield.class", "http.shield.load",
}

// An annotation tells handlers, error routes and logs of a decision: the values of the placeholders, of which those of waits
// are numbers, or "" for none. So is the load.
type annotation struct {
	text [len(placeholders)]string
	hint pushback.Hint
	by   *Handler // which tells its load when it is asked
}

func (a *annotation) placeholder(key string) (any, bool) {
	switch i := slices.Index(placeholders[:], key); {
	case i < 0:
		return nil, false
	case i == 3 && a.hint.Seconds != 0:
		return a.hint.Seconds, true
	case i == 4 && a.hint.Ms != 0:
		return a.hint.Ms, true
	case i == 6:
		return a.by.load(shield.Now()), true
	default:
		return a.text[i], true
	}
}

// placeholdersOf returns the placeholders of admitted requests of a class, "" if there are no classes. To map one function costs nothing.
func (h *Handler) placeholdersOf(class string) caddy.ReplacerFunc {
	return (&annotation{text: [...]string{0: "admit", 5: class, 6: ""}, by: h}).placeholder
}

// annotate provides, of what is not simply admitted, the placeholders, the fields of the access log's line, and attributes of
// the request's span: that of Caddy's handler tracing, say.
func (h *Handler) annotate(r *http.Request, d *shield.Decision) {
	ctx := r.Context()
	decision, reason, zone, class := "reject", d.Reason.String(), "", h.classNames[d.Class]
	if d.Admit {
		decision = "observe"
	}
	if d.Zone >= 0 {
		zone = h.zones[d.Zone].name
	}
	a := annotation{[...]string{decision, reason, zone, "", "", class, ""}, d.Hint, h}
	if repl, _ := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); repl != nil {
		// Of several shields in a row, the one that rejects counts: a Replacer finds set values first, then those
		// mapped first. Mapping is cheaper.
		if _, again := repl.Get(placeholders[0]); !again {
			repl.Map(a.placeholder)
		} else {
			for _, key := range placeholders {
				value, _ := a.placeholder(key)
				repl.Set(key, value)
			}
		}
	}
	if fields, _ := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); h.logged && fields != nil {
		object := []zap.Field{zap.String("decision", decision), zap.String("reason", reason), zap.String("zone", zone), zap.Int("retry_after_ms", d.Hint.Ms)}
		if class != "" {
			object = append(object, zap.String("class", class))
		}
		fields.Set(zap.Dict("shield", object...)) // of several shields in a row, the last
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("shield.decision", decision), attribute.String("shield.reason", reason))
		if zone != "" {
			span.SetAttributes(attribute.String("shield.zone", zone))
		}
		if d.Hint.Ms > 0 {
			span.SetAttributes(attribute.Int("shield.retry_after_ms", d.Hint.Ms))
		}
	}
}
