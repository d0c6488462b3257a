// Package store connects a Caddy with shields to the store that its replicas share.
//
// It is not for what replicas share, nor for how: that is package share, and its exchanges package share/redis. Neither
// does it know what a shield is, or how a store is configured.
//
// A [Connection] outlives configs, and a [Desk] serves what one config at a time shares.
//
// For example, a config that starts does
//
//	is, err := desk.Open(settings, shield.Now, func(now time.Duration) map[store.Duty]bool { ... })
//	desk.Tend(now) // now, and once per second
//	desk.Leave(is, now) // when it stops
package store

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/share/redis"
)

// Settings are what a connection depends on.
type Settings struct {
	redis.Options
	Files string // what the files of TLS hold: the store is another one if they change
}

// key tells stores apart.
func (s *Settings) key() any {
	return [...]any{"store", strings.Join(s.Addresses, ","), s.Sentinel, s.Username, s.Password, s.TLS != nil, s.Files, s.Prefix}
}

// A Connection is that to a store. A reload with the same store keeps it.
type Connection struct {
	*redis.Client
	trips prometheus.Histogram // of exchanges

	mu      sync.Mutex // guards what follows: what has been reported
	lost    bool
	alone   float64         // seconds, before it was lost
	differs map[string]bool // the names of what others define in another way
}

// Report tells the news of a Status since the last report: log lines, and the events that go with them, if any.
func (c *Connection) Report(s redis.Status, tell func(level zapcore.Level, message, event string, fields ...zap.Field)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	// Without an error it has not been asked. What is shared works alone long before: the second is about what an operator is told.
	case !s.Up && !c.lost && s.Error != "" && s.ForSeconds >= 1:
		c.lost, c.alone = true, s.AloneSeconds-s.ForSeconds
		tell(zap.WarnLevel, "the store is unreachable; this replica applies its share of all limits until the store is back", "shield_store_lost", zap.String("error", s.Error))
	case s.Up && c.lost:
		c.lost = false
		after := time.Duration((s.AloneSeconds - c.alone) * float64(time.Second))
		tell(zap.InfoLevel, "the store is back", "shield_store_back", zap.Duration("after", after))
	}
	differs := map[string]bool{}
	for _, of := range s.Shared {
		name := string(of.Kind) + of.Name
		if differs[name] = len(of.Others) > 0; differs[name] && !c.differs[name] {
			tell(zap.WarnLevel, "other replicas define a shared limit differently, so they do not share it with this one", "",
				zap.String("name", of.Name), zap.String("here", of.Unit), zap.Any("there", of.Others))
		}
	}
	c.differs = differs
}

// Read returns what is known of the store now; nil of a config without one.
func (c *Config) Read() *redis.Status {
	if c == nil {
		return nil
	}
	s := c.Status()
	return &s
}

// tripOpts are those of a Connection's histogram, which Prometheus' library counts, as exchanges are few.
var tripOpts = prometheus.HistogramOpts{
	Name: metrics.Prefix + "store_rtt_seconds", Help: "Round-trip time of answered exchanges with the store.",
	Buckets: []float64{.00025, .0005, .001, .002, .005, .01, .025, .05, .1, .25},
}

// Metrics are those of a store.
var Metrics = []metrics.Group[*Config]{
	{Topic: "Store", With: "`store`", Rows: []metrics.Row[*Config]{
		metrics.Gauge("store_up", nil, "1 while the store responds in time. At 0, this replica enforces its own part of all shared limits.",
			func(c *Config, to metrics.Sink) { to.Flag(c.Status().Up) }),
		metrics.Counter("store_alone_seconds_total", nil, "Total time without a timely response from the store.",
			func(c *Config, to metrics.Sink) { to.Set(c.Status().AloneSeconds) }),
		metrics.Counter("store_exchanges_total", []string{"outcome"}, "Exchanges with the store by outcome: answered, slow (too late for the requests that waited for it), late (abandoned), rejected (the store returned an error), or failed (no connection).",
			func(c *Config, to metrics.Sink) { to.Outcomes(c.Status().Exchanges) }),
		metrics.Histogram("store_rtt_seconds", nil, tripOpts.Help,
			func(c *Config, to metrics.Sink) { to.Send(c.trips) }),
	}},
}

// SharedMetrics are those of each backend, and of each zone, that is shared.
var SharedMetrics = map[redis.Kind][]metrics.Group[redis.Shared]{
	redis.Backend: metricsOfShared("shield", "store_", "backend"),
	redis.Zone:    metricsOfShared("zone", "store_zone_", "zone"),
}

func metricsOfShared(label, prefix, what string) []metrics.Group[redis.Shared] {
	return []metrics.Group[redis.Shared]{{Topic: "Store", Label: label, With: "`store`", Rows: []metrics.Row[redis.Shared]{
		metrics.Gauge(prefix+"replicas", nil, "Replicas that share the "+what+", as far as this one knows.",
			func(s redis.Shared, to metrics.Sink) { to.Set(float64(s.Replicas)) }),
		metrics.Gauge(prefix+"alone", nil, "1 while this replica is cut off from the store and enforces its own part of the "+what+"'s limits.",
			func(s redis.Shared, to metrics.Sink) { to.Flag(s.Alone) }),
		metrics.Gauge(prefix+"differing_replicas", nil, "Replicas that define the "+what+" differently, so they don't share it with this one.",
			func(s redis.Shared, to metrics.Sink) {
				n := 0
				for _, u := range s.Others {
					n += u.Replicas
				}
				to.Set(float64(n))
			}),
	}}}
}

// A Desk serves what one config shares with other replicas. During a reload several run: the first is served until the
// second has run for Lasting, or until it is stopped itself, so that a config that fails to start interrupts nothing, and
// one that shares the same goes on with the same exchanges. The zero Desk is ready. It is safe for concurrent use.
type Desk struct {
	mu      sync.Mutex
	configs []*Config       // that run, by when they were started; guarded by mu
	duties  map[Duty]func() // what is served, and what ends that and waits for it; guarded by mu
}

// Lasting is how long a config runs until it takes the place of the one before.
const Lasting = time.Second

// A Config is one that has a store; nil is one that has none.
type Config struct {
	*Connection
	Started time.Duration
	Duties  func(now time.Duration) map[Duty]bool // what it shares
	key     any                                   // of its store
}

// A Duty is what is to be served: a link to a store, under a name.
type Duty struct {
	Store *Connection
	Link  redis.Link
	Kind  redis.Kind
	Name  string // of the backend or zone
	Unit  string // how it is defined, and under which secret: replicas share what has the same name and unit
}

// Open is for a config that starts. It opens the connection to its store, or takes that of another config, which is
// closed when the last of them leaves. now is the clock of what is served.
func (d *Desk) Open(s *Settings, now func() time.Duration, duties func(time.Duration) map[Duty]bool) (*Config, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &Config{Started: now(), Duties: duties, key: s.key()}
	if i := d.find(func(one *Config) bool { return one.key == c.key }); i >= 0 {
		c.Connection = d.configs[i].Connection
	} else {
		trips := prometheus.NewHistogram(tripOpts)
		client, err := redis.Open(s.Options, now, func(trip time.Duration) { trips.Observe(trip.Seconds()) })
		if err != nil {
			return nil, err
		}
		c.Connection = &Connection{Client: client, trips: trips}
	}
	d.configs = append(d.configs, c)
	return c, nil
}

func (d *Desk) find(is func(*Config) bool) int { return slices.IndexFunc(d.configs, is) }

// Tend has the config served whose turn it is. It is to be called when one starts, and then once per second.
func (d *Desk) Tend(now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serve(now)
}

// Leave ends what is served of a config that is stopped. The next one has its turn.
func (d *Desk) Leave(c *Config, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.find(func(one *Config) bool { return one == c })
	if i < 0 {
		return
	}
	d.configs = slices.Delete(d.configs, i, i+1)
	d.serve(now)
	if d.find(func(one *Config) bool { return one.Connection == c.Connection }) < 0 {
		c.Close()
	}
}

// serve has the last of the configs served that have lasted, or the first of all.
func (d *Desk) serve(now time.Duration) {
	due := map[Duty]bool{}
	for i, c := range slices.Backward(d.configs) {
		if i == 0 || now-c.Started >= Lasting {
			due = c.Duties(now)
			break
		}
	}
	var ended sync.WaitGroup
	for is, end := range d.duties {
		if !due[is] {
			ended.Go(end) // it may wait for the store
			delete(d.duties, is)
		}
	}
	ended.Wait()
	for is := range due {
		if d.duties[is] == nil {
			if d.duties == nil {
				d.duties = map[Duty]func(){}
			}
			d.duties[is] = is.Store.Serve(is.Link, is.Kind, is.Name, is.Unit)
		}
	}
}
