package pushback

import (
	"encoding/base64"
	"testing"
	"time"

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

func TestRetryInfo(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 999, 1000, 1001, 5250, 16_384, 59_000, 86_400_000} {
		for _, message := range []string{"", "The service is at its capacity.", string(make([]byte, 200)) + "größer %"} {
			if s, delay := decode(t, retryInfo(14, message, n)); s.Code != 14 || s.Message != message || delay != time.Duration(n)*ms {
				t.Errorf("code %d, message %q, delay %v; want 14, %q, %d ms", s.Code, s.Message, delay, message, n)
			}
		}
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
		if got := answer(mustNew(t, ResponseConfig{}), r, overload).Code == 200; got != want {
			t.Errorf("%q is answered in gRPC: %v, want %v", contentType, got, want)
		}
	}
	if IsGRPC(request("GET")) {
		t.Error("no Content-Type: IsGRPC = true")
	}
}
