package overload

import (
	"slices"
	"time"
)

// A Second is what happened in one second of a run.
type Second struct {
	Offered      int // new requests
	Attempts     int // with retries
	Admitted     int
	Refused      int // attempts
	RefusedFirst int // first attempts
	TimedOut     int
	Failed       int // errors of the backend
	Good         int // answered in time
	Latencies    []time.Duration
	Limit        int // at its end
	ByClass      map[string]Count
}

// A Count is how the attempts of one class ended.
type Count struct{ Good, Refused int }

func (s *Second) count(class string, n Count) {
	if class == "" {
		return
	}
	if s.ByClass == nil {
		s.ByClass = map[string]Count{}
	}
	sum := s.ByClass[class]
	s.ByClass[class] = Count{sum.Good + n.Good, sum.Refused + n.Refused}
}

// A Result is what happened in a run.
type Result struct {
	Seconds  []Second
	Capacity float64
}

// Stats sums up some seconds of a run.
type Stats struct {
	Offered, Attempts, Admitted, Refused, RefusedFirst, TimedOut, Failed, Good int

	P50, P95, P99 time.Duration // of what was answered in time, since it arrived
	Limit         float64       // mean
	ByClass       map[string]Count
	span          float64
	capacity      float64
}

// Between sums up the seconds from one to before another.
func (r *Result) Between(from, to int) Stats {
	to = min(to, len(r.Seconds))
	s := Stats{span: float64(to - from), capacity: r.Capacity, ByClass: map[string]Count{}}
	var latencies []time.Duration
	for i := from; i < to; i++ {
		x := &r.Seconds[i]
		s.Offered += x.Offered
		s.Attempts += x.Attempts
		s.Admitted += x.Admitted
		s.Refused += x.Refused
		s.RefusedFirst += x.RefusedFirst
		s.TimedOut += x.TimedOut
		s.Failed += x.Failed
		s.Good += x.Good
		s.Limit += float64(x.Limit) / s.span
		latencies = append(latencies, x.Latencies...)
		for class, n := range x.ByClass {
			sum := s.ByClass[class]
			s.ByClass[class] = Count{sum.Good + n.Good, sum.Refused + n.Refused}
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

// RefusedShare returns the percentage of attempts that were refused.
func (s Stats) RefusedShare() float64 { return 100 * float64(s.Refused) / float64(max(1, s.Attempts)) }

// Recovered returns after how many seconds from an instant on at least 95 % of
// what was offered was answered in time, over five seconds; -1 for never.
func (r *Result) Recovered(from int) int {
	for i := from; i+5 < len(r.Seconds); i++ {
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
