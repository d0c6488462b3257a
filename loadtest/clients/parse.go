package clients

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what Parse reads. Ours: generous.
const (
	maxMix      = 10_000 // bytes
	maxWeight   = 1e9
	maxTries    = 1000
	maxGap      = 24 * time.Hour
	wantedParts = "NAME[@GAP][*ATTEMPTS][:WEIGHT], separated by commas"
)

// Parse reads a mix of policies of the Catalog, as "curl" or
// "curl:70,aws-full-jitter:20,fixed@5s*4:10". A part is
//
//	NAME[@GAP][*ATTEMPTS][:WEIGHT]
//
// fixed and hammer take a GAP, as "1.5s". ATTEMPTS, 1 to 1000, bounds attempts as MaxAttempts does.
// WEIGHT is above 0, and either all parts have one or none; weights need not add up to anything. There
// are at most 256 parts. The error names every part that is wrong, and what is wanted.
func Parse(s string) (Population, error) {
	if len(s) > maxMix {
		return nil, fmt.Errorf("the mix has %d bytes; use at most %d", len(s), maxMix)
	}
	if strings.TrimSpace(s) == "" {
		return nil, errors.New("the mix is empty; use " + wantedParts)
	}
	var (
		mix  Population
		errs []error
	)
	var bare []string // parts without a weight
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if !strings.Contains(part, ":") {
			bare = append(bare, strconv.Quote(part))
		}
		share, err := parseShare(part)
		if err != nil {
			errs = append(errs, err)
		}
		mix = append(mix, share)
	}
	if n := len(bare); n > 0 && n < len(mix) {
		errs = append(errs, fmt.Errorf("%s: the weight is missing, but other policies have one; give all of them a weight, or none", strings.Join(bare, ", ")))
	}
	if len(mix) > MaxShares {
		errs = []error{fmt.Errorf("the mix has %d parts; use at most %d", len(mix), MaxShares)}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return mix, nil
}

func parseShare(part string) (Share, error) {
	if part == "" {
		return Share{}, errors.New("a part of the mix is empty; use " + wantedParts)
	}
	rest, weight, weighted := strings.Cut(part, ":")
	share := Share{Weight: 1}
	if weighted {
		w, err := strconv.ParseFloat(weight, 64)
		if err != nil || !(w > 0 && w <= maxWeight) {
			return Share{}, fmt.Errorf("%q: the weight is %q; use a number above 0, at most %.0f", part, weight, float64(maxWeight))
		}
		share.Weight = w
	}
	rest, attempts, limited := strings.Cut(rest, "*")
	name, gap, gapped := strings.Cut(rest, "@")
	i := slices.IndexFunc(catalog, func(e Entry) bool { return e.Name == name })
	if i < 0 {
		return Share{}, fmt.Errorf("%q is unknown; use one of: %s", name, strings.Join(Names(), ", "))
	}
	e := catalog[i]
	share.Policy, share.Precise = e.Policy, e.Precise
	share.SaysRetry, share.SaysTimeout = e.SaysRetry, e.SaysTimeout
	if gapped {
		if e.with == nil {
			return Share{}, fmt.Errorf("%q: %s doesn't take a gap; remove the @ after it", part, name)
		}
		d, err := time.ParseDuration(gap)
		if err != nil || d < 0 || d > maxGap {
			return Share{}, fmt.Errorf("%q: the gap is %q; use a duration like 1.5s, 0s to %v", part, gap, maxGap)
		}
		share.Policy = e.with(d)
	}
	if limited {
		n, err := strconv.Atoi(attempts)
		if err != nil || n < 1 || n > maxTries {
			return Share{}, fmt.Errorf("%q: the attempts are %q; use a whole number, 1 to %d", part, attempts, maxTries)
		}
		share.Policy = MaxAttempts{N: n, Policy: share.Policy}
	}
	return share, nil
}
