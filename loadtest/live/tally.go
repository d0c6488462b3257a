package live

import (
	"maps"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
)

// A Tally counts the clients of a Load, or a part of them, and their requests.
//
// At every moment Clients = Served + GaveUp + Trying, and Requests = TimedOut +
// Unreachable + CutOff + all Responses.
type Tally struct {
	Clients int `json:"clients"` // that came
	Served  int `json:"served"`  // got a 2xx
	GaveUp  int `json:"gave_up"` // left without
	Trying  int `json:"trying"`  // neither: 0 at the end of a run that was not stopped

	// Skipped clients never came, so the load was less than configured: MaxClients were
	// there already, or this machine had not started them in time.
	Skipped int `json:"skipped"`

	Requests    int            `json:"requests"`    // that ended, in whatever way
	Responses   map[string]int `json:"responses"`   // Requests by HTTP status
	Rejected    int            `json:"rejected"`    // Responses that were 429 or 503
	TimedOut    int            `json:"timed_out"`   // Requests without a complete response in time
	Unreachable int            `json:"unreachable"` // Requests whose connection was rejected or broken

	// CutOff Requests were still in flight when the run was stopped; their outcome is
	// unknown. OldestCut is how long ago the first of them was due then.
	CutOff    int           `json:"cut_off"`
	OldestCut time.Duration `json:"oldest_cut_off_ns"`

	// Wait is how long served clients waited: from the instant at which their first request
	// was due until the last byte of the response. Attempt is how long the Responses took, from
	// the instants at which their requests were due. Late is the part of that until this
	// machine began to send the request.
	Wait    Quantiles `json:"wait"`
	Attempt Quantiles `json:"attempt"`
	Late    Quantiles `json:"late"`

	// Told is the wait that rejections asked for: Retry-After, or without it
	// Retry-After-Ms. Never counts rejections that forbid a retry.
	Told  Quantiles `json:"told"`
	Never int       `json:"told_never"`

	LastServed time.Duration `json:"last_served_ns"` // from the start of the run until the last client so far was served
}

// PerSuccess returns how many requests were sent for each client served: 0 if none was.
func (t *Tally) PerSuccess() float64 {
	if t.Served == 0 {
		return 0
	}
	return float64(t.Requests) / float64(t.Served)
}

// Quantiles describe the distribution of a time, to three significant digits. Min and Max
// are exact. The zero Quantiles are of no measurement.
type Quantiles struct {
	Count int64         `json:"count"`
	Min   time.Duration `json:"min_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	Max   time.Duration `json:"max_ns"`
}

// A timer measures the distribution of a time. The zero timer is ready to use, and takes
// no memory before its first measurement.
type timer struct {
	h        *hdrhistogram.Histogram // in microseconds
	min, max time.Duration
}

// longest is the range of a timer: above the longest wait of a served client, MaxPatience
// and MaxTimeout.
const longest = MaxPatience + 2*MaxTimeout

func (t *timer) record(d time.Duration) {
	if t.h == nil {
		// 1 µs: finer differences are noise among thousands of clients. Three digits take 200 KiB.
		t.h = hdrhistogram.New(1, longest.Microseconds(), 3)
		t.min = d
	}
	t.min, t.max = min(t.min, d), max(t.max, d)
	_ = t.h.RecordValue(min(max(d, 0), longest).Microseconds()) // cannot fail: it is in the range
}

func (t *timer) quantiles() Quantiles {
	if t.h == nil {
		return Quantiles{}
	}
	// A histogram gives the upper end of a bucket, which may be above all measurements.
	at := func(percent float64) time.Duration {
		return max(t.min, min(time.Duration(t.h.ValueAtPercentile(percent))*time.Microsecond, t.max))
	}
	return Quantiles{
		Count: t.h.TotalCount(), Min: t.min, P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: t.max,
	}
}

// A counter is a Tally in the making.
type counter struct {
	Tally
	wait, attempt, late, told timer
}

// An end is the outcome of an attempt, with what its client does next.
type end struct {
	reply
	verdict                      verdict
	due, began, ended, firstTime time.Duration // since the start of the run; firstTime is when the first attempt was due
}

func (c *counter) record(e end) {
	c.Requests++
	c.late.record(e.began - e.due)
	if e.verdict == cutOff {
		c.CutOff++
		c.OldestCut = max(c.OldestCut, e.ended-e.due)
		return
	}
	switch e.status {
	case clients.NoAnswer:
		c.TimedOut++
	case clients.NoConnection:
		c.Unreachable++
	default:
		if c.Responses == nil {
			c.Responses = map[string]int{}
		}
		c.Responses[strconv.Itoa(e.status)]++
		c.attempt.record(e.ended - e.due)
	}
	if e.rejected() {
		c.Rejected++
		if d := told(e.hint); d > 0 {
			c.told.record(d)
		}
		if e.hint.Never {
			c.Never++
		}
	}
	switch e.verdict {
	case served:
		c.Served++
		c.Trying--
		c.wait.record(e.ended - e.firstTime)
		c.LastServed = max(c.LastServed, e.ended)
	case gaveUp:
		c.GaveUp++
		c.Trying--
	}
}

func (r reply) rejected() bool { return r.status == 429 || r.status == 503 }

func (c *counter) tally() Tally {
	t := c.Tally
	t.Responses = maps.Clone(t.Responses)
	t.Wait, t.Attempt, t.Late, t.Told = c.wait.quantiles(), c.attempt.quantiles(), c.late.quantiles(), c.told.quantiles()
	return t
}

// A Second counts the events of one second of a run, as clients saw them: its NewClients
// come by Rate, it admits what it does not reject, and its InFlight counts requests in the
// network, too. Of the second in which a run was stopped, that is just before. Wasted,
// Queued and Limit are unknown, and 0.
type Second struct {
	sim.Bin
	Rejected    int32 `json:"rejected"`    // answers 429 or 503
	Unreachable int32 `json:"unreachable"` // attempts whose connection was rejected or broken
	CutOff      int32 `json:"cut_off"`     // requests in flight when the run was stopped
}

// maxTenths bounds LoadResult.Tenths: 20 minutes, longer than any picture shows.
const maxTenths = 20 * 60 * 10

// A series is a run second by second.
type series struct {
	seconds  []Second
	tenths   []int
	inFlight int32
}

// at returns the second of a time since the start of the run. Time may go back a little
// from one caller to the next.
func (s *series) at(t time.Duration) *Second {
	i := int(max(t, 0) / time.Second)
	for len(s.seconds) <= i {
		if n := len(s.seconds); n > 0 {
			s.seconds[n-1].InFlight = s.inFlight
		}
		s.seconds = append(s.seconds, Second{})
	}
	return &s.seconds[i]
}

func (s *series) begin(t time.Duration, herd, retry bool) {
	now := s.at(t)
	now.Door(herd).Came++
	tenth := min(int(max(t, 0)/(time.Second/10)), maxTenths-1)
	for len(s.tenths) <= tenth {
		s.tenths = append(s.tenths, 0)
	}
	s.tenths[tenth]++
	if retry {
		now.Retries++
	}
	s.inFlight++
}

func (s *series) record(e end, herd bool) {
	now := s.at(e.ended)
	if e.verdict == cutOff {
		now.CutOff++ // and stays in flight
		return
	}
	s.inFlight--
	switch {
	case e.status == clients.NoAnswer:
		now.TimedOut++
	case e.status == clients.NoConnection:
		now.Unreachable++
	case e.rejected():
		now.Rejected++
	default:
		now.Door(herd).Admitted++
	}
	switch e.verdict {
	case served:
		now.Served++
	case gaveUp:
		now.GaveUp++
	}
}
