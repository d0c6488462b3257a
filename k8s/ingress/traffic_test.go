package ingress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
)

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
