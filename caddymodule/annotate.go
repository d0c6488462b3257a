package caddymodule

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// placeholders are the names of an annotation's values.
var placeholders = [...]string{
	"http.shield.decision", "http.shield.reason", "http.shield.zone", "http.shield.retry_after", "http.shield.retry_after_ms",
	"http.shield.class",
}

// An annotation tells handlers, error routes and logs of a decision.
type annotation struct {
	decision            any // a string, boxed once and not at every look-up
	reason, zone, class string
	hint                pushback.Hint // zero on admission
}

// placeholder implements caddy.ReplacerFunc.
func (a annotation) placeholder(key string) (any, bool) {
	switch key {
	case placeholders[0]:
		return a.decision, true
	case placeholders[1]:
		return a.reason, true
	case placeholders[2]:
		return a.zone, true
	case placeholders[3]:
		return orEmpty(a.hint.Seconds), true
	case placeholders[4]:
		return orEmpty(a.hint.Ms), true
	case placeholders[5]:
		return a.class, true
	}
	return nil, false
}

func orEmpty(n int) any {
	if n == 0 {
		return ""
	}
	return n
}

// admitted provides the placeholders of admitted requests. To map one function costs nothing.
var admitted = annotation{decision: "admit"}.placeholder

func (h *Handler) annotate(r *http.Request, g *shield.Guard, d *shield.Decision) {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if d.Reason == shield.None {
		switch {
		case repl == nil:
		case h.admitted != nil:
			repl.Map(h.admitted[d.Class])
		default:
			repl.Map(admitted)
		}
		return
	}
	a := annotation{decision: "reject", reason: d.Reason.String(), hint: d.Hint}
	if d.Admit {
		a.decision = "observe"
	}
	if d.Zone >= 0 {
		a.zone = h.zones[d.Zone].name
	}
	if h.admitted != nil {
		a.class = g.Plan().Classes().At(int(d.Class)).Name
	}
	if repl != nil {
		a.replace(repl)
	}
	if h.logged {
		a.log(r)
	}
	if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
		a.trace(span)
	}
}

// trace adds the annotation to the request's span: that of Caddy's handler tracing, say. Spans of
// admitted requests have none, so that those cost nothing.
func (a annotation) trace(span trace.Span) {
	decision, _ := a.decision.(string)
	span.SetAttributes(attribute.String("shield.decision", decision), attribute.String("shield.reason", a.reason))
	if a.zone != "" {
		span.SetAttributes(attribute.String("shield.zone", a.zone))
	}
	if a.hint.Ms > 0 {
		span.SetAttributes(attribute.Int("shield.retry_after_ms", a.hint.Ms))
	}
}

// replace provides the placeholders. Of several shields in a row, the one that rejects counts:
// a Replacer finds set values first, then those mapped first. Mapping is cheaper.
func (a annotation) replace(repl *caddy.Replacer) {
	if _, again := repl.Get(placeholders[0]); !again {
		repl.Map(func(key string) (any, bool) { return a.placeholder(key) })
		return
	}
	for _, key := range placeholders {
		value, _ := a.placeholder(key)
		repl.Set(key, value)
	}
}

// log adds the annotation to the request's line in the access log.
func (a annotation) log(r *http.Request) {
	fields, _ := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if fields == nil {
		return
	}
	object := []zap.Field{
		zap.Any("decision", a.decision),
		zap.String("reason", a.reason),
		zap.String("zone", a.zone),
		zap.Int("retry_after_ms", a.hint.Ms),
	}
	if a.class != "" {
		object = append(object, zap.String("class", a.class))
	}
	fields.Set(zap.Dict("shield", object...)) // of several shields in a row, the last
}
