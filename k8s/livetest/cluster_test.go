package livetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/model"
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

// Of objects only the parts that are needed are kept: of Secrets those with certificates, and of
// ConfigMaps those where this replica is at home.
func TestObjectsAreNarrow(t *testing.T) {
	s := live(t)
	ns, other := s.Namespace(t, "narrow"), s.Namespace(t, "other")
	c, _ := join(t, cluster.Config{Kubeconfig: s.AdminKubeconfig(t), Namespace: ns, Lease: "shield"})
	app := plain(ns, "app")
	app.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "example.com/a": "1"}
	s.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "shield"}})
	s.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shield"}})
	s.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "password"}, Data: map[string][]byte{"password": []byte("x")}})
	s.Create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "certificate"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k"), "other": []byte("o")},
	})
	s.Create(t, app)
	eventually(t, 5*time.Second, "all of them", func() bool {
		o := c.Objects()
		return ingressIn(c, ns, "app") != nil && len(o.Secrets) > 0 && len(o.ConfigMaps) > 0
	})
	if seen := ingressIn(c, ns, "app"); len(seen.ManagedFields) > 0 || len(seen.Annotations) != 1 || seen.UID != app.UID {
		t.Errorf("the copy is %+v", seen.ObjectMeta)
	}
	for _, secret := range c.Objects().Secrets {
		if secret.Type != corev1.SecretTypeTLS || len(secret.Data) != 2 {
			t.Errorf("Secret %s of type %s with %d values is known", secret.Name, secret.Type, len(secret.Data))
		}
	}
	for _, o := range c.Objects().ConfigMaps {
		if o.Namespace != ns {
			t.Errorf("ConfigMap %s/%s is known", o.Namespace, o.Name)
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
	c.Publish([]model.Ref{gone, ref(a)}, []model.Ref{another, ref(b)}, ours) // before it leads: that is kept
	eventually(t, 5*time.Second, "leadership", c.Leading)
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

	// Nothing is published any more: what was leaves the status, too, and what others wrote stays. Another client writes the same
	// Ingress all the time, which causes conflicts, and they end some time.
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			s.Patch(t, plain(ns, "a"), "", fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`, i))
		}
	})
	c.Publish(nil, []model.Ref{ref(a), ref(b)}, nil)
	time.Sleep(100 * time.Millisecond)
	stop()
	writing.Wait()
	flush()
	if got, others := addresses(a), addresses(b); got != nil || len(others) != 1 {
		t.Errorf("a has %v, want none, and b %v", got, others)
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
}
