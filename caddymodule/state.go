package caddymodule

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/oncall"
)

// handlers returns those of the config, and those of Live shields.
func (a *App) handlers() []*Handler {
	if live := a.live.Load(); live != nil {
		return slices.Concat(a.configured, *live)
	}
	return a.configured
}

// roster is what metrics, logs and status show.
func (a *App) roster() (shields []*Handler, zones []*handlerZone) { return firsts(a.handlers()) }

// firsts returns of the handlers that share a backend, and of the zones that share a state, the first.
func firsts(handlers []*Handler) (shields []*Handler, zones []*handlerZone) {
	known := map[any]bool{}
	for _, h := range handlers {
		if !known[h.record] {
			known[h.record], shields = true, append(shields, h)
		}
		for i := range h.zones {
			if z := &h.zones[i]; !known[z.record] {
				known[z.record], zones = true, append(zones, z)
			}
		}
	}
	return shields, zones
}

// inForce is what a handler works with: as configured, but for overrides.
type inForce struct {
	guard  *shield.Guard
	config shield.Config
}

// mode is the value of the option mode.
func (is *inForce) mode() string {
	if is.config.Observe {
		return modeObserve
	}
	return modeEnforce
}

func (h *Handler) guard() *shield.Guard { return h.force.Load().guard }

// config returns the limit of a zone that is in force.
func (z *handlerZone) config() *shield.Zone { return &z.of.force.Load().config.Zones[z.index] }

func (z *handlerZone) maxKeys() int { return cmp.Or(z.config().MaxKeys, shield.DefaultMaxKeys) }

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

// lazy is memory that is taken when it is first needed: most of a thousand Live shields need none.
type lazy[T any] struct{ atomic.Pointer[T] }

func (l *lazy[T]) get() *T {
	if l.Load() == nil {
		l.CompareAndSwap(nil, new(T))
	}
	return l.Load()
}

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
	shortAt   atomic.Int64 // when it had no room for a request last: see overloaded; 0: never
}

// door returns the rejections that a Door has answered, by protocol.
func (b *backendRecord) door() map[string]uint64 {
	return map[string]uint64{"h1": b.atDoor[0].Load(), "h2": b.atDoor[1].Load()}
}

// overloaded reports whether the backend has rejected a request for want of room, or in observe mode would have, within the quiet of an
// overload. It is what the matcher calls overloaded: clients that return when the rush is over get what they came for. It is one atomic load.
func (b *backendRecord) overloaded(now time.Duration) bool {
	at := time.Duration(b.shortAt.Load())
	return at > 0 && now-at < quiet
}

// inOverload reports whether there is an overload as events and the log have it, from its beginning to its end. Metrics and status call
// that overloaded. A rejection counts before it is reported, too.
func (b *backendRecord) inOverload(now time.Duration) bool {
	b.reported.mu.Lock()
	defer b.reported.mu.Unlock()
	return b.reported.overload.on || b.overloaded(now)
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
