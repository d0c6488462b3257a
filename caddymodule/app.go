package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/oncall"
)

func init() { caddy.RegisterModule(new(App)) }

// App is what all shield handlers of one config share. It need not be configured.
//
// It emits these events, with the name of the handler as `shield`:
//
// Event | When | Data
// ------|------|-----
// `shield_overload_started` | a request is rejected for any reason but `quota` and `per_client`, after 5 s without | `shield`, `observed`
// `shield_overload_ended` | no request has been for 5 s | `shield`, `observed`, `seconds`, `rejected`
// `shield_backend_paused` | the backend has asked for a pause | `shield`, `seconds` to go
// `shield_backend_resumed` | the pause is over | `shield`, `seconds` that it has taken
// `shield_herd_detected` | a herd was detected | `shield`, `kind`, `size`, `period`, `phase`
// `shield_herd_ended` | it is gone | the same, and `seconds`
//
// and, with the addresses of the store as `store`:
//
// Event | When | Data
// ------|------|-----
// `shield_store_lost` | the store has not answered in time for 1 s | `store`, `error`
// `shield_store_back` | it answers again | `store`, `seconds` that it was lost
type App struct {
	// `enforce` (default), or `observe`: no handler rejects a request, whatever its mode is.
	Mode string `json:"mode,omitempty"`

	// The server through which replicas share quotas, limits of backends and appointments
	// (default: none, each replica has its own).
	Store *Store `json:"store,omitempty"`

	// Whether addresses of clients are shown without their last part: IPv4 by their first 24
	// bits, IPv6 by their first 48. Default false. It is about `GET /shield/who` and all
	// that shows its response; logs have filters of their own.
	MaskAddresses bool `json:"mask_addresses,omitempty"`

	// Whether credentials by which a key tells clients apart are shown and logged as a short
	// hash (default true): the values of Authorization, of cookies, of headers and parameters whose
	// names have a word like key, token or secret, and the claims of {http.auth.*}.
	MaskCredentials *bool `json:"mask_credentials,omitempty"`

	// Where the page for a person on call is served, for browsers and for commands: an address like
	// `localhost:2020` (default: only at Caddy's admin endpoint, which rejects browsers).
	Page string `json:"page,omitempty"`

	adapts bool // it checks the shields of a Caddyfile, which is not loaded yet

	page   *http.Server  // of Page; nil: there is none
	store  *storeConfig  // of Store, once it is checked
	shares *store.Config // once the app is started; nil: it has no store
	logger *zap.Logger
	events *caddyevents.App
	ctx    caddy.Context

	// Written while the config is provisioned, which Caddy does in one
	// goroutine, and only read afterwards.
	unnamed     map[string]int       // handlers without a name, by server
	definitions map[string][2]string // of zones and handlers, by kind and name: what a config says of them, and the secret
	configured  []*Handler
	warned      map[[2]string]bool // of a server, with this text: see warnOfAddresses

	live atomic.Pointer[[]*Handler] // see Show

	stop, stopped chan struct{}
}

// CaddyModule implements caddy.Module.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "shield", New: func() caddy.Module { return new(App) }}
}

// Provision implements caddy.Provisioner.
func (a *App) Provision(ctx caddy.Context) error {
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	a.ctx, a.logger, a.events = ctx, ctx.Logger(), events.(*caddyevents.App)
	a.warned = map[[2]string]bool{}
	if a.Store != nil {
		if a.store, err = a.Store.check(); err != nil {
			return err
		}
	}
	return ctx.GetMetricsRegistry().Register(collector{a})
}

// Start implements caddy.App.
func (a *App) Start() (err error) {
	if a.Page != "" {
		if a.page, err = operate.ServePage(a.Page, a.ctx.GetMetricsRegistry(), a.logger); err != nil {
			return err
		}
	}
	now := shield.Now()
	if a.store != nil {
		if a.shares, err = store.Open(pool, &a.store.Settings, shield.Now, a.duties); err != nil {
			a.leave()
			return err
		}
	}
	changes.mu.Lock()
	changes.apps[a] = true
	a.fit(now)
	changes.mu.Unlock()
	desk.Tend(a.shares, now)
	seq := oncall.Second(now)
	shields, _ := a.roster()
	for _, s := range shields {
		if !s.live { // events wait for the first report: their app may not have started, and a subscriber may wait for this one
			s.record.history.Observe(seq, s.reading(now).facts(nil))
			s.record.history.Note(seq, oncall.Plain, "a config is loaded")
		}
	}
	operate.Announce(seq)
	a.stop, a.stopped = make(chan struct{}), make(chan struct{})
	go a.report()
	for server, n := range a.unnamed {
		if n > 1 {
			a.logger.Warn("several shields have no name; name them, or a reload with one more may mix up their counts",
				zap.String("server", server), zap.Int("shields", n))
		}
	}
	return nil
}

// Cleanup implements caddy.CleanerUpper.
func (a *App) Cleanup() error {
	changes.mu.Lock()
	defer changes.mu.Unlock()
	if delete(changes.apps, a); len(changes.apps) == 0 {
		changes.list = nil
	}
	return nil
}

// Stop implements caddy.App. It waits for the last report, but not for long: an event's
// subscriber may itself wait for the reload that stops this app. The reporter ends after it.
func (a *App) Stop() error {
	close(a.stop)
	select {
	case <-a.stopped:
	case <-time.After(time.Second): // ours: a log line takes microseconds, and a reload must not seem to hang
	}
	a.leave()
	return nil
}

// leave ends what the app holds beside the memory of its config.
func (a *App) leave() {
	if a.page != nil {
		_ = a.page.Close()
	}
	desk.Leave(a.shares, shield.Now())
}

// Validate implements caddy.Validator.
func (a *App) Validate() error { return checkMode(a.Mode) }

// nextName returns a name for a handler without one: that of its server, if that is valid
// in labels, with a number from the second handler on.
func (a *App) nextName(server string) string {
	if shield.CheckName(server) != nil {
		server = "shield"
	}
	if a.unnamed == nil {
		a.unnamed = map[string]int{}
	}
	a.unnamed[server]++
	if n := a.unnamed[server]; n > 1 {
		return fmt.Sprintf("%s-%d", server, n)
	}
	return server
}

// define returns an error if this config defines one name in two ways. The error says
// by which options. It does not show the secrets.
func (a *App) define(kind, name string, v any, secret []byte) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	d, key := [2]string{string(b), string(secret)}, kind+" "+name
	first, ok := a.definitions[key]
	switch {
	case ok && first[0] != d[0]:
		return fmt.Errorf("%s %q is defined twice, with different %s; want one definition, or two names", kind, name, unlike(first[0], d[0]))
	case ok && first[1] != d[1] && !a.adapts: // a Caddyfile may have them as placeholders
		return fmt.Errorf("%s %q is defined twice, with different secrets; want one secret, or two names", kind, name)
	}
	if a.definitions == nil {
		a.definitions = map[string][2]string{}
	}
	a.definitions[key] = d
	return nil
}

// unlike returns the options in which two JSON objects differ.
func unlike(one, other string) string {
	var here, there map[string]json.RawMessage
	_, _ = json.Unmarshal([]byte(one), &here), json.Unmarshal([]byte(other), &there) // they come from Marshal
	options := maps.Clone(here)
	maps.Copy(options, there)
	maps.DeleteFunc(options, func(name string, _ json.RawMessage) bool { return bytes.Equal(here[name], there[name]) })
	return strings.Join(slices.Sorted(maps.Keys(options)), " and ")
}

// handlers returns those of the config, and those of Live shields.
func (a *App) handlers() []*Handler {
	if live := a.live.Load(); live != nil {
		return slices.Concat(a.configured, *live)
	}
	return a.configured
}

// roster is what metrics, logs and status show: of the handlers that share a backend, and of the zones that share a state,
// the first.
func (a *App) roster() (shields []*Handler, zones []*handlerZone) {
	known := map[any]bool{}
	for _, h := range a.handlers() {
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

var _ operate.Shields = (*App)(nil)

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
