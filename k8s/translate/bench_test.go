package translate

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/herdshield/shield/k8s/model"
)

// large makes n Ingresses of 4 paths, 3 of them patterns, with policies and certificates, n Services and n
// slices of 10 endpoints.
func large(b *testing.B, n int) (o Objects) {
	certificate := secret(b, "n/tls", "*.example.com")
	meta := func(i int, kind string) metav1.ObjectMeta {
		name := fmt.Sprintf("app-%d", i)
		return metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(kind + name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(noon.AddDate(0, 0, i*7919%n))}
	}
	for i := range n {
		in := &networkingv1.Ingress{ObjectMeta: meta(i, "ingress")}
		in.Annotations = map[string]string{"shield.herdshield.io/rate": "50/s", "shield.herdshield.io/concurrency": "10", "shield.herdshield.io/rewrite-target": "/v2/$1", "example.com/other": "x"}
		in.Spec.IngressClassName = new("shield")
		host := fmt.Sprintf("app-%d.example.com", i)
		patterns := numbered(fmt.Sprintf("/app-%d/%%d/(.*)", i), 4)
		rule := ruleFor(host, networkingv1.PathTypePrefix, in.Name, append([]string{"/path"}, patterns[1:]...)...)
		rule.HTTP.Paths[0].PathType = new(networkingv1.PathTypeExact)
		in.Spec.Rules = []networkingv1.IngressRule{rule}
		in.Spec.TLS = []networkingv1.IngressTLS{entry("tls", host)}
		o.Ingresses = append(o.Ingresses, in)

		s := &corev1.Service{ObjectMeta: meta(i, "service")}
		s.Annotations = map[string]string{"shield.herdshield.io/capacity": "500/s", "shield.herdshield.io/endpoint-concurrency": "32"}
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
		o.Services = append(o.Services, s)

		sl := &discoveryv1.EndpointSlice{ObjectMeta: meta(i, "slice"), AddressType: discoveryv1.AddressTypeIPv4}
		sl.Labels = map[string]string{discoveryv1.LabelServiceName: in.Name}
		sl.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}}
		for j := range 10 {
			sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, (j*7)%10+1)},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			})
		}
		o.Slices = append(o.Slices, sl)
	}
	o.Secrets = []*corev1.Secret{certificate}
	return o
}

// BenchmarkTranslate is one rebuild of a large cluster, as after every change: 1,000
// Ingresses of 4 paths, 1,000 Services and 10,000 endpoints.
func BenchmarkTranslate(b *testing.B) {
	o := large(b, 1000)
	tr := New(byName)
	var m *model.Model
	b.ReportAllocs()
	for b.Loop() {
		m = tr.Translate(o)
	}
	if len(m.Rules) != 4000 || len(m.Problems) != 0 || len(m.Certificates[0].Hosts) != 1000 {
		b.Fatalf("%d rules, %d problems", len(m.Rules), len(m.Problems))
	}
}
