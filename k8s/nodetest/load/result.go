package main

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A result has the outcome of a load. Times are since its start.
type result struct {
	Started  string  `json:"started"` // RFC 3339
	Took     float64 `json:"took_s"`
	Requests int     `json:"requests"` // = served + rejected + errors
	Served   int     `json:"served"`
	Rejected int     `json:"rejected"` // 429 or 503 with Retry-After
	Errors   int     `json:"errors"`
	Skipped  int     `json:"skipped"` // that a rate did not send, as too many were in flight
	Dialled  int64   `json:"dialled"` // connections

	Kinds  map[string]int `json:"errors_by_kind"`
	First  []fault        `json:"first_errors"`
	Status map[string]int `json:"answers_by_status"`

	Pods map[string]*pod `json:"pods"` // of the backend

	P50 float64 `json:"p50_ms"` // of those served
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`

	// Seconds is, for each second, how many requests that began in it were served.
	Seconds []int `json:"served_by_second"`

	Herd *herdResult `json:"herd,omitempty"`
}

// A fault is an error; a result lists the first ones.
type fault struct {
	At   float64 `json:"at_s"`
	Kind string  `json:"kind"`
	Text string  `json:"text"`
}

// A pod of the backend, as its responses say.
type pod struct {
	Served int `json:"served"`
	Most   int `json:"most_in_flight"`
}

// A herdResult has the outcomes of a herd's clients.
type herdResult struct {
	Clients    int     `json:"clients"`
	Served     int     `json:"served"`
	GaveUp     int     `json:"gave_up"`
	Drained    float64 `json:"drained_s"` // until the last one was served
	MeanWait   float64 `json:"mean_wait_s"`
	PerSuccess float64 `json:"requests_per_success"`
	ToldMin    int     `json:"told_min_s"` // Retry-After
	ToldMax    int     `json:"told_max_s"`
}

const (
	maxFaults  = 20
	maxSeconds = 3600
	maxTook    = 2_000_000 // latencies that are kept
)

// A load counts the outcomes of its requests. It is safe for concurrent use.
type load struct {
	config
	dialled atomic.Int64
	start   time.Time

	mu      sync.Mutex // guards the fields below
	result  result
	took    []float64 // ms, of those served
	waits   time.Duration
	toldMin int
	toldMax int
}

func newLoad(c config) *load {
	c.method = cmp.Or(c.method, http.MethodGet)
	return &load{config: c, start: time.Now(), result: result{
		Kinds: map[string]int{}, Status: map[string]int{}, Pods: map[string]*pod{}, First: []fault{}, Seconds: []int{},
	}}
}

// record counts an attempt.
func (l *load) record(a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.result
	r.Requests++
	if a.status != 0 {
		r.Status[strconv.Itoa(a.status)]++
	}
	at := a.began.Sub(l.start)
	if second := int(at / time.Second); second < maxSeconds {
		for len(r.Seconds) <= second {
			r.Seconds = append(r.Seconds, 0)
		}
		if a.kind == served {
			r.Seconds[second]++
		}
	}
	if a.pod != "" {
		p := r.Pods[a.pod]
		if p == nil {
			p = new(pod)
			r.Pods[a.pod] = p
		}
		p.Served++
		p.Most = max(p.Most, a.depth)
	}
	switch a.kind {
	case served:
		r.Served++
		if len(l.took) < maxTook {
			l.took = append(l.took, float64(a.took)/float64(time.Millisecond))
		}
	case rejected:
		r.Rejected++
		l.toldMax = max(l.toldMax, a.hint.Seconds)
		l.toldMin = min(cmp.Or(l.toldMin, a.hint.Seconds), a.hint.Seconds)
	default:
		r.Errors++
		r.Kinds[a.kind]++
		if len(r.First) < maxFaults {
			f := fault{At: seconds(at), Kind: a.kind}
			if a.err != nil {
				f.Text = a.err.Error()
			}
			r.First = append(r.First, f)
		}
	}
}

// skip counts a request that was not sent.
func (l *load) skip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.result.Skipped++
}

// leave counts a client of a herd that has been served, or has given up, after its time.
func (l *load) leave(ok bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.result.Herd
	if h == nil {
		h = new(herdResult)
		l.result.Herd = h
	}
	h.Clients++
	if !ok {
		h.GaveUp++
		return
	}
	h.Served++
	h.Drained = seconds(time.Since(l.start))
	l.waits += after
}

// end returns the result, and ends the recording.
func (l *load) end() result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.result
	r.Started = l.start.UTC().Format(time.RFC3339Nano)
	r.Took = seconds(time.Since(l.start))
	r.Dialled = l.dialled.Load()
	slices.Sort(l.took)
	if n := len(l.took); n > 0 {
		at := func(q float64) float64 { return round(l.took[int(q*float64(n-1))]) }
		r.P50, r.P99, r.Max = at(0.5), at(0.99), at(1)
	}
	if h := r.Herd; h != nil && h.Served > 0 {
		h.MeanWait = seconds(l.waits / time.Duration(h.Served))
		h.PerSuccess = round(float64(r.Requests) / float64(h.Served))
		h.ToldMin, h.ToldMax = l.toldMin, l.toldMax
	}
	return r
}

func seconds(d time.Duration) float64 { return round(d.Seconds()) }

// round keeps two digits after the point.
func round(f float64) float64 { return math.Round(f*100) / 100 }
