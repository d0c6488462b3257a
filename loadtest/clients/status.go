package clients

import (
	"cmp"
	"slices"
)

// Statuses are a set of ways in which an attempt can fail. The zero Statuses is empty. A
// status without a constant is OtherServer from 500 on, and Other below.
type Statuses uint32

// The ways to fail: HTTP statuses by their numbers, and no answer at all.
const (
	Unanswered   Statuses = 1 << iota // NoAnswer
	Disconnected                      // NoConnection
	S403                              // Forbidden
	S408                              // Request Timeout
	S409                              // Conflict
	S413                              // Content Too Large
	S429                              // Too Many Requests
	S500                              // Internal Server Error
	S501                              // Not Implemented
	S502                              // Bad Gateway
	S503                              // Service Unavailable
	S504                              // Gateway Timeout
	S521                              // Cloudflare's: the origin refuses connections
	S522                              // Cloudflare's: the origin timed out
	S524                              // Cloudflare's: the origin did not answer
	OtherServer                       // 505 and above
	Other                             // everything else
	afterTheLast                      // not a status

	Lost     = Unanswered | Disconnected
	Server   = S500 | S501 | S502 | S503 | S504 | S521 | S522 | S524 | OtherServer
	Failures = afterTheLast - 1 // whatever is not a success
)

// Has reports whether s has an HTTP status, NoAnswer or NoConnection. 0 is 503,
// as in Refused.
func (s Statuses) Has(status int) bool { return s&statusesOf(status) != 0 }

// statusNumbers are the statuses of the constants, in their order.
var statusNumbers = [...]int{NoAnswer, NoConnection, 403, 408, 409, 413, 429, 500, 501, 502, 503, 504, 521, 522, 524}

func statusesOf(status int) Statuses {
	if i := slices.Index(statusNumbers[:], cmp.Or(status, 503)); i >= 0 {
		return 1 << i
	}
	if status >= 500 {
		return OtherServer
	}
	return Other
}

// Named is Policy under a name for tables.
type Named struct {
	Name string
	Policy
}

func (p Named) String() string { return p.Name }
