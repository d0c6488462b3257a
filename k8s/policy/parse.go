package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/herdshield/shield/limiter"
)

// ParseIngress returns what the annotations of an Ingress ask for, with the defaults
// for what they leave out. Other annotations than shield's are ignored; so are the values
// of ssl-redirect, which is for SSLRedirect, and of filters, for ParseFilters. The error names everything that is
// wrong. A value that is wrong counts as one that is not set, but for burst, which is then
// that of the rate: a mistake takes away no other limit.
//
// Neither argument is changed, but what is returned may share slices with defaults.
func ParseIngress(annotations map[string]string, defaults Ingress) (Ingress, error) {
	r := &reader{prefix: Prefix, values: annotations}
	return read(r, "an Ingress", ingressRows, ingressNames, "a Service", serviceNames, defaults)
}

// ParseDefaults returns what the parameters of an IngressClass ask for: as
// ParseIngress does of annotations, but with keys that have no prefix.
func ParseDefaults(data map[string]string) (Ingress, error) {
	r := &reader{values: data}
	if r.has(ignoreNginx) { // it would open Ingresses that do not exist yet
		r.fail(ignoreNginx, "is for a single Ingress, not for a class")
	}
	return read(r, "the parameters of an IngressClass", ingressRows, ingressNames, "a Service", serviceNames, Ingress{})
}

// ParseService returns what the annotations of a Service ask for. Other annotations
// than shield's are ignored; so is the value of backend-protocol, which is for
// BackendProtocol. The error names everything that is wrong; a value that is wrong counts as
// one that is not set, as in ParseIngress.
func ParseService(annotations map[string]string) (Service, error) {
	r := &reader{prefix: Prefix, values: annotations}
	return read(r, "a Service", serviceRows, serviceNames, "an Ingress", ingressNames, Service{})
}

// The names that objects may have, made once: each rebuild parses thousands of objects.
var ingressNames, serviceNames = names(OnIngress()), names(OnService())

// read returns what the good values of an object ask for beyond the defaults. The object is
// called here, and may have the names in known; others are for objects that are called there.
func read[P any](r *reader, here string, rows []row[P], known []string, there string, others []string, defaults P) (P, error) {
	r.checkNames(here, known, there, others)
	p := defaults
	for _, row := range rows {
		if v, ok := r.get(row.Name); ok && row.set != nil {
			row.set(r, v, &p)
		}
	}
	return p, r.err()
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
		word, _ := parse(&r, "backend-protocol", protocolForm, v)
		switch strings.ToUpper(word) {
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

// NginxProtocol returns what the Services of an Ingress speak by ingress-nginx's
// backend-protocol: as BackendProtocol does, or "" without one that ingress-nginx and shield
// both speak. It is HTTP, HTTPS, GRPC (h2c) or GRPCS (https), in upper or lower case.
func NginxProtocol(annotations map[string]string) string {
	return nginxProtocols[strings.ToUpper(strings.TrimSpace(annotations[NginxPrefix+"backend-protocol"]))]
}

var nginxProtocols = map[string]string{"HTTP": "http", "HTTPS": "https", "GRPC": "h2c", "GRPCS": "https"}

// A reader reads the values of one object and keeps what is wrong with them.
type reader struct {
	prefix string
	values map[string]string
	errs   []error
}

// checkNames reports the names that are not known. Those in others are for another kind
// of object.
func (r *reader) checkNames(here string, known []string, there string, others []string) {
	var unknown []string
	for name := range r.values {
		if name, ours := strings.CutPrefix(name, r.prefix); ours && !slices.Contains(known, name) {
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
			r.fail(clip(name), "is not known; did you mean %s%s?", r.prefix, near)
		} else {
			r.fail(clip(name), "is not known; the nearest is %s%s", r.prefix, near)
		}
	}
}

// get returns the value of a name, and whether it is set.
func (r *reader) get(name string) (string, bool) {
	v, ok := r.values[r.prefix+name]
	return v, ok
}

// has reports whether a name is set.
func (r *reader) has(name string) bool {
	_, ok := r.get(name)
	return ok
}

// fail keeps an error: what is wrong with name.
func (r *reader) fail(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s%s %w", r.prefix, name, fmt.Errorf(format, args...)))
}

// bad keeps an error: what is wrong with the value v of name.
func (r *reader) bad(name, v string, err error) {
	r.fail(name, "is %q: %w", clip(v), err)
}

func (r *reader) err() error { return errors.Join(r.errs...) }

// parse parses the value of name, or keeps an error.
func parse[V any](r *reader, name string, f form[V], value string) (v V, ok bool) {
	v, err := f.parse(value)
	switch {
	case errors.Is(err, errForm):
		r.fail(name, "is %q; use %s", clip(value), f.want)
	case err != nil:
		r.bad(name, value, err)
	}
	return v, err == nil
}

// burst returns the burst of the rate that is being read: 0, the default, if it is not
// set or not a number. The row of burst reports that.
func (r *reader) burst() int {
	v, _ := r.get("burst")
	n, err := burstForm.parse(v)
	if err != nil {
		return 0
	}
	return n
}

// check reports whether a limit that is made of good values is good, and keeps what is wrong.
func (r *reader) check(name string, c limiter.Config) bool {
	_, err := limiter.New(c)
	if err != nil {
		v, _ := r.get(name)
		r.bad(name, v, err)
	}
	return err == nil
}

// limit returns the limit of a rate with its burst, or with the default one if that is wrong.
// ok is false if the rate is.
func (r *reader) limit(name string, c limiter.Config) (_ limiter.Config, ok bool) {
	c.Burst = r.burst()
	if r.check(name, c) {
		return c, true
	}
	c.Burst = 0
	_, err := limiter.New(c)
	return c, err == nil
}

// maxClip is how much of a value an error shows: an Event has room for 1 KiB in all.
const maxClip = 64

func clip(v string) string {
	if len(v) <= maxClip {
		return v
	}
	return strings.ToValidUTF8(v[:maxClip], "") + "..."
}
