package caddymodule

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
)

// pool holds what requests have changed, by the names of zones and backends, for as
// long as a config uses them. It outlives configs, so that a reload keeps all quotas,
// promises and counts. It holds no limits: those are in the handlers, so that a config
// that fails to load changes nothing.
//
// Caddy cleans up a config while its last requests are still being served. Cleanup
// destroys nothing here: a request may use the state that it points to for any time.
var pool = caddy.NewUsagePool()

// reasonCounts counts requests by shield.Reason.
type reasonCounts = [len(shield.BackendStats{}.Refused)]uint64

// A zoneRecord is the state of one zone, and what has been reported of it.
type zoneRecord struct {
	*shield.ZoneState
	shown    string // its name in metrics, logs and status
	reported refusalReport
}

func newZoneRecord(name string) *zoneRecord {
	return &zoneRecord{ZoneState: shield.NewZoneState(name), shown: name}
}

// A backendRecord is the state of one backend, and what has been reported of it.
type backendRecord struct {
	shield.Backend
	reported backendReport
}

// The two kinds of keys in the pool.
type (
	zoneKey    string
	backendKey string
)

// A lease is what one module has taken from the pool. It returns exactly that: Caddy
// calls Cleanup after a failed Provision, too.
type lease []any

func (l *lease) zone(name string) *zoneRecord {
	v, _ := pool.LoadOrStore(zoneKey(name), newZoneRecord(name))
	*l = append(*l, zoneKey(name))
	return v.(*zoneRecord)
}

func (l *lease) backend(name string) *backendRecord {
	v, _ := pool.LoadOrStore(backendKey(name), new(backendRecord))
	*l = append(*l, backendKey(name))
	return v.(*backendRecord)
}

func (l *lease) giveBack() {
	for _, key := range *l {
		_, _ = pool.Delete(key) // nothing in the pool has a Destruct that could fail
	}
	*l = nil
}
