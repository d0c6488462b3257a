package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
)

func problemOf(m *model.Model, nsName, reason string) string {
	for _, p := range m.Problems {
		if p.Object.String() == nsName && p.Reason == reason {
			return p.Message
		}
	}
	return ""
}

func withPaths(in *networkingv1.Ingress, host string, paths ...string) *networkingv1.Ingress {
	in.Spec.Rules = []networkingv1.IngressRule{ruleFor(host, networkingv1.PathTypeImplementationSpecific, "", paths...)}
	return in
}

func numbered(format string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return list
}

// TestLarge translates Ingresses that an API server takes, and that are made to cost as much as they
// can. Others lose nothing to them, and a second is far more than it takes; it took 25.
func TestLarge(t *testing.T) {
	const many = 60_000 // in 1.5 MB
	hosts := numbered("h%d.test", many)
	fill := func(change func(*networkingv1.Ingress)) *networkingv1.Ingress {
		in := ingressFor("evil/in", 1, "evil.test")
		change(in)
		return in
	}
	certificate := secret(t, "evil/many", hosts[:20_000]...)
	for _, test := range []struct {
		name  string
		evil  *networkingv1.Ingress
		rules int
		want  map[string]string // what messages begin with, by reason
	}{
		{"rules without paths", fill(func(in *networkingv1.Ingress) {
			for _, h := range hosts {
				in.Spec.Rules = append(in.Spec.Rules, networkingv1.IngressRule{Host: h})
			}
		}), 1, map[string]string{ReasonTooLarge: "spec.rules has more than 2000 rules and paths", ReasonNoBackend: "host h0.test has no paths"}},
		{"paths", withPaths(ingressFor("evil/in", 1, ""), "evil.test", numbered("/%d", many)...), 2000,
			map[string]string{ReasonTooLarge: "spec.rules has more than 2000 rules and paths", ReasonBackendUnsupported: "a backend is nothing"}},
		{"the host of another namespace", fill(func(in *networkingv1.Ingress) {
			in.CreationTimestamp.Time = noon.Add(time.Hour)
			for _, path := range numbered("/%d", many) {
				in.Spec.Rules = append(in.Spec.Rules, ruleFor("good.test", networkingv1.PathTypeImplementationSpecific, "", path))
			}
		}), 1, map[string]string{ReasonTooLarge: "spec.", ReasonHostTaken: "host good.test belongs to namespace good"}},
		{"hosts for TLS", fill(func(in *networkingv1.Ingress) {
			in.Spec.TLS = []networkingv1.IngressTLS{entry("", hosts...)}
		}), 1, map[string]string{ReasonTooLarge: "spec.tls has more than 2000 entries and hosts"}},
		{"entries for TLS with one certificate of many names", fill(func(in *networkingv1.Ingress) {
			for range many {
				in.Spec.TLS = append(in.Spec.TLS, entry("many"))
			}
			in.Spec.Rules = nil
			in.Spec.DefaultBackend = new(networkingv1.IngressBackend)
		}), 0, map[string]string{ReasonTooLarge: "spec.tls has more than 2000 entries"}},
		{"a deep path", withPaths(ingressFor("evil/in", 1, ""), "evil.test", strings.Repeat("/a", 700_000)), 0,
			map[string]string{ReasonPathInvalid: `path "/a/a/a`}},
		{"an annotation", fill(func(in *networkingv1.Ingress) {
			in.Annotations = map[string]string{"shield.herdshield.io/rate": strings.Repeat("ä", 128<<10)}
		}), 1, map[string]string{ReasonPolicyInvalid: "shield.herdshield.io/rate is"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := New(byName)
			o := Objects{
				Ingresses: []*networkingv1.Ingress{test.evil, ingressFor("good/in", 2, "good.test", entry("", "good.test"))},
				Secrets:   []*corev1.Secret{certificate},
			}
			tr.Translate(o) // reads the certificate
			began := time.Now()
			m := tr.Translate(o)
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v", took)
			}
			rules, good := 0, false
			for _, r := range m.Rules {
				if r.Origin.Namespace == "evil" {
					rules++
				}
				good = good || r.Host == "good.test" && r.Path == "/good/in" && slices.Equal(r.Origin.TLSHosts, []string{"good.test"})
				if n := len(r.Origin.TLSHosts); n > 2*maxTLSHosts {
					t.Fatalf("%d hosts for TLS", n)
				}
			}
			if rules != test.rules || !good {
				t.Errorf("%d rules, want %d; the other Ingress is as it was: %v", rules, test.rules, good)
			}
			for reason, want := range test.want {
				if got := problemOf(m, "evil/in", reason); !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q, want %q", reason, got, want)
				}
			}
			for _, p := range m.Problems {
				if len(p.Message) > 1024 {
					t.Errorf("%s: a message of %d bytes", p.Reason, len(p.Message))
				}
			}
		})
	}
}

// TestLongPaths: a path may have 2 KiB as it is written, and 64 elements once it is decoded.
func TestLongPaths(t *testing.T) {
	for _, test := range []struct {
		path string
		want string // what is wrong
	}{
		{"/" + strings.Repeat("x", 2047), ""}, {"/" + strings.Repeat("x", 2048), "has 2049 bytes; use at most 2048"},
		{"/" + strings.Repeat("%41", 682), ""}, {"/" + strings.Repeat("%41", 683), "has 2050 bytes"}, {strings.Repeat("/a", 64), ""},
		{strings.Repeat("/a", 65), "has 65 elements; use at most 64"}, {"/" + strings.Repeat("a%2F", 64), "has 65 elements"},
	} {
		if path, wrong := readPath(test.path, true); (wrong == "") != (test.want == "") || !strings.HasPrefix(wrong, test.want) || (path == "") == (wrong == "") {
			t.Errorf("%.20s… is %.20q, wrong is %q; want %q", test.path, path, wrong, test.want)
		}
	}
}

// TestStatuses tells, step by step, which Ingresses that are not ours have addresses of
// ours in their status, while those of the published Service change.
func TestStatuses(t *testing.T) {
	const ours, other, gone = "shield", "nginx", "gone"
	type step struct {
		class, status, service string // "": no class; no addresses; no Service
		want                   bool
	}
	for _, story := range []struct {
		name  string
		steps []step
	}{
		{"a class of another controller", []step{
			{ours, "", "1", false}, {ours, "1", "1", false}, {other, "1", "1", true}, {other, "1", "1", true}, {other, "", "1", false},
			{other, "1", "1", false}, // that controller has the same address
		}},
		{"no class any more", []step{{ours, "1", "1", false}, {"", "1", "1", true}, {"", "", "1", false}}},
		{"the addresses come only after the class has changed", []step{{ours, "", "1", false}, {other, "", "1", false}, {other, "1", "1", true}}},
		{"never ours", []step{{other, "1", "1", false}, {other, "1", "1", false}, {"", "1", "1", false}}},
		{"a class that there is not", []step{{gone, "192.0.2.1", "192.0.2.1", true}, {gone, "2", "1", false}, {gone, "lb.example.com", "LB.example.com.", true}}},
		{"the address changes", []step{{ours, "1", "1", false}, {other, "1", "2", true}, {other, "1", "3", true}}},
		{"a former address, of an Ingress that was never seen as ours", []step{{gone, "", "1", false}, {gone, "1", "2", true}, {gone, "3", "2", false}}},
		{"the Service is gone", []step{{ours, "1", "1", false}, {other, "1", "", true}}},
		{"an external IP", []step{{ours, "192.0.2.9", "external", false}, {other, "192.0.2.9", "external", true}}},
	} {
		t.Run(story.name, func(t *testing.T) {
			tr := New(Options{PublishService: "lb/front"})
			for i, s := range story.steps {
				in := ingressFor("a/in", 1, "")
				in.Spec.IngressClassName = &s.class
				if s.class == "" {
					in.Spec.IngressClassName = nil
				}
				address := func(a string) (ip, name string) {
					if _, err := netip.ParseAddr(a); err != nil {
						return "", a
					}
					return a, ""
				}
				if s.status != "" {
					ip, name := address(s.status)
					in.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: ip, Hostname: name}}
				}
				o := Objects{Ingresses: []*networkingv1.Ingress{in}}
				for name, controller := range map[string]string{ours: DefaultController, other: "k8s.io/ingress-nginx"} {
					c := &networkingv1.IngressClass{Spec: networkingv1.IngressClassSpec{Controller: controller}}
					c.Name = name
					o.Classes = append(o.Classes, c)
				}
				if s.service != "" {
					front := new(corev1.Service)
					front.Namespace, front.Name = "lb", "front"
					if s.service == "external" {
						front.Spec.ExternalIPs = []string{"192.0.2.9"}
					} else {
						ip, name := address(s.service)
						front.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip, Hostname: name}}
					}
					o.Services = append(o.Services, front)
				}
				m := tr.Translate(o)
				if got := len(m.NotMine) == 1; got != s.want || (len(m.Mine) == 1) != (s.class == ours) {
					t.Errorf("step %d: mine %v, not mine %v; want %v", i, m.Mine, m.NotMine, s.want)
				}
			}
		})
	}
}
