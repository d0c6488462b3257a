package ingress

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
)

// A traffic has the answers to requests of one Ingress for one port of a Service: their statuses,
// and how long they took. Requests add to it without a lock.
type traffic struct {
	ingress, service string // labels

	// statuses counts answers by the first digit of their status; at 0 those that broke off
	// before they had one.
	statuses [6]atomic.Uint64

	took [len(tookBuckets) + 1]atomic.Uint64 // answers by their time, each in one bucket
	sum  atomic.Int64                        // of the times, in ns

	used time.Duration // when a Model last had it; for live alone
}

// tookBuckets are the upper bounds of times. They are those of ingress-nginx, so that its boards
// and alerts find the like.
var tookBuckets = [...]time.Duration{
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// maxTraffics is how many pairs of an Ingress and a Service have metrics of their own: what one
// scrape may bring. Each has up to 20 series. The others share those of two empty labels.
const maxTraffics = 5000

// statusLabels are the values of the label code, by the first digit.
var statusLabels = [6]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

// alerted are those that are there from the beginning, as 0: rate() does not see the first value of
// a series.
var alerted = [6]bool{2: true, 4: true, 5: true}

// A trafficKey names a traffic as its labels do, without UIDs: objects that are deleted and created
// anew go on with it. Two traffics with the same labels would be an error of every scrape.
type trafficKey struct {
	origin, service model.Ref
	port            string
}

// trafficOf returns the traffic of requests for t.
func (b *builder) trafficOf(t *model.Target) *traffic {
	key := trafficKey{origin: t.Origin.Ref}
	if t.Backend != nil {
		key.service, key.port = t.Backend.Service.Ref, t.Backend.Port
	}
	key.origin.UID, key.service.UID = "", ""
	found := b.traffics[key]
	if found == nil && len(b.traffics) >= maxTraffics {
		key = trafficKey{}
		found = b.traffics[key]
	}
	if found == nil {
		found = new(traffic)
		if key != (trafficKey{}) {
			found.ingress = label(t.Origin.Ref, "")
			if t.Backend != nil {
				found.service = backendLabel(t.Backend)
			}
		}
		b.traffics[key] = found
	}
	found.used = b.now
	return found
}

// ended counts a response with a status, 0: it broke off before; and the time since its request
// began. An upgraded connection has none.
func (t *traffic) ended(status int, began time.Duration) {
	t.statuses[min(status/100, 5)].Add(1)
	if status == http.StatusSwitchingProtocols {
		return
	}
	took := shield.Now() - began
	i := 0
	for i < len(tookBuckets) && took > tookBuckets[i] {
		i++
	}
	t.took[i].Add(1)
	t.sum.Add(int64(took))
}

// collect writes what has been counted.
func (t *traffic) collect(ch chan<- prometheus.Metric) {
	for digit := range t.statuses {
		if n := t.statuses[digit].Load(); n > 0 || alerted[digit] {
			ch <- prometheus.MustNewConstMetric(descResponses, prometheus.CounterValue, float64(n), t.ingress, t.service, statusLabels[digit])
		}
	}
	buckets, all := make(map[float64]uint64, len(tookBuckets)), uint64(0)
	for i, bound := range tookBuckets {
		all += t.took[i].Load()
		buckets[bound.Seconds()] = all
	}
	if all += t.took[len(tookBuckets)].Load(); all > 0 {
		ch <- prometheus.MustNewConstHistogram(descTook, all, time.Duration(t.sum.Load()).Seconds(), buckets, t.ingress, t.service)
	}
}

// A statusWriter remembers the status of a response.
type statusWriter struct {
	caddyhttp.ResponseWriterWrapper
	status int // 0: none yet
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}
