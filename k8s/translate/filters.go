package translate

import (
	"cmp"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// filters returns the filters of an Ingress. If a value is wrong, they are the last ones
// without a mistake; if there were none, those of the other values.
func (r *run) filters(in *networkingv1.Ingress, ref model.Ref, class *classDefaults) *policy.Filters {
	f, err := policy.ParseFilters(in.Annotations, r.opts.NginxAnnotations, class.filters)
	if err != nil {
		r.problems.add(ref, ReasonPolicyInvalid, "%s", joinErrors(err))
		f = guarded(r.last.filters[identityOf(in)], f)
	}
	if wrong := r.wrongAuth(in, f); wrong != "" {
		r.problems.add(ref, ReasonPolicyInvalid, "auth-url names %s; all requests get 503", wrong)
		own := *f
		own.Auth = new(policy.Auth)
		f = &own
	}
	if r.opts.NginxAnnotations && len(in.Spec.TLS) > 0 && (f == nil || f.HSTS == "") {
		var own policy.Filters
		if f != nil {
			own = *f
		}
		own.HSTS = policy.NginxHSTS
		f = &own
	}
	if err == nil {
		r.next.filters[identityOf(in)] = f // nil, too, or Translate would keep the last one
	}
	return f
}

// wrongAuth says which host the auth-url of an Ingress names that must not be asked, and why;
// "": none.
func (r *run) wrongAuth(in *networkingv1.Ingress, f *policy.Filters) string {
	if f == nil || f.Auth == nil || f.Auth.URL == "" {
		return ""
	}
	if f.Auth.OfClientsChoice() && servesAnyHost(in) {
		return "$host, but a rule has no host, so clients could choose who lets them in"
	}
	if r.opts.AuthHosts == nil {
		return ""
	}
	var hosts []string
	for _, rule := range in.Spec.Rules {
		hosts = append(hosts, rule.Host)
	}
	if host := f.Auth.Outside(r.opts.AuthHosts, hosts); host != "" {
		return fmt.Sprintf("%s, which is not one of --auth-hosts", shorten(host, maxQuoted))
	}
	return ""
}

// guarded returns good filters with the guards that later ones, of which a value is wrong, ask
// for: those may be new. A guard that is wrong itself lets nothing in, so a good one is better.
// Where one of the two is nil, it returns the other.
func guarded(good, later *policy.Filters) *policy.Filters {
	if good == nil || later == nil {
		return cmp.Or(good, later)
	}
	own := *good
	if later.Auth != nil && (own.Auth == nil || later.Auth.URL != "") {
		own.Auth = later.Auth
	}
	if later.AllowFrom != nil && (own.AllowFrom == nil || len(later.AllowFrom) > 0) {
		own.AllowFrom = later.AllowFrom
	}
	if later.DenyFrom != nil && (own.DenyFrom == nil || len(later.DenyFrom) > 0) {
		own.DenyFrom = later.DenyFrom
	}
	return &own
}

// servesAnyHost reports whether clients may send requests for any host to an Ingress.
func servesAnyHost(in *networkingv1.Ingress) bool {
	return len(in.Spec.Rules) == 0 || slices.ContainsFunc(in.Spec.Rules, func(r networkingv1.IngressRule) bool { return r.Host == "" })
}

// orDefault returns the Backend of the annotation default-backend if b has no endpoint.
func (r *run) orDefault(in *ingress, b *model.Backend) *model.Backend {
	if in.filters == nil || in.filters.DefaultBackend == "" || b != nil && anyServes(b.Endpoints) {
		return b
	}
	name := in.filters.DefaultBackend
	port := networkingv1.ServiceBackendPort{Number: 80}
	if s := r.services[key{in.Namespace, name}]; s != nil && len(s.Spec.Ports) > 0 {
		port.Number = s.Spec.Ports[0].Port
	}
	if other := r.backend(in, &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: name, Port: port}}); other != nil {
		return other
	}
	return b
}

// redirectWWW redirects the host with "www." before a host of an Ingress, or without, to that. No
// Ingress may have a rule for it; spec.tls may name it. Ingresses must come oldest first.
func (r *run) redirectWWW(in *ingress) {
	if in.filters == nil || !in.filters.WWW {
		return
	}
	for _, host := range in.hosts {
		other, is := strings.CutPrefix(host, "www.")
		if !is {
			other = "www." + host
		}
		if host == "" || strings.HasPrefix(host, "*") || !strings.Contains(other, ".") || r.ruled[other] || r.rejected(in, host) || r.rejected(in, other) {
			continue
		}
		if c, _ := r.claim(ruleKey{host: other, path: "/"}, in); c != nil {
			c.target.Filters = &policy.Filters{RedirectHost: host}
		}
	}
}

// rewrite returns what becomes of the paths of a rule, nil if they stay. raw is the path of the
// rule as it is written. One that is the target itself stays as it is, as in ingress-nginx:
// many have a target of / for a path of /.
func rewrite(f *policy.Filters, raw, path string, pattern *regexp.Regexp) *model.Rewrite {
	switch {
	case f == nil:
		return nil
	case f.RewritePrefix != "":
		return &model.Rewrite{Pattern: pattern, Prefix: path, To: f.RewritePrefix}
	case f.RewriteTarget != "" && f.RewriteTarget != raw:
		return &model.Rewrite{Pattern: pattern, To: f.RewriteTarget}
	}
	return nil
}

// Bounds of patterns. All of a host that are longer than the rule that matches are tried for each
// request, which takes time in proportion to their states and to the path: 90 ms at most, for
// 8 KiB; 4 ms for ten of those that people write, which have 10 to 50.
const (
	maxPattern    = 512  // bytes of one
	maxStates     = 1000 // of its program
	maxHostStates = 5000 // of all of a host together
)

// A compiled is a pattern with its number of states.
type compiled struct {
	*regexp.Regexp
	states int
}

// isPattern reports whether a path is a regular expression.
func isPattern(f *policy.Filters, path string, exact bool) bool {
	return f != nil && !exact && path != "" && (f.Regex || f.RewriteTarget != "" && f.RewriteTarget != path && looksLikePattern(path))
}

func looksLikePattern(path string) bool {
	return strings.ContainsAny(path, `*^$()[]|\?`) || strings.Contains(path, ".+")
}

// pattern returns the regular expression for a path of a host, or what is wrong with it.
func (r *run) pattern(host, text string) (re *regexp.Regexp, wrong string) {
	c, known := r.last.patterns[text]
	if !known {
		if c, wrong = compile(text); wrong != "" {
			return nil, wrong
		}
	}
	if r.patterns[host] += c.states; r.patterns[host] > maxHostStates {
		return nil, fmt.Sprintf("is a regular expression, and those of the host have more than %d states together", maxHostStates)
	}
	r.next.patterns[text] = c
	return c.Regexp, ""
}

func compile(text string) (c compiled, wrong string) {
	if text[0] != '/' {
		return c, "does not start with a slash"
	}
	if len(text) > maxPattern {
		return c, fmt.Sprintf("has %d bytes; use at most %d in a regular expression", len(text), maxPattern)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err == nil {
		if c.states = states(parsed); c.states > maxStates {
			return c, "is too large for a regular expression; use smaller repetitions and classes"
		}
		// Case is ignored, as ingress-nginx does it. The group keeps an alternative from
		// being matched anywhere else than at the beginning.
		c.Regexp, err = regexp.Compile("(?i)^(?:" + text + ")")
	}
	if err != nil {
		return c, fmt.Sprintf("is not a regular expression in RE2 syntax: %v", err)
	}
	return c, ""
}

// states returns about how many states the program of an expression has, before any memory is spent on it.
func states(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += states(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return n
}
