package pushback

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

	"github.com/herdshield/shield/dialect"
)

// Canonical codes of google.rpc.Code. By convention UNAVAILABLE is overload, which most
// clients retry, and RESOURCE_EXHAUSTED is a client's own quota.
const (
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
)

// IsGRPC reports whether the client speaks gRPC. gRPC-Web, which is answered
// by HTTP status, does not count.
func IsGRPC(r *http.Request) bool {
	contentType := r.Header["Content-Type"]
	if len(contentType) == 0 {
		return false
	}
	rest, ok := strings.CutPrefix(contentType[0], "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// setGRPC sets the headers of a Trailers-Only response, which has status 200 and no
// body. Clients look for their pushback only there; an HTTP 503 makes grpc-go retry by
// its own short backoff. A negative pushback means not to retry (gRPC proposal A6). A
// RetryInfo cannot say so, and without one OTLP exporters do not retry a
// RESOURCE_EXHAUSTED.
func (w *wording) setGRPC(h *header, f Rejection) {
	message := w.texts(f).message
	h.set("Content-Type", "application/grpc")
	h.set("Grpc-Status", strconv.Itoa(int(w.grpcStatus)))
	h.set("Grpc-Message", message)
	if f.Hint.Never {
		h.set("Grpc-Retry-Pushback-Ms", "-1")
	} else {
		h.set("Grpc-Retry-Pushback-Ms", strconv.Itoa(f.Hint.Ms))
		h.set("Grpc-Status-Details-Bin", retryInfo(w.grpcStatus, message, f.Hint.Ms))
	}
	h.set("Cache-Control", "no-store")
	h.set("Proxy-Status", w.proxyStatus)
}

// GRPC returns the canonical code and the message of a rejection, for servers that write gRPC
// themselves.
func (a *Responses) GRPC(f Rejection) (code uint32, message string) {
	w := a.wording(f, dialect.Plain)
	return w.grpcStatus, w.texts(f).message
}

// retryInfo returns a google.rpc.Status with one google.rpc.RetryInfo, in the base64 of
// binary metadata. Five fields do not justify a protobuf library in this package; the
// tests decode it with one.
func retryInfo(code uint32, message string, ms int) string {
	delay := appendUint(nil, 1, uint64(ms/1000))           // Duration.seconds
	delay = appendUint(delay, 2, uint64(ms%1000)*1000_000) // Duration.nanos
	info := appendBytes(nil, 1, string(delay))             // RetryInfo.retry_delay
	detail := appendBytes(nil, 1, "type.googleapis.com/google.rpc.RetryInfo")
	detail = appendBytes(detail, 2, string(info))
	status := appendUint(nil, 1, uint64(code))
	status = appendBytes(status, 2, message)
	status = appendBytes(status, 3, string(detail))
	return base64.RawStdEncoding.EncodeToString(status)
}

// appendUint and appendBytes append one protobuf field: wire types 0 and 2.
func appendUint(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field<<3)), v)
}

func appendBytes(b []byte, field int, v string) []byte {
	b = binary.AppendUvarint(b, uint64(field<<3|2))
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}
