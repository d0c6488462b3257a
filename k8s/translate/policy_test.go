package translate

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
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

// A mistake leaves the last good filters in force, and never opens a door: a guard that is new
// counts at once, and one that is wrong lets nothing in.
func TestFiltersOnMistakes(t *testing.T) {
	tr := New(Options{NginxAnnotations: true})
	for i, step := range []struct{ annotations, want string }{
		{"", "<nil>"}, {"body-size=1k rewrite-target=/a", "RewriteTarget=/a BodySize=1024"}, {"body-size=2k rewrite-target=?", "RewriteTarget=/a BodySize=1024"}, {"body-size=2k auth-url=http://a/", "BodySize=2048 auth=http://a/"},
		{"body-size=2k auth-url=ftp://a/", "BodySize=2048 auth=http://a/"}, {"body-size=2k auth-url=http://b/ hsts=?", "BodySize=2048 auth=http://b/"}, {"body-size=2k", "BodySize=2048"},
		{"body-size=2k auth-url=ftp://a/", "BodySize=2048 auth="}, {"body-size=2k allowlist-source-range=?", "AllowFrom=[] BodySize=2048"}, {"", "<nil>"},
		{"allowlist-source-range=10.0.0.0/8", "AllowFrom=[10.0.0.0/8]"}, {"allowlist-source-range=10.0.0.0/9 denylist-source-range=?", "AllowFrom=[10.0.0.0/9] DenyFrom=[]"},
		{"allowlist-source-range=10.0.0.0/8 denylist-source-range=10.0.0.1", "AllowFrom=[10.0.0.0/8] DenyFrom=[10.0.0.1/32]"},
		{"allowlist-source-range=10.0.0.0/9 denylist-source-range=?", "AllowFrom=[10.0.0.0/9] DenyFrom=[10.0.0.1/32]"}, {"", "<nil>"}, {"denylist-source-range=?", "DenyFrom=[]"}, {"", "<nil>"},
		{"rewrite-target=? body-size=3k", "BodySize=3072"}, // what was good before is forgotten
		{"auth-response-headers=?", "auth="}, {"enable-cors=true cors-allow-origin=?", "cors off"},
	} {
		_, o := decode(t, classWithParameters)
		o.Classes[0].Spec.Parameters = nil
		o.Ingresses[0].Annotations = words(step.annotations)
		f, got := tr.Translate(o).Default.Filters, "<nil>"
		if f != nil {
			got = fields(policy.Filters{RewriteTarget: f.RewriteTarget, BodySize: f.BodySize, AllowFrom: f.AllowFrom, DenyFrom: f.DenyFrom})
			if f.Auth != nil {
				got += " auth=" + f.Auth.URL
			}
			if f.CORS != nil && f.CORS.Off {
				got += " cors off"
			}
			if strings.Contains(got, "=[]") && (!f.AdmitsNone() || !f.Asks() || f.Admits(netip.MustParseAddr("10.0.0.9"))) {
				t.Errorf("step %d: %s: a wrong list admits a client", i, step.annotations)
			}
			got = strings.TrimSpace(got)
		}
		if got != step.want {
			t.Errorf("step %d: %s: got %q, want %q", i, step.annotations, got, step.want)
		}
	}
}

// Where the operator says which hosts may be asked, an Ingress that names another is told so and
// answers all requests 503: none is asked about, and none is let in.
func TestAuthHosts(t *testing.T) {
	for _, c := range []struct{ allowed, url, rules, want string }{
		{"", "http://10.0.0.9/", "a.test", ""}, {"", "https://$host/auth", "a.test", ""},
		{"auth.test", "https://auth.test:8443/x?rd=$host", "a.test", ""}, {"auth.test", "http://AUTH.test./x", "a.test", ""},
		{"auth.test", "http://other.test/", "a.test", "other.test"}, {"auth.test", "http://x.auth.test/", "a.test", "x.auth.test"}, {"auth.test", "http://auth.test.evil.test/", "a.test", "auth.test.evil.test"},
		{"auth.test", "http://evil.test/auth.test?auth.test", "a.test", "evil.test"}, {"auth.test", "http://10.0.0.9:10250/pods", "a.test", "10.0.0.9"}, {"auth.test", "http://[fd00::9]/", "a.test", "fd00::9"},
		{"*.auth.svc.cluster.local", "http://proxy.auth.svc.cluster.local/oauth2/auth", "a.test", ""}, {"*.auth.svc.cluster.local", "http://auth.svc.cluster.local/", "a.test", "auth.svc.cluster.local"},
		{"*.auth.svc.cluster.local", "http://x.y.auth.svc.cluster.local/", "a.test", "x.y.auth.svc.cluster.local"}, {"*.auth.svc.cluster.local", "http://proxy/", "a.test", "proxy"},
		{"10.0.0.9 fd00::9", "http://10.0.0.9/", "a.test", ""}, {"10.0.0.9 fd00::9", "http://[fd00::9]/", "a.test", ""},
		{"auth.test", "https://$host/auth", "a.test", "a.test"}, {"a.test", "https://$host/auth", "a.test", ""}, {"a.test", "https://$http_host/auth", "a.test b.test", "b.test"},
		{"*.test", "https://$host/auth", "*.test b.test", ""}, {"b.test", "https://$host/auth", "*.test", "*.test"},
	} {
		_, o := decode(t, classWithParameters)
		o.Classes[0].Spec.Parameters = nil
		in := o.Ingresses[0]
		in.Annotations = map[string]string{policy.Prefix + "auth-url": c.url}
		in.Spec.Rules, in.Spec.DefaultBackend = nil, nil
		for _, host := range strings.Fields(c.rules) {
			in.Spec.Rules = append(in.Spec.Rules, ruleFor(host, networkingv1.PathTypePrefix, "web", "/"))
		}
		var options Options
		if c.allowed != "" {
			options.AuthHosts = strings.Fields(c.allowed)
		}
		m := New(options).Translate(o)
		told := ""
		for _, p := range m.Problems {
			if p.Reason == ReasonPolicyInvalid {
				told += p.Message
			}
		}
		want, url := "", c.url
		if c.want != "" {
			want, url = "auth-url names "+c.want+", which is not one of --auth-hosts; all requests get 503", ""
		}
		if told != want {
			t.Errorf("%+v: its owner is told %q, want %q", c, told, want)
		}
		for _, rule := range m.Rules {
			if rule.Filters == nil || rule.Filters.Auth == nil || rule.Filters.Auth.URL != url {
				t.Errorf("%+v: %s has the filters %+v, want the authentication %q", c, rule.Host, rule.Filters, url)
			}
		}
		if len(m.Rules) == 0 {
			t.Errorf("%+v: there is no rule", c)
		}
	}
}

// Patterns of a host have only so many states; those of another host are not concerned.
func TestPatternsAreBounded(t *testing.T) {
	_, o := decode(t, classWithParameters)
	o.Ingresses[0].Annotations = map[string]string{policy.Prefix + "use-regex": "true"}
	o.Ingresses[0].Spec.Rules = []networkingv1.IngressRule{
		ruleFor("many.test", networkingv1.PathTypePrefix, "web", numbered("/%d/.*", 900)...), ruleFor("few.test", networkingv1.PathTypePrefix, "web", numbered("/%d/.*", 9)...),
	}
	tr := New(Options{ClassName: "shield"})
	for range 2 { // the second time they are compiled already
		n := map[string]int{}
		m := tr.Translate(o)
		for _, r := range m.Rules {
			if r.Pattern != nil {
				n[r.Host]++
			}
		}
		if n["many.test"] < 300 || n["many.test"] > 600 || n["few.test"] != 9 {
			t.Errorf("there are %v patterns; want some hundreds of one host, and all of the other", n)
		}
		if !slices.ContainsFunc(m.Problems, func(p model.Problem) bool {
			return p.Reason == ReasonPathInvalid && strings.Contains(p.Message, "5000 states together")
		}) {
			t.Errorf("its owner is told %v", m.Problems)
		}
	}
}

// A guard that is new in the parameters of a class counts at once, too, beside a mistake. Where the
// parameters have never been there (rate: "-"), there may be guards in them: all is closed.
func TestClassFiltersOnMistakes(t *testing.T) {
	tr := New(Options{})
	for _, step := range []struct{ allow, rate, want string }{
		{"", "-", "closed"}, {"", "10/s", "[]"}, {"10.0.0.0/8", "ten", "[10.0.0.0/8]"}, {"10.0.0.0/8", "10/s", "[10.0.0.0/8]"}, {"192.0.2.0/24", "ten", "[192.0.2.0/24]"},
		{"?", "10/s", "[10.0.0.0/8]"}, {"", "ten", "[10.0.0.0/8]"}, {"", "-", "[10.0.0.0/8]"},
	} {
		_, o := decode(t, classWithParameters)
		c := &corev1.ConfigMap{Data: map[string]string{"rate": step.rate}}
		if c.Namespace, c.Name = "shield-ingress", "defaults"; step.allow != "" {
			c.Data["allowlist-source-range"] = step.allow
		}
		if step.rate != "-" {
			o.ConfigMaps = append(o.ConfigMaps, c)
		}
		m := tr.Translate(o)
		got := fmt.Sprint(cmp.Or(m.Default.Filters, new(policy.Filters)).AllowFrom)
		if m.Default.Closed != "" && strings.Contains(fmt.Sprint(m.Problems), "its Ingresses get 503") {
			got = "closed"
		}
		if got != step.want {
			t.Errorf("%+v: clients from %v are served", step, got)
		}
	}
}
