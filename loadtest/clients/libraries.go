package clients

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

type Reads uint8

// The parts of a Hint. A client that reads both prefers milliseconds.
const (
	Seconds      Reads = 1 << iota // Retry-After
	Milliseconds                   // Retry-After-Ms, or gRPC's pushback
	Stop                           // X-Should-Retry and the like, or a negative pushback
)

// Client is how a client library retries.
type Client struct {
	On       Statuses      // failures that it retries
	Told     Statuses      // of these, failures that it retries only with a Hint
	Obeys    Statuses      // of these, failures whose Hint it obeys
	Reads    Reads         // the parts of the Hint that it reads
	AtLeast  bool          // its own backoff counts if it is longer than the Hint
	Longest  time.Duration // a longer Hint is cut to this; 0: none
	Attempts int           // at most, the first included; 0: any number
	Own      Policy        // its backoff without a Hint
}

// Next reacts to a Hint as Exact does; its own backoff is as in its source.
func (p Client) Next(r Rejected) (time.Duration, bool) {
	if !p.On.Has(r.Status) || p.Attempts > 0 && r.Attempt >= p.Attempts || p.Reads&Stop != 0 && r.Hint.Never {
		return 0, false
	}
	told := p.told(r)
	if told == 0 {
		if p.Told.Has(r.Status) {
			return 0, false
		}
		return p.Own.Next(r)
	}
	if p.Longest > 0 {
		told = min(told, p.Longest)
	}
	told += react(r.U)
	if p.AtLeast {
		if own, again := p.Own.Next(r); again {
			told = max(told, own)
		}
	}
	return told, true
}

func (p Client) String() string { return fmt.Sprintf("library, own: %v", p.Own) }

// told is the wait that p reads from the Hint; 0: none.
func (p Client) told(r Rejected) time.Duration {
	switch {
	case !p.Obeys.Has(r.Status):
		return 0
	case p.Reads&Milliseconds != 0 && r.Hint.Ms > 0:
		return time.Duration(r.Hint.Ms) * time.Millisecond
	case p.Reads&Seconds != 0 && r.Hint.Seconds > 0:
		return time.Duration(r.Hint.Seconds) * time.Second
	}
	return 0
}

// stripe is stripe-go's sleepTime.
type stripe struct{}

func (stripe) Next(r Rejected) (time.Duration, bool) {
	n := float64(max(r.Attempt, 1) - 1)
	return seconds(max(0.5, min(5, 0.5+0.5*n*n)*(0.75+r.U/4))), true
}

// awsGo is aws-sdk-go-v2's ExponentialJitterBackoff with 20 s at most, which comes after four
// attempts, without jitter.
type awsGo struct{}

func (awsGo) Next(r Rejected) (time.Duration, bool) {
	if r.Attempt > 4 {
		return 20 * time.Second, true
	}
	return seconds(r.U * math.Exp2(float64(r.Attempt))), true
}

// usual are the statuses that most libraries retry.
const usual = S429 | S500 | S502 | S503 | S504

// Statuses are a set of ways in which an attempt can fail. The zero Statuses is empty. A
// status without a constant is OtherServer from 500 on, and Other below.
type Statuses uint32

// The ways to fail: HTTP statuses by their numbers, and no response at all.
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
	S521                              // Cloudflare's: the origin rejects connections
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
// as in Rejected.
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
