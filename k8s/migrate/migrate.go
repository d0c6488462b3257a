// Package migrate says what becomes of Ingresses of ingress-nginx: what works, what is translated, what
// is weaker, and what is rejected. It asks the controller's own table and translation.
package migrate

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/translate"
)

// A Verdict is what becomes of an annotation or an Ingress.
type Verdict string

// The verdicts, worst first.
const (
	Rejected   Verdict = "rejected"   // no request gets in
	Weaker     Verdict = "weaker"     // something else is served or protected than before
	Meant      Verdict = "meant"      // its owner says so: ignore-nginx
	Ignored    Verdict = "ignored"    // it makes no difference here
	Translated Verdict = "translated" // it is read, and shield has a word for it, too
	Works      Verdict = "works"      // it is read
)

var worstFirst = []Verdict{Rejected, Weaker, Meant, Ignored, Translated, Works}

// A Finding is one thing to know about an Ingress.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	What    string  `json:"what"`             // an annotation without its prefix, or the reason of an Event
	Word    string  `json:"word,omitempty"`   // shield's annotation for the same
	Advice  string  `json:"advice,omitempty"` // what to do, or the message of the Event
}

// An Ingress is one with its Findings, worst first.
type Ingress struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Verdict   Verdict   `json:"verdict"` // of the worst Finding: rejected, weaker or works
	Findings  []Finding `json:"findings"`
}

// class is the class that all Ingresses are given, whatever theirs is.
const class = "shield"

// Look returns what becomes of all Ingresses of o, in order, with --nginx-annotations. Without
// Services, what depends on them is left out.
func Look(o translate.Objects) []Ingress {
	all := make([]*networkingv1.Ingress, len(o.Ingresses))
	for i, in := range o.Ingresses {
		all[i] = in.DeepCopy()
		name := class
		all[i].Spec.IngressClassName = &name
	}
	m := translate.New(translate.Options{ClassName: class, NginxAnnotations: true}).Translate(translate.Objects{Ingresses: all, Services: o.Services})
	var list []Ingress
	for _, in := range all {
		one := Ingress{in.Namespace, in.Name, Works, slices.Concat(annotations(in.Annotations), problems(m, in, len(o.Services) > 0))}
		slices.SortStableFunc(one.Findings, func(a, b Finding) int {
			return slices.Index(worstFirst, a.Verdict) - slices.Index(worstFirst, b.Verdict)
		})
		if len(one.Findings) > 0 && (one.Findings[0].Verdict == Rejected || one.Findings[0].Verdict == Weaker) {
			one.Verdict = one.Findings[0].Verdict
		}
		list = append(list, one)
	}
	slices.SortStableFunc(list, func(a, b Ingress) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return list
}

// annotations returns a Finding for each annotation of ingress-nginx, by name.
func annotations(all map[string]string) (list []Finding) {
	heeded, _ := policy.Heeded(all)
	for key, value := range all {
		name, theirs := strings.CutPrefix(key, policy.NginxPrefix)
		if !theirs {
			continue
		}
		a := policy.FateOf(name, value)
		f := Finding{What: name, Word: a.Word, Advice: a.Advice}
		_, counts := heeded[key]
		switch {
		case !counts:
			f.Verdict = Meant
		case a.Fate == policy.Read && a.Word != "":
			f.Verdict = Translated
		case a.Fate == policy.Read:
			f.Verdict = Works
		case a.Fate == policy.Guards && !policy.IsCanary(heeded):
			f.Verdict = Rejected
		case a.Fate == policy.Tunes:
			f.Verdict = Ignored
		default:
			f.Verdict = Weaker
		}
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return list
}

// problems returns the other Problems of an Ingress, which its owner would read as Events.
func problems(m *model.Model, in *networkingv1.Ingress, services bool) (list []Finding) {
	for _, p := range m.Problems {
		if p.Object.Kind != "Ingress" || p.Object.Namespace != in.Namespace || p.Object.Name != in.Name || p.Object.UID != string(in.UID) {
			continue
		}
		f := Finding{Verdict: Weaker, What: p.Reason, Advice: p.Message}
		switch p.Reason {
		case translate.ReasonPolicyInvalid:
			if filters(m, p.Object).AdmitsNone() {
				f.Verdict = Rejected
			}
		case translate.ReasonNginxIgnored:
			f.Verdict = Ignored
		case translate.ReasonNginxNotRead, translate.ReasonNginxGuard,
			translate.ReasonSecretNotFound: // Secrets are not looked at
			continue
		case translate.ReasonServiceNotFound, translate.ReasonPortNotFound:
			if !services {
				continue
			}
		case translate.ReasonExternalName, translate.ReasonBackendUnsupported, translate.ReasonHostGuard:
			f.Verdict = Rejected
		}
		list = append(list, f)
	}
	return list
}

// filters returns the filters of an Ingress.
func filters(m *model.Model, of model.Ref) *policy.Filters {
	if m.Default != nil && m.Default.Origin.Ref == of {
		return m.Default.Filters
	}
	for i := range m.Rules {
		if m.Rules[i].Origin.Ref == of {
			return m.Rules[i].Filters
		}
	}
	return nil
}
