package translate

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/route"
)

// A ruleKey identifies the requests of a rule: of two rules with one key, the first applies.
type ruleKey struct {
	host, path               string // as in model.Rule
	exact, fallback, pattern bool
}

// A claim is the rule that has a ruleKey.
type claim struct {
	by      *ingress
	target  model.Target
	pattern *regexp.Regexp
	anyCase string // the path as it is written, in any case; "": it is not
}

// claim takes k for an Ingress. If an older one, or the same one, has it, claim returns that one as the winner.
func (r *run) claim(k ruleKey, in *ingress) (c *claim, winner *ingress) {
	if c := r.rules[k]; c != nil {
		return nil, c.by
	}
	c = &claim{by: in, target: r.target(in)}
	if by := r.closed[k.host]; by != nil && in.closed == "" {
		c.target.Closed = unguardedHost
		r.problems.add(in.origin.Ref, ReasonHostGuard, "requests for %s get 503, because the Ingress %s guards the whole host in a way shield does not support; see its Events", hostText(k.host), by.origin)
	}
	r.rules[k] = c
	return c, nil
}

// target returns what the rules of an Ingress have in common.
func (r *run) target(in *ingress) model.Target {
	t := model.Target{Origin: in.origin, Filters: in.filters, Closed: in.closed, Timeouts: r.opts.Timeouts}
	if in.filters != nil {
		t.Timeouts = in.filters.Timeouts.Over(t.Timeouts)
	}
	return t
}

// route enters the rules of an Ingress and its default backend. That is for requests to
// the hosts of its rules that match none of them; without rules, for requests that match
// no rule of any Ingress. Ingresses must come oldest first.
func (r *run) route(in *ingress, catchAll **model.Target) {
	for _, rule := range in.rules {
		if r.rejected(in, rule.host) {
			continue
		}
		for i := range rule.paths { // none: see inheritDefault
			r.routePath(in, rule.host, &rule.paths[i])
		}
	}

	backend := in.Spec.DefaultBackend
	switch {
	case backend == nil:
	case len(in.rules) > 0:
		for _, host := range in.hosts {
			if r.rejected(in, host) {
				continue
			}
			c, winner := r.claim(ruleKey{host: host, path: "/", fallback: true}, in)
			if winner != nil {
				r.problems.add(in.origin.Ref, ReasonDefaultBackendTaken,
					"%s uses the default backend of the older Ingress %s; this one is ignored", hostText(host), winner.origin)
				continue
			}
			c.target.Backend = r.backend(in, backend)
		}
	case *catchAll != nil:
		r.problems.add(in.origin.Ref, ReasonDefaultBackendTaken,
			"requests matching no rule go to the default backend of the older Ingress %s; this one is ignored", (*catchAll).Origin)
	default:
		*catchAll = new(r.target(in))
		(*catchAll).Backend = r.backend(in, backend)
	}
}

// readHosts finds the hosts whose paths are in any case: as in ingress-nginx, those with a rule
// that may be a pattern, or is rewritten, in whatever Ingress; and those that are closed.
func (r *run) readHosts(ours []*ingress) {
	r.anyCase, r.closed = make(map[string]bool), make(map[string]*ingress)
	for _, in := range ours {
		for _, host := range in.hosts {
			if in.closed == unguardedHost && r.closed[host] == nil && !r.rejected(in, host) {
				r.closed[host] = in
			}
		}
		f := in.filters
		if !r.opts.NginxAnnotations || f == nil || !f.Regex && f.RewriteTarget == "" {
			continue
		}
		for _, rule := range in.rules {
			rewritten := func(p networkingv1.HTTPIngressPath) bool { return f.Regex || p.Path != f.RewriteTarget }
			if slices.ContainsFunc(rule.paths, rewritten) && !r.rejected(in, rule.host) {
				r.anyCase[rule.host] = true
			}
		}
	}
}

func (r *run) routePath(in *ingress, host string, p *networkingv1.HTTPIngressPath) {
	kind := cmp.Or(value(p.PathType), networkingv1.PathTypeImplementationSpecific)
	at := ruleKey{host: host, exact: kind == networkingv1.PathTypeExact}
	var wrong string
	var pattern *regexp.Regexp
	anyCase := ""
	if at.pattern = isPattern(in.filters, p.Path, at.exact) || r.anyCase[host] && looksLikePattern(p.Path); at.pattern {
		at.path, at.exact = p.Path, false
		pattern, wrong = r.pattern(host, p.Path)
	} else if at.path, wrong = readPath(p.Path, at.exact); r.anyCase[host] && at.path != "/" { // all paths begin with that
		anyCase, at.path = at.path, strings.ToLower(at.path)
	}
	if wrong != "" {
		r.problems.add(in.origin.Ref, ReasonPathInvalid, "path %q of %s is ignored: it %s", shorten(p.Path, maxQuoted), hostText(host), wrong)
		return
	}
	if !at.pattern && !at.exact && looksLikePattern(p.Path) {
		r.problems.add(in.origin.Ref, ReasonPathLiteral,
			"path %q of %s looks like a regular expression, but is compared literally; set %suse-regex: \"true\" to make it one", shorten(p.Path, maxQuoted), hostText(host), policy.Prefix)
	}

	c, winner := r.claim(at, in)
	switch winner {
	case nil:
		c.target.Backend = r.orDefault(in, r.backend(in, &p.Backend))
		c.pattern, c.anyCase, c.target.Rewrite = pattern, anyCase, rewrite(in.filters, p.Path, cmp.Or(anyCase, at.path), pattern)
	case in:
		r.problems.add(in.origin.Ref, ReasonPathTaken, "duplicate path %q (%s) of %s; the first one is used",
			shorten(at.path, maxQuoted), typeText(at), hostText(host))
	default:
		r.problems.add(in.origin.Ref, ReasonPathTaken, "path %q (%s) of %s belongs to the older Ingress %s; this rule is ignored",
			shorten(at.path, maxQuoted), typeText(at), hostText(host), winner.origin)
	}
}

// readPath returns a path in the form that requests are matched with, or what is wrong with it. Paths of rules
// are decoded only here, so that equal paths for requests are equal for claims, however they are written.
func readPath(raw string, exact bool) (path, wrong string) {
	switch {
	case raw == "":
		return "/", ""
	case raw[0] != '/':
		return "", "does not start with a slash"
	case len(raw) > maxPath:
		return "", fmt.Sprintf("has %d bytes; use at most %d", len(raw), maxPath)
	}
	path, err := url.PathUnescape(raw)
	if err != nil {
		return "", fmt.Sprintf("cannot be decoded: %v", err)
	}
	if n := strings.Count(path, "/"); n > maxElements {
		return "", fmt.Sprintf("has %d elements; use at most %d", n, maxElements)
	}
	if _, ok := route.Read(&url.URL{Path: path}); !ok {
		return "", `has an element "." or "..", or a control character, which no request can have`
	}
	if !exact {
		// A prefix goes by elements, so a trailing slash makes no difference.
		path = cmp.Or(strings.TrimRight(path, "/"), "/")
	}
	return path, ""
}

// inheritDefault gives the cluster's default backend to hosts that an Ingress names without paths, if it has no
// default backend. The limits are those of the Ingress; the guards of the default backend hold, too.
func (r *run) inheritDefault(in *ingress, catchAll *model.Target) {
	if in.Spec.DefaultBackend != nil {
		return
	}
	for _, rule := range in.rules {
		if len(rule.paths) > 0 || r.rejected(in, rule.host) {
			continue
		}
		if catchAll == nil {
			r.problems.add(in.origin.Ref, ReasonNoBackend, "%s has no paths and the Ingress has no default backend, so the rule routes nothing", hostText(rule.host))
			continue
		}
		if c, _ := r.claim(ruleKey{host: rule.host, path: "/", fallback: true}, in); c != nil {
			c.target.Backend = catchAll.Backend
			c.target.Closed = cmp.Or(c.target.Closed, catchAll.Closed)
			guardInherited(&c.target, catchAll.Filters)
		}
	}
}

// guardInherited has the guards of a backend hold for a target in another Ingress. One with other
// guards of its own is closed: there is no target with both.
func guardInherited(t *model.Target, filters *policy.Filters) {
	own, theirs := t.Filters.Guards(), filters.Guards()
	switch none := (policy.Filters{}); {
	case reflect.DeepEqual(theirs, none), reflect.DeepEqual(theirs, own):
	case reflect.DeepEqual(own, none):
		t.Filters = guarded(cmp.Or(t.Filters, &none), &theirs)
	default:
		t.Closed = cmp.Or(t.Closed, "the Ingress and the default backend have different guards")
	}
}

func (r *run) sortedRules() []model.Rule {
	rules := make([]model.Rule, 0, len(r.rules))
	for _, k := range slices.SortedFunc(maps.Keys(r.rules), func(a, b ruleKey) int {
		return cmp.Or(strings.Compare(a.host, b.host), order(b.fallback, a.fallback), strings.Compare(a.path, b.path), order(a.exact, b.exact), order(a.pattern, b.pattern))
	}) {
		c := r.rules[k]
		rules = append(rules, model.Rule{
			Host: k.host, Path: cmp.Or(c.anyCase, k.path), Exact: k.exact, Fallback: k.fallback, Pattern: c.pattern, AnyCase: c.anyCase != "", Target: c.target,
		})
	}
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

func typeText(k ruleKey) string {
	switch {
	case k.exact:
		return "Exact"
	case k.pattern:
		return "pattern"
	}
	return "Prefix"
}
