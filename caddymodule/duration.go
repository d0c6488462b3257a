package caddymodule

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/internal/metrics"
)

// durations are how long requests took, by what became of them. The zero durations are ready; a
// histogram is made at the first request that it counts.
type durations [2][len(statusClasses)]atomic.Pointer[prometheus.Histogram]

// The first index of durations, and the names of both.
const (
	outcomeAdmitted = iota
	outcomeRejected
)

var (
	outcomes      = [...]string{"admitted", "rejected"}
	statusClasses = [...]string{"unknown", "1xx", "2xx", "3xx", "4xx", "5xx"}
)

// durationOpts have the native buckets that a scrape may ask for, and the classic ones of
// client_golang's DefBuckets, with two more for what is fast, and one for what is slow.
var durationOpts = prometheus.HistogramOpts{
	Name: metrics.Prefix + "request_duration_seconds", Help: "How long requests took to the end of the response, by decision (admitted or rejected) and status (1xx to 5xx, or unknown).",
	Buckets:                     []float64{.0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
}

// observe counts a request that took so long, with the status of its response; 0: not known.
func (d *durations) observe(outcome, status int, took time.Duration) {
	class := status / 100
	if class < 0 || class >= len(statusClasses) {
		class = 0
	}
	at := &d[outcome][class]
	h := at.Load()
	if h == nil {
		at.CompareAndSwap(nil, new(prometheus.NewHistogram(durationOpts)))
		h = at.Load()
	}
	(*h).Observe(took.Seconds())
}

// A labelled metric is one with other labels.
type labelled struct {
	prometheus.Metric
	desc   *prometheus.Desc
	labels []*dto.LabelPair
}

// Desc implements prometheus.Metric.
func (l labelled) Desc() *prometheus.Desc { return l.desc }

// Write implements prometheus.Metric.
func (l labelled) Write(to *dto.Metric) error {
	err := l.Metric.Write(to)
	to.Label = l.labels
	return err
}

// serve has next serve an admitted request of which nothing else has to be known, and counts how
// long it took.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, arrived time.Duration) (err error) {
	defer func() { // also if next panics, as reverse_proxy does when a response breaks off
		h.record.durations.observe(outcomeAdmitted, h.statusOf(w, err), shield.Now()-arrived)
	}()
	return next.ServeHTTP(w, r)
}

// statusOf returns the status of a response: that of an error, or what has been written, if Caddy has
// wrapped the ResponseWriter for its access logs or its metrics. Else it is 0: to wrap it costs an
// allocation, and to ask the Replacer for that of a reverse_proxy takes longer than all the rest.
func (h *Handler) statusOf(w http.ResponseWriter, err error) int {
	if err != nil {
		if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
			return failed.StatusCode
		}
		return http.StatusInternalServerError // as Caddy answers it
	}
	if recorder, ok := w.(caddyhttp.ResponseRecorder); ok {
		return recorder.Status()
	}
	return 0
}
