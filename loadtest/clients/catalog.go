package clients

import (
	"slices"
	"time"
)

// An Entry is a policy with the name under which the commands know it.
type Entry struct {
	Name   string // lower case letters, digits and hyphens
	Policy Policy // with the default of its gap, if it takes one
	About  string // its formula, in one line
	Source string // of the formula: program and version, or page and section

	Precise, SaysRetry, SaysTimeout bool // see Share

	with func(gap time.Duration) Policy // if a gap may follow the name and an @
}

// Catalog returns all named policies by family: synthetic ones, those of textbooks and
// articles, and those of client libraries.
func Catalog() []Entry { return slices.Clone(catalog) }

// Names returns the names of the Catalog, in its order.
func Names() (names []string) {
	for _, e := range catalog {
		names = append(names, e.Name)
	}
	return names
}

// named makes entries print their names in tables. Those of the first family have other
// words.
func named(entries []Entry) []Entry {
	for i, e := range entries {
		entries[i].Policy = Named{e.Name, e.Policy}
	}
	return entries
}

// catalog is the one place where a policy is declared: --policy, its list, tests and the
// log's estimates take it from here.
var catalog = slices.Concat(synthetic, named(textbook), named(libraries))

const (
	awsBlog = "AWS Architecture Blog, \"Exponential Backoff And Jitter\" (2015)"
)

// synthetic are pure cases: clients that obey what they are told, and clients that do not.
var synthetic = []Entry{
	{Name: "exact", Policy: Exact{}, About: "Retry-After + exponential(5 ms); without it as ignore", Source: "ours"},
	{Name: "late", Policy: Late{By: 0.2}, About: "Retry-After · (1 + U · 20%)", Source: "ours"},
	{Name: "ignore", Policy: Ignore{}, About: "U · min(60 s, 2^(n-1) s), for ever", Source: "ours; the formula is aws-full-jitter's"},
	{
		Name: "fixed", Policy: Fixed{Gap: 5 * time.Second}, About: "@GAP or 5 s, for ever", Source: "ours",
		with: func(gap time.Duration) Policy { return Fixed{gap} },
	},
	{
		Name: "hammer", Policy: Hammer{Gap: time.Second}, About: "@GAP or 1 s, · U[0.9, 1.1), for ever", Source: "ours",
		with: func(gap time.Duration) Policy { return Hammer{gap} },
	},
	{Name: "give-up", Policy: GiveUp{}, About: "does not come back", Source: "ours"},
}

// textbook are the policies of Google's book and AWS' article, which libraries of today follow. loadtest/lab/seeds has those of other books.
var textbook = []Entry{
	{
		Name: "google-sre", Policy: MaxAttempts{3, Budgeted{Ratio: 0.1, Policy: FullJitter(time.Second, time.Minute)}},
		About:  "U · 2^(n-1) s, 3 attempts, while under 10% of the process' requests are retries",
		Source: "Beyer et al., \"Site Reliability Engineering\" (2016), chapters 21 and 22; base and cap are ours",
	},
	{
		Name: "aws-exponential", Policy: Exponential{Base: time.Second, Cap: time.Minute, Factor: 2},
		About: "min(60 s, 2^(n-1) s), for ever", Source: awsBlog + ", without jitter; base and cap are ours",
	},
	{
		Name: "aws-full-jitter", Policy: FullJitter(time.Second, time.Minute),
		About: "U · min(60 s, 2^(n-1) s), for ever", Source: awsBlog + "; base and cap are ours",
	},
	{
		Name: "aws-equal-jitter", Policy: EqualJitter(time.Second, time.Minute),
		About: "(1 + U)/2 · min(60 s, 2^(n-1) s), for ever", Source: awsBlog + "; base and cap are ours",
	},
	{
		Name: "aws-decorrelated", Policy: Decorrelated{Base: time.Second, Cap: time.Minute},
		About: "s = min(60 s, U[1 s, 3·s)), for ever", Source: awsBlog + "; base and cap are ours",
	},
}

// libraries are client libraries with their default settings where no other are named, and
// people. They send GETs: extra rules for requests that are not idempotent are left out.
var libraries = []Entry{
	{
		Name: "curl", Policy: Client{
			On: usual | S408 | Unanswered, Obeys: Failures, Reads: Seconds, AtLeast: true, Attempts: 4,
			Own: Exponential{Base: time.Second, Cap: 10 * time.Minute, Factor: 2},
		},
		About:  "max(Retry-After, min(10 min, 2^(n-1) s)), 4 attempts; 408 429 500 502 503 504, timeouts",
		Source: "curl 7.88 --retry 3, tool_operate.c",
	},
	{
		Name: "urllib3", Policy: Client{
			On: S413 | S429 | S503 | Lost, Told: S413 | S429 | S503, Obeys: Failures, Reads: Seconds,
			Longest: 6 * time.Hour, Attempts: 4, Own: Fixed{},
		},
		About:  "Retry-After, without it gives up; no response: 0 s; 4 attempts; 413 429 503",
		Source: "urllib3 2.7, Retry.DEFAULT = Retry(3), util/retry.py; requests alone does not retry: give-up",
	},
	{
		Name: "go-retryablehttp", Policy: Client{
			On: S429 | Server&^S501 | Lost, Obeys: S429 | S503, Reads: Seconds, Attempts: 5,
			Own: Exponential{Base: time.Second, Cap: 30 * time.Second, Factor: 2},
		},
		About:  "Retry-After of a 429 or 503, or min(30 s, 2^(n-1) s), 5 attempts; 429, 5xx but 501, no response",
		Source: "hashicorp/go-retryablehttp 0.7.8, DefaultBackoff and DefaultRetryPolicy",
	},
	{
		// A connection that is reset counts as a 500 with a Retry-After of 1. One that
		// is rejected is not retried; here all that break are reset.
		Name: "client-go", Policy: Client{
			On: S429 | Server | Disconnected, Told: S429 | Server, Obeys: Failures, Reads: Seconds, Attempts: 11,
			Own: Fixed{Gap: time.Second},
		},
		About:  "Retry-After, without it gives up; broken connections: 1 s; 11 attempts; 429, 5xx",
		Source: "k8s.io/client-go 0.37.2, rest/with_retry.go",
	},
	{
		// A 429 is retried only if its body has the code of a throttling error. The
		// bucket of 500 retry tokens is not modelled: it is shared by a process.
		Name: "aws-sdk-go", Policy: Client{On: S500 | S502 | S503 | S504 | Lost, Attempts: 3, Own: awsGo{}}, SaysRetry: true,
		About:  "U · 2^n s, 3 attempts; 500 502 503 504, no response; not 429; Retry-After is not read",
		Source: "aws-sdk-go-v2 1.47.0, retry.NewStandard, jitter_backoff.go",
	},
	{
		// A 429 is retried only if Stripe-Should-Retry is true.
		Name: "stripe-go", Policy: Client{On: S409 | Server | Lost, Reads: Stop, Attempts: 3, Own: stripe{}},
		About:  "max(0.5 s, min(5 s, 0.5 s · (1+(n-1)²)) · U[0.75, 1)), 3 attempts; 409, 5xx, no response; not 429",
		Source: "stripe/stripe-go, stripe.go, shouldRetry and sleepTime",
	},
	{
		// Its source takes U/4 off; the wait has the same distribution.
		Name: "openai", Policy: Client{
			On: S408 | S409 | S429 | Server | Lost, Obeys: Failures, Reads: Seconds | Milliseconds | Stop, Attempts: 3,
			Own: jittered(time.Second/2, 8*time.Second, 0.75, 1),
		}, SaysRetry: true,
		About:  "Retry-After-Ms, Retry-After, or min(8 s, 0.5 s · 2^(n-1)) · U[0.75, 1), 3 attempts; 408 409 429, 5xx, no response",
		Source: "openai-node 6.49, client.js; openai-python, _base_client.py",
	},
	{
		Name: "got", Policy: Client{
			On: usual | S408 | S413 | S521 | S522 | S524 | Lost, Told: S413, Obeys: Failures, Reads: Seconds, Attempts: 3,
			Own: Plus{100 * time.Millisecond, Exponential{Base: time.Second, Factor: 2}},
		},
		About:  "Retry-After, or 2^(n-1) s + U · 100 ms, 3 attempts; 408 413 429 500 502 503 504 521 522 524, no response",
		Source: "sindresorhus/got 14, calculate-retry-delay.ts",
	},
	{
		Name: "ky", Policy: Client{
			On: usual | S408 | S413 | Disconnected, Told: S413, Obeys: S413 | S429 | S503, Reads: Seconds, Attempts: 3,
			Own: Exponential{Base: 300 * time.Millisecond, Factor: 2},
		},
		About:  "Retry-After of a 413, 429 or 503, or 0.3 s · 2^(n-1), 3 attempts; 408 413 429 500 502 503 504, not timeouts",
		Source: "sindresorhus/ky 1.14, Ky.ts and normalize.ts",
	},
	{
		Name: "undici", Policy: Client{
			On: usual | Disconnected, Obeys: Failures, Reads: Seconds, Longest: 30 * time.Second, Attempts: 6,
			Own: Exponential{Base: 500 * time.Millisecond, Cap: 30 * time.Second, Factor: 2},
		},
		About:  "min(30 s, Retry-After), or min(30 s, 0.5 s · 2^(n-1)), 6 attempts; 429 500 502 503 504, not timeouts",
		Source: "nodejs/undici 7.30 RetryAgent, retry-handler.js",
	},
	{
		// The service config is the example of gRPC proposal A6; without one grpc-go
		// does not retry rejections. It retries UNAVAILABLE, as which 502, 503 and 504
		// reach it. A 429 is a RESOURCE_EXHAUSTED if the server speaks gRPC, as shield
		// does. Its exponent starts anew after a pushback; here it counts attempts.
		Name: "grpc-go", Policy: Client{
			On: S502 | S503 | S504 | Disconnected, Obeys: Failures, Reads: Milliseconds | Stop, Attempts: 4,
			Own: Exponential{Base: 100 * time.Millisecond, Cap: time.Second, Factor: 2, Jitter: 0.2},
		}, Precise: true, SaysRetry: true, SaysTimeout: true,
		About:  "pushback in ms, or min(1 s, 0.1 s · 2^(n-1)) · U[0.8, 1.2), 4 attempts; UNAVAILABLE: 502 503 504, broken connections",
		Source: "grpc-go 1.83.2, stream.go, with the service config of proposal A6's example",
	},
}
