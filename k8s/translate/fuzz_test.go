package translate

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// A source makes decisions out of bytes, so that fuzzing can change one at a time.
// When there are no more, all of them are 0.
type source []byte

func (s *source) n(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

func (s *source) maybe() bool { return s.n(2) == 1 }

func pick[T any](s *source, of ...T) T { return of[s.n(len(of))] }

// pointer returns one to a value of those, or nil.
func pointer[T any](s *source, of ...T) *T {
	if !s.maybe() {
		return nil
	}
	v := pick(s, of...)
	return &v
}

// list returns up to 3 of what f makes, or nil.
func list[T any](s *source, f func(*source) T) []T { return upTo(3, s, f) }

func upTo[T any](n int, s *source, f func(*source) T) (out []T) {
	for range s.n(n + 1) {
		out = append(out, f(s))
	}
	return out
}

// some returns up to n of what f makes, some of them nil.
func some[T any](n int, s *source, f func(*source) *T) []*T {
	return upTo(n, s, func(s *source) *T {
		if s.n(8) == 7 {
			return nil
		}
		return f(s)
	})
}

// objects makes odd ones: few names, so that they meet; everything that may be nil or
// empty often is, and some of it may not be.
func (s *source) objects(secrets []*corev1.Secret) (o Objects) {
	o.Classes = some(3, s, func(s *source) *networkingv1.IngressClass {
		c := &networkingv1.IngressClass{ObjectMeta: s.meta(), Spec: networkingv1.IngressClassSpec{Controller: pick(s, DefaultController, "other", "")}}
		c.Namespace = ""
		if s.maybe() {
			c.Spec.Parameters = &networkingv1.IngressClassParametersReference{
				APIGroup: pointer(s, "", "example.com"), Kind: pick(s, "ConfigMap", ""), Name: s.name(),
				Scope: pointer(s, "Namespace", "Cluster", ""), Namespace: pointer(s, "n", "m"),
			}
		}
		return c
	})
	o.Ingresses = upTo(6, s, (*source).ingress)
	o.Services = some(6, s, func(s *source) *corev1.Service {
		sv := &corev1.Service{ObjectMeta: s.meta()}
		sv.Spec.Type = pick(s, corev1.ServiceTypeClusterIP, "", "", "", corev1.ServiceTypeExternalName)
		sv.Spec.PublishNotReadyAddresses = s.maybe()
		if s.maybe() {
			sv.Status.LoadBalancer.Ingress = list(s, func(s *source) corev1.LoadBalancerIngress {
				return corev1.LoadBalancerIngress{IP: pick(s, "", "192.0.2.1", "x"), Hostname: pick(s, "", "lb.example.com")}
			})
		}
		sv.Spec.Ports = list(s, func(s *source) corev1.ServicePort {
			return corev1.ServicePort{
				Name: pick(s, "", "http", "grpc"), Port: pick[int32](s, 80, 80, 80, 0, -1, 1<<30), Protocol: pick[corev1.Protocol](s, "", "", "TCP", "UDP"),
				AppProtocol: pointer(s, "", "kubernetes.io/h2c", "https", "mysql"),
				TargetPort:  pick(s, intstr.IntOrString{}, intstr.FromInt32(8080), intstr.FromString("web"), intstr.FromString("99999999999999"), intstr.FromInt32(-1)),
			}
		})
		return sv
	})
	o.Slices = some(6, s, func(s *source) *discoveryv1.EndpointSlice {
		sl := &discoveryv1.EndpointSlice{ObjectMeta: s.meta(), AddressType: pick[discoveryv1.AddressType](s, "IPv4", "IPv4", "IPv4", "IPv6", "FQDN", "")}
		sl.Name = pick(s, "1", "2", "3", "4", "5", "6")
		if s.n(8) < 7 {
			sl.Labels = map[string]string{discoveryv1.LabelServiceName: s.name()}
		}
		sl.Ports = list(s, func(s *source) discoveryv1.EndpointPort {
			return discoveryv1.EndpointPort{Name: pointer(s, "", "http", "grpc"), Protocol: pointer[corev1.Protocol](s, "", "TCP", "UDP"), Port: pointer[int32](s, 80, 80, 8080, 8080, 0, -1, 1<<30)}
		})
		sl.Endpoints = list(s, func(s *source) discoveryv1.Endpoint {
			e := discoveryv1.Endpoint{
				Addresses: list(s, func(s *source) string {
					return pick(s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "2001:db8::2", "", "x", "fe80::1%eth0", "::ffff:10.0.0.1")
				}),
				Conditions: discoveryv1.EndpointConditions{Ready: pointer(s, true, false), Serving: pointer(s, true, false), Terminating: pointer(s, true, false)},
			}
			if s.maybe() {
				e.TargetRef = &corev1.ObjectReference{Name: s.name()}
			}
			return e
		})
		return sl
	})
	o.Secrets = some(3, s, func(s *source) *corev1.Secret {
		sec := pick(s, secrets...).DeepCopy()
		sec.ObjectMeta = s.meta()
		if s.n(4) == 3 {
			sec.Data = nil
		}
		if s.n(4) == 3 {
			sec.Type = ""
		}
		return sec
	})
	o.ConfigMaps = some(3, s, func(s *source) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: s.meta(), Data: pick(s, nil, map[string]string{"rate": "1/s"}, map[string]string{"rate": "", "x": "y"})}
	})
	return Objects{
		Classes: eachOnce(o.Classes), Ingresses: eachOnce(o.Ingresses), Services: eachOnce(o.Services),
		Slices: eachOnce(o.Slices), Secrets: eachOnce(o.Secrets), ConfigMaps: eachOnce(o.ConfigMaps),
	}
}

// eachOnce leaves one object of each name, as an API server does, and gives it a UID of its own, if it has one.
func eachOnce[T any, P interface {
	object[T]
	SetUID(types.UID)
}](all []P) (out []P) {
	seen := make(map[key]bool)
	for _, o := range all {
		if o == nil {
			out = append(out, nil)
			continue
		}
		k := key{o.GetNamespace(), o.GetName()}
		if seen[k] {
			continue
		}
		seen[k] = true
		if o.GetUID() != "" {
			o.SetUID(types.UID(k.String()) + "#" + o.GetUID())
		}
		out = append(out, o)
	}
	return out
}

func (s *source) name() string { return pick(s, "a", "a", "shield", "") }

func (s *source) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: pick(s, "n", "n", "n", "m"), Name: s.name(), UID: pick[types.UID](s, "", "1", "2", "3"), ResourceVersion: pick(s, "", "1", "2"),
		CreationTimestamp: metav1.Time{Time: pick(s, time.Time{}, noon, noon.Add(time.Second), noon.Add(time.Hour))},
		Annotations: pick(s, nil, nil, nil, map[string]string{}, map[string]string{legacyClass: "shield"}, map[string]string{legacyClass: ""},
			map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}, map[string]string{"shield.herdshield.io/rate": "5/s"},
			map[string]string{"shield.herdshield.io/rate": "?", "shield.herdshield.io/ssl-redirect": ""},
			map[string]string{"shield.herdshield.io/rate": "5/s", "nginx.ingress.kubernetes.io/limit-rps": "1"},
			map[string]string{"nginx.ingress.kubernetes.io/limit-rpm": "x"}, map[string]string{"shield.herdshield.io/backend-protocol": "?"},
			map[string]string{"shield.herdshield.io/backend-protocol": "grpc", "shield.herdshield.io/capacity": "5/s"}),
	}
}

func (s *source) ingress() *networkingv1.Ingress {
	if s.n(16) == 15 {
		return nil
	}
	in := &networkingv1.Ingress{ObjectMeta: s.meta()}
	in.Spec.IngressClassName = pick(s, new("shield"), new("shield"), new("shield"), new("a"), nil, new(""))
	backend := func(s *source) (b networkingv1.IngressBackend) {
		if s.maybe() {
			b.Service = &networkingv1.IngressServiceBackend{Name: s.name(), Port: networkingv1.ServiceBackendPort{Name: pick(s, "", "http", "grpc"), Number: pick[int32](s, 80, 80, 80, 0, -1)}}
		}
		if s.maybe() {
			b.Resource = &corev1.TypedLocalObjectReference{APIGroup: pointer(s, "x"), Kind: s.name(), Name: s.name()}
		}
		return b
	}
	if s.maybe() {
		in.Spec.DefaultBackend = new(backend(s))
	}
	host := func(s *source) string {
		return pick(s, "", "a.example.com", "A.example.com.", "*.example.com", "*", ".", "example.com")
	}
	in.Spec.Rules = list(s, func(s *source) (r networkingv1.IngressRule) {
		r.Host = host(s)
		if s.maybe() {
			r.HTTP = &networkingv1.HTTPIngressRuleValue{Paths: list(s, func(s *source) networkingv1.HTTPIngressPath {
				return networkingv1.HTTPIngressPath{
					Path:     pick(s, "/", "", "/a", "/a/", "//", "/a//", "a", "/%zz", "/%61", "/*", "/é", "/%C3%A9", "/%61/", "/a%2F", "/a/%2e%2E", "/%252e", "/a;/..;x", "/%00", "/%2561"),
					PathType: pointer(s, networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific, "?", ""),
					Backend:  backend(s),
				}
			})}
		}
		return r
	})
	in.Spec.TLS = list(s, func(s *source) networkingv1.IngressTLS {
		return networkingv1.IngressTLS{SecretName: s.name(), Hosts: list(s, host)}
	})
	in.Status.LoadBalancer.Ingress = list(s, func(s *source) networkingv1.IngressLoadBalancerIngress {
		return networkingv1.IngressLoadBalancerIngress{IP: pick(s, "", "192.0.2.1", "x"), Hostname: pick(s, "", "lb.example.com")}
	})
	return in
}

// FuzzTranslate makes five states of a cluster, one after the other, and holds the Models to what is promised:
// no panic, the same Model for any order of the objects, which are left as they were, and what check says.
func FuzzTranslate(f *testing.F) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 6))
		b := make([]byte, 100+r.IntN(2500))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	secrets := []*corev1.Secret{secret(f, "a/one", "a.example.com"), secret(f, "a/wild", "*.example.com", "*", "")}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := source(b)
		opts := Options{
			Now: func() time.Time { return noon }, NginxAnnotations: s.maybe(), WatchWithoutClass: s.maybe(), PreferIPv6: s.maybe(),
			ClassName: pick(&s, "", "shield"), DefaultCertificate: pick(&s, "", "n/a", "x", "/"), Self: pick(&s, "", "n/a", "x"),
			Published: []string{"192.0.2.1", "lb.example.com", ""}, PublishService: pick(&s, "", "", "n/a", "x"), ShareHosts: s.maybe(),
		}
		one, shuffled := New(opts), New(opts)
		for range 5 {
			o := s.objects(secrets)
			before := must.Get(json.Marshal(o))(t)
			m := one.Translate(o)
			check(t, m)
			if !bytes.Equal(must.Get(json.Marshal(o))(t), before) {
				t.Fatal("objects were modified")
			}
			if again := shuffled.Translate(shuffle(o)); !reflect.DeepEqual(m, again) {
				t.Fatalf("another order, another Model:\n%s\nbefore:\n%s", dump(again), dump(m))
			}
		}
	})
}

// shuffle returns the same objects in another order.
func shuffle(o Objects) Objects {
	r := rand.New(rand.NewPCG(1, 2))
	lists := reflect.ValueOf(&o).Elem()
	for i := range lists.NumField() {
		list := reflect.AppendSlice(reflect.Zero(lists.Field(i).Type()), lists.Field(i))
		r.Shuffle(list.Len(), reflect.Swapper(list.Interface()))
		lists.Field(i).Set(list)
	}
	return o
}

// check holds a Model to what its fields promise.
func check(t *testing.T, m *model.Model) {
	t.Helper()
	for _, ref := range m.NotMine {
		if slices.Contains(m.Mine, ref) {
			t.Errorf("%s is ours and not ours", ref)
		}
	}
	type place struct {
		host, path string
		exact      bool
	}
	got := make(map[place]bool)
	for _, r := range m.Rules {
		checkTarget(t, r.Target)
		p := place{r.Host, r.Path, r.Exact}
		if got[p] && !r.Fallback {
			t.Errorf("%+v is there twice", p)
		}
		got[p] = !r.Fallback
	}
	if m.Default != nil {
		checkTarget(t, *m.Default)
	}

	hosts := make(map[string]bool)
	for _, c := range m.Certificates {
		if c.Certificate == nil || len(c.Hosts) == 0 {
			t.Errorf("certificate %v for %q", c.Certificate, c.Hosts)
		}
		for _, h := range c.Hosts {
			if hosts[h] || h == "" {
				t.Errorf("host %q has two certificates, or no name", h)
			}
			hosts[h] = true
		}
	}
	for i, p := range m.Problems {
		if p.Message == "" || p.Reason == "" || i > 0 && compareRefs(m.Problems[i-1].Object, p.Object) > 0 {
			t.Errorf("Problem %d: %+v", i, p)
		}
	}
	if !slices.IsSorted(m.Replicas) {
		t.Errorf("replicas %q", m.Replicas)
	}
}

func checkTarget(t *testing.T, target model.Target) {
	t.Helper()
	if target.Origin == nil || !slices.IsSorted(target.Origin.TLSHosts) {
		t.Fatalf("origin %+v", target.Origin)
	}
	b := target.Backend
	if b == nil {
		return
	}
	if b.Service == nil || b.Port == "" {
		t.Fatalf("backend %+v", b)
	}
	for i, e := range b.Endpoints {
		if i > 0 && (b.Endpoints[i-1].Addr.Compare(e.Addr) >= 0 || b.Endpoints[0].Addr.Addr().Is4() != e.Addr.Addr().Is4()) {
			t.Errorf("endpoints %v", b.Endpoints)
		}
	}
}
