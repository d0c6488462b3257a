package clients

import (
	"errors"
	"fmt"

	"github.com/herdshield/shield/pushback"
)

// A Share is a part of a Population that has one Policy.
type Share struct {
	Weight float64 // above 0, at most 1e9, relative to the other shares'
	Policy Policy

	// Precise: the server can see that these clients read milliseconds, as
	// those of gRPC do.
	Precise bool

	// SaysRetry: their retries say that they are, as those of AWS's and OpenAI's
	// clients and of gRPC do. SaysTimeout: their requests say how long they wait.
	SaysRetry, SaysTimeout bool
}

// Returns reports whether clients of this share come back at all: whether they
// do so when they are first refused with a 503, and told to wait a second. Of
// those who sometimes do, as a Person, it says that they do.
func (s Share) Returns() bool {
	_, again := s.Policy.Next(Refused{Attempt: 1, Hint: pushback.Hint{Seconds: 1, Ms: 1000}})
	return again
}

// A Population is a mix of policies.
type Population []Share

// All is the Population of one policy.
func All(p Policy) Population { return Population{{Weight: 1, Policy: p}} }

// maxShares is how many shares a Population may have: Pick returns an index
// that is meant to be kept in a byte.
const maxShares = 256

// Check returns an error that names every share that is wrong.
func (p Population) Check() error {
	var errs []error
	if len(p) == 0 || len(p) > maxShares {
		errs = append(errs, fmt.Errorf("population has %d shares; want 1 to %d", len(p), maxShares))
	}
	for i, s := range p {
		if !(s.Weight > 0 && s.Weight <= maxWeight) { // NaN too
			errs = append(errs, fmt.Errorf("share %d: weight is %v; want more than 0, at most %.0f", i, s.Weight, float64(maxWeight)))
		}
		if s.Policy == nil {
			errs = append(errs, fmt.Errorf("share %d has no policy", i))
		}
	}
	return errors.Join(errs...)
}

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
