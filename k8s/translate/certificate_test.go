package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// secret makes a Secret of "namespace/name" with a certificate that has the Secret's
// name as its common name, and expires an hour after noon.
func secret(t testing.TB, nsName string, hosts ...string) *corev1.Secret {
	t.Helper()
	return secretUntil(t, noon.Add(time.Hour), nsName, hosts...)
}

func secretUntil(t testing.TB, until time.Time, nsName string, hosts ...string) *corev1.Secret {
	t.Helper()
	k := splitKey(nsName)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: k.name, UID: types.UID("uid-of-" + nsName), ResourceVersion: "1"},
		Type:       corev1.SecretTypeTLS,
		Data:       must.SecretData(t, must.Certificate(t, k.name, until, hosts...)),
	}
}

// ingressFor makes an Ingress that is ours, with a unique path on each host and no backend. "-" is a
// rule without host; without hosts it has one that is unique to its namespace. Age 1 is the oldest.
func ingressFor(nsName string, age int, hosts string, tls ...networkingv1.IngressTLS) *networkingv1.Ingress {
	k := splitKey(nsName)
	in := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.namespace, Name: k.name, UID: types.UID("uid-of-" + nsName),
			CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(age) * time.Second)),
		},
		Spec: networkingv1.IngressSpec{IngressClassName: new("shield"), TLS: tls},
	}
	for _, h := range strings.Fields(cmp.Or(hosts, "unseen.in-"+k.namespace+".test")) {
		in.Spec.Rules = append(in.Spec.Rules, ruleFor(strings.Trim(h, "-"), networkingv1.PathTypeExact, "", "/"+nsName))
	}
	return in
}

// ruleFor makes a rule of paths to port 80 of a Service; "": to nothing.
func ruleFor(host string, kind networkingv1.PathType, service string, paths ...string) networkingv1.IngressRule {
	http := new(networkingv1.HTTPIngressRuleValue)
	for _, path := range paths {
		p := networkingv1.HTTPIngressPath{Path: path, PathType: &kind}
		if service != "" {
			p.Backend.Service = &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}}
		}
		http.Paths = append(http.Paths, p)
	}
	return networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: http}}
}

func defaultOnly(nsName string, tls ...networkingv1.IngressTLS) *networkingv1.Ingress {
	in := ingressFor(nsName, 1, "", tls...)
	in.Spec.Rules, in.Spec.DefaultBackend = nil, new(networkingv1.IngressBackend)
	return in
}

func entry(secret string, hosts ...string) networkingv1.IngressTLS {
	return networkingv1.IngressTLS{SecretName: secret, Hosts: hosts}
}

var byName = Options{ClassName: "shield", Now: func() time.Time { return noon }}

// TestTLS: which host gets which certificate.
func TestTLS(t *testing.T) {
	type ingresses = []*networkingv1.Ingress
	with := func(s *corev1.Secret, change func(*corev1.Secret)) *corev1.Secret { change(s); return s }
	secrets := []*corev1.Secret{
		secret(t, "a/one", "one.example.com"),
		secret(t, "a/wild", "*.example.com", "example.com"),
		secret(t, "b/one", "one.example.com"),
		with(secret(t, "a/opaque"), func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }),
		with(secret(t, "a/bad"), func(s *corev1.Secret) { s.Data["tls.crt"] = []byte("nothing") }),
		with(secret(t, "a/wrong-key"), func(s *corev1.Secret) { s.Data["tls.key"] = secret(t, "a/other").Data["tls.key"] }),
	}
	for _, test := range []struct {
		name      string
		ingresses ingresses
		want      string
	}{
		{"its host", ingresses{ingressFor("a/in", 1, "one.example.com", entry("one", "One.example.com", ""))}, `
certificate "one" for one.example.com
in a/in: TLS for one.example.com`},
		{"no hosts named: those of the rules", ingresses{ingressFor("a/in", 1, "x.example.com y.test.com *.example.com a.b.example.com", entry("wild"))}, `
certificate "wild" for *.example.com x.example.com
in a/in: TLS for *.example.com x.example.com`},
		{"no hosts named, a rule without: those of the certificate", ingresses{ingressFor("a/in", 1, "- y.test.com", entry("wild"))}, `
certificate "wild" for *.example.com example.com
in a/in: TLS for *.example.com example.com`},
		{"a default backend only", ingresses{defaultOnly("a/in", entry("wild"))}, `
certificate "wild" for *.example.com example.com
in a/in: TLS for *.example.com example.com`},
		{"another namespace's Secret", ingresses{ingressFor("c/in", 1, "", entry("one", "one.example.com"))}, `
in c/in: TLS for one.example.com
SecretNotFound Ingress c/in: Secret c/one of type kubernetes.io/tls does not exist; the default certificate is used`},
		{"a Secret of another type", ingresses{ingressFor("a/in", 1, "", entry("opaque", "one.example.com"))}, `
in a/in: TLS for one.example.com
SecretInvalid Ingress a/in: Secret a/opaque: type is "Opaque"; use "kubernetes.io/tls"; the default certificate is used`},
		{"no certificate in it", ingresses{ingressFor("a/in", 1, "", entry("bad", "one.example.com"))}, `
in a/in: TLS for one.example.com
SecretInvalid Ingress a/in: Secret a/bad: tls.crt and tls.key: tls: failed to find any PEM data in certificate input; the default certificate is used`},
		{"another certificate's key", ingresses{ingressFor("a/in", 1, "", entry("wrong-key", "one.example.com"))}, `
in a/in: TLS for one.example.com
SecretInvalid Ingress a/in: Secret a/wrong-key: tls.crt and tls.key: tls: private key does not match public key; the default certificate is used`},
		{"another host's certificate", ingresses{ingressFor("a/in", 1, "", entry("one", "two.example.com"))}, `
certificate "one" for two.example.com
in a/in: TLS for two.example.com
CertificateMismatch Ingress a/in: the certificate in Secret a/one is not for host two.example.com`},
		{"two namespaces: the older Ingress's", ingresses{
			ingressFor("a/in", 1, "", entry("one", "one.example.com")),
			ingressFor("b/in", 2, "one.example.com three.example.com", entry("one", "one.example.com", "two.example.com")),
		}, `
certificate "one" for one.example.com
certificate "one" for two.example.com
in a/in: TLS for one.example.com
in b/in: TLS for two.example.com
CertificateMismatch Ingress b/in: the certificate in Secret b/one is not for host two.example.com
HostTaken Ingress b/in: host one.example.com belongs to namespace a, whose Ingress a/in named it first; rules for it are ignored here; host one.example.com belongs to namespace a, whose Ingress a/in named it first; this spec.tls is ignored for it`},
		{"two namespaces: a host that is only routed is its namespace's, too", ingresses{
			ingressFor("a/in", 1, "one.example.com"),
			ingressFor("b/in", 2, "", entry("one", "one.example.com")),
		}, `
HostTaken Ingress b/in: host one.example.com belongs to namespace a, whose Ingress a/in named it first; this spec.tls is ignored for it`},
		{"two namespaces: a name in a certificate alone is weaker than one in a spec", ingresses{
			ingressFor("a/in", 1, "-", entry("wild")),
			ingressFor("b/in", 2, "example.com"),
			ingressFor("b/too", 3, "-", entry("one")),
		}, `
certificate "wild" for *.example.com
in a/in: TLS for *.example.com
HostTaken Ingress a/in: host example.com belongs to namespace b, whose Ingress b/in named it first; this spec.tls is ignored for it
HostTaken Ingress b/too: host one.example.com belongs to namespace a, whose Ingress a/in named *.example.com first; this spec.tls is ignored for it`},
		{"one namespace, one Secret", ingresses{
			ingressFor("a/in", 1, "", entry("wild", "one.example.com")),
			ingressFor("a/too", 2, "", entry("wild", "one.example.com")),
		}, `
certificate "wild" for one.example.com
in a/in: TLS for one.example.com
in a/too: TLS for one.example.com`},
		{"one namespace, two Secrets: the first that is good", ingresses{
			ingressFor("a/in", 1, "", entry("gone", "one.example.com")),
			ingressFor("a/too", 2, "", entry("one", "one.example.com")),
			ingressFor("a/three", 3, "", entry("wild", "one.example.com")),
		}, `
certificate "one" for one.example.com
in a/in: TLS for one.example.com
in a/three: TLS for one.example.com
in a/too: TLS for one.example.com
HostTaken Ingress a/three: host one.example.com already has the certificate in Secret a/one; that in a/wild is ignored
SecretNotFound Ingress a/in: Secret a/gone of type kubernetes.io/tls does not exist; the default certificate is used`},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := New(byName).Translate(Objects{Ingresses: test.ingresses, Secrets: secrets})
			var got strings.Builder
			for _, c := range m.Certificates {
				fmt.Fprintf(&got, "\ncertificate %q for %s", c.Certificate.Leaf.Subject.CommonName, strings.Join(c.Hosts, " "))
			}
			got.WriteString(sortedText(redirects(m)))
			got.WriteString(sortedText(problemsIn(m)))
			if got.String() != test.want {
				t.Errorf("got%s\nwant%s", got.String(), test.want)
			}
		})
	}
}

// redirects lists the TLSHosts of all Origins that have a rule.
func redirects(m *model.Model) (lines []string) {
	seen := make(map[*model.Origin]bool)
	rules := m.Rules
	if m.Default != nil {
		rules = append(slices.Clone(rules), model.Rule{Target: *m.Default})
	}
	for _, r := range rules {
		if o := r.Origin; !seen[o] && len(o.TLSHosts) > 0 {
			seen[o] = true
			lines = append(lines, fmt.Sprintf("\nin %s: TLS for %s", o, strings.Join(o.TLSHosts, " ")))
		}
	}
	return lines
}

// problemsIn lists all Problems but that ingressFor's rules have no backend.
func problemsIn(m *model.Model) (lines []string) {
	for _, p := range m.Problems {
		if p.Reason != ReasonBackendUnsupported {
			lines = append(lines, fmt.Sprintf("\n%s %s %s: %s", p.Reason, p.Object.Kind, p.Object, p.Message))
		}
	}
	return lines
}

func sortedText(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// TestExpiry: a certificate that has expired is a Problem and is not used, and Expires tells when.
func TestExpiry(t *testing.T) {
	now := noon
	tr := New(Options{ClassName: "shield", DefaultCertificate: "d/default", Now: func() time.Time { return now }})
	o := Objects{
		Ingresses: []*networkingv1.Ingress{ingressFor("a/in", 1, "one.example.com", entry("one", "one.example.com"))},
		Secrets:   []*corev1.Secret{secret(t, "a/one", "one.example.com"), secretUntil(t, noon.Add(2*time.Hour), "d/default", "example.com"), secret(t, "a/unused")},
	}
	m := tr.Translate(o)
	if len(m.Certificates) != 1 || m.DefaultCertificate == nil || !tr.Expires().Equal(noon.Add(time.Hour)) {
		t.Fatalf("before: %s, expires %v", dump(m), tr.Expires())
	}
	now = tr.Expires()
	m = tr.Translate(o)
	if len(m.Certificates) != 0 || m.DefaultCertificate == nil || !tr.Expires().Equal(noon.Add(2*time.Hour)) {
		t.Errorf("after one: %s, expires %v", dump(m), tr.Expires())
	}
	now = tr.Expires()
	m = tr.Translate(o)
	if len(m.Certificates) != 0 || m.DefaultCertificate != nil || !tr.Expires().IsZero() {
		t.Errorf("after both: %s, expires %v", dump(m), tr.Expires())
	}
	want := []string{
		"\nCertificateExpired Ingress a/in: the certificate in Secret a/one expired on 2026-01-01T13:00:00Z; the default certificate is used",
		"\nCertificateExpired Secret d/default: the certificate in Secret d/default expired on 2026-01-01T14:00:00Z; a self-signed default certificate is used instead",
	}
	if got := problemsIn(m); !slices.Equal(got, want) {
		t.Errorf("problems %q\nwant %q", got, want)
	}
}
