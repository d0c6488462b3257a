package caddymodule

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/matchers"
)

// load returns the load of the backend in hundredths: see [shield.Guard.Load].
func (h *Handler) load(now time.Duration) float64 { return math.Round(100*h.guard().Load(now)) / 100 }

// Overloaded implements matchers.Shields. Handlers may be provisioned after matchers, so the shield is looked for when the app starts, or at
// the first request if that comes before.
func (a *App) Overloaded(name string) func() (bool, error) {
	find := sync.OnceValues(func() (*backendRecord, error) { return a.limited(name) })
	a.matched = append(a.matched, find)
	return func() (bool, error) {
		record, err := find()
		return err == nil && record.overloaded(shield.Now()), err
	}
}

// limited returns the backend of that name that has a limit; "" means the only one of the config.
func (a *App) limited(name string) (record *backendRecord, err error) {
	names := []string{}
	for _, h := range a.configured {
		if h.Capacity == nil && h.Concurrency == nil {
			continue
		}
		if name == "" || name == h.Name {
			record = h.record
		}
		if !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	if record == nil || name == "" && len(names) > 1 {
		return nil, fmt.Errorf("shield_overloaded names the shield %q; use one with a capacity or a concurrency: %q", name, names)
	}
	return record, nil
}

var _ matchers.Shields = (*App)(nil)
