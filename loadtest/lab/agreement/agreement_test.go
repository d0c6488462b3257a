// Package agreement has nothing but tests: they set what package sim says will
// happen beside what does when package live plays it, over real sockets and
// through Caddy. On both sides are the same text of a config, the same policies of
// clients, and a backend of the same kind:
//
//	go -C loadtest/lab test ./agreement # some 25 s
//
// # What differs
//
// Live, the arrivals are other ones of the same kind: the two sides agree as two
// seeds of one side do, and no better. Most figures are held to 15%. Four scatter by
// 5 to 9%, and are held to a third: when the last of a mix is done, and how the few of it
// wait who come when they like.
//
// Live, a request takes time besides that of the backend: a connection to Caddy,
// Caddy, a connection from there, timers that are late, and 2 processors for
// all of it. So the simulated network takes no time. Clients, Caddy and backend are one
// process.
//
// The live backend shares no code with plant.Plant. Requests that reach it are counted there,
// but by the simulator when they leave shield.
//
// The simulated Guard's clock begins with the warm-up, the real one's with the
// process. Therefore the simulated one learns of the background a second later:
// with a warm-up of 2 s that made waits up to 9% shorter, and nothing with 3 s.
//
// Live, the limit in flight is read ten times per second from the admin endpoint, and
// a herd that is connected has made its connections before it comes.
package agreement

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

// simulations is how many runs a simulated mean is of.
const simulations = 25

// tries is how many live runs may disagree: each is one of many that could have been.
const tries = 3

// plays is how many are played at most, with those that say nothing: in these the machine was busy.
const plays = 6

// tooLate is by how much a busy machine may delay the hundredth part of what clients
// send, for a run of it to say anything. Ours: half of what a request takes.
const tooLate = 25 * time.Millisecond

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// compare sets the mean of simulations beside one live run, and reports whether they agree.
func (f *figure) compare(simulated []measured, live measured) (line string, agree bool) {
	var all []float64
	for _, m := range simulated {
		all = append(all, f.of(m))
	}
	is, expected, difference := f.of(live), mean(all), 0.0
	if is != expected {
		difference = (is - expected) / math.Abs(expected)
	}
	line = fmt.Sprintf("%s: simulated %.2f (%.2f to %.2f), live %.2f, %+.1f%%; want at most %.0f%%", f.name, expected, slices.Min(all), slices.Max(all), is, 100*difference, 100*f.most())
	return line, math.Abs(difference) <= f.most() // NaN does not
}

// Simulated and live figures agree to within 15%, as far as a live run of some
// seconds can show that.
func TestSimulatorAgreesWithLive(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 25 s, the whole machine, and no -short")
	}
	machine := testserver.Watch(t)
	for _, s := range short() {
		t.Run(s.name, func(t *testing.T) {
			var simulated []measured
			for seed := range simulations {
				simulated = append(simulated, s.simulate(t, uint64(seed+1)))
			}
			var wrong []string // of those that say something
			for play, said := 1, 0; play <= plays && said < tries; play++ {
				machine.Lap()
				live := s.live(t, uint64(play))
				if prompt := machine.Prompt(); live.late > tooLate || !prompt {
					t.Logf("play %d says nothing: clients were late by %v, and the machine was prompt: %v", play, live.late, prompt)
					continue
				}
				said++
				agrees := true
				for _, f := range s.figures {
					line, agree := f.compare(simulated, live)
					if t.Log(line); !agree {
						agrees = false
						wrong = append(wrong, fmt.Sprintf("play %d: %s", play, line))
					}
				}
				if agrees {
					return
				}
				if said == tries {
					t.Errorf("too far apart, %d times:\n%s", tries, strings.Join(wrong, "\n"))
				}
			}
			if !t.Failed() {
				t.Skip("needs a machine that is idle enough to send requests in time")
			}
		})
	}
}

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
