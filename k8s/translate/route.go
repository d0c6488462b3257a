package translate

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/route"
)

// A place is what only one rule can have.
type place struct {
	host, path      string // as in model.Rule
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
	for _, rule := range in.rules {
		if r.refused(in, rule.host) {
			continue
		}
		for i := range rule.paths { // none: see borrow
			r.routePath(in, rule.host, &rule.paths[i])
		}
	}

	backend := in.Spec.DefaultBackend
	switch {
	case backend == nil:
	case len(in.rules) > 0:
		for _, host := range in.hosts {
			if r.refused(in, host) {
				continue
			}
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
	kind := cmp.Or(value(p.PathType), networkingv1.PathTypeImplementationSpecific)
	at := place{host: host, exact: kind == networkingv1.PathTypeExact}
	var wrong string
	if at.path, wrong = readPath(p.Path, at.exact); wrong != "" {
		r.problems.add(in.origin.Ref, ReasonPathInvalid, "path %q of %s %s, and is left out", shorten(p.Path, maxQuoted), hostText(host), wrong)
		return
	}
	if kind == networkingv1.PathTypeImplementationSpecific && strings.ContainsAny(p.Path, `*^$()[]|\?`) {
		r.problems.add(in.origin.Ref, ReasonPathLiteral,
			"path %q of %s looks like a pattern, but is compared as it is: %s means Prefix here", shorten(p.Path, maxQuoted), hostText(host), kind)
	}

	c, winner := r.claim(at, in)
	switch winner {
	case nil:
		c.target.Backend = r.backend(in, &p.Backend)
	case in:
		r.problems.add(in.origin.Ref, ReasonPathTaken, "path %q (%s) of %s is there twice; the first counts",
			shorten(at.path, maxQuoted), typeText(at.exact), hostText(host))
	default:
		r.problems.add(in.origin.Ref, ReasonPathTaken, "path %q (%s) of %s is routed by the older Ingress %s; this rule is left out",
			shorten(at.path, maxQuoted), typeText(at.exact), hostText(host), winner.origin)
	}
}

// readPath returns a path as requests are matched with it, or what is wrong with it.
// This is the one place where paths of rules are decoded: what is the same path for
// requests must be the same for claims, however it is written.
func readPath(raw string, exact bool) (path, wrong string) {
	switch {
	case raw == "":
		return "/", ""
	case raw[0] != '/':
		return "", "does not begin with a slash"
	case len(raw) > maxPath:
		return "", fmt.Sprintf("has %d bytes; want at most %d", len(raw), maxPath)
	}
	path, err := url.PathUnescape(raw)
	if err != nil {
		return "", fmt.Sprintf("cannot be decoded: %v", err)
	}
	if n := strings.Count(path, "/"); n > maxElements {
		return "", fmt.Sprintf("has %d elements; want at most %d", n, maxElements)
	}
	if _, ok := route.Read(&url.URL{Path: path}); !ok {
		return "", `has an element "." or "..", or a control character, which requests are refused for`
	}
	if !exact {
		// A prefix goes by elements: with and without a slash at the end it is the same.
		path = cmp.Or(strings.TrimRight(path, "/"), "/")
	}
	return path, ""
}

// borrow gives the cluster's default backend to hosts that an Ingress names without
// paths, if it has no default backend of its own. They get its limits.
func (r *run) borrow(in *ingress, catchAll *model.Target) {
	if in.Spec.DefaultBackend != nil {
		return
	}
	for _, rule := range in.rules {
		if len(rule.paths) > 0 || r.refused(in, rule.host) {
			continue
		}
		if catchAll == nil {
			r.problems.add(in.origin.Ref, ReasonNoBackend, "%s has no paths, and there is no default backend: the rule routes nothing", hostText(rule.host))
			continue
		}
		if c, _ := r.claim(place{host: rule.host, path: "/", fallback: true}, in); c != nil {
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
