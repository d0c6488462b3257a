package translate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
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

// TestOddObjects makes five states of a cluster, one after the other, of the objects of all golden cases, in which some
// fields are empty and some have what they have in another object. It holds the Models to what is promised: no panic,
// the same Model for any order of the objects, which are left as they were, and what check says.
func TestOddObjects(t *testing.T) {
	all := Objects{Secrets: []*corev1.Secret{secret(t, "default/cert", "a.example.com"), secret(t, "default/wild", "*.example.com", "*", "")}}
	for _, file := range must.Get(filepath.Glob("testdata/*.case"))(t) {
		input, _, _ := bytes.Cut(must.Get(os.ReadFile(file))(t), []byte(separator))
		_, o := decode(t, string(input))
		from, to := reflect.ValueOf(o), reflect.ValueOf(&all).Elem()
		for i := range to.NumField() {
			to.Field(i).Set(reflect.AppendSlice(to.Field(i), from.Field(i)))
		}
	}
	values := map[string][]reflect.Value{}
	parts(reflect.ValueOf(all), func(name string, f reflect.Value) { values[name] = append(values[name], f) })
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 6))
		maybe := func() bool { return r.IntN(2) == 0 }
		pick := func(of ...string) string { return of[r.IntN(len(of))] }
		opts := Options{
			Now: func() time.Time { return noon }, NginxAnnotations: maybe(), WatchWithoutClass: maybe(), PreferIPv6: maybe(),
			ClassName: pick("", "shield"), DefaultCertificate: pick("", "default/cert", "x", "/"), Self: pick("", "default/web", "x"),
			Published: []string{"192.0.2.1", "lb.example.com", ""}, PublishService: pick("", "", "default/web", "x"), ShareHosts: maybe(),
		}
		one, shuffled := New(opts), New(opts)
		for range 5 {
			var o Objects
			must.Do(t, json.Unmarshal(must.Get(json.Marshal(all))(t), &o))
			o = Objects{
				Classes: some(r, values, o.Classes), Ingresses: some(r, values, o.Ingresses), Services: some(r, values, o.Services),
				Slices: some(r, values, o.Slices), Secrets: some(r, values, o.Secrets), ConfigMaps: some(r, values, o.ConfigMaps),
			}
			before := must.Get(json.Marshal(o))(t)
			m := one.Translate(o)
			check(t, m)
			if !bytes.Equal(must.Get(json.Marshal(o))(t), before) {
				t.Fatalf("seed %d: objects were modified", seed)
			}
			if again := shuffled.Translate(shuffle(o)); !reflect.DeepEqual(m, again) {
				t.Fatalf("seed %d: another order, another Model:\n%s\nbefore:\n%s", seed, dump(again), dump(m))
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// parts visits the fields of structs in a value, those within a field before it.
func parts(v reflect.Value, visit func(name string, f reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			parts(v.Elem(), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			parts(v.Index(i), visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				parts(v.Field(i), visit)
				visit(v.Type().String()+"."+f.Name, v.Field(i))
			}
		}
	}
}

// some returns a part of the objects, with other fields, and one of each name, as an API server does. Those that have a
// UID have one of their own.
func some[T any, P interface {
	object[T]
	SetUID(types.UID)
}](r *rand.Rand, values map[string][]reflect.Value, all []P) (out []P) {
	seen := make(map[key]bool)
	r.Shuffle(len(all), reflect.Swapper(all))
	for _, o := range all[:r.IntN(len(all)+1)] {
		if r.IntN(20) == 0 {
			out = append(out, nil)
			continue
		}
		parts(reflect.ValueOf(o), func(name string, f reflect.Value) {
			switch r.IntN(60) {
			case 0:
				f.SetZero()
			case 1, 2:
				f.Set(values[name][r.IntN(len(values[name]))])
			}
		})
		if c, is := any(o).(*networkingv1.IngressClass); is {
			c.Namespace = ""
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
		host, path     string
		exact, pattern bool
	}
	got := make(map[place]bool)
	for _, r := range m.Rules {
		checkTarget(t, r.Target)
		p := place{r.Host, r.Path, r.Exact, r.Pattern != nil}
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
