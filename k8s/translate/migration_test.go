package translate

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/route"
)

// shop is an Ingress for shop.example.com/, with annotations in words, of this age.
func shop(name, annotations string, seconds int64) *networkingv1.Ingress {
	in := &networkingv1.Ingress{}
	in.Namespace, in.Name, in.Annotations = "default", name, words(annotations)
	in.CreationTimestamp = metav1.Unix(seconds, 0)
	in.Spec.IngressClassName = new("shield")
	in.Spec.Rules = []networkingv1.IngressRule{ruleFor("shop.example.com", networkingv1.PathTypePrefix, "web", "/")}
	return in
}

// migrated is the Model of Ingresses.
func migrated(t *testing.T, nginx bool, all ...*networkingv1.Ingress) *model.Model {
	t.Helper()
	_, o := decode(t, "kind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}")
	o.Ingresses = all
	return New(Options{ClassName: "shield", NginxAnnotations: nginx}).Translate(o)
}

// Every annotation that is not read is named in one Event; with the flag, those that guard
// close the Ingress until it says that it is meant.
func TestNoMigrationFailsOpen(t *testing.T) {
	for _, a := range policy.NginxAnnotations() {
		for _, nginx := range []bool{false, true} {
			value := "on"
			m := migrated(t, nginx, shop("shop", "nginx/"+a.Name+"="+value, 1))
			told := 0
			for _, p := range m.Problems {
				if strings.HasPrefix(p.Reason, "Nginx") && strings.Contains(p.Message, a.Name) {
					told++
				}
			}
			want, fate := 1, policy.FateOf(a.Name, value).Fate
			if nginx && fate == policy.Read {
				want = 0
			}
			if told != want {
				t.Errorf("%s, flag %v: named in %d Events, want %d: %v", a.Name, nginx, told, want, m.Problems)
			}
			if closed := len(m.Rules) > 0 && m.Rules[0].Closed != ""; closed != (nginx && fate == policy.Guards) {
				t.Errorf("%s, flag %v: closed is %v", a.Name, nginx, closed)
			}
			m = migrated(t, nginx, shop("shop", "nginx/"+a.Name+"="+value+" ignore-nginx="+a.Name, 1))
			if len(m.Rules) != 1 || m.Rules[0].Closed != "" {
				t.Errorf("%s, flag %v, meant: %+v, %v", a.Name, nginx, m.Rules, m.Problems)
			}
		}
	}
}

// A waiver opens what it names, and nothing else.
func TestWaiver(t *testing.T) {
	for _, test := range []struct {
		waiver string
		closed bool
		told   string
	}{
		{"auth-type", true, "satisfy"}, {"auth-type,satisfy", false, ""}, {"satisfy,nginx.ingress.kubernetes.io/auth-type", false, ""},
		{"all", true, "auth-type, satisfy"}, {"*", true, "auth-type, satisfy"}, {"", true, "auth-type, satisfy"}, {"auth-type;satisfy", true, "auth-type, satisfy"},
	} {
		m := migrated(t, true, shop("shop", "nginx/auth-type=x nginx/satisfy=any ignore-nginx="+test.waiver, 1))
		if closed := m.Rules[0].Closed != ""; closed != test.closed {
			t.Errorf("%q: closed is %v: %v", test.waiver, closed, m.Problems)
		}
		if text := fmt.Sprint(m.Problems); test.told != "" && !strings.HasSuffix(strings.TrimSuffix(strings.SplitAfter(text, "without effect: ")[1], "}]"), test.told) && !strings.Contains(text, test.told) {
			t.Errorf("%q: told %s", test.waiver, text)
		}
	}
	if _, err := policy.ParseDefaults(map[string]string{"ignore-nginx": "auth-type"}); err == nil {
		t.Error("a class may not ignore guards of Ingresses to come")
	}
}

// A waiver holds for annotations that shield reads, too.
func TestWaiverOfRead(t *testing.T) {
	m := migrated(t, true, shop("shop", "nginx/limit-connections=7 nginx/denylist-source-range=nonsense nginx/backend-protocol=HTTPS ignore-nginx=limit-connections,denylist-source-range,backend-protocol", 1))
	if is := m.Rules[0]; is.Origin.Policy.PerClient != 0 || is.Filters.AdmitsNone() || is.Backend.Protocol != model.HTTP || len(m.Problems) > 0 {
		t.Errorf("%+v, %v", is, m.Problems)
	}
}

// ingress-nginx has some guards for a whole host: they close the other Ingresses for it, and no
// other host, and none that is another namespace's.
func TestHostGuards(t *testing.T) {
	for c, want := range map[[3]string]bool{
		{"nginx/auth-tls-secret=default/ca", "shop.example.com", "default"}: true, {"nginx/server-snippet=deny", "shop.example.com", "default"}: true,
		{"nginx/auth-type=basic", "shop.example.com", "default"}: false, {"nginx/auth-tls-secret=a ignore-nginx=auth-tls-secret", "shop.example.com", "default"}: false,
		{"nginx/auth-tls-secret=default/ca", "other.example.com", "default"}: false, {"nginx/auth-tls-secret=default/ca", "shop.example.com", "mallory"}: false,
	} {
		open, guard := shop("open", "", 1), shop("guard", c[0], 2)
		guard.Spec.Rules[0].Host, guard.Namespace, guard.Spec.Rules[0].HTTP.Paths[0].Path = c[1], c[2], "/api"
		m := migrated(t, true, open, guard)
		closed, told := route.New(m.Rules, nil).Find("shop.example.com", "/").Closed != "", strings.Contains(fmt.Sprint(m.Problems), ReasonHostGuard)
		if closed != want || told != want {
			t.Errorf("%v: closed %v, told %v, want %v", c, closed, told, want)
		}
	}
}

// A closed Ingress keeps its hosts, its paths and its default backend.
func TestClosedKeepsItsClaim(t *testing.T) {
	older, younger := shop("a", "nginx/auth-type=x", 1), shop("b", "", 2)
	older.Spec.DefaultBackend = older.Spec.Rules[0].HTTP.Paths[0].Backend.DeepCopy()
	m := migrated(t, true, younger, older)
	for _, r := range m.Rules {
		if r.Origin.Name != "a" || r.Closed == "" {
			t.Errorf("%s%s goes to %s, closed %q", r.Host, r.Path, r.Origin, r.Closed)
		}
	}
	// The default backend of a closed one is closed for others, too.
	older.Spec.Rules, younger.Spec.Rules[0].HTTP = nil, nil
	m = migrated(t, true, younger, older)
	if m.Default == nil || m.Default.Closed == "" || len(m.Rules) != 1 || m.Rules[0].Closed == "" {
		t.Errorf("default %+v, rules %+v", m.Default, m.Rules)
	}
	// So are its guards there for others.
	const auth = "nginx/auth-url=http://a/"
	for _, c := range []struct{ older, younger, want string }{
		{auth, "body-size=2k", "auth true, 2048 bytes, closed false"}, {auth, "", "auth true, 0 bytes, closed false"},
		{auth, auth, "auth true, 0 bytes, closed false"}, {"nginx/app-root=/a", "body-size=2k", "auth false, 2048 bytes, closed false"},
		{auth, "denylist-source-range=192.0.2.1 body-size=2k", "auth false, 2048 bytes, closed true"},
	} {
		older.Annotations, younger.Annotations = words(c.older), words(c.younger)
		is := migrated(t, true, younger, older).Rules[0]
		f := cmp.Or(is.Filters, new(policy.Filters))
		if got := fmt.Sprintf("auth %v, %d bytes, closed %v", f.Auth != nil, f.BodySize, is.Closed != ""); got != c.want {
			t.Errorf("%q inherits from %q: %s, want %s", c.younger, c.older, got, c.want)
		}
	}
}

// A canary takes no request of the main Ingress, whatever their ages.
func TestCanary(t *testing.T) {
	for _, nginx := range []bool{false, true} {
		for _, age := range []int64{1, 2, 3} {
			m := migrated(t, nginx, shop("a-canary", "nginx/canary=true nginx/canary-weight=10", age), shop("main", "", 2))
			if len(m.Rules) != 1 || m.Rules[0].Origin.Name != "main" || len(m.Problems) != 1 || m.Problems[0].Reason != ReasonNginxCanary ||
				!strings.HasSuffix(m.Problems[0].Message, "canary, canary-weight") {
				t.Errorf("flag %v, age %d: %+v, %v", nginx, age, m.Rules, m.Problems)
			}
		}
	}
}

// One port of a Service may be spoken to in two ways; the Service's own word has precedence.
func TestProtocolOfIngress(t *testing.T) {
	b := shop("b", "nginx/backend-protocol=HTTP", 2)
	b.Spec.Rules[0].Host = "b.example.com"
	for _, test := range []struct {
		annotations string
		nginx       bool
		want        model.Protocol
		closed      bool
	}{
		{"nginx/backend-protocol=HTTPS", true, model.HTTPS, false}, {"nginx/backend-protocol=grpc", true, model.H2C, false},
		{"nginx/backend-protocol=GRPCS", true, model.HTTPS, false}, {"nginx/backend-protocol=HTTPS", false, model.HTTP, false},
		{"nginx/backend-protocol=FCGI", true, model.HTTP, true}, {"nginx/backend-protocol=FCGI ignore-nginx=backend-protocol", true, model.HTTP, false},
		{"nginx/backend-protocol=nonsense", true, model.HTTP, false},
	} {
		m := migrated(t, test.nginx, shop("a", test.annotations, 1), b)
		of := map[string]model.Target{}
		for _, r := range m.Rules {
			of[r.Origin.Name] = r.Target
		}
		if is := of["a"]; is.Backend.Protocol != test.want || (is.Closed != "") != test.closed || of["b"].Backend.Protocol != model.HTTP {
			t.Errorf("%s: %d, closed %q; of the other %d", test.annotations, is.Backend.Protocol, is.Closed, of["b"].Backend.Protocol)
		}
		if is, other := of["a"].Backend, of["b"].Backend; is.Service != other.Service || is.Port != other.Port {
			t.Errorf("%s: two Services", test.annotations)
		}
	}
	_, o := decode(t, "kind: Service\nmetadata: {name: web, annotations: {shield.herdshield.io/backend-protocol: H2C}}\nspec: {ports: [{port: 80}]}")
	o.Ingresses = []*networkingv1.Ingress{shop("a", "nginx/backend-protocol=HTTPS", 1)}
	if m := New(Options{ClassName: "shield", NginxAnnotations: true}).Translate(o); m.Rules[0].Backend.Protocol != model.H2C {
		t.Error("the Service's annotation does not count")
	}
}

// One Ingress with use-regex or rewrite-target has all paths of its host taken as ingress-nginx's
// locations "~*": in any case, with all that begins with them. So the guards of another Ingress
// hold for /ADMIN, too. Without the flag, and for an Ingress that is left out, nothing changes.
func TestAnyCase(t *testing.T) {
	for _, c := range []struct {
		annotations, namespace string // of an Ingress for /
		nginx                  bool
		want                   string // for these paths
	}{
		{"nginx/use-regex=true", "default", true, "exact admin exact admin rest younger true"},
		{"nginx/rewrite-target=/app", "default", true, "exact admin exact admin rest younger true"},
		{"nginx/rewrite-target=/", "default", true, "exact rest rest admin rest rest false"}, // its own path
		{"nginx/use-regex=true", "default", false, "exact rest rest admin rest rest false"}, {"nginx/use-regex=true", "mallory", true, "exact none none admin none none false"},
	} {
		admin, exact, younger := shop("admin", "allowlist-source-range=10.0.0.0/8", 1), shop("exact", "", 2), shop("younger", "", 3)
		exact.Spec.Rules[0].HTTP.Paths[0].PathType = new(networkingv1.PathTypeExact)
		for in, path := range map[*networkingv1.Ingress]string{admin: "/Admin", exact: "/admin", younger: "/ADMIN/younger"} {
			in.Spec.Rules[0].HTTP.Paths[0].Path = path
		}
		again, rest := admin.DeepCopy(), shop("rest", c.annotations, 5)
		again.Name, again.Spec.Rules[0].HTTP.Paths[0].Path, rest.Namespace = "z", "/ADMIN", c.namespace
		again.CreationTimestamp = metav1.Unix(4, 0)
		m := migrated(t, c.nginx, rest, admin, exact, younger, again)
		table, got := route.New(m.Rules, &model.Target{Origin: &model.Origin{Ref: model.Ref{Name: "none"}}}), ""
		for _, path := range []string{"/admin", "/aDMIN/x", "/ADMINx", "/Admin/x", "/other", "/admin/YOUNGER"} {
			got += table.Find("shop.example.com", path).Origin.Name + " "
		}
		if got += fmt.Sprint(strings.Contains(fmt.Sprint(m.Problems), "belongs to the older Ingress default/admin")); got != c.want {
			t.Errorf("%s in %s, flag %v: %s, want %s", c.annotations, c.namespace, c.nginx, got, c.want)
		}
	}
}
