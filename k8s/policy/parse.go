package policy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// Prefix begins the name of every annotation of shield's own.
const Prefix = "shield.herdshield.io/"

// zoneName is the name of the Zone that the annotation rate makes.
const zoneName = "rate"

// The bounds of retry-after-max, which are those of pushback.Config.Max.
const (
	leastRetryAfterMax = time.Second
	mostRetryAfterMax  = 59 * time.Second
)

const off = "off"

var (
	ingressNames = []string{"rate", "burst", "key", "concurrency", "class", "allow-cidrs", "retry-after-max", "mode", "ssl-redirect"}
	serviceNames = []string{"capacity", "burst", "concurrency", "endpoint-concurrency", "queue", "queue-timeout", "retry-after-max", "mode", "backend-protocol"}
)

// ParseIngress returns what the annotations of an Ingress ask for, with the defaults
// for what they leave out. Other annotations than shield's are ignored; so is the
// value of ssl-redirect, which is for SSLRedirect. The error names everything that is
// wrong; with one the defaults are returned, so that a mistake does not
// take away the limits of the class.
//
// Neither argument is changed, but what is returned may share slices with defaults.
func ParseIngress(annotations map[string]string, defaults Ingress) (Ingress, error) {
	r := newReader(annotations, Prefix, "an Ingress", ingressNames, "a Service", serviceNames)
	return r.ingress(defaults)
}

// ParseDefaults returns what the parameters of an IngressClass ask for: as
// ParseIngress does of annotations, but with keys that have no prefix. With an
// error it returns no limits.
func ParseDefaults(data map[string]string) (Ingress, error) {
	r := newReader(data, "", "the parameters of an IngressClass", ingressNames, "a Service", serviceNames)
	return r.ingress(Ingress{})
}

// ParseService returns what the annotations of a Service ask for. Other annotations
// than shield's are ignored; so is the value of backend-protocol, which is for
// BackendProtocol. The error names everything that is wrong; with one no limits
// are returned.
func ParseService(annotations map[string]string) (Service, error) {
	r := newReader(annotations, Prefix, "a Service", serviceNames, "an Ingress", ingressNames)
	return r.service()
}

func (r *reader) ingress(defaults Ingress) (Ingress, error) {
	p := defaults
	r.rateAndBurst(&p.Zones)
	if v, ok := r.get("key"); ok {
		if err := checkKey(v); err != nil {
			r.bad("key", v, "%w", err)
		}
		p.Key = v
	}
	if v, ok := r.get("concurrency"); ok {
		if p.PerClient = 0; v != off {
			p.PerClient = r.number("concurrency", v, shield.MaxConcurrency, ", or "+off)
		}
	}
	if _, ok := r.get("key"); ok && p.Zones == nil && p.PerClient == 0 && r.errs == nil {
		r.fail("key", "tells clients apart, but there is nothing that they are limited to; want %s or %s besides it", r.prefix+"rate", r.prefix+"concurrency")
	}
	if v, ok := r.get("class"); ok {
		p.Class = r.oneOf("class", v, loadshed.Critical, loadshed.Default, loadshed.Sheddable)
	}
	if v, ok := r.get("allow-cidrs"); ok {
		var err error
		if p.Allow, err = parsePrefixes(v); err != nil {
			r.bad("allow-cidrs", v, "%w", err)
		}
	}
	p.RetryAfterMax = r.retryAfterMax(p.RetryAfterMax)
	p.Observe = r.mode(p.Observe)
	if err := r.err(); err != nil {
		return defaults, err
	}
	return p, nil
}

// rateAndBurst sets the quota of single clients. A rate replaces all quotas that are
// there, with their bursts; a burst without a rate is for the rate that is there.
func (r *reader) rateAndBurst(zones *[]Zone) {
	rate, hasRate := r.get("rate")
	burst, hasBurst := r.get("burst")
	switch {
	case hasRate && rate == off:
		if *zones = nil; hasBurst {
			r.fail("burst", "is set, but %srate is off; want one or the other", r.prefix)
		}
	case hasRate:
		limit := r.limit("rate", rate, burst, hasBurst)
		*zones = []Zone{{Name: zoneName, Limit: limit}}
	case hasBurst && len(*zones) != 1:
		r.fail("burst", "is set, but no rate; want %srate besides it, like 50/s", r.prefix)
	case hasBurst:
		zone := (*zones)[0]
		zone.Limit.Burst = r.number("burst", burst, math.MaxInt32, "")
		r.check("burst", zone.Limit)
		*zones = []Zone{zone}
	}
}

func (r *reader) service() (Service, error) {
	var p Service
	capacity, hasCapacity := r.get("capacity")
	burst, hasBurst := r.get("burst")
	switch {
	case hasCapacity:
		p.Capacity = r.limit("capacity", capacity, burst, hasBurst)
	case hasBurst:
		r.fail("burst", "is set, but no capacity; want %scapacity besides it, like 500/s", r.prefix)
	}
	if v, ok := r.get("concurrency"); ok {
		if p.Adaptive = v == "adaptive"; !p.Adaptive {
			p.Concurrency = r.number("concurrency", v, shield.MaxConcurrency, ", or adaptive")
		}
	}
	if v, ok := r.get("endpoint-concurrency"); ok {
		p.EndpointConcurrency = r.number("endpoint-concurrency", v, shield.MaxConcurrency, "")
	}
	queue, hasQueue := r.get("queue")
	if hasQueue {
		if p.Queue = QueueOff; queue != off {
			p.Queue = r.number("queue", queue, shield.MaxQueue, ", or "+off)
		}
	}
	_, hasConcurrency := r.get("concurrency")
	_, hasEndpoint := r.get("endpoint-concurrency")
	if hasQueue && queue != off && !hasConcurrency && !hasEndpoint {
		r.fail("queue", "has nothing to wait for; want %sconcurrency or %sendpoint-concurrency besides it", r.prefix, r.prefix)
	}
	if v, ok := r.get("queue-timeout"); ok {
		p.QueueTimeout = r.duration("queue-timeout", v, 1, shield.MaxQueueTimeout, 1)
		// Where the concurrency is adaptive there is a queue by default.
		if queue == off || !hasQueue && !p.Adaptive {
			r.fail("queue-timeout", "is set, but there is no queue; want %squeue besides it, like 64", r.prefix)
		}
	}
	p.RetryAfterMax = r.retryAfterMax(0)
	p.Observe = r.mode(false)
	if err := r.err(); err != nil {
		return Service{}, err
	}
	return p, nil
}

// SSLRedirect reports whether plain HTTP for the hosts of an Ingress that have a
// certificate is redirected to HTTPS: by default it is. With an error it is, too.
func SSLRedirect(annotations map[string]string) (on bool, err error) {
	return sslRedirect(annotations, Prefix)
}

// DefaultSSLRedirect is SSLRedirect for the parameters of an IngressClass: what holds
// for the Ingresses without the annotation.
func DefaultSSLRedirect(data map[string]string) (on bool, err error) { return sslRedirect(data, "") }

func sslRedirect(values map[string]string, prefix string) (on bool, err error) {
	r := reader{prefix: prefix, values: values}
	if v, ok := r.get("ssl-redirect"); ok {
		on = r.oneOf("ssl-redirect", v, "true", "false") != "false"
		return on, r.err()
	}
	return true, nil
}

// BackendProtocol returns what a port of a Service speaks: "http", "h2c" or "https".
// The annotation backend-protocol is for all ports: HTTP, HTTPS, H2C or GRPC (which
// is h2c), in upper or lower case. Without it the appProtocol of the port says so:
// names of the Kubernetes project (kubernetes.io/h2c, /ws, /wss), and https, wss,
// grpcs, h2c, http2 and grpc. Others, which are not for shield, are http. With an
// error what appProtocol says is returned.
func BackendProtocol(annotations map[string]string, appProtocol string) (string, error) {
	protocol := "http"
	switch strings.TrimPrefix(strings.ToLower(appProtocol), "kubernetes.io/") {
	case "https", "wss", "grpcs":
		protocol = "https"
	case "h2c", "http2", "grpc":
		protocol = "h2c"
	}
	r := reader{prefix: Prefix, values: annotations}
	if v, ok := r.get("backend-protocol"); ok {
		switch r.oneOf("backend-protocol", strings.ToUpper(v), "HTTP", "HTTPS", "H2C", "GRPC") {
		case "HTTP":
			protocol = "http"
		case "HTTPS":
			protocol = "https"
		case "H2C", "GRPC":
			protocol = "h2c"
		}
	}
	return protocol, r.err()
}

// A reader reads the values of one object and keeps what is wrong with them.
type reader struct {
	prefix string
	values map[string]string
	errs   []error
}

// newReader returns a reader, with the errors for names that are not in known. Those
// in others are for another kind of object.
func newReader(values map[string]string, prefix, here string, known []string, there string, others []string) *reader {
	r := &reader{prefix: prefix, values: values}
	var unknown []string
	for name := range values {
		if name, ours := strings.CutPrefix(name, prefix); ours && !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown) // maps have no order, errors must have one
	for _, name := range unknown {
		if slices.Contains(others, name) {
			r.fail(name, "belongs on %s, not on %s", there, here)
			continue
		}
		if near, isNear := nearest(name, known); isNear {
			r.fail(clip(name), "is not known; did you mean %s%s?", prefix, near)
		} else {
			r.fail(clip(name), "is not known; the nearest is %s%s, and all are %s", prefix, near, strings.Join(known, ", "))
		}
	}
	return r
}

// get returns the value of a name, and whether it is there.
func (r *reader) get(name string) (string, bool) {
	v, ok := r.values[r.prefix+name]
	return v, ok
}

// fail keeps an error: what is wrong with name.
func (r *reader) fail(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s%s %w", r.prefix, name, fmt.Errorf(format, args...)))
}

// bad keeps an error: what is wrong with the value v of name.
func (r *reader) bad(name, v, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s%s is %q: %w", r.prefix, name, clip(v), fmt.Errorf(format, args...)))
}

func (r *reader) err() error { return errors.Join(r.errs...) }

// number reads a whole number from 1 to most; or says what else would do.
func (r *reader) number(name, v string, most int, or string) int {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		r.fail(name, "is %q; want a whole number from 1 to %d%s", clip(v), most, or)
		return 0
	}
	return n
}

// oneOf reads one of several words. It returns "" if it is none of them.
func (r *reader) oneOf(name, v string, words ...string) string {
	if !slices.Contains(words, v) {
		last := len(words) - 1
		r.fail(name, "is %q; want %s or %s", clip(v), strings.Join(words[:last], ", "), words[last])
		return ""
	}
	return v
}

// duration reads a multiple of unit from least to most.
func (r *reader) duration(name, v string, least, most, unit time.Duration) time.Duration {
	d, err := time.ParseDuration(v)
	switch {
	case err == nil && d >= least && d <= most && d%unit == 0:
		return d
	case unit == time.Second:
		r.fail(name, "is %q; want whole seconds from %v to %v", clip(v), least, most)
	default:
		r.fail(name, "is %q; want a duration like 100ms, more than 0, to %v", clip(v), most)
	}
	return 0
}

func (r *reader) retryAfterMax(otherwise time.Duration) time.Duration {
	if v, ok := r.get("retry-after-max"); ok {
		return r.duration("retry-after-max", v, leastRetryAfterMax, mostRetryAfterMax, time.Second)
	}
	return otherwise
}

func (r *reader) mode(otherwise bool) bool {
	if v, ok := r.get("mode"); ok {
		return r.oneOf("mode", v, "enforce", "observe") == "observe"
	}
	return otherwise
}

// limit reads a rate, and the burst that it may have.
func (r *reader) limit(name, rate, burst string, hasBurst bool) (c limiter.Config) {
	var ok bool
	if c.Rate, c.Per, ok = parseRate(rate); !ok {
		r.fail(name, "is %q; want a number per s, m or h, like 50/s", clip(rate))
	}
	if hasBurst {
		c.Burst = r.number("burst", burst, math.MaxInt32, "")
		ok = ok && c.Burst > 0
	}
	if ok {
		r.check(name, c)
	}
	return c
}

// check keeps what is wrong with a limit that is made of good values.
func (r *reader) check(name string, c limiter.Config) {
	if _, err := limiter.New(c); err != nil {
		v, _ := r.get(name)
		r.bad(name, v, "%w", err)
	}
}

// parseRate parses "<n>/<s|m|h>", as the Caddyfile does.
func parseRate(s string) (n float64, per time.Duration, ok bool) {
	number, unit, _ := strings.Cut(s, "/")
	switch unit {
	case "s":
		per = time.Second
	case "m":
		per = time.Minute
	case "h":
		per = time.Hour
	}
	n, err := strconv.ParseFloat(number, 64)
	return n, per, err == nil && per > 0 && !math.IsNaN(n) && !math.IsInf(n, 0)
}

// maxClip is how much of a value an error shows: an Event has room for 1 KiB in all.
const maxClip = 64

func clip(v string) string {
	if len(v) <= maxClip {
		return v
	}
	return strings.ToValidUTF8(v[:maxClip], "") + "..."
}
