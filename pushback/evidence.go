package pushback

import (
	"net/http"
	"strings"
)

// counters are the headers whose value is a number and nothing else. first is
// what a first attempt carries, or would carry: those that count from 0 are
// mostly left out of it.
//
//   - X-Stainless-Retry-Count: the OpenAI, Anthropic and Cloudflare SDKs, from 0
//     (openai-go, requestconfig.go).
//   - Grpc-Previous-Rpc-Attempts: gRPC proposal A6; grpc-go and grpc-java send it
//     from 1, in retries only.
//   - Retry-Attempt: Prometheus' remote write, kiota and Microsoft Graph, from 1,
//     in retries only.
//   - X-Retry-Counter: VK's callbacks, in repetitions only. (The Guzzle middleware
//     of that header sets it on its responses, not on its requests.)
//   - X-Envoy-Attempt-Count: Envoy and Istio, if include_request_attempt_count is
//     on; 1 in the first attempt (Filter::decodeHeaders in router.cc).
var counters = [...]struct {
	name  string
	first int
}{
	{"X-Stainless-Retry-Count", 0},
	{"Grpc-Previous-Rpc-Attempts", 0},
	{"Retry-Attempt", 0},
	{"X-Retry-Counter", 0},
	{"X-Envoy-Attempt-Count", 1},
}

// Retry reports whether a request says of itself that it is a retry. Most
// clients say nothing: false is no evidence of a first attempt.
func Retry(h http.Header) bool { return Attempt(h) > 1 }

// Attempt returns which attempt of a request this is by what its headers say: 1
// is the first. It returns 0 if they do not say, or nothing that is understood.
// Where several count, the highest counts: a client and a proxy on the way may
// both retry. The keys of h are canonical, as net/http makes them.
//
// A client can claim what it likes, so this is fit for what a client would not
// gain from: being late in the queue, not being early.
func Attempt(h http.Header) int {
	attempt := 0
	for i := range counters {
		c := &counters[i]
		for _, v := range h[c.name] {
			if n, ok := count(v); ok {
				attempt = max(attempt, n-c.first+1)
			}
		}
	}
	// "attempt=2; max=3" of the AWS SDKs, with "ttl=..." at either end. From 1
	// in all of them but Ruby's, which counts from 0: its first retry passes for
	// a first attempt (aws-sdk-go-v2, retry/middleware.go; botocore, handlers.py;
	// aws-sdk-ruby, retry_errors.rb).
	for _, v := range h["Amz-Sdk-Request"] {
		for pair := range strings.SplitSeq(v, ";") {
			if v, ok := strings.CutPrefix(strings.TrimSpace(pair), "attempt="); ok {
				n, _ := count(v)
				attempt = max(attempt, n)
			}
		}
	}
	// "gl-go/1.26 gccl-invocation-id/... gccl-attempt-count/2" of Google's storage
	// clients, from 1, also in every chunk of an upload (google-api-go-client,
	// gensupport/send.go and resumable.go).
	for _, v := range h["X-Goog-Api-Client"] {
		for token := range strings.FieldsSeq(v) {
			if v, ok := strings.CutPrefix(token, "gccl-attempt-count/"); ok {
				n, _ := count(v)
				attempt = max(attempt, n)
			}
		}
	}
	return attempt
}

// count reads one to nine digits. No client counts further, so more are junk.
func count(s string) (n int, ok bool) {
	if len(s) == 0 || len(s) > 9 {
		return 0, false
	}
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = 10*n + int(d)
	}
	return n, true
}
