package agreement

import (
	"fmt"
	"time"
)

// A scenario is what both sides play. Times are since the herd's first moment.
type scenario struct {
	name   string
	config string // the shield directive

	herd       int
	within     time.Duration
	mix        string
	background float64       // new clients per second, of the same mix, since warmup before the herd
	warmup     time.Duration // not 0; with a background 3 s or more: see the package's comment
	connected  bool          // the herd has its connections when it comes
	timeout    time.Duration // of an attempt
	patience   time.Duration // of a client
	until      time.Duration // by when all is over

	// The backend: a pool of workers, each of which takes service for a request, and a
	// queue before them that never overflows. Between the two instants it answers
	// 503 at once instead, with Retry-After.
	workers    int
	service    time.Duration
	outage     [2]time.Duration
	retryAfter time.Duration // whole seconds

	// limitFrom is since when the limit in flight is looked at, until the last of
	// the herd has come; 0: it is not.
	limitFrom time.Duration

	figures []figure
}

// queueLength is the backend's: more than ever come in a scenario.
const queueLength = 20_000

type figure struct {
	name string
	of   func(measured) float64

	// loose: it scatters so much that one run says little.
	loose bool
}

// By how much the means of the two sides may differ at most, as a share of the
// simulated one. One run of a loose figure scatters by up to a tenth (standard
// deviation), or with the machine: a third is beyond three times that.
const (
	most      = 0.15
	mostLoose = 1.0 / 3
)

// most is by how much the figure may differ at most.
func (f *figure) most() float64 {
	if f.loose {
		return mostLoose
	}
	return most
}

// measured is what one run of either side came to. Times are in seconds.
type measured struct {
	served     float64 // of the herd
	goodput    float64 // served per second in which the herd comes
	rejected   float64 // share of the herd's requests; 0 if there is a background
	perSuccess float64 // requests of the herd per client of it that was served
	drained    float64 // when the last of the herd was served, or went away
	busiest    float64 // requests that reached the backend within one second
	limit      float64 // in flight, mean since limitFrom
	policies   []waits // by share of the mix

	// late is how long after its instant the request of the hundredth part was
	// sent: this machine's fault, live only.
	late time.Duration
}

// waits are those of the clients of one policy that were served.
type waits struct{ p50, p90, p99 float64 }

func policy(i int, of func(waits) float64) func(measured) float64 {
	return func(m measured) float64 { return of(m.policies[i]) }
}

// p50 and the others are waits of the clients of the i-th policy, in seconds.
func p50(i int) func(measured) float64 { return policy(i, func(w waits) float64 { return w.p50 }) }
func p90(i int) func(measured) float64 { return policy(i, func(w waits) float64 { return w.p90 }) }
func p99(i int) func(measured) float64 { return policy(i, func(w waits) float64 { return w.p99 }) }

func milliseconds(of func(measured) float64) func(measured) float64 {
	return func(m measured) float64 { return 1000 * of(m) }
}

func served(m measured) float64     { return m.served }
func perSuccess(m measured) float64 { return m.perSuccess }
func drained(m measured) float64    { return m.drained }
func busiestOf(m measured) float64  { return m.busiest }

// herdScenario: n clients at once, who do as they are told.
func herdScenario(n int, warmup time.Duration) scenario {
	return scenario{
		name: fmt.Sprintf("herd of %d", n),
		config: `shield {
		capacity 100/s burst 10
	}`,
		herd: n, within: 100 * time.Millisecond, mix: "exact", connected: true,
		background: 30, warmup: warmup, timeout: 30 * time.Second, patience: time.Minute, until: time.Minute,
		workers: 8, service: 40 * time.Millisecond,
		figures: []figure{
			{name: "served", of: served},
			{name: "requests per success", of: perSuccess},
			{name: "drained, s", of: drained},
			{name: "wait p50, s", of: p50(0)},
			{name: "backend's busiest second", of: busiestOf},
		},
	}
}

// overloadScenario: three times what the backend can serve comes for so long, from
// clients that wait one second and do not come back.
func overloadScenario(lasts time.Duration) scenario {
	const workers, service, times = 8, 50 * time.Millisecond, 3
	capacity := workers / service.Seconds()
	return scenario{
		name: fmt.Sprintf("%d times the capacity for %.0f s", times, lasts.Seconds()),
		config: `shield {
		concurrency adaptive
	}`,
		herd: int(times * capacity * lasts.Seconds()), within: lasts, mix: "give-up",
		warmup: time.Second, timeout: time.Second, patience: time.Second, until: lasts + 5*time.Second,
		workers: workers, service: service, limitFrom: lasts / 2,
		figures: []figure{
			{name: "goodput per second", of: func(m measured) float64 { return m.goodput }},
			{name: "share rejected, %", of: func(m measured) float64 { return 100 * m.rejected }},
			{name: "latency p50, ms", of: milliseconds(p50(0))},
			{name: "latency p99, ms", of: milliseconds(p99(0))},
			{name: "limit, mean of the second half", of: func(m measured) float64 { return m.limit }},
		},
	}
}

// mixScenario: clients of three policies, and a backend that rejects all for some
// seconds. When the last of them is done, and how those few wait who come when they
// like, is loose.
func mixScenario(n int, warmup, patience time.Duration, outage [2]time.Duration) scenario {
	return scenario{
		name: fmt.Sprintf("mix of %d, outage of %.0f s", n, (outage[1] - outage[0]).Seconds()),
		config: `shield {
		capacity 100/s burst 10
		concurrency 16
	}`,
		herd: n, within: 100 * time.Millisecond, mix: "exact:60,aws-full-jitter:30,fixed@1s:10", connected: true,
		background: 20, warmup: warmup, timeout: 10 * time.Second, patience: patience, until: 2 * patience,
		workers: 8, service: 40 * time.Millisecond, outage: outage, retryAfter: time.Second,
		figures: []figure{
			{name: "served", of: served},
			{name: "requests per success", of: perSuccess},
			{name: "drained, s", of: drained, loose: true},
			{name: "wait p50 of exact, s", of: p50(0)},
			{name: "wait p90 of exact, s", of: p90(0)},
			{name: "wait p50 of aws-full-jitter, s", of: p50(1), loose: true},
			{name: "wait p90 of aws-full-jitter, s", of: p90(1), loose: true},
			{name: "wait p90 of fixed@1s, s", of: p90(2), loose: true},
			{name: "backend's busiest second", of: busiestOf},
		},
	}
}

// short are the scenarios as they are played in a test, in some 20 s.
func short() []scenario {
	return []scenario{
		herdScenario(200, 3*time.Second),
		overloadScenario(8 * time.Second), // in the second half of which the limit stands: from a cold start it is found after three seconds
		mixScenario(150, 3*time.Second, 6*time.Second, [2]time.Duration{time.Second, 2 * time.Second}),
	}
}
