package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// A notedSpan records its attributes.
type notedSpan struct {
	noop.Span
	silent bool // it is not sampled
	set    map[string]any
}

func (s *notedSpan) IsRecording() bool { return !s.silent }

func (s *notedSpan) SetAttributes(all ...attribute.KeyValue) {
	for _, a := range all {
		s.set[string(a.Key)] = a.Value.AsInterface()
	}
}

// Rejections, and what observe mode would reject, are told to the span of Caddy's tracing.
func TestSpans(t *testing.T) {
	for mode, decision := range map[string]string{"enforce": "reject", "observe": "observe"} {
		s := serveSite(t, "{"+globalOptions+"}\n"+bound+"shield {\nmode "+mode+"\nzone z {\nrate 10/m\nburst 1\n}\npushback {\ndither off\n}\n}\nrespond ok\n}")
		ask := func(silent bool) map[string]any {
			span := &notedSpan{silent: silent, set: map[string]any{}}
			r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
			s.server.ServeHTTP(httptest.NewRecorder(), r.WithContext(trace.ContextWithSpan(r.Context(), span)))
			return span.set
		}
		admitted, got, silent := ask(false), ask(false), ask(true)
		if ms, _ := got["shield.retry_after_ms"].(int64); ms < 1000 || ms > 7000 {
			t.Errorf("%s: the wait is %v ms; want about 6000", mode, got["shield.retry_after_ms"])
		}
		delete(got, "shield.retry_after_ms")
		if want := map[string]any{"shield.decision": decision, "shield.reason": "quota", "shield.zone": "z"}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", mode, got, want)
		}
		if len(admitted)+len(silent) > 0 {
			t.Errorf("%s: an admitted request has %v, and a span that is not sampled %v", mode, admitted, silent)
		}
		_ = caddy.Stop() // the next one forgets the clients
	}
}
