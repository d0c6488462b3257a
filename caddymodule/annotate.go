package caddymodule

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
)

// placeholders are the names of an annotation's values.
var placeholders = [...]string{
	"http.shield.decision", "http.shield.reason", "http.shield.zone", "http.shield.retry_after", "http.shield.retry_after_ms",
	"http.shield.class",
}

// An annotation tells handlers, error routes and logs of a decision. It has the values of the placeholders, which are
// boxed once, and not at every look-up; a wait of 0 is "".
type annotation [len(placeholders)]any

// placeholder implements caddy.ReplacerFunc.
func (a *annotation) placeholder(key string) (any, bool) {
	i := slices.Index(placeholders[:], key)
	if i < 0 {
		return nil, false
	}
	return a[i], true
}

// admitted returns the placeholders of admitted requests of a class, "" if there are no classes. To map one function costs nothing.
func admitted(class string) caddy.ReplacerFunc {
	return (&annotation{"admit", "", "", "", "", class}).placeholder
}

// annotate provides the placeholders, and of what is not simply admitted also the fields of the access log's line, and attributes of
// the request's span: that of Caddy's handler tracing, say.
func (h *Handler) annotate(r *http.Request, d *shield.Decision) {
	ctx := r.Context()
	repl, _ := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if d.Reason == shield.None {
		if repl != nil {
			repl.Map(h.admitted[d.Class])
		}
		return
	}
	class, _ := h.admitted[d.Class](placeholders[5])
	decision, reason, zone := "reject", d.Reason.String(), ""
	if d.Admit {
		decision = "observe"
	}
	if d.Zone >= 0 {
		zone = h.zones[d.Zone].name
	}
	a := annotation{decision, reason, zone, "", "", class}
	if d.Hint.Seconds != 0 {
		a[3] = d.Hint.Seconds
	}
	if d.Hint.Ms != 0 {
		a[4] = d.Hint.Ms
	}
	if repl != nil {
		// Of several shields in a row, the one that rejects counts: a Replacer finds set values first, then those
		// mapped first. Mapping is cheaper.
		if _, again := repl.Get(placeholders[0]); !again {
			repl.Map(a.placeholder)
		} else {
			for i, key := range placeholders {
				repl.Set(key, a[i])
			}
		}
	}
	if fields, _ := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); h.logged && fields != nil {
		object := []zap.Field{zap.String("decision", decision), zap.String("reason", reason), zap.String("zone", zone), zap.Int("retry_after_ms", d.Hint.Ms)}
		if class != "" {
			object = append(object, zap.Any("class", class))
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
