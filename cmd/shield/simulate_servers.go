package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/internal/configfile"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

// Bounds of a comparison. Ours: the size of a table, and far more than a config has.
const (
	maxServers = 8
	maxConfig  = 10 << 20 // bytes
	maxFixed   = 3600     // seconds
)

// A server is one of those that a simulation compares.
type server struct {
	name   string
	config shield.Config
	maker  sim.Maker // nil: the real Guard
	asks   bool      // its config gets the capacity that is compared
	notes  []string
	path   string // its file, "" if it has none
}

// serverWords are the servers that are not files.
const serverWords = "none, shield, shield-adaptive, fixed:SECONDS, no-hint, next-token"

// known are the servers that have a name of one word.
var known = map[string]server{
	"none":   {notes: []string{"no limit: every request is passed on"}},
	"shield": {asks: true},
	"shield-adaptive": {
		config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}}, notes: []string{"concurrency adaptive, and nothing else"},
	},
	"no-hint":    bucket(sim.NoHint, "rejections without Retry-After"),
	"next-token": bucket(sim.NextToken, "Retry-After says when there will be a token, rounded up"),
}

// bucket is a model of a rate limiter that admits what a token bucket does.
func bucket(maker sim.Maker, says string) server {
	return server{maker: maker, asks: true, notes: []string{"a model: a token bucket; " + says}}
}

// parseServer returns the server that an argument of --compare names.
func parseServer(arg string) (server, error) {
	one, ok := known[arg]
	if seconds, fixed := strings.CutPrefix(arg, "fixed:"); fixed {
		n, err := strconv.Atoi(seconds)
		if err != nil || n < 1 || n > maxFixed {
			return server{}, fmt.Errorf("%q: the Retry-After is %q; use whole seconds, 1 to %d, like fixed:1", arg, seconds, maxFixed)
		}
		one, ok = bucket(sim.FixedHint(n), fmt.Sprintf("Retry-After: %d for all rejected clients", n)), true
	}
	one.name = arg
	if ok {
		return one, nil
	}
	return fileServer(arg)
}

// fileServer returns the shield of FILE or FILE#NAME.
func fileServer(arg string) (server, error) {
	path, name, named := arg, "", false
	text, err := readAtMost(path, maxConfig)
	if i := strings.LastIndexByte(arg, '#'); i >= 0 && errors.Is(err, fs.ErrNotExist) {
		path, name, named = arg[:i], arg[i+1:], true
		text, err = readAtMost(path, maxConfig)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return server{}, fmt.Errorf("%q is neither a file nor a known word; use a Caddyfile, JSON, or one of %s", path, serverWords)
	}
	if err != nil {
		return server{}, err
	}
	found, err := configfile.Read(path, text)
	if err != nil {
		return server{}, err
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Name)
	}
	i := 0
	if named || len(found) > 1 {
		i = slices.Index(names, name)
	}
	if i < 0 {
		return server{}, fmt.Errorf("%s has %s: %s; use one of them, like %s#%s", path, report.Plural(len(found), "shield", "shields"), strings.Join(names, ", "), path, found[0].Name)
	}
	s := server{name: filepath.Base(path) + arg[len(path):], path: path, config: found[i].Config}
	s.notes = append(s.notes, "every request reaches the shield, the first of its name; matchers, keys and tickets are not simulated")
	if s.config.Observe {
		s.config.Observe = false
		s.notes = append(s.notes, "mode is observe; simulated as if it enforced")
	}
	if len(s.config.Zones) > 0 {
		s.notes = append(s.notes, "zones count every request, with a bucket for each client")
	}
	if s.config.Classes != nil {
		s.notes = append(s.notes, "every request is of the default class")
	}
	return s, nil
}

// equip gives one limit to the servers that ask for it, and returns it: the limit that is
// set, or the first capacity of a config, or rate.
func equip(servers []server, limit limiter.Config, rate float64) limiter.Config {
	if i := slices.IndexFunc(servers, func(s server) bool { return s.config.Capacity.Rate > 0 }); limit.Rate == 0 && i >= 0 {
		limit = servers[i].config.Capacity
	}
	if limit.Rate == 0 {
		limit = limiter.Config{Rate: rate}
	}
	read, _ := limiter.NewCapacity(limit) // an error is one of --limit, or of the config
	for i := range servers {
		if servers[i].asks {
			servers[i].config.Capacity = limit
			if servers[i].maker == nil {
				servers[i].notes = []string{fmt.Sprintf("capacity %s/s burst %d, and nothing else", chart.Number(perSec(limit)), read.Burst())}
			}
		}
	}
	return limit
}
