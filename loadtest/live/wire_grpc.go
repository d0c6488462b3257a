package live

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// emptyMessage is a message of gRPC without content: not compressed, and 0 bytes long.
const emptyMessage = "\x00\x00\x00\x00\x00"

// asGRPC makes a POST of the emptyMessage a unary call (grpc/doc/PROTOCOL-HTTP2.md).
func (c LoadConfig) asGRPC(r *http.Request) {
	url := *r.URL
	url.Path, url.RawPath, url.RawQuery = c.Method, "", ""
	r.URL, r.ContentLength = &url, -1 // a stream
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("TE", "trailers")
	r.Header.Set("Grpc-Timeout", fmt.Sprintf("%dm", max(1, c.Timeout.Milliseconds())))
}

// grpcReply reads an answer whose body has been read. Its contents do not matter: a
// HealthCheck with NOT_SERVING counts as answered.
func grpcReply(resp *http.Response) reply {
	// An answer without a message may have its trailer in the header.
	field := func(name string) string { return cmp.Or(resp.Trailer.Get(name), resp.Header.Get(name)) }
	number, err := strconv.ParseUint(field("Grpc-Status"), 10, 32)
	if err != nil && resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/grpc") {
		return reply{status: clients.NoConnection, why: "the answer has no grpc-status"}
	}
	if err != nil { // as from a proxy
		r := reply{status: resp.StatusCode, label: fmt.Sprintf("HTTP %d", resp.StatusCode)}
		if resp.StatusCode < 300 {
			r.status, r.label = http.StatusNotImplemented, r.label+", but no gRPC"
		}
		return r
	}
	code := codes.Code(number)
	r := reply{status: runtime.HTTPStatusFromCode(code), label: code.String(), hint: hintOf(field, time.Now())}
	if code == codes.DeadlineExceeded {
		// The server's own error, unlike a gateway's 504, which grpc-go retries as UNAVAILABLE.
		r.failed = clients.NoAnswer
	}
	// The wait in milliseconds; one that is negative or not a number means never (gRPC
	// proposal A6).
	if wait := field("Grpc-Retry-Pushback-Ms"); wait != "" {
		if n, ok := wholeNumber(wait); ok {
			r.hint.Ms = int(min(n, math.MaxInt32*1000))
		} else {
			r.hint = pushback.Hint{Never: true}
		}
	}
	return r
}
