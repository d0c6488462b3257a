package caddymodule

import (
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/oncall"
)

// pool holds what requests have changed, by the names of zones and backends, for as
// long as a config uses them. It outlives configs, so that a reload keeps all quotas,
// appointments and counts. It holds no limits: those are in the handlers, so that a config
// that fails to load changes nothing.
//
// Caddy cleans up a config while its last requests are still being served. Cleanup
// destroys nothing here: a request may use the state that it points to for any time.
var pool = caddy.NewUsagePool()

// reasonCounts counts requests by shield.Reason.
type reasonCounts = [len(shield.BackendStats{}.Rejected)]uint64

// A zoneRecord is the state of one zone.
type zoneRecord struct {
	*shield.ZoneState
	shown    string           // its name in metrics, logs and status
	rejected lazy[oncall.Top] // clients, in the last minute
}

// A backendRecord is the state of one backend, and what has been reported of it.
type backendRecord struct {
	shield.Backend
	reported  backendReport
	rejected  lazy[oncall.Top] // clients, in the last minute
	busy      lazy[oncall.Top] // clients that were admitted then, and had other requests in flight
	durations durations
	atDoor    [2]atomic.Uint64 // rejections that a Door has answered, over HTTP/1.1 and over HTTP/2
	history   oncall.History
}

// door returns the rejections that a Door has answered, by protocol.
func (b *backendRecord) door() map[string]uint64 {
	return map[string]uint64{"h1": b.atDoor[0].Load(), "h2": b.atDoor[1].Load()}
}

// A lease is what one module has taken from the pool. It returns exactly that: Caddy
// calls Cleanup after a failed Provision, too.
type lease []any

// take returns the record of a key: fresh if there is none yet.
func (l *lease) take(key, fresh any) any {
	record, _ := pool.LoadOrStore(key, fresh)
	*l = append(*l, key)
	return record
}

func (l *lease) giveBack() {
	for _, key := range *l {
		_, _ = pool.Delete(key) // nothing in the pool has a Destruct that could fail
	}
	*l = nil
}
