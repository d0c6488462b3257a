package shield

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// Deadline returns the instant until which the client of r, which comes at now,
// waits for a response, as far as it says so; 0 if it does not:
//
//   - grpc-timeout, of the gRPC protocol over HTTP/2;
//   - X-Envoy-Expected-Rq-Timeout-Ms, milliseconds, which Envoy sends upstream;
//   - X-Request-Timeout: seconds ("2.5"), or a duration with its unit ("300ms");
//   - the deadline of r's context, which the server itself may have set.
//
// The shortest counts. Values that cannot be read are ignored.
func Deadline(r *http.Request, now time.Duration) time.Duration {
	least := time.Duration(0)
	consider := func(d time.Duration, ok bool) {
		if ok && d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	if v := r.Header["Grpc-Timeout"]; len(v) > 0 {
		consider(grpcTimeout(v[0]))
	}
	if v := r.Header["X-Envoy-Expected-Rq-Timeout-Ms"]; len(v) > 0 {
		ms, err := strconv.ParseUint(v[0], 10, 32)
		consider(time.Duration(ms)*time.Millisecond, err == nil)
	}
	if v := r.Header["X-Request-Timeout"]; len(v) > 0 {
		if s, err := strconv.ParseFloat(v[0], 64); err == nil {
			consider(time.Duration(s*float64(time.Second)), s > 0 && s < 1e6)
		} else if d, err := time.ParseDuration(v[0]); err == nil {
			consider(d, true)
		}
	}
	if at, ok := r.Context().Deadline(); ok {
		// One that has passed already is the nearest that can be said.
		consider(max(time.Nanosecond, at.Sub(At(now))), true)
	}
	if least == 0 {
		return 0
	}
	return now + min(least, math.MaxInt64-now)
}

// grpcTimeout reads a Timeout of the gRPC protocol: at most eight digits and a
// unit.
func grpcTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	unit := grpcUnits[s[len(s)-1]]
	if err != nil || unit == 0 {
		return 0, false
	}
	return min(time.Duration(n), 1<<62/unit) * unit, true
}

var grpcUnits = [256]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}
