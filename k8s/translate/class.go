package translate

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// legacyClass is the annotation for the class from before Ingresses had a field for it.
const legacyClass = "kubernetes.io/ingress.class"

// classDefaults are the defaults of an IngressClass for its Ingresses.
type classDefaults struct {
	policy   policy.Ingress
	redirect policy.Redirect
	filters  *policy.Filters
	closed   string // as in model.Target
}

// unknownDefaults is why requests for an Ingress are answered 503 whose class has parameters
// that have never been read: there may be guards in them.
const unknownDefaults = "the parameters of the Ingress class are not known"

// readClasses finds the classes that are ours.
func (r *run) readClasses(all []*networkingv1.IngressClass) {
	r.classes = make(map[string]*classDefaults)
	if name := r.opts.ClassName; name != "" {
		r.classes[name] = new(classDefaults)
		if r.opts.WatchWithoutClass {
			r.defaultClass = r.classes[name]
		}
		return
	}

	ours := withoutNil(all)
	r.others = make(map[string]bool)
	for _, c := range ours {
		r.others[c.Name] = c.Spec.Controller != r.opts.Controller
	}
	ours = slices.DeleteFunc(ours, func(c *networkingv1.IngressClass) bool { return c.Spec.Controller != r.opts.Controller })
	// Of several default classes the newest counts, then the first name: as for the API
	// server, when it fills in the class of new Ingresses.
	slices.SortFunc(ours, func(a, b *networkingv1.IngressClass) int {
		return cmp.Or(
			b.CreationTimestamp.Time.Compare(a.CreationTimestamp.Time),
			strings.Compare(a.Name, b.Name),
			strings.Compare(string(a.UID), string(b.UID)),
		)
	})
	for _, c := range ours {
		if r.classes[c.Name] != nil {
			continue
		}
		d := r.parameters(c)
		r.classes[c.Name] = &d
		if r.defaultClass == nil && c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
			r.defaultClass = &d
		}
	}
	if r.defaultClass == nil && r.opts.WatchWithoutClass {
		r.defaultClass = new(classDefaults)
		if len(r.classes) == 1 { // the defaults are unambiguous
			for _, d := range r.classes {
				r.defaultClass = d
			}
		}
	}
}

// parameters reads the ConfigMap that spec.parameters of a class refers to.
func (r *run) parameters(c *networkingv1.IngressClass) classDefaults {
	p := c.Spec.Parameters
	if p == nil {
		return classDefaults{}
	}
	ref, id := refTo("IngressClass", c), identityOf(c)
	good, seen := r.last.classes[id] // Translate keeps them
	unread := func(format string, args ...any) classDefaults {
		if !seen {
			good.closed = unknownDefaults
			format += "; until its parameters have been read, its Ingresses get 503"
		}
		r.problems.add(ref, ReasonParametersInvalid, format, args...)
		return good
	}

	if group := value(p.APIGroup); group != "" || p.Kind != "ConfigMap" {
		return unread("spec.parameters is of kind %q in group %q; use a ConfigMap, of group \"\"", p.Kind, group)
	}
	if scope := value(p.Scope); scope != networkingv1.IngressClassParametersReferenceScopeNamespace || value(p.Namespace) == "" {
		return unread("spec.parameters has scope %q and namespace %q; use scope \"Namespace\" and the namespace of the ConfigMap", scope, value(p.Namespace))
	}
	k := key{*p.Namespace, p.Name}
	data := r.configMaps[k]
	if data == nil {
		return unread("spec.parameters refers to ConfigMap %s, which was not found; it must be in shield's own namespace", k)
	}
	var d classDefaults
	var err error
	d.policy, err = policy.ParseDefaults(data.Data)
	var redirectErr, filtersErr error
	d.redirect, redirectErr = policy.DefaultSSLRedirect(data.Data)
	d.filters, filtersErr = policy.ParseDefaultFilters(data.Data)
	if all := joinErrors(err, redirectErr, filtersErr); all != "" {
		r.problems.add(ref, ReasonParametersInvalid, "ConfigMap %s: %s", k, all)
		if seen {
			good.filters = guarded(good.filters, d.filters)
			return good
		}
		return d // what is good of it
	}
	r.next.classes[id] = d
	return d
}

// classOf returns our class of an Ingress, or nil.
func (r *run) classOf(in *networkingv1.Ingress) *classDefaults {
	if name := in.Spec.IngressClassName; name != nil {
		return r.classes[*name]
	}
	if name := in.Annotations[legacyClass]; name != "" {
		return r.classes[name]
	}
	return r.defaultClass
}

// An ingress is an Ingress that is ours.
type ingress struct {
	*networkingv1.Ingress
	origin  *model.Origin
	filters *policy.Filters
	closed  string                    // as in model.Target
	age     int                       // how many older ones there are
	rules   []rule                    // in order
	hosts   []string                  // of its rules, in order, without duplicates; "" for a rule without
	tls     []networkingv1.IngressTLS // of its spec
	looked  int                       // hosts that have been checked for entries of tls without hosts
}

// readIngresses returns the Ingresses that are ours, oldest first, and sets m.Mine and m.NotMine.
func (r *run) readIngresses(all []*networkingv1.Ingress, m *model.Model) []*ingress {
	all = withoutNil(all)
	slices.SortFunc(all, oldestFirst)
	published := r.published()
	var ours []*ingress
	for _, in := range all {
		ref := refTo("Ingress", in)
		class := r.classOf(in)
		if class == nil {
			if r.wasOurs(in, published) {
				m.NotMine = append(m.NotMine, ref)
			}
			continue
		}
		m.Mine = append(m.Mine, ref)
		r.next.statuses[identityOf(in)] = false
		in = r.heeded(in, ref)
		origin := &model.Origin{Ref: ref}
		p := r.ingressPolicy(in, ref, class)
		origin.Policy, origin.NoRedirect, origin.ForceRedirect = p.policy, p.redirect == policy.RedirectNever, p.redirect == policy.RedirectAlways
		one := &ingress{Ingress: in, origin: origin, filters: r.filters(in, ref, class), age: len(ours)}
		var canary bool
		if canary, one.closed = r.nginx(in, ref); canary {
			continue
		}
		one.closed = cmp.Or(one.closed, class.closed)
		r.read(one)
		ours = append(ours, one)
	}
	slices.SortFunc(m.Mine, compareRefs)
	slices.SortFunc(m.NotMine, compareRefs)
	return ours
}

// wasOurs reports whether an Ingress that is not ours has our addresses in its status because it was ours. An
// address alone is no proof: during a migration from another controller, both may have the same. So it must
// have been ours before, and must have had the addresses since; or it must name a class that does not exist.
func (r *run) wasOurs(in *networkingv1.Ingress, published addresses) bool {
	id := identityOf(in)
	there, seen := r.last.statuses[id]
	if !published.in(in.Status.LoadBalancer.Ingress) {
		if seen && !there {
			r.next.statuses[id] = false // they may be about to be written
		}
		return false
	}
	if seen {
		r.next.statuses[id] = true
		return true
	}
	name := in.Annotations[legacyClass]
	if in.Spec.IngressClassName != nil {
		name = *in.Spec.IngressClassName
	}
	return name != "" && r.opts.ClassName == "" && !r.others[name]
}

// ingressPolicy is what one Ingress's annotations ask for.
type ingressPolicy struct {
	policy   policy.Ingress
	redirect policy.Redirect
}

func (r *run) ingressPolicy(in *networkingv1.Ingress, ref model.Ref, class *classDefaults) ingressPolicy {
	var p ingressPolicy
	var err, redirectErr, nginxErr error
	p.redirect, redirectErr = policy.SSLRedirect(in.Annotations, r.opts.NginxAnnotations, class.redirect)
	defaults := class.policy
	if r.opts.NginxAnnotations {
		if own := policy.OverridesNginx(in.Annotations); own == "" {
			defaults, _, nginxErr = policy.ParseNginx(in.Annotations, defaults)
		} else if hasNginxLimits(in.Annotations) {
			r.problems.add(ref, ReasonNginxIgnored, "ingress-nginx's limits are ignored, because %s is set; remove one of them", own)
		}
	}
	p.policy, err = policy.ParseIngress(in.Annotations, defaults) // shield's annotations override ingress-nginx's

	id := identityOf(in)
	if all := joinErrors(err, redirectErr, nginxErr); all != "" {
		r.problems.add(ref, ReasonPolicyInvalid, "%s", all)
		good, seen := r.last.ingresses[id]
		if !seen {
			return p // what is good of it
		}
		p = good
	}
	r.next.ingresses[id] = p
	return p
}

// hasNginxLimits reports whether ingress-nginx's annotations ask for limits, good or bad.
func hasNginxLimits(annotations map[string]string) bool {
	nginx := make(map[string]string)
	for name, v := range annotations {
		if strings.HasPrefix(name, policy.NginxPrefix) {
			nginx[name] = v
		}
	}
	_, found, err := policy.ParseNginx(nginx, policy.Ingress{})
	return found || err != nil
}

// addresses are IPs, as netip.Addr writes them, and host names in lower case.
type addresses map[string]bool

// maxAddresses bounds how many formerly published addresses are remembered.
const maxAddresses = 64

// published returns the addresses that shield may have written into statuses.
func (r *run) published() addresses {
	a := make(addresses)
	if r.opts.PublishService == "" {
		for _, s := range r.opts.Published {
			if s != "" {
				a[readAddress(s)] = true
			}
		}
		return a
	}
	var now []string
	if s := r.services[splitKey(r.opts.PublishService)]; s != nil {
		for _, i := range s.Status.LoadBalancer.Ingress {
			now = append(now, i.IP, i.Hostname)
		}
		now = append(now, s.Spec.ExternalIPs...)
	}
	add := func(s string) {
		if s != "" && !a[s] {
			a[s] = true
			r.next.addresses = append(r.next.addresses, s)
		}
	}
	for _, s := range now {
		add(readAddress(s))
	}
	for most := len(a) + maxAddresses; len(r.last.addresses) > 0 && len(a) < most; r.last.addresses = r.last.addresses[1:] {
		add(r.last.addresses[0])
	}
	return a
}

func (a addresses) in(status []networkingv1.IngressLoadBalancerIngress) bool {
	return slices.ContainsFunc(status, func(s networkingv1.IngressLoadBalancerIngress) bool {
		return a[readAddress(s.IP)] || a[readAddress(s.Hostname)]
	})
}

func readAddress(s string) string {
	if ip, err := netip.ParseAddr(s); err == nil {
		return ip.Unmap().String()
	}
	return readHost(s)
}

// readHost returns a host in the form of Rule.Host.
func readHost(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
