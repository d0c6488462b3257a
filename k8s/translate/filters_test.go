package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

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
