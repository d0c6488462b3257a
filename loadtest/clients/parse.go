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
	maxSlot     = time.Hour
	leastSlot   = time.Microsecond
	wantedParts = "NAME[@PARAMETER][*ATTEMPTS][:WEIGHT], separated by commas"
)

// Parse reads a mix of policies of the Catalog, as "curl" or
// "curl:70,aws-full-jitter:20,fixed@5s*4:10". A part is
//
//	NAME[@PARAMETER][*ATTEMPTS][:WEIGHT]
//
// A policy with an Entry.Param takes a PARAMETER: a duration as "1.5s", or a share as
// "20%". ATTEMPTS, 1 to 1000, bounds attempts as MaxAttempts does. WEIGHT is above 0, and
// either all parts have one or none; weights need not add up to anything. There are at most 256 parts. The
// error names every part that is wrong, and what is wanted.
func Parse(s string) (Population, error) {
	if len(s) > maxMix {
		return nil, fmt.Errorf("the mix has %d bytes; want at most %d", len(s), maxMix)
	}
	if strings.TrimSpace(s) == "" {
		return nil, errors.New("the mix is empty; want " + wantedParts)
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
		errs = append(errs, fmt.Errorf("%s: the weight is missing, and other policies have one; want all with a weight, or none", strings.Join(bare, ", ")))
	}
	if len(mix) > maxShares {
		errs = []error{fmt.Errorf("the mix has %d parts; want at most %d", len(mix), maxShares)}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return mix, nil
}

func parseShare(part string) (Share, error) {
	if part == "" {
		return Share{}, errors.New("a part of the mix is empty; want " + wantedParts)
	}
	rest, weight, weighted := strings.Cut(part, ":")
	share := Share{Weight: 1}
	if weighted {
		w, err := strconv.ParseFloat(weight, 64)
		if err != nil || !(w > 0 && w <= maxWeight) {
			return Share{}, fmt.Errorf("%q: the weight is %q; want a number above 0, at most %.0f", part, weight, float64(maxWeight))
		}
		share.Weight = w
	}
	rest, attempts, limited := strings.Cut(rest, "*")
	name, param, hasParam := strings.Cut(rest, "@")
	i := slices.IndexFunc(catalog, func(e Entry) bool { return e.Name == name })
	if i < 0 {
		var names []string
		for _, e := range catalog {
			names = append(names, e.Name)
		}
		return Share{}, fmt.Errorf("%q: policy %q is unknown; want one of: %s", part, name, strings.Join(names, ", "))
	}
	e := catalog[i]
	share.Policy, share.Precise = e.Policy, e.Precise
	share.SaysRetry, share.SaysTimeout = e.SaysRetry, e.SaysTimeout
	if hasParam {
		if e.with == nil {
			return Share{}, fmt.Errorf("%q: %s takes no parameter; want no @ after it", part, name)
		}
		p, err := e.with(param)
		if err != nil {
			what, without, _ := strings.Cut(e.Param, ", ")
			return Share{}, fmt.Errorf("%q: %w; it is %s, and %s if it is not given", part, err, what, without)
		}
		share.Policy = p
	}
	if limited {
		n, err := strconv.Atoi(attempts)
		if err != nil || n < 1 || n > maxTries {
			return Share{}, fmt.Errorf("%q: the attempts are %q; want a whole number, 1 to %d", part, attempts, maxTries)
		}
		share.Policy = MaxAttempts{N: n, Policy: share.Policy}
	}
	return share, nil
}

// withDuration, withShare and withCount read parameters.
func withDuration(least, most time.Duration, make func(time.Duration) Policy) func(string) (Policy, error) {
	return func(param string) (Policy, error) {
		d, err := time.ParseDuration(param)
		if err != nil || d < least || d > most {
			return nil, fmt.Errorf("the parameter is %q; want a duration as 1.5s, %v to %v", param, least, most)
		}
		return make(d), nil
	}
}

func withShare(make func(float64) Policy) func(string) (Policy, error) {
	return func(param string) (Policy, error) {
		percent, found := strings.CutSuffix(param, "%")
		p, err := strconv.ParseFloat(percent, 64)
		if !found || err != nil || !(p > 0 && p <= 1000) {
			return nil, fmt.Errorf("the parameter is %q; want a share as 20%%, above 0%%, at most 1000%%", param)
		}
		return make(p / 100), nil
	}
}

func withCount(make func(int) Policy) func(string) (Policy, error) {
	return func(param string) (Policy, error) {
		n, err := strconv.Atoi(param)
		if err != nil || n < 0 || n >= maxTries {
			return nil, fmt.Errorf("the parameter is %q; want a whole number, 0 to %d", param, maxTries-1)
		}
		return make(n), nil
	}
}
