package translate_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/translate"
)

// An Ingress sends all requests that match no rule to the Service "web", whose backend can
// take 500 requests per second.
func ExampleTranslator() {
	class := "shield"
	t := translate.New(translate.Options{})
	m := t.Translate(translate.Objects{
		Classes: []*networkingv1.IngressClass{{
			ObjectMeta: metav1.ObjectMeta{Name: class},
			Spec:       networkingv1.IngressClassSpec{Controller: translate.DefaultController},
		}},
		Ingresses: []*networkingv1.Ingress{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"},
			Spec: networkingv1.IngressSpec{
				IngressClassName: &class,
				DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: "web", Port: networkingv1.ServiceBackendPort{Name: "http"},
				}},
			},
		}},
		Services: []*corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web",
				Annotations: map[string]string{"shield.herdshield.io/capacity": "500/s"},
			},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}},
	})
	b := m.Default.Backend
	fmt.Printf("%s goes to %s, port %s: %v requests per second\n", m.Default.Origin, b.Service, b.Port, b.Service.Policy.Capacity.Rate)
	// Output: default/all goes to default/web, port http: 500 requests per second
}
