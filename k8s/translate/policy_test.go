package translate

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/herdshield/shield/k8s/model"
)

// classWithParameters is ours, and its defaults are in a ConfigMap.
//
//go:embed testdata/class.yaml
var classWithParameters string

// TestPolicies tells, step by step, which policies hold while the objects change. A step has the
// annotations of the Ingress, of the Service and the data of the class's ConfigMap, in words
// "name=value"; those of shield's without prefix. A "-" is no such object.
func TestPolicies(t *testing.T) {
	type step struct {
		ingress, service, class string
		want                    string // the Ingress's policy, the Service's, and Problems
	}
	for _, story := range []struct {
		name  string
		steps []step
	}{
		{"defaults of the class", []step{
			{class: "rate=10/s", want: "Zones=[{rate {10 1s 0}}]"}, {class: "rate=20/s concurrency=3", want: "Zones=[{rate {20 1s 0}}] PerClient=3"},
			{class: "rate=20/s", ingress: "rate=5/m class=critical", want: "Zones=[{rate {5 1m0s 0}}] Class=critical"},
			{class: "rate=10/s ssl-redirect=false", want: "Zones=[{rate {10 1s 0}}] no redirect"},
			{class: "rate=10/s ssl-redirect=false", ingress: "ssl-redirect=true", want: "Zones=[{rate {10 1s 0}}]"},
		}},
		{"bad parameters: the last good ones", []step{
			{class: "rate=ten", want: "ParametersInvalid"}, {class: "rate=10/s ssl-redirect=false", want: "Zones=[{rate {10 1s 0}}] no redirect"},
			{class: "rate=ten", want: "Zones=[{rate {10 1s 0}}] no redirect ParametersInvalid"},
			{class: "rate=20/s ssl-redirect=perhaps", want: "Zones=[{rate {10 1s 0}}] no redirect ParametersInvalid"},
			{class: "-", want: "Zones=[{rate {10 1s 0}}] no redirect ParametersInvalid"}, {class: "rate=30/s", want: "Zones=[{rate {30 1s 0}}]"},
		}},
		{"a bad annotation: the last good policy", []step{
			{ingress: "rate=10/s", want: "Zones=[{rate {10 1s 0}}]"}, {ingress: "rate=ten", want: "Zones=[{rate {10 1s 0}}] PolicyInvalid"},
			{ingress: "rate=ten", class: "rate=99/s", want: "Zones=[{rate {10 1s 0}}] PolicyInvalid"},
			{ingress: "rate=20/s ssl-redirect=perhaps", want: "Zones=[{rate {10 1s 0}}] PolicyInvalid"}, {ingress: "rate=20/s", want: "Zones=[{rate {20 1s 0}}]"}, {ingress: "-"},
			{ingress: "rate=ten", want: "PolicyInvalid"}, // it has been forgotten
		}},
		{"a bad annotation at first sight: the defaults, as they are", []step{
			{ingress: "rate=ten", class: "rate=10/s ssl-redirect=false", want: "Zones=[{rate {10 1s 0}}] no redirect PolicyInvalid"},
			{ingress: "rate=ten", class: "rate=20/s", want: "Zones=[{rate {20 1s 0}}] PolicyInvalid"},
		}},
		{"what is good at first sight", []step{
			{ingress: "rate=ten concurrency=5", service: "capacity=many concurrency=4", class: "rate=10/s concurrency=two",
				want: "Zones=[{rate {10 1s 0}}] PerClient=5 Concurrency=4 PolicyInvalid ParametersInvalid PolicyInvalid"},
			{ingress: "rate=5/s concurrency=five", service: "capacity=9/s concurrency=many", class: "rate=ten concurrency=2",
				want: "Zones=[{rate {5 1s 0}}] PerClient=2 Capacity={9 1s 0} PolicyInvalid ParametersInvalid PolicyInvalid"},
			{ingress: "rate=5/s", service: "endpoint-concurrency=2 queue-timeout=100ms", want: "Zones=[{rate {5 1s 0}}] EndpointConcurrency=2 QueueTimeout=100ms"},
			{ingress: "rate=ten concurrency=5", service: "queue-timeout=never endpoint-concurrency=9",
				want: "Zones=[{rate {5 1s 0}}] EndpointConcurrency=2 QueueTimeout=100ms PolicyInvalid PolicyInvalid"},
		}},
		{"ingress-nginx's annotations", []step{
			{ingress: "nginx/limit-connections=7", want: "IPv6Prefix=128 PerClient=7 Status=503 Local=true"},
			{ingress: "nginx/limit-connections=many", want: "IPv6Prefix=128 PerClient=7 Status=503 Local=true PolicyInvalid"},
			{ingress: "nginx/limit-connections=7 class=critical", class: "rate=1/s", want: "IPv6Prefix=128 PerClient=7 Class=critical Status=503 Local=true"},
			{ingress: "nginx/limit-connections=7 concurrency=9", want: "PerClient=9 NginxIgnored"},
			{ingress: "nginx/limit-connections=many concurrency=9", want: "PerClient=9 NginxIgnored"},
			{ingress: "nginx/limit-connections=7 nginx/limit-allowlist=192.0.2.0/24", want: "IPv6Prefix=128 PerClient=7 Allow=[192.0.2.0/24] Status=503 Local=true"},
			{ingress: "nginx/limit-connections=7 nginx/limit-allowlist=192.0.2.0/24 allow-cidrs=198.51.100.0/24", want: "IPv6Prefix=128 PerClient=7 Allow=[198.51.100.0/24] Status=503 Local=true"},
			{ingress: "nginx/rewrite-target=/ concurrency=9", want: "PerClient=9"}, {ingress: "nginx/rewrite-target=/", class: "rate=1/s", want: "Zones=[{rate {1 1s 0}}]"},
		}},
		{"ingress-nginx's, beside a wrong one of shield's at first sight", []step{
			{ingress: "nginx/limit-connections=7 concurrency=many", want: "IPv6Prefix=128 PerClient=7 Status=503 Local=true PolicyInvalid"},
		}},
		{"a Service's", []step{
			{service: "capacity=500/s", want: "Capacity={500 1s 0}"}, {service: "capacity=many", want: "Capacity={500 1s 0} PolicyInvalid"},
			{service: "capacity=600/s", want: "Capacity={600 1s 0}"}, {service: "-", want: "ServiceNotFound"}, {service: "capacity=many", want: "PolicyInvalid"},
		}},
		{"who is not used for a while has not changed its policy", []step{
			{service: "capacity=500/s", want: "Capacity={500 1s 0}"}, {ingress: "-", service: "capacity=many"}, {service: "capacity=many", want: "Capacity={500 1s 0} PolicyInvalid"},
		}},
		{"a Service's protocol", []step{
			{service: "backend-protocol=HTTPS", want: "HTTPS"}, {service: "backend-protocol=SPDY capacity=many", want: "HTTPS PolicyInvalid"},
			{service: "", want: ""}, {service: "backend-protocol=SPDY", want: "PolicyInvalid"},
		}},
		{"a Service's protocol, wrong at first sight", []step{{service: "backend-protocol=SPDY", want: "PolicyInvalid"}}},
		{"an annotation on the wrong object", []step{
			{ingress: "capacity=500/s", service: "rate=10/s", want: "PolicyInvalid PolicyInvalid"},
		}},
	} {
		t.Run(story.name, func(t *testing.T) {
			tr := New(Options{NginxAnnotations: true, Now: func() time.Time { return noon }})
			for i, s := range story.steps {
				_, o := decode(t, classWithParameters)
				o.Ingresses[0].Annotations = words(s.ingress)
				if s.ingress == "-" {
					o.Ingresses = nil
				}
				o.Services[0].Annotations = words(s.service)
				if s.service == "-" {
					o.Services = nil
				}
				if s.class != "-" {
					data := make(map[string]string)
					for k, v := range words(s.class) {
						data[strings.TrimPrefix(k, "shield.herdshield.io/")] = v
					}
					c := &corev1.ConfigMap{Data: data}
					c.Namespace, c.Name = "shield-ingress", "defaults"
					o.ConfigMaps = append(o.ConfigMaps, c)
				}
				if got := inForce(tr.Translate(o)); got != s.want {
					t.Errorf("step %d: got  %s\n        want %s", i, got, s.want)
				}
			}
		})
	}
}

func words(text string) map[string]string {
	m := make(map[string]string)
	for _, w := range strings.Fields(text) {
		name, v, _ := strings.Cut(w, "=")
		if nginx, ok := strings.CutPrefix(name, "nginx/"); ok {
			name = "nginx.ingress.kubernetes.io/" + nginx
		} else {
			name = "shield.herdshield.io/" + name
		}
		m[name] = v
	}
	return m
}

// inForce writes the policies that hold for what is sent to the default backend, and the reasons of Problems.
func inForce(m *model.Model) string {
	var out string
	if d := m.Default; d != nil {
		out = fields(d.Origin.Policy)
		if d.Origin.NoRedirect {
			out += " no redirect"
		}
		if b := d.Backend; b != nil {
			out += fields(b.Service.Policy)
			if b.Protocol != model.HTTP {
				out += " " + []string{"HTTP", "H2C", "HTTPS"}[b.Protocol]
			}
		}
	}
	for _, p := range m.Problems {
		out += " " + p.Reason
	}
	return strings.TrimSpace(out)
}

// An Ingress's own timeouts come before those of its class, and those before the
// controller's. A value that is wrong is left out, with a Problem.
func TestTimeouts(t *testing.T) {
	flags := model.Timeouts{Request: 5 * time.Minute, Response: time.Minute}
	for _, tt := range []struct {
		class, ingress string
		want           model.Timeouts
		problems       int
	}{
		{"", "", flags, 0}, {"", "response-timeout=1m30s backend-timeout=10s", model.Timeouts{Request: 5 * time.Minute, Backend: 10 * time.Second, Response: 90 * time.Second}, 0},
		{"", "request-timeout=off response-timeout=0s", model.Timeouts{}, 0}, {"response-timeout=2s request-timeout=off", "", model.Timeouts{Response: 2 * time.Second}, 0},
		{"response-timeout=2s", "response-timeout=off request-timeout=1ms", model.Timeouts{Request: time.Millisecond}, 0}, {"response-timeout=-2s", "", flags, 1},
		{"", "response-timeout=60 backend-timeout=2s", model.Timeouts{Request: 5 * time.Minute, Backend: 2 * time.Second, Response: time.Minute}, 1},
		{"response-timeout=2s", "response-timeout=25h request-timeout=1us", model.Timeouts{Request: 5 * time.Minute, Response: 2 * time.Second}, 1},
		{"", "nginx/proxy-read-timeout=3600", model.Timeouts{Request: 5 * time.Minute, Response: time.Hour}, 0},
		{"", "nginx/proxy-read-timeout=90s nginx/proxy-send-timeout=1", model.Timeouts{Request: 5 * time.Minute, Response: 90 * time.Second}, 1}, // the second is told of
		{"", "nginx/proxy-read-timeout=3600 response-timeout=5s", model.Timeouts{Request: 5 * time.Minute, Response: 5 * time.Second}, 0},
		{"", "nginx/proxy-read-timeout=long", flags, 1},
	} {
		_, o := decode(t, classWithParameters)
		o.Ingresses[0].Annotations = words(tt.ingress)
		c := &corev1.ConfigMap{Data: map[string]string{}}
		c.Namespace, c.Name = "shield-ingress", "defaults"
		for k, v := range words(tt.class) {
			c.Data[strings.TrimPrefix(k, "shield.herdshield.io/")] = v
		}
		o.ConfigMaps = append(o.ConfigMaps, c)
		m := New(Options{NginxAnnotations: true, Timeouts: flags}).Translate(o)
		if m.Default.Timeouts != tt.want || len(m.Problems) != tt.problems {
			t.Errorf("class %q, Ingress %q: %+v, problems %v; want %+v and %d", tt.class, tt.ingress, m.Default.Timeouts, m.Problems, tt.want, tt.problems)
		}
	}
}
