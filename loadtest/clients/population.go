package clients

import (
	"fmt"
	"strings"

	"github.com/herdshield/shield/pushback"
)

// A Share is a part of a Population that has one Policy.
type Share struct {
	Weight float64 // above 0, at most 1e9, relative to the other shares'
	Policy Policy

	// Precise clients show the server that they read milliseconds, as gRPC clients do.
	Precise bool

	// SaysRetry clients mark their retries in a header, as those of AWS, OpenAI and gRPC
	// do. SaysTimeout clients send how long they wait.
	SaysRetry, SaysTimeout bool
}

// Returns reports whether clients of this share retry at all: after a first 503 with a
// Retry-After of one second.
func (s Share) Returns() bool {
	_, again := s.Policy.Next(Rejected{Attempt: 1, Hint: pushback.Hint{Seconds: 1, Ms: 1000}})
	return again
}

// A Population is a mix of policies.
type Population []Share

// All is the Population of one policy.
func All(p Policy) Population { return Population{{Weight: 1, Policy: p}} }

// String names the policies, with the shares of the first few.
func (p Population) String() string {
	const most = 4
	total := 0.0
	for _, s := range p {
		total += s.Weight
	}
	var parts []string
	for i, s := range p {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(p)-most))
			break
		}
		text := fmt.Sprint(s.Policy)
		if len(p) > 1 {
			text += fmt.Sprintf(" %.3g%%", 100*s.Weight/total)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// MaxShares bounds the shares of a Population, so that the index that Pick returns fits in
// a byte.
const MaxShares = 256

// Pick returns the index of the share that u, uniform in [0, 1), falls into.
func (p Population) Pick(u float64) int {
	total := 0.0
	for _, s := range p {
		total += s.Weight
	}
	u *= total
	for i, s := range p {
		if u -= s.Weight; u < 0 {
			return i
		}
	}
	return len(p) - 1 // rounding
}
