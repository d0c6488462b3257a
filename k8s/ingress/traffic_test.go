package ingress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
)

// responses returns the metrics of traffic, as "ingress service code count", and how many answers have a time.
func (w *world) responses() (list []string, timed map[string]uint64) {
	w.t.Helper()
	registry, timed := prometheus.NewRegistry(), map[string]uint64{}
	registry.MustRegister(trafficOnly{w.controller.snapshot.Load()})
	families := must.Get(registry.Gather())(w.t)
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			if h := m.Histogram; h != nil {
				timed[labels[0]] = h.GetSampleCount()
				continue
			}
			list = append(list, fmt.Sprint(labels[1], " ", labels[2], " ", labels[0], " ", m.Counter.GetValue()))
		}
	}
	slices.Sort(list)
	return list, timed
}

// trafficOnly collects the metrics of traffic.
type trafficOnly struct{ *Snapshot }

func (s trafficOnly) Describe(ch chan<- *prometheus.Desc) { ch <- descResponses; ch <- descTook }
func (s trafficOnly) Collect(ch chan<- prometheus.Metric) {
	for _, t := range s.traffics {
		t.collect(ch)
	}
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
	const pair = "ingress/shop/web service/shop/web/http "
	if got, _ := w.responses(); !slices.Equal(got, []string{pair + "2xx 0", pair + "4xx 0", pair + "5xx 0"}) {
		t.Errorf("before there were any, answers are %v", got)
	}
	for _, path := range []string{"/200", "/404", "/500", "/breaks", "/rejected", "/rejected"} {
		w.get("shop.example.com", path)
	}
	w.get("other.example.com", "/")
	w.apply(m)
	want := []string{pair + "2xx 1", pair + "4xx 3", pair + "5xx 2"}
	got, timed := w.responses()
	if !slices.Equal(got, want) || len(timed) != 1 || timed["ingress/shop/web"] != 6 {
		t.Errorf("answers are\n%s\n%v; want\n%s\nand 6 of them with a time", strings.Join(got, "\n"), timed, strings.Join(want, "\n"))
	}

	// When the Ingress is gone its metrics go, too.
	w.apply(&model.Model{})
	w.now += forgetAfter + time.Second
	w.apply(&model.Model{})
	if got, _ := w.responses(); len(got) != 0 {
		t.Errorf("of an Ingress that is gone there are still %v", got)
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
	got, _ := w.responses()
	if !slices.Contains(got, "ingress/shop/web service/shop/web/http 2xx 2") {
		t.Errorf("answers are %v; want 2 by one pair", got)
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
