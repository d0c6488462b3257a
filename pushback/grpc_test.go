package pushback

import (
	"encoding/base64"
	"strconv"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// decode is the oracle of retryInfo: the protobuf library itself.
func decode(t *testing.T, header string) (*status.Status, time.Duration) {
	t.Helper()
	b, err := base64.RawStdEncoding.DecodeString(header) // "accept padded and un-padded, emit un-padded": gRPC over HTTP2, Requests
	if err != nil {
		t.Fatal(err)
	}
	s, info := new(status.Status), new(errdetails.RetryInfo)
	if err := proto.Unmarshal(b, s); err != nil {
		t.Fatal(err)
	}
	if len(s.Details) != 1 {
		t.Fatalf("%d details, want 1", len(s.Details))
	}
	if err := s.Details[0].UnmarshalTo(info); err != nil {
		t.Fatal(err)
	}
	for _, m := range []proto.Message{s, info, info.RetryDelay} {
		if n := len(m.ProtoReflect().GetUnknown()); n > 0 {
			t.Errorf("%d bytes of %s are unknown", n, m.ProtoReflect().Descriptor().Name())
		}
	}
	if err := info.RetryDelay.CheckValid(); err != nil {
		t.Error(err)
	}
	return s, info.RetryDelay.AsDuration()
}

// gRPC over HTTP2, "Responses": Trailers-Only is one block of headers and no
// body, with HTTP status 200. gRPC proposal A6, "Pushback": the pushback is one
// grpc-retry-pushback-ms in it, a whole number of milliseconds.
func TestGRPCIsTrailersOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		f       Refusal
		code    code.Code
		message string
	}{
		{"quota", overQuota, code.Code_RESOURCE_EXHAUSTED, "This client has used up its quota."},
		{"overload", overload, code.Code_UNAVAILABLE, "The service is at its capacity."},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Neither the HTTP statuses nor the body of the configuration apply.
			a := mustNew(t, AnswerConfig{Body: HTML, Status: 403, OverloadStatus: 529})
			w := answer(a, request("POST", "Content-Type: application/grpc", "Accept: text/html"), c.f)
			if w.Code != 200 || w.Body.Len() > 0 || w.Flushed {
				t.Errorf("status %d, body %q, flushed %v; want 200 and nothing else", w.Code, w.Body, w.Flushed)
			}
			details := w.Header().Get("Grpc-Status-Details-Bin")
			wantHeader(t, w.Header(), map[string]string{
				"Content-Type":            "application/grpc",
				"Grpc-Status":             strconv.Itoa(int(c.code)),
				"Grpc-Message":            c.message,
				"Grpc-Retry-Pushback-Ms":  "5250",
				"Grpc-Status-Details-Bin": details,
				"Cache-Control":           "no-store",
				"Proxy-Status":            mustNew(t, AnswerConfig{}).wording(c.f).proxyStatus,
			})
			s, delay := decode(t, details)
			if s.Code != int32(c.code) || s.Message != c.message || delay != 5250*ms {
				t.Errorf("details: code %d, message %q, delay %v; want those of the headers", s.Code, s.Message, delay)
			}
		})
	}
}

// gRPC proposal A6, "Pushback": a negative value means not to retry. There is no
// such RetryInfo, so there is none.
func TestGRPCNever(t *testing.T) {
	for _, c := range []struct {
		f               Refusal
		status, message string
	}{
		{neverQuota, "8", "This client has used up its quota. Do not come back soon."},
		{neverOverload, "14", "The service is at its capacity. Do not come back soon."},
	} {
		w := answer(mustNew(t, AnswerConfig{}), request("POST", "Content-Type: application/grpc"), c.f)
		if w.Code != 200 || w.Body.Len() > 0 {
			t.Errorf("status %d, body %q; want 200 and nothing else", w.Code, w.Body)
		}
		wantHeader(t, w.Header(), map[string]string{
			"Content-Type":           "application/grpc",
			"Grpc-Status":            c.status,
			"Grpc-Message":           c.message,
			"Grpc-Retry-Pushback-Ms": "-1",
			"Cache-Control":          "no-store",
			"Proxy-Status":           mustNew(t, AnswerConfig{}).wording(c.f).proxyStatus,
		})
	}
}

// gRPC over HTTP2, "Requests": "application/grpc" [("+proto" / "+json" / {custom})].
// gRPC-Web (PROTOCOL-WEB) is another protocol: its status is HTTP's.
func TestIsGRPC(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc":                true,
		"application/grpc+proto":          true,
		"application/grpc+json":           true,
		"application/grpc;charset=utf-8":  true,
		"application/grpc; charset=utf-8": true,
		"application/grpc-web":            false,
		"application/grpc-web+proto":      false,
		"application/grpc-web-text":       false,
		"application/grpcfoo":             false,
		"application/json":                false,
		"application/json+grpc":           false,
		"x-application/grpc":              false,
		"":                                false,
	} {
		r := request("POST", "Content-Type: "+contentType)
		if got := IsGRPC(r); got != want {
			t.Errorf("%q: IsGRPC = %v, want %v", contentType, got, want)
		}
		if got := answer(mustNew(t, AnswerConfig{}), r, overload).Code == 200; got != want {
			t.Errorf("%q is answered in gRPC: %v, want %v", contentType, got, want)
		}
	}
	if IsGRPC(request("GET")) {
		t.Error("no Content-Type: IsGRPC = true")
	}
}

func FuzzRetryInfo(f *testing.F) {
	for _, ms := range []uint32{0, 1, 127, 128, 999, 1000, 1001, 5250, 16_384, 59_000} {
		f.Add(ms, "The service is at its capacity.")
	}
	f.Add(uint32(59_000), "")
	f.Add(uint32(1), string(make([]byte, 200))+"größer %")
	f.Fuzz(func(t *testing.T, ms uint32, message string) {
		if !utf8.ValidString(message) {
			t.Skip("not a protobuf string")
		}
		for _, want := range []uint32{grpcResourceExhausted, grpcUnavailable} {
			s, delay := decode(t, retryInfo(want, message, int(ms)))
			if uint32(s.Code) != want || s.Message != message || delay != time.Duration(ms)*time.Millisecond {
				t.Errorf("code %d, message %q, delay %v; want %d, %q, %d ms", s.Code, s.Message, delay, want, message, ms)
			}
		}
	})
}
