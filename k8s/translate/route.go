package translate

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
)

// A place is what only one rule can have.
type place struct {
	host, path      string
	exact, fallback bool
}

// A claim is a place that is taken.
type claim struct {
	by     *ingress
	target model.Target
}

// claim takes a place for an Ingress. If an older one, or the same one, has it, it
// returns that.
func (r *run) claim(p place, in *ingress) (c *claim, winner *ingress) {
	if c := r.rules[p]; c != nil {
		return nil, c.by
	}
	c = &claim{by: in, target: model.Target{Origin: in.origin}}
	r.rules[p] = c
	return c, nil
}

// route enters the rules of an Ingress, and its default backend: for what its own
// rules leave of their hosts, or if it has no rules for what nobody else takes.
// Ingresses must come oldest first.
func (r *run) route(in *ingress, catchAll **model.Target) {
	for i := range in.Spec.Rules {
		rule := &in.Spec.Rules[i]
		if rule.HTTP == nil {
			continue // see borrow
		}
		host := readHost(rule.Host)
		for j := range rule.HTTP.Paths {
			r.routePath(in, host, &rule.HTTP.Paths[j])
		}
	}

	backend := in.Spec.DefaultBackend
	switch {
	case backend == nil:
	case len(in.Spec.Rules) > 0:
		for _, host := range in.hosts {
			c, winner := r.claim(place{host: host, path: "/", fallback: true}, in)
			if winner != nil {
				r.problems.add(in.origin.Ref, ReasonDefaultBackendTaken,
					"%s has the default backend of the older Ingress %s; that of this one is left out", hostText(host), winner.origin)
				continue
			}
			c.target.Backend = r.backend(in, backend)
		}
	case *catchAll != nil:
		r.problems.add(in.origin.Ref, ReasonDefaultBackendTaken,
			"requests that no rule takes go to the default backend of the older Ingress %s; that of this one is left out", (*catchAll).Origin)
	default:
		*catchAll = &model.Target{Origin: in.origin, Backend: r.backend(in, backend)}
	}
}

func (r *run) routePath(in *ingress, host string, p *networkingv1.HTTPIngressPath) {
	at := place{host: host, path: cmp.Or(p.Path, "/")}
	kind := cmp.Or(value(p.PathType), networkingv1.PathTypeImplementationSpecific)
	at.exact = kind == networkingv1.PathTypeExact
	switch {
	case at.path[0] != '/':
		r.problems.add(in.origin.Ref, ReasonPathInvalid, "path %q of %s does not begin with a slash, and is left out", p.Path, hostText(host))
		return
	case kind == networkingv1.PathTypeImplementationSpecific && strings.ContainsAny(at.path, `*^$()[]|\?`):
		r.problems.add(in.origin.Ref, ReasonPathLiteral,
			"path %q of %s looks like a pattern, but is compared as it is: %s means Prefix here", p.Path, hostText(host), kind)
	}
	if decoded, err := url.PathUnescape(at.path); err == nil && decoded != at.path {
		r.problems.add(in.origin.Ref, ReasonPathLiteral,
			"path %q of %s is compared as it is with the decoded paths of requests; write %q instead", p.Path, hostText(host), decoded)
	}
	if !at.exact {
		// A prefix goes by elements: with and without a slash at the end it is the same.
		at.path = cmp.Or(strings.TrimRight(at.path, "/"), "/")
	}

	c, winner := r.claim(at, in)
	switch winner {
	case nil:
		c.target.Backend = r.backend(in, &p.Backend)
	case in:
		r.problems.add(in.origin.Ref, ReasonPathTaken, "path %q (%s) of %s is there twice; the first counts", at.path, typeText(at.exact), hostText(host))
	default:
		r.problems.add(in.origin.Ref, ReasonPathTaken,
			"path %q (%s) of %s is routed by the older Ingress %s; this rule is left out", at.path, typeText(at.exact), hostText(host), winner.origin)
	}
}

// borrow gives the cluster's default backend to hosts that an Ingress names without
// paths, if it has no default backend of its own. They get its limits.
func (r *run) borrow(in *ingress, catchAll *model.Target) {
	if in.Spec.DefaultBackend != nil {
		return
	}
	for i := range in.Spec.Rules {
		rule := &in.Spec.Rules[i]
		if rule.HTTP != nil && len(rule.HTTP.Paths) > 0 {
			continue
		}
		host := readHost(rule.Host)
		if catchAll == nil {
			r.problems.add(in.origin.Ref, ReasonNoBackend, "%s has no paths, and there is no default backend: the rule routes nothing", hostText(host))
			continue
		}
		if c, _ := r.claim(place{host: host, path: "/", fallback: true}, in); c != nil {
			c.target.Backend = catchAll.Backend
		}
	}
}

func (r *run) sortedRules() []model.Rule {
	rules := make([]model.Rule, 0, len(r.rules))
	for p, c := range r.rules {
		rules = append(rules, model.Rule{Host: p.host, Path: p.path, Exact: p.exact, Fallback: p.fallback, Target: c.target})
	}
	slices.SortFunc(rules, func(a, b model.Rule) int {
		return cmp.Or(
			strings.Compare(a.Host, b.Host),
			order(b.Fallback, a.Fallback),
			strings.Compare(a.Path, b.Path),
			order(a.Exact, b.Exact),
		)
	})
	return rules
}

// order puts true before false.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func hostText(host string) string {
	if host == "" {
		return "the rule without host"
	}
	return "host " + host
}

func typeText(exact bool) string {
	if exact {
		return "Exact"
	}
	return "Prefix"
}
