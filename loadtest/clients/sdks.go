package clients

import (
	"fmt"
	"math"
	"time"
)

// Reads is what a client reads of a Hint.
type Reads uint8

// What is read; of both, milliseconds come first.
const (
	Seconds      Reads = 1 << iota // Retry-After
	Milliseconds                   // Retry-After-Ms, or gRPC's pushback
	Stop                           // X-Should-Retry and the like, or a negative pushback
)

// Client is how a client library retries.
type Client struct {
	On       Statuses      // the failures after which it comes back
	Told     Statuses      // of these, those after which it does so only if it is told when
	Obeys    Statuses      // of these, those whose Hint it obeys
	Reads    Reads         // what it reads of the Hint
	AtLeast  bool          // it waits longer than it is told, if its own wait is longer
	Longest  time.Duration // a longer Hint is cut to this; 0: none
	Attempts int           // at most, with the first; 0: any number
	Own      Policy        // its waits when it is not told
}

// Next implements Policy. A client that is told when to come back reacts as
// Exact does; its own waits are as in its source.
func (p Client) Next(r Refused) (time.Duration, bool) {
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

// told is what p understands of the Hint; 0: nothing.
func (p Client) told(r Refused) time.Duration {
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

// stripe is stripe-go's sleepTime: it waits 0.5·(1+(n-1)²) s, at most 5 s, times
// a uniform factor from 0.75 to 1, and at least 0.5 s.
type stripe struct{}

func (stripe) Next(r Refused) (time.Duration, bool) {
	n := float64(max(r.Attempt, 1) - 1)
	return seconds(max(0.5, min(5, 0.5+0.5*n*n)*(0.75+r.U/4))), true
}

// awsGo is aws-sdk-go-v2's ExponentialJitterBackoff with 20 s at most: it waits
// U·2^n s, and after more than four attempts 20 s, without jitter.
type awsGo struct{}

func (awsGo) Next(r Refused) (time.Duration, bool) {
	if r.Attempt > 4 {
		return 20 * time.Second, true
	}
	return seconds(r.U * math.Exp2(float64(r.Attempt))), true
}

// usual are the statuses that most libraries retry.
const usual = S429 | S500 | S502 | S503 | S504

// The policies of client libraries, as they are by default where nothing else
// is said. What is retried of requests that are not idempotent is not modelled:
// these are GETs.
var (
	curl = Client{
		On: usual | S408 | Unanswered, Obeys: Failures, Reads: Seconds, AtLeast: true, Attempts: 4,
		Own: Exponential{Base: time.Second, Cap: 10 * time.Minute, Factor: 2},
	}
	urllib3 = Client{
		On: S413 | S429 | S503 | Lost, Told: S413 | S429 | S503, Obeys: Failures, Reads: Seconds,
		Longest: 6 * time.Hour, Attempts: 4, Own: Fixed{},
	}
	retryableHTTP = Client{
		On: S429 | Server&^S501 | Lost, Obeys: S429 | S503, Reads: Seconds, Attempts: 5,
		Own: Exponential{Base: time.Second, Cap: 30 * time.Second, Factor: 2},
	}
	// A connection that is reset counts as a 500 with a Retry-After of 1. One that
	// is refused is not retried; here all that break are reset.
	clientGo = Client{
		On: S429 | Server | Disconnected, Told: S429 | Server, Obeys: Failures, Reads: Seconds, Attempts: 11,
		Own: Fixed{Gap: time.Second},
	}
	// A 429 is retried only if its body has the code of a throttling error. The
	// bucket of 500 retry tokens is not modelled: it is shared by a process.
	awsSDKGo = Client{On: S500 | S502 | S503 | S504 | Lost, Attempts: 3, Own: awsGo{}}
	// A 429 is retried only if Stripe-Should-Retry is true.
	stripeGo = Client{On: S409 | Server | Lost, Reads: Stop, Attempts: 3, Own: stripe{}}
	// Its source takes U/4 off; the wait has the same distribution.
	openAI = Client{
		On: S408 | S409 | S429 | Server | Lost, Obeys: Failures, Reads: Seconds | Milliseconds | Stop, Attempts: 3,
		Own: Jittered{Base: time.Second / 2, Cap: 8 * time.Second, Low: 0.75, High: 1},
	}
	got = Client{
		On: usual | S408 | S413 | S521 | S522 | S524 | Lost, Told: S413, Obeys: Failures, Reads: Seconds, Attempts: 3,
		Own: Plus{100 * time.Millisecond, Exponential{Base: time.Second, Factor: 2}},
	}
	ky = Client{
		On: usual | S408 | S413 | Disconnected, Told: S413, Obeys: S413 | S429 | S503, Reads: Seconds, Attempts: 3,
		Own: Exponential{Base: 300 * time.Millisecond, Factor: 2},
	}
	undici = Client{
		On: usual | Disconnected, Obeys: Failures, Reads: Seconds, Longest: 30 * time.Second, Attempts: 6,
		Own: Exponential{Base: 500 * time.Millisecond, Cap: 30 * time.Second, Factor: 2},
	}
	// The service config is the example of gRPC proposal A6; without one grpc-go
	// does not retry refusals. It retries UNAVAILABLE, as which 502, 503 and 504
	// reach it. A 429 is a RESOURCE_EXHAUSTED if the server speaks gRPC, as shield
	// does. Its exponent starts anew after a pushback; here it counts attempts.
	grpcGo = Client{
		On: S502 | S503 | S504 | Disconnected, Obeys: Failures, Reads: Milliseconds | Stop, Attempts: 4,
		Own: Exponential{Base: 100 * time.Millisecond, Cap: time.Second, Factor: 2, Jitter: 0.2},
	}
	browser = Person{
		Median: 5 * time.Second, Least: time.Second, Most: 2 * time.Minute,
		Sigma: 1, Patience: 1.5, GiveUp: 0.2, Attempts: 20,
	}
)
