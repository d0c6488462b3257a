package seeds

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// A Contention is what it takes until each of many clients has written a row once.
type Contention struct {
	Calls float64       // writes tried
	Time  time.Duration // until the last has succeeded
}

// Contend plays AWS's simulation, and returns the mean of the runs: clients who
// all begin at time 0 read the version of one row and then write it, which fails if
// the version has changed meanwhile. A client that fails reads again after what the policy
// says. Each way through the network takes |N(10 ms, 2 ms)|, and one more is added
// to each wait.
//
// The rules are those of github.com/aws-samples/aws-arch-backoff-simulator (095a076),
// which the AWS Architecture Blog's "Exponential Backoff And Jitter" (2015) is about.
func Contend(p clients.Policy, n, runs int, seed uint64) Contention {
	var sum Contention
	for i := range runs {
		c := contend(p, n, rand.New(rand.NewPCG(seed, uint64(i))))
		sum.Calls += c.Calls
		sum.Time += c.Time
	}
	return Contention{sum.Calls / float64(runs), sum.Time / time.Duration(runs)}
}

// Backoffs are the policies of AWS's simulation: 5 ms, doubling to 2 s. Its exponent is
// 1 after the first failure, so their bases are 10 ms.
var Backoffs = []struct {
	Name   string
	Policy clients.Policy
}{
	{"none", clients.Fixed{}},
	{"exponential", clients.Exponential{Base: 2 * base, Cap: 2 * time.Second, Factor: 2}},
	{"equal", clients.EqualJitter(2*base, 2*time.Second)},
	{"full", clients.FullJitter(2*base, 2*time.Second)},
	{"decorrelated", clients.Decorrelated{Base: base, Cap: 2 * time.Second}},
}

const base = 5 * time.Millisecond

// step is what a client does next.
type step uint8

const (
	reads   step = iota // the server gets its read
	writes              // it gets its write
	written             // the client gets the response
)

// writer is a client, and its next step.
type writer struct {
	at      time.Duration
	step    step
	attempt int
	gap     time.Duration
	version int // that it has read; -1: its write has failed
}

func contend(p clients.Policy, n int, draw *rand.Rand) (c Contention) {
	network := func() time.Duration {
		return time.Duration(math.Abs(10+2*draw.NormFloat64()) * float64(time.Millisecond))
	}
	queue := make(byTime, n)
	for i := range queue {
		queue[i] = writer{at: network(), attempt: 1}
	}
	heap.Init(&queue)
	for version := 0; len(queue) > 0; {
		w := &queue[0]
		c.Time = w.at
		switch w.step {
		case reads: // the response, and then the write, are on their way
			w.version = version
			w.at += network() + network()
			w.step = writes
		case writes:
			c.Calls++
			if w.version == version {
				version++
			} else {
				w.version = -1
			}
			w.at += network()
			w.step = written
		case written:
			wait, again := p.Next(clients.Rejected{Attempt: w.attempt, Gap: w.gap, Elapsed: w.at, U: draw.Float64()})
			if w.version >= 0 || !again {
				heap.Pop(&queue)
				continue
			}
			w.attempt, w.gap = w.attempt+1, wait
			w.at += network() + wait
			w.step = reads
		}
		heap.Fix(&queue, 0)
	}
	return c
}

// byTime is a heap of writers.
type byTime []writer

func (q byTime) Len() int           { return len(q) }
func (q byTime) Less(i, j int) bool { return q[i].at < q[j].at }
func (q byTime) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byTime) Push(x any)        { *q = append(*q, x.(writer)) }
func (q *byTime) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	*q = (*q)[:last]
	return w
}
