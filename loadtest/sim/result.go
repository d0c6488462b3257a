package sim

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Result is what came of a Scenario.
type Result struct {
	Name string `json:"name"`
	Seed uint64 `json:"seed"`

	Clients   int `json:"clients"`   // the herd
	Reachable int `json:"reachable"` // those of it who come back when rejected
	Served    int `json:"served"`    // of the herd, whether they would have come back or not
	GaveUp    int `json:"gave_up"`   // of the Reachable, went away without
	Waiting   int `json:"waiting"`   // of the Reachable, still trying at the end

	// Drained is when the last of the Reachable was served, or went away; or the end of the
	// run, if some still waited. Optimum is what those who were served would have taken at
	// best, with the new clients served as they come. Cleared is when also no new client waited.
	// A server that lets new clients wait for the herd drains it sooner than the Optimum, but
	// then has them to serve: no order of service clears sooner.
	Drained time.Duration `json:"drained_ns"`
	Optimum time.Duration `json:"optimum_ns"`
	Cleared time.Duration `json:"cleared_ns"`

	// Decided is how many requests came, of all. Each ended once: it was Answered;
	// Rejected by the server; its client TimedOut; it Failed, as the backend rejected
	// it or a connection broke; or it was Open when the run ended.
	Decided  int `json:"requests_decided"`
	Answered int `json:"requests_answered"`
	Rejected int `json:"requests_rejected"`
	TimedOut int `json:"requests_timed_out"`
	Failed   int `json:"requests_failed"`
	Open     int `json:"requests_open"`

	// Wasted counts requests that the backend worked on to the end though their
	// clients had gone, or went before they had the response.
	Wasted int `json:"requests_wasted"`

	Requests     int `json:"herd_requests"`        // those of the herd
	MostAttempts int `json:"most_requests_by_one"` // by one client of the herd

	PeakReturns int `json:"peak_returns_per_100ms"` // the most retries in 100 ms, from a second after the last of the herd has begun

	// Broken counts rejections of clients who came when they were told: not before
	// Retry-After-Ms, and not 50 ms after Retry-After.
	Broken int `json:"broken_appointments"`

	// The herd by policy, in the order of the Mix.
	Policies []PolicyResult `json:"policies"`

	NewClients NewClientsResult `json:"new_clients"`

	// The run in Bins, if the Scenario asks for them: the herd comes when the Warmup is over.
	Series []Bin `json:"bins"`
}

// A Bin is what happened within a Scenario's Bin.
type Bin struct {
	Herd       Door `json:"herd"`
	NewClients Door `json:"new_clients"`

	Served   int32 `json:"served"`    // requests answered in time
	GaveUp   int32 `json:"gave_up"`   // clients who went away without, those too who never come back
	TimedOut int32 `json:"timed_out"` // requests whose clients went before there was a response
	Wasted   int32 `json:"wasted"`    // requests that the backend worked on to the end though their clients had gone
	Retries  int32 `json:"retries"`   // requests that came and were not their client's first

	// At the bin's end: requests at the backend, in work and in its queue; requests
	// in the server's queue; and how many the server lets be in flight, 0 if it does
	// not limit that. Of several replicas the sum.
	InFlight int32 `json:"in_flight"`
	Queued   int32 `json:"queued"`
	Limit    int32 `json:"limit"`
}

// A Door is how many requests came to the server, and how many of them it admitted.
type Door struct {
	Came     int32 `json:"came"`
	Admitted int32 `json:"admitted"`
}

// Ended is how a request ended for its client.
type Ended struct {
	At      time.Duration // since the run's first moment, at the server
	Took    time.Duration // for its client, with the network
	How     Ending
	Herd    bool          // its client is of the herd
	Share   int           // of the Mix
	Attempt int           // of its call, 1 for the first
	Call    int           // of its client, 1 for the first
	Born    time.Duration // when its client came first, since the run's first moment
}

// An Ending is one of the ways in which a request ends: see Result.Decided.
type Ending uint8

const (
	Answered Ending = iota
	Rejected
	TimedOut
	Failed
)

// A PolicyResult is how one share of the herd fared.
type PolicyResult struct {
	Policy   string        `json:"policy"`
	Clients  int           `json:"clients"`
	Served   int           `json:"served"`
	GaveUp   int           `json:"gave_up"`            // went away without, those too who never come back
	Requests int           `json:"requests_by_served"` // by those who were served
	P50      time.Duration `json:"wait_p50_ns"`        // waits of those who were served
	P90      time.Duration `json:"wait_p90_ns"`
	P99      time.Duration `json:"wait_p99_ns"`
	Waits    Waits         `json:"-"`
}

// Waits says how long clients waited, those included that were never served: Waits[i]
// is within what time i of 1,000 were served, or Never. There are 1,001, or none.
type Waits []time.Duration

// Never is the wait of a client that was not served by the end of the run.
const Never = time.Duration(math.MaxInt64)

// WaitsOf makes Waits of n clients, of which those that were served waited so long, in
// order.
func WaitsOf(served []int64, n int) Waits {
	if n == 0 {
		return nil
	}
	w := make(Waits, 1001)
	for i := range w {
		w[i] = Never
		if rank := max(1, (i*n+999)/1000); rank <= len(served) {
			w[i] = time.Duration(served[rank-1])
		}
	}
	return w
}

// A NewClientsResult is how those fared who came besides the herd, from its first
// moment to five seconds before the last of it was served. Those who never
// return are left out.
type NewClientsResult struct {
	Came     int           `json:"came"`
	AtOnce   int           `json:"served_at_once"` // served by their first request
	P95      time.Duration `json:"wait_p95_ns"`    // wait of those who were served
	Unserved int           `json:"unserved"`       // when the herd was drained
}

// PerSuccess is how many requests the herd sent for each client served.
func (r *Result) PerSuccess() float64 { return float64(r.Requests) / float64(max(1, r.Served)) }

// PerSuccess is how many requests each client served has sent.
func (p *PolicyResult) PerSuccess() float64 { return float64(p.Requests) / float64(max(1, p.Served)) }

// AtOnceShare is the share of new clients who were served by their first request.
func (s *NewClientsResult) AtOnceShare() float64 { return float64(s.AtOnce) / float64(max(1, s.Came)) }

func (r *run) result() Result {
	out := r.counts
	out.Name, out.Seed = r.Name, r.Seed
	out.Clients, out.Waiting, out.PeakReturns = r.Clients, r.left, r.returns.most
	out.Drained, out.Cleared = time.Duration(r.drained-r.herdAt), time.Duration(r.cleared-r.herdAt)
	network := 2 * int64(r.Delay) // a client's wait begins and ends at the client
	waits := make([][]int64, len(r.Mix))
	for _, share := range r.Mix {
		out.Policies = append(out.Policies, PolicyResult{Policy: fmt.Sprint(share.Policy)})
	}
	reached := 0
	for i := range r.clients[:r.Clients] {
		c := &r.clients[i]
		p := &out.Policies[c.share]
		p.Clients++
		out.Requests += int(c.attempts)
		out.MostAttempts = max(out.MostAttempts, int(c.attempts))
		if c.state == gone {
			p.GaveUp++
		}
		if c.state != served {
			continue
		}
		out.Served++
		p.Served++
		p.Requests += int(c.attempts)
		waits[c.share] = append(waits[c.share], c.gap+network)
		if r.shares[c.share].returns {
			reached++
		}
	}
	out.Optimum = r.optimum(reached)
	for i, w := range waits {
		p := &out.Policies[i]
		p.P50, p.P90, p.P99 = quantile(w, 0.5), quantile(w, 0.9), quantile(w, 0.99)
		p.Waits = WaitsOf(w, p.Clients)
	}
	out.NewClients = r.newClientsResult(network)
	return out
}

// newClientsResult sums up for the new clients. network is what it adds to their waits.
func (r *run) newClientsResult(network int64) (s NewClientsResult) {
	var newClients []int64
	for i := range r.clients[r.Clients:] {
		c := &r.clients[r.Clients+i]
		if c.born <= r.herdAt || c.born > r.drained-int64(5*time.Second) || !r.shares[c.share].returns {
			continue
		}
		s.Came++
		if c.state != served || c.born+c.gap > r.drained {
			s.Unserved++
		}
		if c.state != served {
			continue
		}
		newClients = append(newClients, c.gap+network)
		if c.attempts == 1 {
			s.AtOnce++
		}
	}
	s.P95 = quantile(newClients, 0.95)
	return s
}

// quantile sorts v and returns its value at the share q from below; 0 if there
// is none.
func quantile(v []int64, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return time.Duration(v[min(len(v)-1, int(q*float64(len(v))))])
}

// returns counts retries per 100 ms: see Result.PeakReturns.
type returns struct {
	bin     int64
	n, most int
}

// count counts a request that comes at since, the time since the last moment at
// which clients of the herd begin.
func (r *returns) count(since int64) {
	if since < int64(time.Second) {
		return
	}
	if bin := since / int64(100*time.Millisecond); bin != r.bin {
		r.bin, r.n = bin, 0
	}
	r.n++
	r.most = max(r.most, r.n)
}

// binOf returns the bin of an instant: one that is not shown if there is no Series.
func (r *run) binOf(at int64) *Bin {
	if r.Bin == 0 {
		return &r.unseen
	}
	bin := int(at / int64(r.Bin))
	for len(r.counts.Series) <= bin {
		r.counts.Series = append(r.counts.Series, Bin{})
	}
	return &r.counts.Series[bin]
}

// Door returns that of the herd or of the new clients.
func (b *Bin) Door(herd bool) *Door {
	if herd {
		return &b.Herd
	}
	return &b.NewClients
}
