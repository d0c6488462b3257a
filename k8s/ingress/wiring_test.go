package ingress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// addresses returns n endpoints without servers.
func addresses(n int) (list []model.Endpoint) {
	for i := range n {
		list = append(list, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 8080)})
	}
	return list
}

// Every limit that is shared reaches the shields as this replica's part, and all parts together are the limit.
func TestReplicasDivide(t *testing.T) {
	o := policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 9, Burst: 11}}}, PerClient: 7}
	s := policy.Service{Capacity: limiter.Config{Rate: 5, Burst: 3}, Concurrency: 13}
	b := placed(s, 3)
	for _, replicas := range []int{1, 2, 3} {
		var rate, burst, perClient, capacity, capacityBurst, concurrency float64
		for rank := range replicas {
			var d policy.Division
			d.See(0, rank, replicas)
			l := newLive()
			l.apply(time.Second, all(origin("web", o), b), &d, "")
			if len(l.shields) != 1 {
				t.Fatalf("%d shields", len(l.shields))
			}
			for _, is := range l.shields {
				c := is.is.config()
				rate += c.Zones[0].Limit.Rate
				burst += float64(c.Zones[0].Limit.Burst)
				perClient += float64(c.PerClient)
				capacity += c.Capacity.Rate
				capacityBurst += float64(c.Capacity.Burst)
				concurrency += float64(c.Concurrency)
			}
		}
		if math.Abs(rate-9) > 1e-9 || burst != 11 || perClient != 7 || math.Abs(capacity-5) > 1e-9 || capacityBurst != 3 || concurrency != 13 {
			t.Errorf("%d replicas have together: rate %v, burst %v, per client %v, capacity %v, its burst %v, concurrency %v",
				replicas, rate, burst, perClient, capacity, capacityBurst, concurrency)
		}
	}
}

// So two replicas together admit what one would.
func TestReplicasAdmit(t *testing.T) {
	for what, limits := range map[string]struct {
		origin  policy.Ingress
		service policy.Service
	}{
		"clients' quota":     {origin: policy.Ingress{Zones: hourly(7)}},
		"a Service's budget": {service: policy.Service{Capacity: limiter.Config{Rate: 1, Per: hour, Burst: 7}}},
	} {
		b := placed(limits.service, 1)
		m, admitted := all(origin("web", limits.origin), b), 0
		for rank := range 2 {
			replica := newMemory(t, m, ok)
			replica.division.See(0, rank, 2)
			replica.snapshot.Store(replica.live.apply(time.Second+shield.Now(), m, &replica.division, ""))
			for range 10 {
				if replica.from("192.0.2.1", "x").StatusCode == 200 {
					admitted++
				}
			}
		}
		if admitted != 7 {
			t.Errorf("%s: two replicas admit %d, want 7", what, admitted)
		}
	}
}

// The Ingress says what tells clients apart.
func TestKeys(t *testing.T) {
	once := hourly(1)
	for _, tt := range []struct {
		name       string
		is         policy.Ingress
		one, other string // clients
		header     bool   // they send different headers
		want       int    // what the other gets, after one has used the quota
	}{
		{name: "two addresses", one: "192.0.2.1", other: "192.0.2.2", want: 200},
		{name: "one address", one: "192.0.2.1", other: "192.0.2.1", header: true, want: 429},
		{name: "one network of IPv6", one: "[2001:db8::1]", other: "[2001:db8::2]", want: 429},
		{name: "two networks of IPv6", one: "[2001:db8::1]", other: "[2001:db8:0:1::1]", want: 200},
		{name: "all of IPv6", is: policy.Ingress{IPv6Prefix: 128}, one: "[2001:db8::1]", other: "[2001:db8::2]", want: 200},
		{name: "less of IPv6", is: policy.Ingress{IPv6Prefix: 32}, one: "[2001:db8::1]", other: "[2001:db8:0:1::1]", want: 429},
		{name: "a header", is: policy.Ingress{Key: "{http.request.header.X-Key}"}, one: "192.0.2.1", other: "192.0.2.1", header: true, want: 200},
		{name: "the same header", is: policy.Ingress{Key: "{http.request.header.X-Key}"}, one: "192.0.2.1", other: "192.0.2.2", want: 429},
		{name: "allowed", is: policy.Ingress{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, one: "192.0.2.1", other: "192.0.2.1", want: 200},
		{name: "not allowed", is: policy.Ingress{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.3.0/24")}}, one: "192.0.2.1", other: "192.0.2.1", want: 429},
	} {
		for _, per := range []bool{false, true} { // what they may have in flight, or their quota
			is, held := tt.is, make(chan struct{})
			arrived := make(chan struct{}, 1)
			if per {
				is.PerClient = 1
			} else {
				is.Zones = once
			}
			b := placed(policy.Service{}, 1)
			m := newMemory(t, all(origin("web", is), b), func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Hold") != "" {
					arrived <- struct{}{}
					<-held
				}
			})
			keys := []string{"a", "a"}
			if tt.header {
				keys[1] = "b"
			}
			var wg sync.WaitGroup
			if per {
				wg.Go(func() { m.from(tt.one, "x", "X-Key", keys[0], "X-Hold", "1") })
				<-arrived
			} else if status := m.from(tt.one, "x", "X-Key", keys[0]).StatusCode; status != 200 {
				t.Errorf("%s: the first got %d", tt.name, status)
			}
			if status := m.from(tt.other, "x", "X-Key", keys[1]).StatusCode; status != tt.want {
				t.Errorf("%s, in flight %v: got %d, want %d", tt.name, per, status, tt.want)
			}
			close(held)
			wg.Wait()
		}
	}
}

// Ingresses with different policies to one Service each have their own, and share the Service's.
func TestIngressesOfOneService(t *testing.T) {
	const places = 10
	held := make(chan struct{})
	var inside sync.WaitGroup
	web := service("web", policy.Service{Concurrency: places, Queue: policy.QueueOff})
	b := backend(web)
	b.Endpoints = addresses(1)
	quota := func(status int) policy.Ingress {
		return policy.Ingress{Zones: hourly(1), Status: status}
	}
	is := map[string]policy.Ingress{
		"critical": {Class: "critical"}, "default": {}, "sheddable": {Class: "sheddable"},
		"teapot": quota(418), "allowed": quota(418), "observed": quota(418), "keyed": quota(418), "patient": quota(418),
	}
	for name, change := range map[string]func(*policy.Ingress){
		"allowed":  func(i *policy.Ingress) { i.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} },
		"observed": func(i *policy.Ingress) { i.Observe = true },
		"keyed":    func(i *policy.Ingress) { i.Key = "{http.request.header.X-Key}" },
		"patient":  func(i *policy.Ingress) { i.RetryAfterMax = 2 * time.Second },
	} {
		i := is[name]
		change(&i)
		is[name] = i
	}
	m := new(model.Model)
	for name, i := range is {
		m.Rules = append(m.Rules, model.Rule{Host: name, Path: "/", Target: model.Target{Origin: origin(name, i), Backend: b}})
	}
	w := newMemory(t, m, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") != "" {
			inside.Done()
			<-held
		}
	})
	for _, tt := range []struct {
		host, key string
		want      int
	}{
		{"default", "", 200}, {"default", "", 200}, {"teapot", "", 200}, {"teapot", "", 418}, {"allowed", "", 200}, {"allowed", "", 200},
		{"observed", "", 200}, {"observed", "", 200}, {"keyed", "a", 200}, {"keyed", "b", 200}, {"keyed", "a", 418},
		{"patient", "", 200}, {"patient", "", 418},
	} {
		resp := w.from("192.0.2.1", tt.host, "X-Key", tt.key)
		if resp.StatusCode != tt.want {
			t.Errorf("%s: got %d, want %d", tt.host, resp.StatusCode, tt.want)
		}
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		if tt.want == 418 && (after < 1 || (after <= 2) != (tt.host == "patient")) {
			t.Errorf("%s: Retry-After is %d", tt.host, after)
		}
	}
	// Eight of ten places are taken: not enough for the least important.
	var wg sync.WaitGroup
	for range places - 2 {
		inside.Add(1)
		wg.Go(func() { w.from("192.0.2.9", "critical", "X-Hold", "1") })
	}
	inside.Wait()
	for host, want := range map[string]int{"critical": 200, "sheddable": 503} {
		if status := w.from("192.0.2.1", host).StatusCode; status != want {
			t.Errorf("%s, with 8 of 10 places taken: got %d, want %d", host, status, want)
		}
	}
	close(held)
	wg.Wait()
	if status := w.from("192.0.2.1", "sheddable").StatusCode; status != 200 {
		t.Errorf("sheddable, with all places free: got %d", status)
	}
}

// The shorter retry-after-max applies; that of a Service without limits does not.
func TestRetryAfterMax(t *testing.T) {
	once := limiter.Config{Rate: 1, Per: hour, Burst: 1}
	for _, tt := range []struct {
		origin, service time.Duration
		limits          bool // of the Service; else of the clients
		least, most     int
	}{
		{0, 0, true, 15, 60},
		{3 * time.Second, 0, true, 1, 3},
		{0, 3 * time.Second, true, 1, 3},
		{3 * time.Second, 20 * time.Second, true, 1, 3},
		{20 * time.Second, 3 * time.Second, true, 1, 3},
		{3 * time.Second, 0, false, 1, 3},
		{0, 3 * time.Second, false, 3600, 3600}, // the truth of a quota
	} {
		i, s := policy.Ingress{RetryAfterMax: tt.origin}, policy.Service{RetryAfterMax: tt.service}
		if tt.limits {
			s.Capacity = once
		} else {
			i.Zones = []policy.Zone{{Name: "rate", Limit: once}}
		}
		b := placed(s, 1)
		longest := 0
		synctest.Test(t, func(t *testing.T) { // those who come too early are held back
			afterEpoch()
			m := newMemory(t, all(origin("web", i), b), ok)
			m.from("192.0.2.1", "x")
			for n := range 50 {
				client := "192.0.2.1"
				if tt.limits {
					client = fmt.Sprint("192.0.2.", n+2)
				}
				resp := m.from(client, "x")
				after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
				if resp.StatusCode < 400 || after < 1 {
					t.Fatalf("%+v: got %d, Retry-After %q", tt, resp.StatusCode, resp.Header.Get("Retry-After"))
				}
				longest = max(longest, after)
			}
		})
		if longest < tt.least || longest > tt.most {
			t.Errorf("%+v: the longest Retry-After is %d; want %d to %d", tt, longest, tt.least, tt.most)
		}
	}
}

// An adaptive limit, or a number, is never above what the endpoints may have together.
func TestPlacesBoundConcurrency(t *testing.T) {
	for _, tt := range []struct {
		is                 policy.Service
		endpoints          int
		limit, least, most int
	}{
		{is: policy.Service{EndpointConcurrency: 4}, endpoints: 3, limit: 12},
		{is: policy.Service{EndpointConcurrency: 4, Concurrency: 5}, endpoints: 3, limit: 5},
		{is: policy.Service{EndpointConcurrency: 4, Concurrency: 50}, endpoints: 3, limit: 12},
		{is: policy.Service{EndpointConcurrency: 4, Adaptive: true}, endpoints: 3, least: 2, most: 12},
		{is: policy.Service{EndpointConcurrency: 1, Adaptive: true}, endpoints: 1, least: 1, most: 1},
		{is: policy.Service{EndpointConcurrency: 4}, endpoints: 0, limit: 1},
		{is: policy.Service{EndpointConcurrency: loadshed.MaxConcurrency}, endpoints: 5, limit: loadshed.MaxConcurrency},
	} {
		b := placed(tt.is, tt.endpoints)
		m := newMemory(t, all(origin("web", policy.Ingress{}), b), ok)
		for _, is := range m.live.shields {
			c := is.is.config()
			least, most := 0, 0
			if c.Adaptive != nil {
				least, most = c.Adaptive.Min, c.Adaptive.Max
			}
			if c.Concurrency != tt.limit || least != tt.least || most != tt.most || (c.Adaptive != nil) != tt.is.Adaptive {
				t.Errorf("%+v with %d endpoints: limit %d, adaptive from %d to %d; want %d, %d to %d", tt.is, tt.endpoints, c.Concurrency, least, most, tt.limit, tt.least, tt.most)
			}
		}
	}
}

// The memory for clients is shared out among all quotas of a cluster.
func TestMaxKeys(t *testing.T) {
	for _, tt := range []struct{ quotas, want int }{{0, 1 << 17}, {1, 1 << 17}, {32, 1 << 17}, {33, 1 << 16}, {1000, 1 << 12}, {1 << 30, minKeys}} {
		if got := maxKeys(tt.quotas); got != max(tt.want, minKeys) {
			t.Errorf("%d quotas: %d clients each, want %d", tt.quotas, got, tt.want)
		}
	}
	quota := policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1}}}}
	for quotas, want := range map[int]int{10: 1 << 17, 40: 1 << 16} {
		m := new(model.Model)
		for n := range quotas {
			m.Rules = append(m.Rules, model.Rule{Host: fmt.Sprint(n), Path: "/", Target: model.Target{
				Origin: origin(fmt.Sprint(n), quota), Backend: backend(service("web", policy.Service{})),
			}})
		}
		for _, is := range newMemory(t, m, ok).live.shields {
			if is.is.maxKeys != want {
				t.Errorf("%d clients for each of %d quotas, want %d", is.is.maxKeys, quotas, want)
			}
		}
	}
	// It reaches the quota, which would not take this.
	state := &originState{label: "x", zones: map[string]*caddymodule.LiveZoneState{}}
	if _, err := (protection{origin: quota, maxKeys: -1}).shields(state, nil); err == nil {
		t.Error("a quota does not know how many clients it may remember")
	}
}

// Objects with long names that differ only at the end have different labels: two with one
// label would break the gathering of all metrics.
func TestMetricsOfLongNames(t *testing.T) {
	long := strings.Repeat("n", 60)
	m := new(model.Model)
	labels := map[string]bool{}
	for n := range 50 {
		name := fmt.Sprint(long, n)
		s := service(name, policy.Service{Capacity: limiter.Config{Rate: 10}, EndpointConcurrency: 5})
		o := origin(name, policy.Ingress{Zones: []policy.Zone{{Name: "rps", Limit: limiter.Config{Rate: 1}}, {Name: "rpm", Limit: limiter.Config{Rate: 1}}}})
		s.Namespace, o.Namespace = long, long
		for _, port := range []string{"http", "http-admin-long", "http-admin-longer"[:15], "8080", ""} {
			b := backend(s)
			b.Port, b.Endpoints = port, addresses(n%3)
			m.Rules = append(m.Rules, model.Rule{Host: fmt.Sprint(n), Path: "/" + port, Target: model.Target{Origin: o, Backend: b}})
			labels[label(s.Ref, "/"+port)] = true
		}
	}
	if len(labels) != 50*4 { // two of the ports are one
		t.Errorf("%d labels for %d ports", len(labels), 50*4)
	}
	// Each of a Service's ports is one Backend.
	kept := map[string]bool{}
	var rules []model.Rule
	for _, r := range m.Rules {
		if key := r.Backend.Service.UID + r.Backend.Port; !kept[key] {
			kept[key] = true
			rules = append(rules, r)
		}
	}
	w := newWorld(t, &model.Model{Rules: rules})
	w.controller.shields.Load().Show(w.controller.snapshot.Load().shields)
	w.get("1", "/http")
	names := w.metrics()
	for _, name := range []string{"shield_ingress_endpoints", "shield_ingress_requests_total", "caddy_shield_requests_total"} {
		if _, is := names[name]; !is {
			t.Errorf("there is no %s", name)
		}
	}
}

// metrics returns the names of all metrics of the process, and the sums of their values.
func (w *world) metrics() map[string]float64 {
	w.t.Helper()
	kubeconfig := filepath.Join(w.t.TempDir(), "kubeconfig")
	must.Do(w.t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: "https://192.0.2.1"}}]}`), 0o600))
	// It is asked who leads, and nothing else.
	w.controller.cluster = must.Get(cluster.New(cluster.Config{Kubeconfig: kubeconfig, Namespace: "x", Pod: "x"}, caddy.Log()))(w.t)
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		w.t.Error(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		sums[f.GetName()] = 0
		for _, m := range f.GetMetric() {
			sums[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sums
}

// All policies that parse make shields, for any replica and any number of endpoints.
// Otherwise a policy would be accepted and silently not applied.
func FuzzPoliciesMakeShields(f *testing.F) {
	f.Add("50/s", "10", "{http.request.header.X-Key}", "5", "critical", "10.0.0.0/8", "5s", "observe", "500/s", "100", "adaptive", "4", "10", "1s", "5s", "enforce")
	f.Add("3/h", "", "", "", "", "", "", "", "", "", "10", "", "off", "", "", "")
	f.Fuzz(func(t *testing.T, rate, burst, key, concurrency, class, allow, after, mode, capacity, serviceBurst, serviceConcurrency, endpointConcurrency, queue, timeout, serviceAfter, serviceMode string) {
		makeShields(t, annotations("rate", rate, "burst", burst, "key", key, "concurrency", concurrency, "class", class, "allow-cidrs", allow, "retry-after-max", after, "mode", mode),
			annotations("capacity", capacity, "burst", serviceBurst, "concurrency", serviceConcurrency, "endpoint-concurrency", endpointConcurrency, "queue", queue, "queue-timeout", timeout, "retry-after-max", serviceAfter, "mode", serviceMode))
	})
}

// annotations has those that are not "".
func annotations(list ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		if list[i+1] != "" {
			m["shield.herdshield.io/"+list[i]] = list[i+1]
		}
	}
	return m
}

// makeShields returns whether both are policies that the parsers take.
func makeShields(t *testing.T, ingress, of map[string]string) bool {
	t.Helper()
	i, err := policy.ParseIngress(ingress, policy.Ingress{})
	if err != nil {
		return false
	}
	s, err := policy.ParseService(of)
	if err != nil {
		return false
	}
	for endpoints := range 6 {
		b := placed(s, endpoints)
		l := newLive()
		var d policy.Division
		if endpoints > 0 {
			d.See(0, endpoints-1, endpoints)
		}
		l.apply(time.Second, all(origin("web", i), b), &d, "")
		for _, p := range l.problems {
			if p.Reason != "MoreReplicasThanPlaces" {
				t.Errorf("%v and %v with %d endpoints: %s", ingress, of, endpoints, p.Message)
			}
		}
	}
	return true
}

// The same, with values that mostly are legal, and at their bounds.
func TestPoliciesMakeShields(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	one := func(values ...string) string { return values[random.IntN(len(values))] }
	rates := []string{"", "50/s", "1/h", "0.5/s", "1000000000/s", "100000/m", "0.001/h"}
	bursts := []string{"", "", "1", "7", "1000000000"}
	waits := []string{"", "1s", "59s", "5s"}
	legal := 0
	for range 1500 {
		if makeShields(t, annotations("rate", one(rates...), "burst", one(bursts...), "key", one("", "", "{http.request.header.X-Key}", "{http.vars.client_ip}"),
			"concurrency", one("", "1", "10", strconv.Itoa(loadshed.MaxConcurrency)), "class", one("", "critical", "default", "sheddable"),
			"allow-cidrs", one("", "10.0.0.0/8, 2001:db8::1", "0.0.0.0/0"), "retry-after-max", one(waits...), "mode", one("", "observe", "enforce")),
			annotations("capacity", one(rates...), "burst", one(bursts...), "concurrency", one("", "adaptive", "1", "10", strconv.Itoa(loadshed.MaxConcurrency)),
				"endpoint-concurrency", one("", "1", "3", strconv.Itoa(loadshed.MaxConcurrency)), "queue", one("", "", "off", "1", strconv.Itoa(loadshed.MaxQueue)),
				"queue-timeout", one("", "", "1s", "1ms", loadshed.MaxQueueTimeout.String()), "retry-after-max", one(waits...), "mode", one("", "observe", "enforce"))) {
			legal++
		}
	}
	if legal < 100 {
		t.Errorf("only %d of them were legal", legal)
	}
	t.Logf("%d were legal", legal)
}
