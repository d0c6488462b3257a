package ingress

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
)

// outcome is the outcome of a request. Rejections of shields count as passed here, and are
// counted by the shields.
type outcome int

const (
	passed     outcome = iota // to the shields and, if they admitted it, to an endpoint
	redirected                // to https, or by a filter
	answered                  // a preflight, or a rejection of the authentication
	unreadable                // 400, 405, 408, 413
	unrouted                  // 404
	denied                    // 403
	closed                    // 503: a guard is not there
	unserved                  // 503: no endpoint, no Service, or not synced
	broken                    // 502: endpoints did not answer
	timeout                   // 504, or the response was broken off: an endpoint was late
	aborted                   // the response broke off
	outcomes
)

var outcomeNames = [outcomes]string{"passed", "redirected", "answered", "unreadable", "unrouted", "denied", "closed", "unserved", "broken", "timeout", "aborted"}

// measures are the measurements of a controller.
type measures struct {
	requests [outcomes]atomic.Uint64
	rebuilds prometheus.Histogram

	mu        sync.Mutex // guards the fields below
	rebuiltAt time.Duration
	problems  map[string]int // by reason
	fraction  float64
	logged    struct {
		at     time.Duration
		failed uint64
	}
}

func newMeasures() *measures {
	return &measures{rebuilds: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "shield_ingress_rebuild_seconds", Help: "Time to make a snapshot of the cluster.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
	})}
}

func (m *measures) count(o outcome) { m.requests[o].Add(1) }

// rebuilt records a new Snapshot.
func (m *measures) rebuilt(s *Snapshot, problems []model.Problem, took time.Duration, fraction float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rebuilds.Observe(took.Seconds())
	m.rebuiltAt, m.fraction, m.problems = shield.Now(), fraction, map[string]int{}
	for _, p := range problems {
		m.problems[p.Reason]++
	}
}

// failed logs that endpoints do not answer, at most once per second.
func (c *controller) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := shield.Now()
	if c.logged.at > 0 && now-c.logged.at < time.Second {
		return
	}
	n := c.requests[broken].Load() + c.requests[timeout].Load() + 1 // this one is counted later
	c.log.Warn("endpoints did not answer requests", zap.Uint64("requests", n-c.logged.failed), zap.NamedError("last", err))
	c.logged.at, c.logged.failed = now, n
}

var (
	descGeneration = desc("snapshot_generation", "Number of the current snapshot of the cluster.")
	descAge        = desc("snapshot_age_seconds", "Age of the current snapshot.")
	descContact    = desc("api_contact_age_seconds", "Time since the last response of the API server.")
	descObjects    = desc("objects", "Objects of the cluster in the current snapshot.", "kind")
	descProblems   = desc("problems", "Problems with objects, by reason.", "reason")
	descLeader     = desc("leader", "1 if this replica writes the status of Ingresses.")
	descReplicas   = desc("replicas", "Replicas that share the limits, as far as this one knows; 0: they are not shared.")
	descShare      = desc("share_ratio", "This replica's share of the limits, from 0 to 1.")
	descOutcomes   = desc("requests_total", "Requests by outcome: passed (to the shields, and to an endpoint if they admit it), redirected, answered (a preflight of CORS, or a rejection of an auth-url), unreadable (400, 405, 408, 413), unrouted (404), denied (403), closed (503: a guard is not there), unserved (503: there is no endpoint), broken (502: the endpoint did not answer), timeout (504, or the response was broken off: the endpoint was late), or aborted (the response broke off).", "outcome")
	descResponses  = desc("responses_total", "Responses to requests that an Ingress routes, by the class of their status; code is none if one broke off before it had a status.", "ingress", "service", "code")
	descTook       = desc("response_seconds", "Time from a request that an Ingress routes to the end of its response; that of upgraded connections is left out.", "ingress", "service")
	descEndpoints  = desc("endpoints", "Endpoints of a Service's port: usable, or ejected because they cannot be reached.", "service", "state")
	descInFlight   = desc("endpoint_in_flight_requests", "Requests in flight to the busiest endpoint of a Service's port.", "service")
)

// descs has every desc.
var descs []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(prometheus.BuildFQName("shield", "ingress", name), help, labels, nil)
	descs = append(descs, d)
	return d
}

// collector implements prometheus.Collector. Labels come from objects of the cluster.
type collector struct{ *controller }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	c.rebuilds.Describe(ch)
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for o := range c.requests {
		ch <- prometheus.MustNewConstMetric(descOutcomes, prometheus.CounterValue, float64(c.requests[o].Load()), outcomeNames[o])
	}
	leader := 0.0
	if c.cluster.Leading() {
		leader = 1
	}
	gauge(descLeader, leader)
	if at := c.cluster.Fresh(); !at.IsZero() {
		gauge(descContact, time.Since(at).Seconds())
	}
	s := c.snapshot.Load()
	if s == nil {
		return
	}
	c.mu.Lock()
	gauge(descAge, (shield.Now() - c.rebuiltAt).Seconds())
	gauge(descShare, c.fraction)
	for reason, n := range c.problems {
		gauge(descProblems, float64(n), reason)
	}
	c.mu.Unlock()
	c.rebuilds.Collect(ch)
	gauge(descGeneration, float64(s.Generation))
	gauge(descReplicas, float64(len(s.Model.Replicas)))
	gauge(descObjects, float64(len(s.Model.Mine)), "Ingress")
	gauge(descObjects, float64(len(s.Model.Rules)), "rule")
	gauge(descObjects, float64(len(s.Model.Certificates)), "certificate")
	gauge(descObjects, float64(len(s.backends)), "backend")
	for _, t := range s.traffics {
		t.collect(ch)
	}
	for _, b := range s.backends {
		usable, ejected, most := 0, 0, 0
		for _, e := range b.endpoints.Stats(shield.Now()) {
			if e.Ejected {
				ejected++
			} else {
				usable++
			}
			most = max(most, e.InFlight)
		}
		gauge(descEndpoints, float64(usable), b.label, "usable")
		gauge(descEndpoints, float64(ejected), b.label, "ejected")
		gauge(descInFlight, float64(most), b.label)
	}
}
