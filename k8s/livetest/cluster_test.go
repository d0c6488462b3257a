package livetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// join runs a Cluster for the test, until it ends or the returned function is called.
func join(t *testing.T, config cluster.Config) (*cluster.Cluster, func()) {
	t.Helper()
	level := zap.WarnLevel
	if testing.Verbose() {
		level = zap.InfoLevel
	}
	c := must.Get(cluster.New(config, zaptest.NewLogger(t, zaptest.Level(level))))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	eventually(t, 15*time.Second, "everything listed", c.Synced)
	return c, stop
}

// plain returns an Ingress that sends everything to the Service app.
func plain(namespace, name string) *networkingv1.Ingress {
	i := webIngress(namespace, name, "", "/", "app")
	i.Spec.IngressClassName = new("others") // not the class of other tests on the same server
	return i
}

func ref(o *networkingv1.Ingress) model.Ref {
	return model.Ref{Kind: "Ingress", Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}
}

func ingressIn(c *cluster.Cluster, namespace, name string) *networkingv1.Ingress {
	for _, o := range c.Objects().Ingresses {
		if o.Namespace == namespace && o.Name == name {
			return o
		}
	}
	return nil
}

// In each of these, one thing is done in the cluster and seen in Objects.
func TestObjectsFollow(t *testing.T) {
	s := live(t)
	ns := s.Namespace(t, "follow")
	c, _ := join(t, cluster.Config{Kubeconfig: s.AdminKubeconfig(t), Namespace: ns, Lease: "shield"})
	if age := time.Since(c.Fresh()); age > 5*time.Second {
		t.Errorf("Fresh is %v ago", age)
	}

	for len(c.Changed()) > 0 {
		<-c.Changed()
	}
	app := plain(ns, "app")
	app.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "example.com/a": "1"}
	begin := time.Now()
	s.Create(t, app)
	select {
	case <-c.Changed():
	case <-time.After(2 * time.Second):
		t.Fatal("Changed says nothing")
	}
	eventually(t, 2*time.Second, "the Ingress", func() bool { return ingressIn(c, ns, "app") != nil })
	t.Logf("a new Ingress was created and seen within %v", time.Since(begin))
	seen := ingressIn(c, ns, "app")
	if len(seen.ManagedFields) > 0 || len(seen.Annotations) != 1 || seen.UID != app.UID {
		t.Errorf("the copy is %+v", seen.ObjectMeta)
	}

	s.Patch(t, app, "", `metadata: {annotations: {example.com/a: "2"}}`)
	eventually(t, 2*time.Second, "the annotation", func() bool { return ingressIn(c, ns, "app").Annotations["example.com/a"] == "2" })

	s.Create(t, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.com/other"},
	})
	eventually(t, 2*time.Second, "the IngressClass", func() bool {
		return slices.ContainsFunc(c.Objects().Classes, func(o *networkingv1.IngressClass) bool { return o.Name == ns })
	})

	s.Create(t, service(ns, "app"))
	slice := slice(ns, "app", "10.244.0.1")
	s.Create(t, slice)
	eventually(t, 2*time.Second, "Service and EndpointSlice", func() bool {
		o := c.Objects()
		return slices.ContainsFunc(o.Services, func(o *corev1.Service) bool { return o.Namespace == ns }) &&
			slices.ContainsFunc(o.Slices, func(o *discoveryv1.EndpointSlice) bool { return o.Namespace == ns })
	})
	s.Delete(t, slice)
	eventually(t, 2*time.Second, "no EndpointSlice", func() bool {
		return !slices.ContainsFunc(c.Objects().Slices, func(o *discoveryv1.EndpointSlice) bool { return o.Namespace == ns })
	})

	// Of Secrets only those with certificates are read, and of those only what is needed.
	// ConfigMaps are read where this replica is at home.
	other := s.Namespace(t, "other")
	s.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "shield"}})
	s.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shield"}})
	s.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "password"}, Data: map[string][]byte{"password": []byte("x")}})
	s.Create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "certificate"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k"), "other": []byte("o")},
	})
	eventually(t, 2*time.Second, "the Secret", func() bool { return len(c.Objects().Secrets) > 0 })
	for _, secret := range c.Objects().Secrets {
		if secret.Type != corev1.SecretTypeTLS || len(secret.Data) != 2 {
			t.Errorf("Secret %s of type %s with %d values is known", secret.Name, secret.Type, len(secret.Data))
		}
	}
	eventually(t, 2*time.Second, "the ConfigMap", func() bool { return len(c.Objects().ConfigMaps) > 0 })
	for _, o := range c.Objects().ConfigMaps {
		if o.Namespace != ns {
			t.Errorf("ConfigMap %s/%s is known", o.Namespace, o.Name)
		}
	}

	s.Delete(t, app)
	eventually(t, 2*time.Second, "no Ingress", func() bool { return ingressIn(c, ns, "app") == nil })
}

// A ServiceAccount with Roles alone, in two namespaces and its own, suffices for
// --namespaces, and nothing is asked that it may not.
func TestNamespaces(t *testing.T) {
	s := live(t)
	home, one, two, other := s.Namespace(t, "home"), s.Namespace(t, "one"), s.Namespace(t, "two"), s.Namespace(t, "other")
	token := s.Token(t, home, "shield")
	read := []string{"get", "list", "watch"}
	for _, ns := range []string{home, one, two} {
		rules := fmt.Sprintf(`
- {apiGroups: [""], resources: [services], verbs: [%[1]s]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [%[1]s]}`, strings.Join(read, ","))
		if ns == home {
			rules += fmt.Sprintf(`
- {apiGroups: [""], resources: [configmaps], verbs: [%s]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}`, strings.Join(read, ","))
		} else {
			rules += fmt.Sprintf(`
- {apiGroups: [""], resources: [secrets], verbs: [%[1]s]}
- {apiGroups: [networking.k8s.io], resources: [ingresses], verbs: [%[1]s]}
- {apiGroups: [networking.k8s.io], resources: [ingresses/status], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}`, strings.Join(read, ","))
		}
		s.Apply(t, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: shield, namespace: %[1]s}
rules:%[2]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: shield, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: shield}
subjects: [{kind: ServiceAccount, name: shield, namespace: %[3]s}]`, ns, rules, home), false)
	}
	mine, hers := plain(one, "app"), plain(other, "app")
	s.Create(t, mine)
	s.Create(t, hers)

	c, _ := join(t, cluster.Config{
		Kubeconfig: s.Kubeconfig(t, s.URL, token), Namespaces: []string{two, one}, Namespace: home, Lease: "shield",
	})
	for _, o := range c.Objects().Ingresses {
		if o.Namespace != one {
			t.Errorf("%s/%s is known", o.Namespace, o.Name)
		}
	}
	s.Create(t, plain(two, "app"))
	eventually(t, 2*time.Second, "the second Ingress", func() bool { return ingressIn(c, two, "app") != nil })

	c.Publish([]model.Ref{ref(mine)}, nil, []cluster.Address{{IP: "192.0.2.1"}})
	c.Report([]model.Problem{{Object: ref(mine), Reason: "Test", Message: "a problem"}})
	eventually(t, 5*time.Second, "leadership", c.Leading)
	eventually(t, 5*time.Second, "an address", func() bool {
		s.Get(t, mine)
		return len(mine.Status.LoadBalancer.Ingress) == 1
	})
	eventually(t, 5*time.Second, "an Event", func() bool { return len(s.Events(t, one)) == 1 })
	refused := must.Get(s.Refused())(t)
	for _, r := range refused {
		if strings.Contains(r, ":"+home+":") {
			t.Errorf("the API server has refused: %s", r)
		}
	}
}

func TestStatus(t *testing.T) {
	s := live(t)
	ns := s.Namespace(t, "status")
	a, b := plain(ns, "a"), plain(ns, "b")
	s.Create(t, a)
	s.Create(t, b)
	s.Patch(t, b, "status", `status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: 198.51.100.7}]}}`)

	c, _ := join(t, cluster.Config{Kubeconfig: s.AdminKubeconfig(t), Namespace: ns, Lease: "shield"})
	eventually(t, 5*time.Second, "leadership", c.Leading)
	flush := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := c.Flush(ctx); err != nil {
			t.Fatalf("Flush: %v", err)
		}
	}
	addresses := func(o *networkingv1.Ingress) (out []string) {
		t.Helper()
		s.Get(t, o)
		for _, a := range o.Status.LoadBalancer.Ingress {
			out = append(out, a.IP+a.Hostname)
		}
		return out
	}

	// Its own Ingress gets the addresses; another one keeps those of others. An Ingress that
	// does not exist, or is another object of the same name, is left alone.
	gone, another := ref(plain(ns, "gone")), ref(a)
	gone.UID, another.UID = "gone", "another"
	ours := []cluster.Address{{IP: "192.0.2.1"}, {Hostname: "lb.example.com"}}
	c.Publish([]model.Ref{gone, ref(a)}, []model.Ref{another, ref(b)}, ours)
	flush()
	if got := addresses(a); !slices.Equal(got, []string{"lb.example.com", "192.0.2.1"}) {
		t.Errorf("a has %v", got)
	}
	if got := addresses(b); !slices.Equal(got, []string{"198.51.100.7"}) {
		t.Errorf("b has %v", got)
	}

	// The same addresses in another order cause no write.
	before := a.ResourceVersion
	eventually(t, 2*time.Second, "the own change", func() bool { return ingressIn(c, ns, "a").ResourceVersion == before })
	slices.Reverse(ours)
	c.Publish([]model.Ref{ref(a)}, []model.Ref{ref(b)}, ours)
	flush()
	if addresses(a); a.ResourceVersion != before {
		t.Errorf("a was written again")
	}

	// Another client writes the same Ingress all the time, which does no harm. If the
	// addresses of others must stay, it causes conflicts, which end some time.
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`, i)
			path := "/apis/networking.k8s.io/v1/namespaces/" + ns + "/ingresses/a"
			if err := s.Do(http.MethodPatch, path, "application/merge-patch+json", []byte(patch), nil); err != nil {
				t.Errorf("patch: %v", err)
			}
		}
	})
	for i := range 10 {
		c.Publish([]model.Ref{ref(a)}, nil, []cluster.Address{{IP: fmt.Sprintf("192.0.2.%d", 10+i)}})
		flush()
		if got, want := addresses(a), []string{fmt.Sprintf("192.0.2.%d", 10+i)}; !slices.Equal(got, want) {
			t.Errorf("a has %v, want %v", got, want)
		}
	}
	c.Publish(nil, []model.Ref{ref(a)}, []cluster.Address{{IP: "192.0.2.19"}})
	time.Sleep(100 * time.Millisecond)
	stop()
	writing.Wait()
	flush()
	if got := addresses(a); got != nil {
		t.Errorf("a has %v, want none", got)
	}
}

func TestEvents(t *testing.T) {
	s := live(t)
	ns := s.Namespace(t, "events")
	app := plain(ns, "app")
	s.Create(t, app)
	c, _ := join(t, cluster.Config{Kubeconfig: s.AdminKubeconfig(t), Namespace: ns, Pod: "shield-0", Lease: "shield-ingress"})

	bad := model.Problem{Object: ref(app), Reason: "BadAnnotation", Message: `rate is "fast"; want a number per s, m or h`}
	long := model.Problem{Object: ref(app), Reason: "TooLong", Message: strings.Repeat("ä", 2000)}
	class := model.Problem{Object: model.Ref{Kind: "IngressClass", Name: ns, UID: "u"}, Reason: "BadClass", Message: "is bad"}
	c.Report([]model.Problem{bad, bad, long, class}) // before it leads: that is kept
	eventually(t, 5*time.Second, "two Events", func() bool { return len(s.Events(t, ns)) == 2 })
	for range 5 {
		c.Report([]model.Problem{bad, long, class})
	}

	// A marker that comes after everything else shows that nothing else has come.
	c.Report([]model.Problem{bad, long, class, {Object: ref(app), Reason: "Marker", Message: "marker"}})
	eventually(t, 5*time.Second, "the marker", func() bool { return len(s.Events(t, ns)) == 3 })
	for _, e := range s.Events(t, ns) {
		if e.Count != 1 || e.Type != corev1.EventTypeWarning || e.InvolvedObject.UID != app.UID ||
			e.InvolvedObject.APIVersion != "networking.k8s.io/v1" || e.Source.Component != "shield-ingress" || e.Source.Host != "shield-0" {
			t.Errorf("Event %s: count %d, type %s, about %+v, by %+v", e.Reason, e.Count, e.Type, e.InvolvedObject, e.Source)
		}
		if e.Reason == bad.Reason && e.Message != bad.Message {
			t.Errorf("message is %q", e.Message)
		}
	}
	if !slices.ContainsFunc(s.Events(t, metav1.NamespaceDefault), func(e corev1.Event) bool { return e.InvolvedObject.Name == ns }) {
		t.Error("no Event about the IngressClass in the namespace default")
	}

	// One that comes back is told again, as the same Event.
	c.Report(nil)
	eventually(t, 5*time.Second, "a count of 2", func() bool {
		c.Report(nil)
		time.Sleep(100 * time.Millisecond)
		c.Report([]model.Problem{bad})
		return slices.ContainsFunc(s.Events(t, ns), func(e corev1.Event) bool { return e.Reason == bad.Reason && e.Count >= 2 })
	})

	// Many that are alike become one.
	for i := range 20 {
		c.Report([]model.Problem{{Object: ref(app), Reason: "Flapping", Message: fmt.Sprintf("problem %d", i)}})
		time.Sleep(60 * time.Millisecond) // each is told before the next
	}
	eventually(t, 5*time.Second, "an aggregated Event", func() bool {
		return slices.ContainsFunc(s.Events(t, ns), func(e corev1.Event) bool { return strings.Contains(e.Message, "combined from similar events") })
	})
	if n := len(s.Events(t, ns)); n > 3+11 {
		t.Errorf("%d Events", n)
	}
}

func init() { helpers["candidate"] = candidate }

// candidate is a replica that says when it is the leader.
func candidate() int {
	c, err := cluster.New(cluster.Config{
		Kubeconfig: os.Getenv("KUBECONFIG"), Namespace: os.Getenv("NAMESPACE"), Pod: "candidate", Lease: "shield",
	}, zap.NewNop())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for !c.Leading() {
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Println("leading")
	}()
	_ = c.Run(context.Background())
	return 0
}

// leaseRetry is how often the Lease is renewed, or looked at.
const leaseRetry = 2 * time.Second

// The leader dies, and its successor resigns.
func TestTakeover(t *testing.T) {
	s := live(t)
	ns := s.Namespace(t, "takeover")
	kubeconfig := s.AdminKubeconfig(t)
	app := plain(ns, "app")
	s.Create(t, app)

	exe := must.Get(os.Executable())(t)
	leader := exec.Command(exe)
	leader.Env = append(os.Environ(), helperRole+"=candidate", "KUBECONFIG="+kubeconfig, "NAMESPACE="+ns)
	leader.Stderr = os.Stderr
	out := must.Get(leader.StdoutPipe())(t)
	must.Do(t, controlplane.Spawn(leader))
	defer func() {
		_ = leader.Process.Kill()
		_ = leader.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "leading\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()

	first, stopFirst := join(t, cluster.Config{Kubeconfig: kubeconfig, Namespace: ns, Pod: "first", Lease: "shield"})
	first.Publish([]model.Ref{ref(app)}, nil, []cluster.Address{{IP: "192.0.2.1"}})
	time.Sleep(2 * leaseRetry) // so that the Lease is renewed
	if first.Leading() {
		t.Fatal("there are two leaders")
	}
	if s.Get(t, app); len(app.Status.LoadBalancer.Ingress) > 0 {
		t.Fatal("one who does not lead has written")
	}
	must.Do(t, leader.Process.Kill())
	killed := time.Now()
	t.Logf("kill -9: the next one led after %v", eventually(t, 20*time.Second, "a new leader", first.Leading))
	if took := time.Since(killed); took < 10*time.Second {
		t.Errorf("it led after %v already: the other one might still have thought that it led", took)
	}

	// The pending write follows.
	eventually(t, 2*time.Second, "the status", func() bool {
		s.Get(t, app)
		return len(app.Status.LoadBalancer.Ingress) == 1
	})

	second, _ := join(t, cluster.Config{Kubeconfig: kubeconfig, Namespace: ns, Pod: "second", Lease: "shield"})
	stopFirst()
	if err := first.Resign(t.Context()); err != nil {
		t.Fatalf("Resign: %v", err)
	}
	t.Logf("resigned: the next one led after %v", eventually(t, 3*time.Second, "a new leader", second.Leading))
	if first.Leading() {
		t.Error("there are two leaders")
	}
	if err := first.Resign(t.Context()); err != nil {
		t.Errorf("Resign, once more: %v", err)
	}
}

// The API server is killed and comes back; what was deleted while this replica was cut
// off is gone then, also when neither the server nor etcd remember when.
func TestOutage(t *testing.T) {
	s := live(t)
	ns := s.Namespace(t, "outage")
	cable := s.Cable(t)
	c, _ := join(t, cluster.Config{Kubeconfig: s.Kubeconfig(t, cable.URL, controlplane.AdminToken), Namespace: ns, Lease: "shield"})
	gone, stays := plain(ns, "gone"), plain(ns, "stays")
	s.Create(t, gone)
	s.Create(t, stays)
	eventually(t, 2*time.Second, "the Ingresses", func() bool { return ingressIn(c, ns, "gone") != nil && ingressIn(c, ns, "stays") != nil })
	eventually(t, 5*time.Second, "leadership", c.Leading)

	down := time.Now()
	s.Restart(t, func() {
		eventually(t, 5*time.Second, "staleness is noticed", func() bool { return time.Since(c.Fresh()) > 500*time.Millisecond })
		if ingressIn(c, ns, "gone") == nil || !c.Synced() {
			t.Error("it has forgotten what it knew")
		}
	})
	t.Logf("the API server was back after %v", time.Since(down))
	s.Patch(t, stays, "", `metadata: {annotations: {a: "1"}}`)
	t.Logf("it was heard %v after that", eventually(t, 20*time.Second, "a change after the restart", func() bool { return ingressIn(c, ns, "stays").Annotations["a"] == "1" }))
	eventually(t, 20*time.Second, "freshness", func() bool { return c.Fresh().After(down.Add(time.Second)) && time.Since(c.Fresh()) < 4*time.Second })
	eventually(t, 20*time.Second, "leadership", c.Leading)

	version := ingressIn(c, ns, "stays").ResourceVersion
	cable.Cut()
	s.Delete(t, gone)
	s.Patch(t, stays, "", `metadata: {annotations: {a: "2"}}`)
	s.Create(t, plain(ns, "new"))
	must.Do(t, s.Compact())
	s.Restart(t, nil) // it remembers more than etcd does
	var told struct {
		Type   string
		Object metav1.Status
	}
	if err := s.Do(http.MethodGet, "/apis/networking.k8s.io/v1/ingresses?watch=1&timeoutSeconds=1&resourceVersion="+version, "", nil, &told); err != nil || told.Object.Code != http.StatusGone {
		t.Fatalf("who resumes from %s is told %s, %+v, %v; want 410, or this tests nothing", version, told.Type, told.Object, err)
	}
	if ingressIn(c, ns, "gone") == nil {
		t.Error("it knows what it cannot know")
	}
	cable.Mend()
	took := eventually(t, 40*time.Second, "everything as it is", func() bool {
		return ingressIn(c, ns, "gone") == nil && ingressIn(c, ns, "new") != nil && ingressIn(c, ns, "stays").Annotations["a"] == "2"
	})
	t.Logf("all was right %v after the connection was", took)
}
