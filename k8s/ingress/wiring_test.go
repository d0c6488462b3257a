package ingress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func addresses(n int) (list []model.Endpoint) {
	for i := range n {
		list = append(list, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 8080)})
	}
	return list
}

// The Ingress says what tells clients apart.
func TestKeys(t *testing.T) {
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
		is := tt.is
		is.Zones = hourly(1)
		m := newMemory(t, all(origin("web", is), placed(policy.Service{}, 1)), ok)
		keys := []string{"a", "a"}
		if tt.header {
			keys[1] = "b"
		}
		if status := m.from(tt.one, "x", "X-Key", keys[0]).StatusCode; status != 200 {
			t.Errorf("%s: the first got %d", tt.name, status)
		}
		if status := m.from(tt.other, "x", "X-Key", keys[1]).StatusCode; status != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, status, tt.want)
		}
	}
}

// Ingresses with different policies to one Service each have their own, and share the Service's.
func TestIngressesOfOneService(t *testing.T) {
	const permits = 10
	held := make(chan struct{})
	var inside sync.WaitGroup
	web := service("web", policy.Service{Concurrency: permits, Queue: policy.QueueOff})
	b := backend(web)
	b.Endpoints = addresses(1)
	is := map[string]policy.Ingress{
		"critical": {Class: "critical"}, "default": {}, "sheddable": {Class: "sheddable"}, "teapot": {Zones: hourly(1), Status: 418},
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
		host string
		want int
	}{{"default", 200}, {"default", 200}, {"teapot", 200}, {"teapot", 418}} {
		if got := w.from("192.0.2.1", tt.host).StatusCode; got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.host, got, tt.want)
		}
	}
	// Eight of ten permits are taken: not enough for the least important.
	var wg sync.WaitGroup
	for range permits - 2 {
		inside.Add(1)
		wg.Go(func() { w.from("192.0.2.9", "critical", "X-Hold", "1") })
	}
	inside.Wait()
	for host, want := range map[string]int{"critical": 200, "sheddable": 503} {
		if status := w.from("192.0.2.1", host).StatusCode; status != want {
			t.Errorf("%s, with 8 of 10 permits taken: got %d, want %d", host, status, want)
		}
	}
	close(held)
	wg.Wait()
	if status := w.from("192.0.2.1", "sheddable").StatusCode; status != 200 {
		t.Errorf("sheddable, with all permits free: got %d", status)
	}
}

// The shorter retry-after-max applies; that of a Service without limits does not.
func TestRetryAfterMax(t *testing.T) {
	once := limiter.Config{Rate: 1, Per: hour, Burst: 1}
	for _, tt := range []struct {
		origin, service time.Duration
		limits          bool // of the Service; else of the clients
		want            time.Duration
	}{
		{0, 0, true, 0}, {3 * time.Second, 0, true, 3 * time.Second}, {0, 3 * time.Second, true, 3 * time.Second},
		{3 * time.Second, 20 * time.Second, true, 3 * time.Second}, {20 * time.Second, 3 * time.Second, true, 3 * time.Second},
		{3 * time.Second, 0, false, 3 * time.Second}, {0, 3 * time.Second, false, 0},
	} {
		i, s := policy.Ingress{RetryAfterMax: tt.origin}, policy.Service{RetryAfterMax: tt.service}
		if tt.limits {
			s.Capacity = once
		} else {
			i.Zones = hourly(1)
		}
		for _, is := range newMemory(t, all(origin("web", i), placed(s, 1)), ok).live.shields {
			if c := is.is.config().Pushback; c.Max != tt.want || c.QuotaMax != tt.want {
				t.Errorf("%+v: the longest Retry-After is %v, of quotas %v", tt, c.Max, c.QuotaMax)
			}
		}
	}
}

// An adaptive limit, or a number, is never above what the endpoints may have together. The queue is the Service's.
func TestPermitsBoundConcurrency(t *testing.T) {
	for _, tt := range []struct {
		is        policy.Service
		endpoints int
		want      string // the limit, the bounds of an adaptive one, and the queue
	}{
		{policy.Service{EndpointConcurrency: 4}, 3, "12, queue {0 0s}"},
		{policy.Service{EndpointConcurrency: 4, Concurrency: 5, Queue: 7, QueueTimeout: time.Second}, 3, "5, queue {7 1s}"},
		{policy.Service{EndpointConcurrency: 4, Concurrency: 50, Queue: policy.QueueOff}, 3, "12, queue {-1 0s}"},
		{policy.Service{EndpointConcurrency: 4, Adaptive: true}, 3, "0 from 2 to 12, queue {0 0s}"},
		{policy.Service{EndpointConcurrency: 1, Adaptive: true}, 1, "0 from 1 to 1, queue {0 0s}"},
		{policy.Service{EndpointConcurrency: 4}, 0, "1, queue {0 0s}"},
		{policy.Service{EndpointConcurrency: loadshed.MaxConcurrency}, 5, fmt.Sprint(loadshed.MaxConcurrency, ", queue {0 0s}")},
	} {
		for _, is := range newMemory(t, all(origin("web", policy.Ingress{}), placed(tt.is, tt.endpoints)), ok).live.shields {
			c := is.is.config()
			got := fmt.Sprint(c.Concurrency)
			if c.Adaptive != nil {
				got += fmt.Sprint(" from ", c.Adaptive.Min, " to ", c.Adaptive.Max)
			}
			if got += fmt.Sprint(", queue ", c.Queue); got != tt.want {
				t.Errorf("%+v with %d endpoints: limit %s, want %s", tt.is, tt.endpoints, got, tt.want)
			}
		}
	}
}

// The memory for clients is shared out among all quotas of a cluster.
func TestMaxKeys(t *testing.T) {
	for quotas, want := range map[int]int{10: 1 << 17, 40: 1 << 16} {
		m := new(model.Model)
		for n := range quotas {
			m.Rules = append(m.Rules, all(origin(fmt.Sprint(n), policy.Ingress{Zones: hourly(1)}), placed(policy.Service{}, 1)).Rules...)
		}
		for _, is := range newMemory(t, m, ok).live.shields {
			if is.is.maxKeys != want {
				t.Errorf("%d clients for each of %d quotas, want %d", is.is.maxKeys, quotas, want)
			}
		}
	}
}

// Objects with long names that differ only at the end have different labels: two with one label would break the gathering
// of all metrics.
func TestLabelsOfLongNames(t *testing.T) {
	labels := map[string]bool{}
	for n := range 50 {
		b := backend(service(fmt.Sprint(strings.Repeat("n", 60), n), policy.Service{}))
		b.Service.Namespace = strings.Repeat("n", 60)
		for _, b.Port = range []string{"http", "http-admin-long", "8080", ""} {
			labels[backendLabel(b)] = true
		}
	}
	for label := range labels {
		if len(labels) != 200 || len(label) > maxLabel {
			t.Fatalf("%d labels of 200 objects, like %s", len(labels), label)
		}
	}
}

// metrics returns the sums of all metrics of the process by their names, and the values, or the counts of histograms, of
// each series as name{value of a label,...}, the labels in the order of their names.
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
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			sums[f.GetName()] += value
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			sums[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sums
}

func annotations(list ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		m[policy.Prefix+list[i]] = list[i+1]
	}
	return m
}

// All policies that parse make shields, for any replica and any number of endpoints: otherwise a policy
// would be accepted and silently not applied. The values are legal, and at their bounds.
func TestPoliciesMakeShields(t *testing.T) {
	most, queue := strconv.Itoa(loadshed.MaxConcurrency), strconv.Itoa(loadshed.MaxQueue)
	for _, ingress := range []map[string]string{
		annotations("rate", "1/h"), annotations("rate", "1000000000/s", "burst", "1000000000"), annotations("rate", "0.01/h", "burst", "1", "key", "{http.request.header.X-Key}"),
		annotations("concurrency", most, "class", "critical", "allow-cidrs", "0.0.0.0/0"), annotations("concurrency", "1", "retry-after-max", "1s", "mode", "observe"),
		{policy.NginxPrefix + "limit-rps": "100000", policy.NginxPrefix + "limit-burst-multiplier": "7"}, {policy.NginxPrefix + "limit-rpm": "1", policy.NginxPrefix + "limit-connections": most},
	} {
		for _, of := range []map[string]string{
			nil, annotations("capacity", "0.01/h"), annotations("capacity", "1000000000/s", "burst", "1000000000", "retry-after-max", "59s"),
			annotations("concurrency", "adaptive", "endpoint-concurrency", most), annotations("concurrency", "adaptive", "endpoint-concurrency", "1", "queue", "1", "queue-timeout", "1ms"),
			annotations("concurrency", most, "endpoint-concurrency", "3", "queue", queue, "queue-timeout", loadshed.MaxQueueTimeout.String()),
			annotations("concurrency", "1", "queue", "off", "mode", "observe"),
		} {
			i, _, err := policy.ParseNginx(ingress, must.Get(policy.ParseIngress(ingress, policy.Ingress{}))(t))
			must.Do(t, err)
			s := must.Get(policy.ParseService(of))(t)
			for endpoints := range 6 {
				l, d := newLive(), policy.Division{}
				if endpoints > 0 {
					d.See(0, endpoints-1, endpoints)
				}
				l.apply(time.Second, all(origin("web", i), placed(s, endpoints)), &d, "")
				for _, p := range l.problems {
					if p.Reason != "MoreReplicasThanPermits" {
						t.Errorf("%v and %v with %d endpoints: %s", ingress, of, endpoints, p.Message)
					}
				}
			}
		}
	}
}

// responses returns how many there have been of each status, by an Ingress and its Service, and how many have a time.
func (w *world) responses() string {
	w.t.Helper()
	m, text := w.metrics(), ""
	for _, code := range []string{"2xx", "4xx", "5xx"} {
		if n, is := m["shield_ingress_responses_total{"+code+",ingress/shop/web,service/shop/web/http}"]; is {
			text += fmt.Sprint(code, " ", n, ", ")
		}
	}
	return text + fmt.Sprint("timed ", m["shield_ingress_response_seconds{ingress/shop/web,service/shop/web/http}"])
}

// Responses are counted by Ingress and Service: those of the backend, of shields and of the
// ingress itself. Those to requests without a route are not counted, and a rebuild loses no count.
func TestTraffic(t *testing.T) {
	pod := serving(t, "red", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/breaks" {
			panic(http.ErrAbortHandler)
		}
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	})
	m := all(origin("web", policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: 4}}}}),
		backend(service("web", policy.Service{}), pod))
	m.Rules[0].Host = "shop.example.com"
	m.Default = nil
	w := newWorld(t, m)
	// Counters that alerts ask for are there from the beginning: rate() does not see the first value of a series.
	if got := w.responses(); got != "2xx 0, 4xx 0, 5xx 0, timed 0" {
		t.Errorf("before there were any, responses are %s", got)
	}
	for _, path := range []string{"/200", "/404", "/500", "/breaks", "/rejected", "/rejected"} {
		w.get("shop.example.com", path)
	}
	w.get("other.example.com", "/")
	w.apply(m)
	if got := w.responses(); got != "2xx 1, 4xx 3, 5xx 2, timed 6" {
		t.Errorf("responses are %s", got)
	}

	// When the Ingress is gone its metrics go, too.
	w.apply(&model.Model{})
	w.now += forgetAfter + time.Second
	w.apply(&model.Model{})
	if got := w.responses(); got != "timed 0" {
		t.Errorf("of an Ingress that is gone there are still %s", got)
	}
}

// An Ingress and a Service that are deleted and created anew go on with their counts: two series
// with the same labels would make the whole scrape fail.
func TestTrafficOfRecreatedObjects(t *testing.T) {
	pod := newPod(t, "red", func(s *httptest.Server) { s.Start() })
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{}), pod)))
	w.get("shop.example.com", "/")
	o, s := origin("web", policy.Ingress{}), service("web", policy.Service{})
	o.UID, s.UID = "new", "new too"
	w.apply(all(o, backend(s, pod)))
	w.get("shop.example.com", "/")
	if got := w.responses(); got != "2xx 2, 4xx 0, 5xx 0, timed 2" {
		t.Errorf("responses are %s; want 2 by one pair", got)
	}
}

// More Ingresses than may have metrics of their own share those without labels.
func TestTrafficsAreBounded(t *testing.T) {
	l, now := newLive(), shield.Now()
	b := &builder{live: l, now: now}
	for i := range maxTraffics + 10 {
		b.trafficOf(&model.Target{Origin: &model.Origin{Ref: model.Ref{Kind: "Ingress", Namespace: "shop", Name: fmt.Sprint(i)}}}).ended(200, now)
	}
	if n := len(l.traffics); n != maxTraffics+1 {
		t.Errorf("there are %d; want %d", n, maxTraffics+1)
	}
	if rest := l.traffics[trafficKey{}]; rest == nil || rest.statuses[2].Load() != 10 {
		t.Errorf("the last ones are not together")
	}
}
