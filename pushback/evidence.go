package pushback

import (
	"net/http"
	"strconv"
	"strings"
)

// counters are the headers that count attempts, with what stands before the number. first is that of a first
// attempt. Clients that count from 0 mostly leave the header out of it.
var counters = [...]struct {
	name, before string
	first        int
}{
	{"X-Stainless-Retry-Count", "", 0},    // the OpenAI, Anthropic and Cloudflare SDKs (openai-go, requestconfig.go)
	{"Grpc-Previous-Rpc-Attempts", "", 0}, // gRPC proposal A6: grpc-go and grpc-java, in retries only
	{"Retry-Attempt", "", 0},              // Prometheus' remote write, kiota and Microsoft Graph, in retries only
	{"X-Retry-Counter", "", 0},            // VK's callbacks, in repetitions only (Guzzle's is on responses)
	{"X-Envoy-Attempt-Count", "", 1},      // Envoy and Istio, with include_request_attempt_count (Filter::decodeHeaders in router.cc)

	// "attempt=2; max=3" of the AWS SDKs, with "ttl=..." at either end. They count from
	// 1, except Ruby's, whose first retry looks like a first attempt (aws-sdk-go-v2,
	// retry/middleware.go; botocore, handlers.py; aws-sdk-ruby, retry_errors.rb).
	{"Amz-Sdk-Request", "attempt=", 1},
}

// Retry reports whether the headers of a request say that it is a retry: of several
// numbers one is enough, as a client and a proxy on the way may both retry. Most clients do
// not say, so false is no evidence of a first attempt. The keys of h must be canonical, as
// net/http makes them.
//
// A client can claim any number. So use it only where a client would not gain by lying:
// to put it later in the queue, never earlier.
func Retry(h http.Header) bool {
	for i := range counters {
		c := &counters[i]
		for _, v := range h[c.name] {
			for part := range strings.SplitSeq(v, ";") {
				number, is := strings.CutPrefix(strings.TrimSpace(part), c.before)
				n, err := strconv.ParseUint(number, 10, 32)
				if is && err == nil && len(number) <= 9 && int(n) > c.first { // no client counts further
					return true
				}
			}
		}
	}
	return false
}
