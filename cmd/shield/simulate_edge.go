package main

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/live"
)

// usualLoad is what share of the backend's capacity clients ask for with --edge. Ours: that of
// a service with some room, and less than what shield admits by default.
const usualLoad = 0.75

// calm checks the flags that are given with --edge, and leaves calm: no herd, and clients at a rate.
func (s *simulation) calm() (wrong problems) {
	for _, flag := range []string{"clients", "within", "addresses", "outage", "slow", "restart", "duration"} {
		if s.changed(flag) {
			wrong.addf("--%s is given with --edge, which plays its own pushes; use only one of them", flag)
		}
	}
	s.Clients = 0
	if s.log == "" && !s.changed("background") {
		s.Background = usualLoad * float64(s.pool.Workers) / s.Service.Mean.Seconds()
	}
	if s.Background < leastCalm {
		wrong.addf("--background is %v with --edge; use the normal rate of the service, at least %v per second", s.Background, leastCalm)
	}
	return wrong
}

// leastCalm is the least rate of a service whose edge is looked for: a run of one that is slower takes hours.
const leastCalm = 0.1

// edgeNames returns what is compared with --edge: without a shield, and with each config that is named.
func edgeNames(names []string) []string {
	if len(names) == 1 && names[0] == "" {
		names = []string{"shield-adaptive"}
	}
	if slices.Contains(names, "none") {
		return names
	}
	return slices.Insert(names, 0, "none")
}

// findEdges looks for the edge of each server.
func (s *simulation) findEdges(scr screen) error {
	s.edges = edge.Report{Capacity: s.Capacity, Asked: s.Background, Policies: s.Policies}
	for i, one := range s.servers {
		found, err := s.findEdge(one, scr, fmt.Sprintf("%s (%d of %d)", one.name, i+1, len(s.servers)))
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		s.edges.Services = append(s.edges.Services, found)
	}
	return nil
}

func (s *simulation) findEdge(one server, scr screen, text string) (edge.Service, error) {
	scenario := s.Scenario
	scenario.Name, scenario.Config = one.name, one.config
	var tried atomic.Int64
	if scr.terminal {
		defer live.Watch(scr.w, func() string { return fmt.Sprintf("%s: %d pushes", text, tried.Load()) })()
	}
	found, err := edge.Find(scenario, one.maker, func() { tried.Add(1) })
	found.Notes = one.notes
	return found, err
}
