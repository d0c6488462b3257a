package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/internal/configfile"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// policy is that of all clients: four times at once.
const policy = "fixed@0s*4"

// A service is a backend, what is in front of it, and its clients. Both sides play it.
type service struct {
	workers int
	mean    time.Duration
	asked   float64 // new clients per second
	timeout time.Duration
	front   string // the line of a shield's config; "" means no shield
}

// A course is how a run goes beside its push: calm before it, and within how long after it the service has to be
// back, which is then watched.
type course struct{ calm, within, watch time.Duration }

func (c course) lasts(p edge.Push) time.Duration { return c.calm + p.Length + c.within + c.watch }

func (s service) backend() string { return fmt.Sprintf("%d × %v", s.workers, s.mean) }

func (s service) block() string {
	if s.front == "" {
		return ""
	}
	return "shield {\n\t\t" + s.front + "\n\t}"
}

// mix is the clients' policy.
func mix() (clients.Population, error) { return clients.Parse(policy) }

// scenario is the service in virtual time.
func (s service) scenario(c course) (sim.Scenario, error) {
	population, err := mix()
	if err != nil {
		return sim.Scenario{}, err
	}
	var config shield.Config
	if s.front != "" {
		shields, err := configfile.Read("config", []byte(s.block()))
		if err != nil {
			return sim.Scenario{}, err
		}
		config = shields[0].Config
	}
	return sim.Scenario{
		Name: s.front, Mix: population, Background: s.asked, Warmup: c.calm, Timeout: s.timeout, Config: config,
		Service: sim.Service{Mean: s.mean, Exponential: true}, Plant: &plant.Config{Workers: s.workers},
	}, nil
}

// virtual plays a push in virtual time, and returns the goodput after it.
func (s service) virtual(ctx context.Context, c course, p edge.Push, seed uint64) (float64, error) {
	scenario, err := s.scenario(c)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	scenario.Seed = seed
	return edge.Play(scenario, nil, edge.Slower, p, c.within, c.watch)
}

// errBusy is of a run that says nothing, as this machine was too busy to send requests in time.
var errBusy = errors.New("the machine was too busy")

// tooLate is by how much the hundredth part of what clients send may be late. Ours: half of what a request takes
// at the slower backends.
const tooLate = 25 * time.Millisecond

// live plays a push with processes on this machine, and returns the goodput after it.
func (s service) live(ctx context.Context, program string, c course, p edge.Push, seed uint64) (float64, error) {
	folder, err := os.MkdirTemp("", "edge")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(folder)
	address, stop, err := s.startBackend(ctx, folder, c, p)
	if err != nil {
		return 0, err
	}
	defer stop()
	url := "http://" + address + "/"
	if s.front != "" {
		var stopShield func()
		if url, stopShield, err = process.Shield(ctx, program, folder, s.block(), "reverse_proxy "+address); err != nil {
			return 0, err
		}
		defer stopShield()
	}
	load, err := s.load(ctx, url, c.lasts(p), seed)
	if err != nil {
		return 0, err
	}
	end, cut := context.WithTimeout(ctx, c.lasts(p))
	defer cut()
	r := load.Run(end)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case r.All.Late.P99 > tooLate:
		return 0, fmt.Errorf("%w: one of a hundred requests left %v after it was due", errBusy, r.All.Late.P99)
	case r.All.Unreachable > 0 || r.All.Skipped > 0:
		return 0, fmt.Errorf("%d requests did not get a connection (%s), %d clients did not come", r.All.Unreachable, r.Broken, r.All.Skipped)
	}
	var seconds []sim.Bin
	for _, second := range r.Seconds {
		seconds = append(seconds, second.Bin)
	}
	return edge.Goodput(seconds, c.lasts(p), c.watch), nil
}

// startBackend starts this program as a backend.
func (s service) startBackend(ctx context.Context, folder string, c course, p edge.Push) (address string, stop func(), err error) {
	if address, err = process.FreeAddress(ctx); err != nil {
		return "", nil, err
	}
	j, err := json.Marshal(job{Address: address, Workers: s.workers, Mean: s.mean, Calm: c.calm, Push: p})
	if err != nil {
		return "", nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), backendVar+"="+string(j))
	stop, err = process.Start(ctx, cmd, filepath.Join(folder, "backend.log"), "tcp", address)
	return address, stop, err
}

// load is the clients, who come for so long and a little more.
func (s service) load(ctx context.Context, url string, lasts time.Duration, seed uint64) (*live.Load, error) {
	population, err := mix()
	if err != nil {
		return nil, err
	}
	target, err := live.NewTarget(ctx, url, false)
	if err != nil {
		return nil, err
	}
	return live.NewLoad(live.LoadConfig{
		Target: target, KeepAlive: true, Rate: s.asked, Duration: lasts + time.Second, Mix: population, Timeout: s.timeout,
		Patience: live.MaxPatience, FirstAddress: netip.MustParseAddr("10.0.0.1"), Seed: seed,
	})
}
