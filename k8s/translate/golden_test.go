package translate

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

var update = flag.Bool("update", false, "rewrite the golden part of testdata/*.case; read the diff")

// separator stands between the objects and the Model that they must give.
const separator = "\n----------\n"

// TestGolden translates the objects of every testdata/*.case. A case may have an
// object of kind Options, with the fields of Options.
func TestGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.case")
	if len(files) == 0 {
		t.Fatal("no cases in testdata")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".case"), func(t *testing.T) {
			text := must.Get(os.ReadFile(file))(t)
			input, want, _ := strings.Cut(string(text), separator)
			options, objects := decode(t, input)
			got := dump(New(options).Translate(objects))
			if *update {
				must.Do(t, os.WriteFile(file, []byte(strings.TrimSuffix(input, "\n")+separator+got), 0o644))
				return
			}
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// decode reads YAML documents. Fields that a test does not need may be left out: namespaces are "default".
func decode(t testing.TB, text string) (opts Options, o Objects) {
	t.Helper()
	for _, doc := range bytes.Split([]byte(text), []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		switch kind.Kind {
		case "Options":
			read(t, doc, &struct {
				Kind string
				*Options
			}{Options: &opts})
		case "IngressClass":
			c := new(networkingv1.IngressClass)
			read(t, doc, c)
			o.Classes = append(o.Classes, c)
		case "Ingress":
			o.Ingresses = append(o.Ingresses, namespaced[networkingv1.Ingress](t, doc))
		case "Service":
			o.Services = append(o.Services, namespaced[corev1.Service](t, doc))
		case "EndpointSlice":
			o.Slices = append(o.Slices, namespaced[discoveryv1.EndpointSlice](t, doc))
		case "Secret":
			o.Secrets = append(o.Secrets, namespaced[corev1.Secret](t, doc))
		case "ConfigMap":
			o.ConfigMaps = append(o.ConfigMaps, namespaced[corev1.ConfigMap](t, doc))
		default:
			t.Fatalf("kind %q in\n%s", kind.Kind, doc)
		}
	}
	return opts, o
}

func read(t testing.TB, doc []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(doc, into); err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
}

func namespaced[T any, P interface {
	object[T]
	SetNamespace(string)
}](t testing.TB, doc []byte) P {
	t.Helper()
	o := P(new(T))
	read(t, doc, o)
	if o.GetNamespace() == "" {
		o.SetNamespace("default")
	}
	return o
}

// dump writes a Model for people.
func dump(m *model.Model) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	target := func(t model.Target) string {
		if t.Closed != "" {
			return fmt.Sprintf("%s -> closed", t.Origin)
		}
		if t.Backend == nil {
			return fmt.Sprintf("%s -> none", t.Origin)
		}
		return fmt.Sprintf("%s -> %s:%s", t.Origin, t.Backend.Service, t.Backend.Port)
	}

	var origins []*model.Origin
	var backends []*model.Backend
	seen := make(map[any]bool)
	visit := func(t model.Target) {
		if !seen[t.Origin] {
			seen[t.Origin] = true
			origins = append(origins, t.Origin)
		}
		if t.Backend != nil && !seen[t.Backend] {
			seen[t.Backend] = true
			backends = append(backends, t.Backend)
		}
	}
	for _, r := range m.Rules {
		kind := "Prefix"
		if r.Exact {
			kind = "Exact"
		} else if r.Fallback {
			kind = "fallback"
		} else if r.Pattern != nil {
			kind = "pattern"
		}
		line("%-20s %-14s %-9s by %s", orText(r.Host, "(any host)"), r.Path, kind, target(r.Target))
		if w := r.Rewrite; w != nil {
			line("  rewritten%s", fields(*w))
		}
		visit(r.Target)
	}
	if m.Default != nil {
		line("default                                       by %s", target(*m.Default))
		visit(*m.Default)
	}
	filters := map[*model.Origin]*policy.Filters{}
	for _, r := range m.Rules {
		filters[r.Origin] = r.Filters
	}
	if m.Default != nil {
		filters[m.Default.Origin] = m.Default.Filters
	}
	for _, o := range origins {
		if f := filters[o]; f != nil {
			line("filters of %s:%s", o, fields(*f))
			if f.Auth != nil {
				line("  auth%s", fields(*f.Auth))
			}
		}
		if !reflect.DeepEqual(o.Policy, policy.Ingress{}) || o.TLSHosts != nil || o.NoRedirect {
			line("ingress %s: %s", o, fields(o.Policy))
			if o.TLSHosts != nil {
				line("  TLS for %s", strings.Join(o.TLSHosts, " "))
			}
			if o.NoRedirect {
				line("  no redirect")
			}
		}
	}
	for _, be := range backends {
		line("backend %s:%s speaks %s%s", be.Service, be.Port, []string{"HTTP", "H2C", "HTTPS"}[be.Protocol], fields(be.Service.Policy))
		for _, e := range be.Endpoints {
			line("  %s %s", e.Addr, []string{"ready", "draining", "not ready"}[e.State])
		}
	}
	for _, c := range m.Certificates {
		line("certificate %q for %s", c.Certificate.Leaf.Subject.CommonName, strings.Join(c.Hosts, " "))
	}
	if m.DefaultCertificate != nil {
		line("default certificate %q", m.DefaultCertificate.Leaf.Subject.CommonName)
	}
	for _, p := range m.Problems {
		line("%s %s %s: %s", p.Reason, p.Object.Kind, p.Object, p.Message)
	}
	line("mine %v, not mine %v", m.Mine, m.NotMine)
	if m.Replicas != nil {
		line("replicas %v", m.Replicas)
	}
	return b.String()
}

// fields writes those of a policy that say something.
func fields(p any) string {
	v, text := reflect.ValueOf(p), ""
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() && v.Type().Field(i).Name != "Auth" {
			text += fmt.Sprintf(" %s=%v", v.Type().Field(i).Name, f.Interface())
		}
	}
	return text
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
