package loadshed

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// The built-in classes. Others need a share.
const (
	Critical  = "critical"
	Default   = "default"
	Sheddable = "sheddable"
	unpaid    = "unpaid" // requests that come before their time; no other can have it
)

const (
	// maxClasses is how many classes there may be, with the built-in default and unpaid.
	maxClasses = 10

	maxClassName = 64 // bytes: names label metrics
	classLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:"

	minShare    = 0.01 // less is more likely a slip: 1 for 1%
	unpaidShare = 0.5
)

// shares of the built-in classes. Ours, near what Stripe ("Scaling your API with rate
// limiters", 2017) keeps for critical requests: a fifth.
var shares = map[string]float64{Critical: 1, Default: 0.9, Sheddable: 0.7}

// A Class is a priority class. While higher classes send requests, it can only use its share of the in-flight
// limit.
type Class struct {
	Name  string  // critical, default, sheddable, or another one: 1 to 64 letters, digits and _ - . / :
	Share float64 // above 0, up to 1. 0 means that of the built-in class
}

// newClasses returns checked classes in the order of their shares, the highest first and those of equal shares in
// the order given, with default among them and unpaid as the last; and which is default. An empty list makes
// one class, default, with all of the limit: no request is lower than another then, not
// even one that comes before its time. The error has all that is wrong.
func newClasses(list []Class) (c []Class, byDefault int, err error) {
	if len(list) == 0 {
		return []Class{{Default, 1}}, 0, nil
	}
	var errs []error
	seen := map[string]bool{}
	for _, class := range list {
		switch {
		case class.Name == unpaid:
			errs = append(errs, fmt.Errorf("class %q is reserved for retries before their appointment; use another name", unpaid))
		case class.Name == "" || len(class.Name) > maxClassName || strings.TrimLeft(class.Name, classLetters) != "":
			errs = append(errs, fmt.Errorf("class name is %q; use letters, digits and _ - . / :, 1 to %d of them", class.Name, maxClassName))
		case seen[class.Name]:
			errs = append(errs, fmt.Errorf("class %q is a duplicate; use different names", class.Name))
		}
		seen[class.Name] = true
		class.Share = cmp.Or(class.Share, shares[class.Name])
		if class.Share == 0 {
			errs = append(errs, fmt.Errorf("class %q has no share; set one, or use the name %s, %s or %s", class.Name, Critical, Default, Sheddable))
			continue
		}
		if !(class.Share >= minShare && class.Share <= 1) {
			errs = append(errs, fmt.Errorf("class %q: share is %v (%v%%); use %v to 1 (1%% to 100%%)", class.Name, class.Share, 100*class.Share, minShare))
		}
		c = append(c, class)
	}
	if !seen[Default] {
		c = append(c, Class{Default, shares[Default]})
	}
	if len(c) >= maxClasses {
		errs = append(errs, fmt.Errorf("%d classes are set; use at most %d in addition to %s", len(list), maxClasses-2, Default))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, 0, err
	}
	slices.SortStableFunc(c, func(a, b Class) int { return cmp.Compare(b.Share, a.Share) })
	c = append(c, Class{unpaid, min(unpaidShare, c[len(c)-1].Share)})
	return c, slices.IndexFunc(c, func(class Class) bool { return class.Name == Default }), nil
}

// reserveTime is how long after the last request of a higher class permits are still
// kept for it. Stripe restores traffic over minutes, but permits that are kept for no
// request are throughput lost.
const reserveTime = 3 * time.Second

// classShares knows of which classes requests have come lately. The zero classShares has seen
// none. It is safe for concurrent use. For 3 seconds after a reload that changes the
// order of the classes it mistakes one for another.
type classShares struct {
	until [maxClasses]atomic.Int64 // until when permits are kept for a class, in nanoseconds
}

// saw tells that a request of a class has come at now, whether it is let in or not.
func (s *classShares) saw(now time.Duration, class int) {
	// Every reserveTime/16 is often enough, and leaves the cache line alone in between.
	if at, until := &s.until[class], int64(now+reserveTime); until-at.Load() > int64(reserveTime/16) {
		at.Store(until)
	}
}

// limitFor returns the limit in flight for a class, at least 1: its share of limit, the one
// for all classes, if requests of a higher class have come within the last 3 seconds, or
// all of it. class is an index into c.
//
// The share is relative to that of the highest class that comes: with default and
// sheddable alone, default has all.
func (s *classShares) limitFor(now time.Duration, class, limit int, c []Class) int {
	own := c[class].Share
	for i := range class {
		if int64(now) >= s.until[i].Load() {
			continue
		}
		highest := c[i].Share
		if highest <= own {
			return limit
		}
		const rounding = 1e-9 // 9 * 0.7 / 0.9 is 7
		return max(1, int(float64(limit)*own/highest+rounding))
	}
	return limit
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
