package livetest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
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
	"github.com/herdshield/shield/share/redis/testserver"
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

// Two replicas with a store admit together what one does: of a Service's capacity, and of a
// client's quota. Without the store they still do, each with its part, until it is back.
func TestShared(t *testing.T) {
	s, ns := shop(t, "shared")
	store, machine := testserver.Start(t, testserver.Programs(t)[0]), testserver.Watch(t)
	store.Do("CONFIG", "SET", "requirepass", "horse")
	store.Password = "horse"
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "store"},
		Data:       map[string][]byte{"secret": []byte("correct horse battery staple"), "password": []byte(store.Password)},
	}
	s.Create(t, secret)
	s.Get(t, secret)
	// As the kubelet sets the environment of the chart's pods: see TestValues in deploy.
	t.Setenv("SHIELD_SECRET", string(secret.Data["secret"]))
	t.Setenv("SHIELD_STORE_PASSWORD", string(secret.Data["password"]))

	const rate, burst, asking = 20, 20, 3 * time.Second
	capacity := s.Serve(t, service(ns, "capacity", annotation+"capacity", fmt.Sprint(rate, "/s"), annotation+"burst", fmt.Sprint(burst)), "capacity", nil)
	s.Create(t, webIngress(ns, "capacity", "capacity.example.com", "/", "capacity"))
	quota := s.Serve(t, service(ns, "quota"), "quota", nil)
	limited := webIngress(ns, "quota", "quota.example.com", "/", "quota")
	limited.Annotations = pairs([]string{annotation + "rate", fmt.Sprint(rate, "/s"), annotation + "burst", fmt.Sprint(burst)})
	s.Create(t, limited)
	s.Replicas(t, ns, "one", "two")
	var both []*Process
	for _, name := range []string{"one", "two"} {
		both = append(both, begin(t, s.AdminKubeconfig(t), name, "--service", ns+"/own", "--replicas=shared", "--store=redis://"+store.Addr))
	}
	for _, p := range both {
		if strings.Contains(p.logs(), "horse") {
			t.Error("the logs have the password or the secret")
		}
	}

	is := func(up, alone float64) func() bool {
		return func() bool {
			for _, p := range both {
				for _, m := range []struct {
					name string
					want float64
				}{
					{"caddy_shield_store_up", up}, {"caddy_shield_store_alone", alone}, {"caddy_shield_store_zone_alone", alone},
					{"caddy_shield_store_replicas", 2}, {"caddy_shield_store_zone_replicas", 2},
				} {
					if values := p.metrics(m.name, ns); len(values) != 1 || values[0] != m.want {
						return false
					}
				}
			}
			return true
		}
	}
	for _, phase := range []struct {
		name      string
		do        func()
		up, alone float64
		least     float64 // of what one admits
	}{
		{"together", func() {}, 1, 0, .8},
		{"without the store", store.Kill, 0, 1, .7},
	} {
		phase.do()
		eventually(t, 20*time.Second, phase.name+", says each", is(phase.up, phase.alone))
		time.Sleep(2 * time.Second) // a new store begins with empty buckets
		var hosts sync.WaitGroup
		machine.Lap()
		for host, pod := range map[string]*Pod{"capacity.example.com": capacity, "quota.example.com": quota} {
			hosts.Go(func() {
				began, before := time.Now(), pod.Served.Load()
				ask(both, host, asking)
				got, most := float64(pod.Served.Load()-before), burst+rate*time.Since(began).Seconds()+float64(len(both))
				least := phase.least * (burst + rate*asking.Seconds()) // rejections take longer, and no more are asked
				prompt := machine.Prompt()
				if !prompt {
					most += 0.1 * got // decisions that were made late are of a time that has passed
				}
				t.Logf("%s: %s admits %.0f of %.1f to %.1f; the machine is prompt: %v", phase.name, host, got, least, most, prompt)
				if got > most || prompt && got < least {
					t.Errorf("%s: %s admits %.0f; want as many as one replica, %.1f to %.1f", phase.name, host, got, least, most)
				}
			})
		}
		hosts.Wait()
	}
	store.Password = ""
	store.Restart()
	store.Do("CONFIG", "SET", "requirepass", "horse")
	eventually(t, 20*time.Second, "the store is back, says each", is(1, 0))
}

// ask asks all processes in turn for a host, 100 times per second, until the time is over
// and all have answered.
func ask(all []*Process, host string, lasts time.Duration) {
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	end := time.After(lasts)
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := 0; ; i++ {
		select {
		case <-end:
			return
		case <-every.C:
			asked.Go(func() { all[i%len(all)].Get(host, "/") })
		}
	}
}

// metrics returns the values of a metric: of all that has no labels, or is in a namespace.
// Objects of other tests may still be there.
func (p *Process) metrics(name, namespace string) (values []float64) {
	resp := must.Get(http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", p.Status)))(p.t)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		metric, value, _ := strings.Cut(lines.Text(), " ")
		metric, labels, labelled := strings.Cut(metric, "{")
		if metric == name && (!labelled || strings.Contains(labels, "/"+namespace+"/")) {
			f := must.Get(strconv.ParseFloat(value, 64))(p.t)
			values = append(values, f)
		}
	}
	return values
}
