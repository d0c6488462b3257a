package caddymodule

import (
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
)

// pool holds what traffic has written, by the names of zones and backends, for
// as long as some config uses them. It outlives configs, so that a reload
// forgives nobody and loses count of nothing. It holds no limits: those are in
// the handlers, so that a config that fails to load changes nothing.
//
// Caddy cleans up a config while its last requests are still being served.
// Nothing here is destroyed then: a request that holds a pointer to its state
// may use it for as long as it likes.
var pool = caddy.NewUsagePool()

// zoneState is the pooled state of one zone.
type zoneState struct {
	*shield.ZoneState
	reported, reportedObserved atomic.Uint64 // refusals that are in the log already
}

// backendState is the pooled state of one protected backend.
type backendState struct {
	*shield.Backend
	overload overload
	herd     herd
	pause    pause
	changes  atomic.Uint64 // of the limit in flight that are in the log already
	hogs     atomic.Uint64 // refusals for PerClient that are
	wouldHog atomic.Uint64
}

// The two kinds of keys in the pool.
type (
	zoneKey    string
	backendKey string
)

// lease counts what one module has taken from the pool, so that it gives back
// just that: Caddy calls Cleanup after a failed Provision too.
type lease []any

func (l *lease) zone(name string) *zoneState {
	v, _ := pool.LoadOrStore(zoneKey(name), &zoneState{ZoneState: shield.NewZoneState(name)})
	*l = append(*l, zoneKey(name))
	return v.(*zoneState)
}

func (l *lease) backend(name string) *backendState {
	v, _ := pool.LoadOrStore(backendKey(name), &backendState{Backend: new(shield.Backend)})
	*l = append(*l, backendKey(name))
	return v.(*backendState)
}

func (l *lease) giveBack() {
	for _, key := range *l {
		_, _ = pool.Delete(key) // nothing in the pool has a Destruct that could fail
	}
	*l = nil
}
