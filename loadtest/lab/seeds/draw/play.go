package main

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/seeds"
)

// The policies that the page shows, and how many clients are played of each: those
// whose local maxima are shown need most.
var outages = []struct {
	name    string
	clients int
}{
	{"google-http-java-client", seeds.Crowd},
	{"binary-exponential", seeds.Crowd},
	{"modified-binary-exponential", seeds.Crowd},
	{"aws-full-jitter", seeds.Crowd},
	{"aws-decorrelated", seeds.Crowd / 2},
	{"google-analytics", few},
	{"go-array", few},
	{"aws-equal-jitter", few},
	{"hadoop", few},
	{"google-sre", few},
	{"ethernet", few},
	{"try-n-times", few / 10},
	{"aws-exponential", few / 10},
	{"clojure", few / 10},
	{"server-timing", few / 10},
	{"paranoid-pirate", few / 10},
	{"tcp-rto", few / 10},
	{"docker-restart", few / 10},
}

const few = 200_000

// How long the Go array's clients are watched, and from when on they have settled.
const (
	forEver = 10 * time.Minute
	settled = time.Minute
)

// The sizes of AWS's simulation and of the ladder, and the seed of all.
var (
	writers = []int{10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200}
	herds   = []int{10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000}
)

const (
	claimed = 100 // clients of AWS's simulation, of which its figures are
	seed    = 1
)

// figures are all that is played.
type figures struct {
	outages  map[string]*seeds.Outage
	settles  *seeds.Outage                       // the Go array, for long
	contends map[string]map[int]seeds.Contention // by back-off and number of clients
	ladder   map[string]map[int]seeds.Rung       // by ladder and number of clients
}

const (
	doubling      = "windows of 2^k"
	fitting       = "windows of n"
	doublingAlone = "windows of 2^k, alone"
	fittingAlone  = "windows of n, alone"
	told          = "told in milliseconds"
	toldSeconds   = "told in seconds"
)

// play plays everything, as much at a time as there are processors.
func play() (*figures, error) {
	f := &figures{
		outages: map[string]*seeds.Outage{}, contends: map[string]map[int]seeds.Contention{}, ladder: map[string]map[int]seeds.Rung{},
	}
	var (
		group errgroup.Group
		mu    sync.Mutex
	)
	group.SetLimit(runtime.GOMAXPROCS(0))
	do := func(work func() (note func(), err error)) {
		group.Go(func() error {
			note, err := work()
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			note()
			return nil
		})
	}
	f.climbAll(do)
	for _, b := range seeds.Backoffs {
		f.contends[b.Name] = map[int]seeds.Contention{}
		for _, n := range writers {
			do(func() (func(), error) {
				times := 10
				if n == claimed {
					times = 100
				}
				c := seeds.Contend(b.Policy, n, times, seed)
				return func() { f.contends[b.Name][n] = c }, nil
			})
		}
	}
	for _, o := range outages {
		do(func() (func(), error) {
			played := seeds.Down(o.name, o.clients)
			return func() { f.outages[o.name] = played }, nil
		})
	}
	do(func() (func(), error) {
		played := seeds.Play(seeds.Policy("go-array"), few/10, seed, time.Second, forEver)
		return func() { f.settles = played }, nil
	})
	return f, group.Wait()
}

// climbAll has every ladder climbed by herds of every size. do notes what came of it.
func (f *figures) climbAll(do func(work func() (note func(), err error))) {
	climb := func(ladder string, n int, play func() (seeds.Rung, error)) {
		do(func() (func(), error) {
			r, err := play()
			return func() { f.ladder[ladder][n] = r }, err
		})
	}
	for _, ladder := range []string{doubling, fitting, doublingAlone, fittingAlone, told, toldSeconds} {
		f.ladder[ladder] = map[int]seeds.Rung{}
	}
	for _, n := range herds {
		// The last of few is served at very different times, so few are played often.
		often, alone := max(2, 10_000/n), max(1, 3000/n)
		for _, l := range []struct {
			ladder  string
			policy  func(n int) clients.Policy
			channel seeds.Channel
			runs    int
		}{
			{doubling, seeds.Doubling, seeds.OneOf, often},
			{doublingAlone, seeds.Doubling, seeds.Alone, alone},
			{fitting, seeds.Fitting, seeds.OneOf, often},
			{fittingAlone, seeds.Fitting, seeds.Alone, alone},
		} {
			climb(l.ladder, n, func() (seeds.Rung, error) { return seeds.Climb(l.policy, l.channel, n, l.runs, seed), nil })
		}
		climb(told, n, func() (seeds.Rung, error) {
			return seeds.ByAppointment(clients.Share{Weight: 1, Policy: seeds.Punctual{}, Precise: true}, 1, n, seed)
		})
		climb(toldSeconds, n, func() (seeds.Rung, error) {
			return seeds.ByAppointment(clients.Share{Weight: 1, Policy: clients.Exact{}}, 3, n, seed)
		})
	}
}
