package translate

import (
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// Why requests are answered 503 for an Ingress that asks ingress-nginx for a guard, and where it has
// that for a whole host, in whatever Ingress the rules are.
const (
	unguarded     = "the Ingress asks for a guard that is not there"
	unguardedHost = "the host has a guard that is not there"
)

// ofHost reports whether an annotation of ingress-nginx is for whole hosts.
func ofHost(name string) bool {
	return name == "server-snippet" || strings.HasPrefix(name, "auth-tls-")
}

// nginx adds one Problem with all annotations of ingress-nginx that are not read. A canary routes nothing, as
// in ingress-nginx without a rule of another Ingress. closed is not empty if requests would get past a guard.
func (r *run) nginx(in *networkingv1.Ingress, ref model.Ref) (canary bool, closed string) {
	unread := policy.Unread(in.Annotations, r.opts.NginxAnnotations)
	if len(unread) == 0 {
		return false, ""
	}
	var all, guards, readable []string
	for _, a := range unread {
		all = append(all, a.Name)
		switch a.Fate {
		case policy.Guards:
			guards = append(guards, a.Name)
		case policy.Read:
			readable = append(readable, a.Name)
		}
	}
	reason, before := ReasonNginxNotRead, ""
	switch canary = policy.IsCanary(in.Annotations); {
	case canary:
		reason, before = ReasonNginxCanary, "this is a canary, which shield does not support: its rules are ignored, and the main Ingress gets all requests; "
	case len(guards) > 0 && !r.opts.NginxAnnotations:
		before = fmt.Sprintf("this Ingress relies on %s, which shield does not support; ", listed(guards, maxMessage/3))
	case len(guards) > 0:
		if reason, closed = ReasonNginxGuard, unguarded; slices.ContainsFunc(guards, ofHost) {
			closed = unguardedHost
		}
		before = fmt.Sprintf("requests get 503, because this Ingress relies on %s, which shield does not support; to serve it anyway, list that in %signore-nginx; ",
			listed(guards, maxMessage/3), policy.Prefix)
	}
	after := ""
	if len(readable) > 0 {
		after = "; --nginx-annotations reads " + listed(readable, maxMessage/3)
	}
	r.problems.add(ref, reason, "%singress-nginx annotations without effect: %s%s", before, listed(all, maxMessage/3), after)
	return canary, closed
}

// listed returns names in one line of about so many bytes.
func listed(names []string, most int) string {
	n, bytes := 0, 0
	for n < len(names) && bytes+len(names[n]) <= most {
		bytes += len(names[n]) + len(", ")
		n++
	}
	text := strings.Join(names[:n], ", ")
	if n < len(names) {
		text += fmt.Sprintf(" and %d more", len(names)-n)
	}
	return text
}

// heeded returns an Ingress without the annotations that it does not mean.
func (r *run) heeded(in *networkingv1.Ingress, ref model.Ref) *networkingv1.Ingress {
	annotations, err := policy.Heeded(in.Annotations)
	if err != nil {
		r.problems.add(ref, ReasonPolicyInvalid, "%s", joinErrors(err))
	}
	if len(annotations) == len(in.Annotations) {
		return in
	}
	heeded := *in
	heeded.Annotations = annotations
	return &heeded
}
