package fakellm_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/herdshield/shield/internal/fakellm"
	"github.com/herdshield/shield/meter"
)

// With one seed a request costs the same in every API, and shield reads it. loadtest/lab/budgets asks with SDKs, and cuts streams off.
func TestCosts(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       float64 // 4 of the prompt, and 27; -1: nobody knows
	}{
		{"/v1/chat/completions", `{"messages":[{"content":"say it"}],"max_tokens":100,"stream":%t,"stream_options":{"include_usage":true}}`, 31},
		{"/v1/responses", `{"input":"say it","max_output_tokens":100,"stream":%t}`, 31},
		{"/v1/messages", `{"messages":[{"content":"say it"}],"max_tokens":100,"stream":%t}`, 31},
		{"/v1/chat/completions", `{"messages":[],"stream":true}`, -1},
	} {
		for _, stream := range []bool{false, true} {
			for _, zip := range []string{"", "gzip"} {
				body := c.body
				if c.want > 0 {
					body = fmt.Sprintf(body, stream)
				}
				r := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(body))
				r.Header = http.Header{"X-Fake-Seed": {"7"}, "X-Fake-Gzip": {"1"}, "Accept-Encoding": {zip}}
				w := httptest.NewRecorder()
				new(fakellm.Server).ServeHTTP(w, r)
				source, err := meter.Parse("usage")
				if err != nil {
					t.Fatal(err)
				}
				m := source.Begin(w.Code, w.Header())
				m.Write(w.Body.Bytes())
				got, ok := m.Cost(meter.End{Status: w.Code})
				if !ok {
					got = -1
				}
				if got != c.want || w.Header().Get("Content-Encoding") != zip {
					t.Errorf("%s, stream %t, %q: %v tokens, want %v", c.path, stream, zip, got, c.want)
				}
			}
		}
	}
	for _, bad := range [][2]string{{"/v1/other", "{}"}, {"/v1/messages", "{"}} {
		w := httptest.NewRecorder()
		if new(fakellm.Server).ServeHTTP(w, httptest.NewRequest(http.MethodPost, bad[0], strings.NewReader(bad[1]))); w.Code != http.StatusBadRequest {
			t.Errorf("%v: %d", bad, w.Code)
		}
	}
}
