package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
)

// A scenario is what every rival meets.
type scenario struct {
	Clients    int           // in the herd
	Window     time.Duration // within which they come
	Capacity   int           // what the limiters are set to, requests per second
	Burst      int           // what shield, and who is set like it, lets through at once
	Background int           // requests per second of the background: a Poisson process
	Seed       uint64        // of the moments at which the background comes: not 0

	Attempts   int           // of each client, at most
	RetryDelay time.Duration // of a client that is not told when to come back
	Timeout    time.Duration // that a client waits for the answer to one attempt

	Before time.Duration // for which the background comes alone
	After  time.Duration // for which it goes on when the herd is done
	Lasts  time.Duration // one run, at most
}

// full is the scenario of the table. Clients wait 10 s: few programs wait so short,
// few people so long.
var full = scenario{
	Clients: 1000, Window: 100 * time.Millisecond, Capacity: 100, Burst: 10, Background: 30, Seed: 1,
	Attempts: 4, RetryDelay: 500 * time.Millisecond, Timeout: 10 * time.Second,
	Before: 8 * time.Second, After: 2 * time.Second, Lasts: 60 * time.Second,
}

// quick is the same with a herd that drains in half the time.
var quick = scenario{
	Clients: 200, Window: 100 * time.Millisecond, Capacity: 40, Burst: 4, Background: 12, Seed: 1,
	Attempts: 4, RetryDelay: 500 * time.Millisecond, Timeout: 10 * time.Second,
	Before: 4 * time.Second, After: time.Second, Lasts: 45 * time.Second,
}

// Workers is how many requests the backend works on at once.
const Workers = 4

// backend is that of shield's own test of its herd. It can serve twice what the
// limiters are set to while no request waits in it, and two thirds of that when it is
// crowded: a limiter that lets a second's worth through at once does not lose by it.
// Its queue has room for all.
func (s scenario) backend() live.BackendConfig {
	return live.BackendConfig{
		Config:  plant.Config{Workers: Workers, Coherency: 1 / float64(max(1, s.Capacity/2)), Slowest: 3, Queue: 10_000},
		Service: Workers * time.Second / time.Duration(2*s.Capacity),
	}
}

// optimum is the shortest time in which the herd can be served, without the burst.
func (s scenario) optimum() time.Duration {
	return time.Duration(s.Clients) * time.Second / time.Duration(s.Capacity-s.Background)
}

// Spread is over how many whole seconds the herd has to be spread by hand to fit.
func (s scenario) Spread() int { return int(math.Ceil(s.optimum().Seconds())) }

// herd and background return the clients that ask the target.
func (s scenario) herd(target live.Target) live.LoadConfig {
	c := s.clients(target)
	c.Herd, c.Within, c.Even, c.Connected, c.FirstAddress = s.Clients, s.Window, true, true, netip.MustParseAddr("10.1.0.0")
	return c
}

func (s scenario) background(target live.Target) live.LoadConfig {
	c := s.clients(target)
	c.Herd, c.Within, c.Seed = int(float64(s.Background)*s.Lasts.Seconds()), s.Lasts, s.Seed
	c.FirstAddress = netip.MustParseAddr("10.2.0.0")
	return c
}

// clients returns what the herd and the background have in common. They retry as most
// programs do: they obey Retry-After, and wait a fixed time where there is none.
func (s scenario) clients(target live.Target) live.LoadConfig {
	return live.LoadConfig{
		Target: target, Timeout: s.Timeout, Attempts: s.Attempts, Patience: s.patience(), Requests: live.MaxRequests,
		Mix: clients.All(clients.Client{
			On: clients.Lost | clients.Server | clients.S408 | clients.S429, Obeys: clients.S429 | clients.S503,
			Reads: clients.Seconds, Own: clients.Fixed{Gap: s.RetryDelay},
		}),
	}
}

// patience is how long after its first attempt a client may begin its last, for the
// run to end in time.
func (s scenario) patience() time.Duration {
	const opening = time.Second // of the herd's connections
	return s.Lasts - s.Before - opening - s.Window - s.Timeout - s.After
}

func (s scenario) check() error {
	switch {
	case s.Seed == 0:
		return fmt.Errorf("seed is 0; use at least 1")
	case s.Timeout < time.Second || s.patience() < time.Second:
		return fmt.Errorf("timeout is %v; use 1s to %v, for a run to end within %v", s.Timeout, s.Timeout+s.patience()-time.Second, s.Lasts)
	}
	return nil
}

// A result is what came of one rival's run. Background was cut off when the herd was
// done: clients that had not come by then are neither served nor have they given up.
type result struct {
	rival            rival
	scenario         scenario
	herd, background live.LoadResult
	backend          live.Stats
}

// run sends the herd and the background to a new backend behind r. It returns
// ctx's error if that ends first.
func (s scenario) run(ctx context.Context, r rival) (result, error) {
	res := result{rival: r, scenario: s}
	folder, err := os.MkdirTemp("", "rivals")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(folder)
	backend := live.NewBackend(s.backend())
	defer backend.Close()
	address, stop, err := s.front(ctx, r, folder, backend)
	if err != nil {
		return res, fmt.Errorf("%s: %w", r.name, err)
	}
	defer stop()

	target, err := live.NewTarget(ctx, "http://"+address+"/", false)
	if err != nil {
		return res, err
	}
	herd, err := live.NewLoad(s.herd(target))
	if err != nil {
		return res, err
	}
	background, err := live.NewLoad(s.background(target))
	if err != nil {
		return res, err
	}
	cut, end := context.WithCancel(ctx)
	defer end()
	var coming sync.WaitGroup
	coming.Go(func() { res.background = background.Run(cut) })
	until(ctx, time.Now().Add(s.Before))
	res.herd = herd.Run(ctx)
	until(ctx, time.Now().Add(s.After))
	end()
	coming.Wait()
	res.backend = backend.Stats()
	return res, ctx.Err()
}

// front starts r before the backend and returns where clients reach it.
func (s scenario) front(ctx context.Context, r rival, folder string, backend http.Handler) (address string, stop func(), err error) {
	if r.middleware != nil {
		return process.Serve(ctx, r.middleware(s, backend))
	}
	upstream, stopBackend, err := process.Serve(ctx, backend)
	if err != nil {
		return "", nil, err
	}
	var config string
	var stopProgram func()
	if address, err = process.FreeAddress(ctx); err == nil {
		config, err = r.config(configData{s, address, upstream, folder})
	}
	if err == nil {
		stopProgram, err = startProgram(ctx, r.program, config, folder, address)
	}
	if err != nil {
		stopBackend()
		return "", nil, err
	}
	return address, func() { stopProgram(); stopBackend() }, nil
}

// until returns at the time t, or as soon as ctx ends.
func until(ctx context.Context, t time.Time) {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
