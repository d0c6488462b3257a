package translate

import (
	"unicode/utf8"

	networkingv1 "k8s.io/api/networking/v1"
)

// Bounds of one Ingress. An API server accepts objects of 1.5 MB, or 60,000 rules, with which
// one user could stall the controller. Ours: far above what people write, and cheap
// enough to take milliseconds and a few megabytes.
const (
	maxRules    = 2000    // paths, and rules without any
	maxTLSHosts = 2000    // hosts and entries in spec.tls; and as many names in certificates
	maxPath     = 2 << 10 // bytes of a path, as it is written
	maxElements = 64      // elements of a path
	maxQuoted   = 128     // bytes of a path in a message
)

// A rule is one rule of an Ingress.
type rule struct {
	host  string // as in model.Rule
	paths []networkingv1.HTTPIngressPath
}

// read sets the rules, hosts and TLS entries of an Ingress, up to the bounds.
func (r *run) read(in *ingress) {
	spec := &in.Spec
	in.rules = make([]rule, 0, min(len(spec.Rules), maxRules))
	var seen map[string]bool // nil for the common Ingress with one rule
	if len(spec.Rules) > 1 {
		seen = make(map[string]bool, cap(in.rules))
	}
	left, all := maxRules, true
	for i := range spec.Rules {
		if left == 0 {
			all = false
			break
		}
		var paths []networkingv1.HTTPIngressPath
		if http := spec.Rules[i].HTTP; http != nil {
			paths = http.Paths
		}
		if len(paths) > left {
			paths, all = paths[:left], false
		}
		left -= max(1, len(paths))
		host := readHost(spec.Rules[i].Host)
		in.rules = append(in.rules, rule{host, paths})
		if !seen[host] {
			in.hosts = append(in.hosts, host)
		}
		if seen != nil {
			seen[host] = true
		}
	}
	if !all {
		r.problems.add(in.origin.Ref, ReasonTooLarge, "spec.rules has more than %d rules and paths; the rest is ignored", maxRules)
	}

	in.tls = spec.TLS
	left = maxTLSHosts
	for i := range spec.TLS {
		n := len(spec.TLS[i].Hosts)
		if n <= left && left > 0 {
			left -= max(1, n)
			continue
		}
		in.tls = append([]networkingv1.IngressTLS(nil), spec.TLS[:i]...)
		if left > 0 {
			part := spec.TLS[i]
			part.Hosts = part.Hosts[:left]
			in.tls = append(in.tls, part)
		}
		r.problems.add(in.origin.Ref, ReasonTooLarge, "spec.tls has more than %d entries and hosts; the rest is ignored", maxTLSHosts)
		break
	}
}

// shorten cuts s to at most max bytes, between two characters.
func shorten(s string, max int) string {
	if len(s) <= max {
		return s
	}
	end := max - len("…")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
