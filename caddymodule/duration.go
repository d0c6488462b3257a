package caddymodule

import (
	"errors"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/herdshield/shield"
)

// durations are how long requests took, by what became of them. The zero durations are ready.
// A histogram takes 2.5 KiB, at the first request that it counts.
//
// prometheus.Histogram has native buckets, too, but with them it takes 4 times as long to
// observe: it looks for the bucket with a logarithm, and keeps it in a map.
type durations [2][len(statusClasses)]atomic.Pointer[durationHistogram]

// The first index of durations, and the names of both.
const (
	outcomeAdmitted = iota
	outcomeRefused
)

var (
	outcomes      = [...]string{"admitted", "refused"}
	statusClasses = [...]string{"unknown", "1xx", "2xx", "3xx", "4xx", "5xx"}
)

// observe counts a request that took so long, with the status of its answer; 0: not known.
func (d *durations) observe(outcome, status int, took time.Duration) {
	class := status / 100
	if class < 0 || class >= len(statusClasses) {
		class = 0
	}
	at := &d[outcome][class]
	h := at.Load()
	if h == nil {
		at.CompareAndSwap(nil, new(durationHistogram))
		h = at.Load()
	}
	h.observe(took)
}

// The native buckets are those of Prometheus' schema 3: eight for each power of two seconds, the
// first one up to a microsecond, the last one up to 36 hours. Its default growth of 1.1
// means the same schema.
const (
	nativeSchema  = 3
	firstNative   = -20 << nativeSchema
	lastNative    = 17 << nativeSchema
	nativeBuckets = lastNative - firstNative + 1
)

// classicBounds are those of client_golang's DefBuckets, with two more for what is fast, and one
// for what is slow, in seconds.
var classicBounds = [...]float64{.0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// durationCells are the bounds of both kinds of buckets, so that one count is enough: a
// request took more than the bound before, and at most this one.
const durationCells = nativeBuckets + len(classicBounds)

var cellBounds, cellAfter = func() (bounds [durationCells]int64, after [64 << nativeSchema]uint16) {
	for i := range nativeBuckets {
		bounds[i] = int64(nativeBound(i) * 1e9)
	}
	for i, seconds := range classicBounds {
		bounds[nativeBuckets+i] = int64(seconds * 1e9)
	}
	slices.Sort(bounds[:])
	for coarse := range after {
		cell := 0
		for cell < durationCells-1 && bounds[cell] < leastOf(coarse) {
			cell++
		}
		after[coarse] = uint16(cell)
	}
	return bounds, after
}()

// nativeBound returns the upper bound of a native bucket, in seconds.
func nativeBound(i int) float64 { return math.Exp2(float64(firstNative+i) / (1 << nativeSchema)) }

// coarse returns the highest bits of a positive number: how many it has, and the next three.
func coarse(n int64) int {
	length := bits.Len64(uint64(n))
	return (length-1)<<nativeSchema | int(uint64(n)<<(64-length)>>(63-nativeSchema)&(1<<nativeSchema-1))
}

// leastOf returns the least number with these bits, or less.
func leastOf(coarse int) int64 {
	length := coarse >> nativeSchema
	mantissa := int64(1<<nativeSchema | coarse&(1<<nativeSchema-1))
	if length >= nativeSchema {
		return mantissa << (length - nativeSchema)
	}
	return mantissa >> (nativeSchema - length)
}

type durationHistogram struct {
	sum   atomic.Int64 // nanoseconds: 292 years
	cells [durationCells]atomic.Uint64
}

func (h *durationHistogram) observe(took time.Duration) {
	h.sum.Add(int64(took))
	h.cells[cellOf(int64(took))].Add(1)
}

// cellOf returns the cell of a time: the first whose bound it is not over.
func cellOf(ns int64) int {
	if ns <= 0 {
		return 0
	}
	cell := int(cellAfter[coarse(ns)])
	for cell < durationCells-1 && cellBounds[cell] < ns { // at most twice
		cell++
	}
	return cell
}

// metric returns the histogram with both kinds of buckets. A scrape has those that it asks for.
func (h *durationHistogram) metric(desc *prometheus.Desc, labels ...string) prometheus.Metric {
	classic, native := map[float64]uint64{}, map[int]int64{}
	count, zero, bucket := uint64(0), uint64(0), 0
	for cell := range h.cells {
		n := h.cells[cell].Load()
		count += n
		switch {
		case bucket == 0:
			zero += n
		case n > 0:
			native[firstNative+bucket] += int64(n)
		}
		for bucket < nativeBuckets-1 && int64(nativeBound(bucket)*1e9) <= cellBounds[cell] {
			bucket++
		}
		for _, seconds := range classicBounds {
			if int64(seconds*1e9) == cellBounds[cell] {
				classic[seconds] = count
			}
		}
	}
	sum := float64(h.sum.Load()) / 1e9
	return bothBuckets{
		prometheus.MustNewConstNativeHistogram(desc, count, sum, native, nil, zero, nativeSchema, nativeBound(0), time.Time{}, labels...),
		prometheus.MustNewConstHistogram(desc, count, sum, classic, labels...),
	}
}

// bothBuckets is a histogram with native buckets and the same one with classic buckets: the library
// makes constant ones with either.
type bothBuckets struct {
	prometheus.Metric
	classic prometheus.Metric
}

// Write implements prometheus.Metric.
func (b bothBuckets) Write(to *dto.Metric) error {
	var classic dto.Metric
	if err := b.classic.Write(&classic); err != nil {
		return err
	}
	if err := b.Metric.Write(to); err != nil {
		return err
	}
	to.Histogram.Bucket, to.Histogram.CreatedTimestamp = classic.Histogram.Bucket, nil
	return nil
}

// serve has next serve an admitted request of which nothing else has to be known, and counts how
// long it took.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, arrived time.Duration) (err error) {
	defer func() { // also if next panics, as reverse_proxy does when a response breaks off
		h.record.durations.observe(outcomeAdmitted, h.statusOf(w, err), shield.Now()-arrived)
	}()
	return next.ServeHTTP(w, r)
}

// statusOf returns the status of an answer: that of an error, or what has been written, if Caddy has
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
