package overload

import (
	"slices"
	"time"

	"github.com/herdshield/shield/loadtest/sim"
)

// A Second is what happened in one second of a run.
type Second struct {
	Attempts  int // requests, retries among them
	Offered   int // first attempts
	Admitted  int
	Count             // how attempts ended
	Shares    []Count // the same, by share of the Mix
	Latencies []time.Duration
	Limit     int // in flight at its end; 0: none
}

// A Count is how attempts ended: Good were answered in time, Rejected by the limiter,
// RejectedFirst of these were first attempts, Failed by the backend, and of TimedOut
// the client hung up.
type Count struct{ Good, Rejected, RejectedFirst, TimedOut, Failed int }

func (c *Count) add(n Count) {
	c.Good += n.Good
	c.Rejected += n.Rejected
	c.RejectedFirst += n.RejectedFirst
	c.TimedOut += n.TimedOut
	c.Failed += n.Failed
}

type Result struct {
	Seconds  []Second
	Capacity float64
}

// Run plays s with a row's limiter. The same arguments give the same Result. It
// panics if s is invalid.
func (row Row) Run(s Scenario, seed uint64) *Result {
	r := &Result{Seconds: make([]Second, s.Until/time.Second), Capacity: s.Capacity}
	s.Seed, s.Config = seed, row.Config
	s.Warmup, s.Bin = time.Nanosecond, time.Second // instants are since the run began
	also := s.Ended
	s.Ended = func(e sim.Ended) {
		if also != nil {
			also(e)
		}
		i := int(e.At / time.Second)
		if i >= len(r.Seconds) {
			return
		}
		second := &r.Seconds[i]
		var n Count
		switch e.How {
		case sim.Answered:
			n.Good = 1
			second.Latencies = append(second.Latencies, e.Took)
		case sim.Rejected:
			n.Rejected = 1
			if e.Attempt == 1 {
				n.RejectedFirst = 1
			}
		case sim.TimedOut:
			n.TimedOut = 1
		case sim.Failed:
			n.Failed = 1
		}
		second.add(n)
		if len(s.Mix) > 1 {
			if second.Shares == nil {
				second.Shares = make([]Count, len(s.Mix))
			}
			second.Shares[e.Share].add(n)
		}
	}
	play := func() {
		out, err := sim.Run(s.Scenario, row.Maker)
		if err != nil {
			panic(err)
		}
		for i := range min(len(r.Seconds), len(out.Series)) {
			second, bin := &r.Seconds[i], out.Series[i]
			second.Attempts, second.Admitted = int(bin.NewClients.Came), int(bin.NewClients.Admitted)
			second.Offered, second.Limit = second.Attempts-int(bin.Retries), int(bin.Limit)
		}
	}
	if row.In == nil {
		play()
	} else {
		row.In(play)
	}
	return r
}

// Stats sums up some seconds of a run.
type Stats struct {
	Offered, Attempts, Admitted int
	Count

	P50, P95, P99 time.Duration // of what was answered in time, since it arrived
	Limit         float64       // mean
	Shares        []Count       // by share of the Mix, if there are several
	span          float64
	capacity      float64
}

// Between sums up the seconds from one to before another.
func (r *Result) Between(from, to int) Stats {
	to = min(to, len(r.Seconds))
	s := Stats{span: float64(to - from), capacity: r.Capacity}
	var latencies []time.Duration
	for i := from; i < to; i++ {
		x := &r.Seconds[i]
		s.Offered += x.Offered
		s.Attempts += x.Attempts
		s.Admitted += x.Admitted
		s.add(x.Count)
		s.Limit += float64(x.Limit) / s.span
		latencies = append(latencies, x.Latencies...)
		if s.Shares == nil {
			s.Shares = make([]Count, len(x.Shares))
		}
		for share, n := range x.Shares {
			s.Shares[share].add(n)
		}
	}
	slices.Sort(latencies)
	if n := len(latencies); n > 0 {
		s.P50, s.P95, s.P99 = latencies[(n-1)/2], latencies[(n-1)*95/100], latencies[(n-1)*99/100]
	}
	return s
}

// Goodput returns what was answered in time as a percentage of the capacity.
func (s Stats) Goodput() float64 { return 100 * float64(s.Good) / s.span / s.capacity }

// RejectedShare returns the percentage of attempts that were rejected.
func (s Stats) RejectedShare() float64 {
	return 100 * float64(s.Rejected) / float64(max(1, s.Attempts))
}

// Recovered returns after how many seconds from an instant on at least 95% of
// what was offered was answered in time, over five seconds; -1 for never.
func (r *Result) Recovered(from int) int {
	for i := from; i+5 <= len(r.Seconds); i++ {
		offered, good := 0, 0
		for _, s := range r.Seconds[i : i+5] {
			offered += s.Offered
			good += s.Good
		}
		if float64(good) >= .95*float64(offered) {
			return i - from
		}
	}
	return -1
}
