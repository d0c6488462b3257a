package dialects

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// The SDKs of OpenAI and Anthropic show their users an error of their own API, with the wait, and return in time
// where they may retry.
func TestSDKs(t *testing.T) {
	node := process.Node(t, "openai")
	const completion = `{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"}}]}`
	const message = `{"id":"1","type":"message","role":"assistant","content":[{"type":"text","text":"hello"}]}`
	for _, c := range []struct {
		sdk, limit string
		want       told
	}{
		{"openai", "capacity 1/s burst 1", told{Status: 503, Type: "server_error"}},
		{"openai", "zone each {\n rate 1/s\n burst 1\n }", told{Status: 429, Type: "rate_limit_error", Code: "rate_limit_exceeded"}},
		{"anthropic", "capacity 1/s burst 1", told{Status: 503, Type: "overloaded_error"}},
		{"anthropic", "zone each {\n rate 1/s\n burst 1\n }", told{Status: 429, Type: "rate_limit_error"}},
	} {
		t.Run(c.sdk+" "+strings.Fields(c.limit)[0], func(t *testing.T) {
			t.Parallel()
			s := serve(t, "http", "shield {\n "+c.limit+"\n }", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer := completion
				if strings.HasSuffix(r.URL.Path, "/messages") {
					answer = message
				}
				_, _ = w.Write([]byte(answer))
			}))
			cmd := exec.CommandContext(t.Context(), node, "ask.mjs", c.sdk, s.url)
			cmd.Dir = "npm"
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var got struct {
				Rejected told
				Answer   string
				Took     float64 // ms
			}
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			t.Logf("%s", out)
			wait := got.Rejected.After
			got.Rejected.After, c.want.Message = 0, got.Rejected.Message
			if got.Rejected != c.want || !strings.Contains(got.Rejected.Message, "Please try again in ") {
				t.Errorf("the error is %+v, want %+v with the wait", got.Rejected, c.want)
			}
			if took := time.Duration(got.Took * float64(time.Millisecond)); got.Answer != "hello" || wait <= 0 || took < 300*time.Millisecond || took > 3500*time.Millisecond {
				t.Errorf("told to wait for %v ms, it had the answer %q after %v", wait, got.Answer, took)
			}
		})
	}
}

type told struct {
	Status              int
	Type, Code, Message string
	After               float64 // ms, by the header
}
