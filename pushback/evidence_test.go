package pushback

import (
	"net/http"
	"testing"
)

func TestAttempt(t *testing.T) {
	for _, c := range []struct {
		story   string
		headers []string
		want    int
	}{
		{"curl, Go, requests, got, ky, a browser", []string{"User-Agent: curl/8.5.0", "Accept: */*"}, 0},

		{"an OpenAI SDK, first", []string{"X-Stainless-Retry-Count: 0"}, 1},
		{"an OpenAI SDK, again", []string{"X-Stainless-Retry-Count: 1"}, 2},
		{"gRPC, a fourth time", []string{"Grpc-Previous-Rpc-Attempts: 3"}, 4},
		{"Envoy, first", []string{"X-Envoy-Attempt-Count: 1"}, 1},
		{"Envoy, again", []string{"X-Envoy-Attempt-Count: 2"}, 2},
		{"Envoy never says 0", []string{"X-Envoy-Attempt-Count: 0"}, 0},

		{"aws-sdk-go-v2, first", []string{"Amz-Sdk-Request: attempt=1; max=3"}, 1},
		{"aws-sdk-go-v2, again", []string{"Amz-Sdk-Request: attempt=2; max=3"}, 2},
		{"botocore, legacy mode, first", []string{"Amz-Sdk-Request: attempt=1"}, 1},
		{"botocore, again", []string{"Amz-Sdk-Request: ttl=20261120T193500Z; attempt=2; max=3"}, 2},
		{"aws-sdk-ruby, first", []string{"Amz-Sdk-Request: attempt=0; max=3; ttl=20261120T193500Z"}, 0},
		{"aws-sdk-ruby, a third time", []string{"Amz-Sdk-Request: attempt=2; max=3"}, 2},
		{"max is not attempt", []string{"Amz-Sdk-Request: max=3"}, 0},

		{"first by the client, again by the mesh", []string{"X-Stainless-Retry-Count: 0", "X-Envoy-Attempt-Count: 3"}, 3},
		{"again by the client, first by the mesh", []string{"Amz-Sdk-Request: attempt=2; max=3", "X-Envoy-Attempt-Count: 1"}, 2},
		{"junk beside a number", []string{"Retry-Attempt: x", "Retry-Attempt: 2"}, 3},
	} {
		h := request("GET", c.headers...).Header
		if Retry(h) != (c.want >= 2) {
			t.Errorf("%s: Retry = %v; want attempt %d", c.story, Retry(h), c.want)
		}
	}
	if Retry(nil) {
		t.Error("no headers say something")
	}
}

// Only a number is evidence, in each of the headers that say one.
func TestJunkIsNoEvidence(t *testing.T) {
	for _, w := range []struct{ name, before, after string }{
		{"X-Stainless-Retry-Count", "", ""},
		{"Grpc-Previous-Rpc-Attempts", "", ""},
		{"Retry-Attempt", "", ""},
		{"X-Retry-Counter", "", ""},
		{"X-Envoy-Attempt-Count", "", ""},
		{"Amz-Sdk-Request", "attempt=", "; max=3"},
	} {
		for _, value := range []string{"7", "", "-1", "+2", "2.0", "0x2", "two", "1e1", "2,2", "²", "9999999999", "18446744073709551618", "2\x00"} {
			r := request("GET", w.name+": "+w.before+value+w.after)
			if Retry(r.Header) != (value == "7") {
				t.Errorf("%q is evidence of a retry: %v", r.Header, value != "7")
			}
		}
		for _, values := range [][]string{nil, {}, {""}} {
			if Retry(http.Header{w.name: values}) {
				t.Errorf("%s with the values %q is evidence of a retry", w.name, values)
			}
		}
	}
}

func TestFamilyOf(t *testing.T) {
	for agent, want := range map[string]string{
		"": "other",
		"Mozilla/5.0 (X11; Linux x86_64; rv:141.0) Gecko/20100101 Firefox/141.0":   "browser",
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": "bot",
		"curl/7.88.1":        "curl",
		"Go-http-client/1.1": "go",
		"got (https://github.com/sindresorhus/got)": "node",
		"axios/1.7.2":                   "node",
		"okhttp/4.12.0":                 "java",
		"kubelet/v1.34.1 (linux/amd64)": "kubernetes",
		"Boto3/1.43 md/Botocore#1.43":   "aws",
		"aws-sdk-go-v2/1.47 ua/2.1":     "aws",
		"azsdk-go-azblob/v1.6.0":        "azure",
		"Prometheus/3.7.0":              "monitor",
		"OTel OTLP Exporter Go/1.47.0":  "monitor",
		"GuzzleHttp/7":                  "php",
		"something of our own":          "other",
	} {
		if got := FamilyOf(agent).String(); got != want {
			t.Errorf("%q is %v, want %v", agent, got, want)
		}
	}
}
