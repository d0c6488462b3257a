package caddymodule

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/share/redis"
)

// A connection is that to a store. A reload with the same store keeps it.
type connection struct {
	*redis.Client
	key   any                  // of the store
	trips prometheus.Histogram // of exchanges

	mu      sync.Mutex // guards what follows: what has been reported
	lost    bool
	alone   float64         // seconds, before it was lost
	differs map[string]bool // the names of what others define in another way
}

// report returns the news of a Status since the last report.
func (c *connection) report(s redis.Status) (all bulletin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	// Without an error it has not been asked. What is shared works alone long before: the second is about what an operator is told.
	case !s.Up && !c.lost && s.Error != "" && s.ForSeconds >= 1:
		c.lost, c.alone = true, s.AloneSeconds-s.ForSeconds
		all.add(zap.WarnLevel, "the store is unreachable; this replica applies its share of all limits until the store is back", "shield_store_lost", zap.String("error", s.Error))
	case s.Up && c.lost:
		c.lost = false
		after := time.Duration((s.AloneSeconds - c.alone) * float64(time.Second))
		all.add(zap.InfoLevel, "the store is back", "shield_store_back", zap.Duration("after", after))
	}
	differs := map[string]bool{}
	for _, of := range s.Shared {
		name := string(of.Kind) + of.Name
		if differs[name] = len(of.Others) > 0; differs[name] && !c.differs[name] {
			all.add(zap.WarnLevel, "other replicas define a shared limit differently, so they do not share it with this one", "",
				zap.String("name", of.Name), zap.String("here", of.Unit), zap.Any("there", of.Others))
		}
	}
	c.differs = differs
	return all
}

// read returns what is known of the store now; nil of a config without one.
func (c *connection) read() *redis.Status {
	if c == nil {
		return nil
	}
	s := c.Status()
	return &s
}

// tripOpts are those of a connection's histogram, which Prometheus' library counts, as exchanges are few.
var tripOpts = prometheus.HistogramOpts{
	Name: metrics.Prefix + "store_rtt_seconds", Help: "Round-trip time of answered exchanges with the store.",
	Buckets: []float64{.00025, .0005, .001, .002, .005, .01, .025, .05, .1, .25},
}

// storeMetrics are those of a store.
var storeMetrics = []metrics.Group[*connection]{
	{Topic: "Store", With: "`store`", Rows: []metrics.Row[*connection]{
		metrics.Gauge("store_up", nil, "1 while the store responds in time. At 0, this replica enforces its own part of all shared limits.",
			func(c *connection, to metrics.Sink) { to.Flag(c.Status().Up) }),
		metrics.Counter("store_alone_seconds_total", nil, "Total time without a timely response from the store.",
			func(c *connection, to metrics.Sink) { to.Set(c.Status().AloneSeconds) }),
		metrics.Counter("store_exchanges_total", []string{"outcome"}, "Exchanges with the store by outcome: answered, slow (too late for the requests that waited for it), late (abandoned), rejected (the store returned an error), or failed (no connection).",
			func(c *connection, to metrics.Sink) { to.Outcomes(c.Status().Exchanges) }),
		metrics.Histogram("store_rtt_seconds", nil, tripOpts.Help,
			func(c *connection, to metrics.Sink) { to.Send(c.trips) }),
	}},
}

// sharedMetrics are those of each backend, and of each zone, that is shared.
var sharedMetrics = map[redis.Kind][]metrics.Group[redis.Shared]{
	redis.Backend: metricsOfShared("shield", "store_", "backend"),
	redis.Zone:    metricsOfShared("zone", "store_zone_", "zone"),
}

func metricsOfShared(label, prefix, what string) []metrics.Group[redis.Shared] {
	return []metrics.Group[redis.Shared]{{Topic: "Store", Label: label, With: "`store`", Rows: []metrics.Row[redis.Shared]{
		metrics.Gauge(prefix+"replicas", nil, "Replicas that share the "+what+", as far as this one knows.",
			func(s redis.Shared, to metrics.Sink) { to.Set(float64(s.Replicas)) }),
		metrics.Gauge(prefix+"alone", nil, "1 while this replica is cut off from the store and enforces its own part of the "+what+"'s limits.",
			func(s redis.Shared, to metrics.Sink) { to.Flag(s.Alone) }),
		metrics.Gauge(prefix+"differing_replicas", nil, "Replicas that define the "+what+" differently, and therefore do not share it with this one.",
			func(s redis.Shared, to metrics.Sink) {
				n := 0
				for _, u := range s.Others {
					n += u.Replicas
				}
				to.Set(float64(n))
			}),
	}}}
}

// A desk serves what one app shares with other replicas. During a reload several run: the first is served until the
// second has run for lasting, or until it is stopped itself, so that a config that fails to start interrupts nothing, and
// one that shares the same goes on with the same exchanges. It is safe for concurrent use.
type desk struct {
	mu     sync.Mutex
	apps   []*App          // that run and have a store, by when they were started; guarded by mu
	duties map[duty]func() // what is served, and what ends that and waits for it; guarded by mu
}

// theDesk serves this process.
var theDesk = desk{duties: map[duty]func(){}}

// lasting is how long an app runs until it takes the place of the one before.
const lasting = time.Second

// A duty is what is to be served: a link to a store, under a name.
type duty struct {
	store *connection
	link  redis.Link
	kind  redis.Kind
	name  string // of the backend or zone
	unit  string // how it is defined, and under which secret: replicas share what has the same name and unit
}

// open is for an app that starts. It opens the connection to its store, or takes that of another app, which is
// closed when the last of them leaves.
func (d *desk) open(a *App, now time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := a.store.key()
	if i := slices.IndexFunc(d.apps, func(other *App) bool { return other.shares.key == key }); i >= 0 {
		a.shares = d.apps[i].shares
	} else {
		trips := prometheus.NewHistogram(tripOpts)
		client, err := redis.Open(a.store.Options, shield.Now, func(trip time.Duration) { trips.Observe(trip.Seconds()) })
		if err != nil {
			return err
		}
		a.shares = &connection{Client: client, key: key, trips: trips}
	}
	a.started, d.apps = now, append(d.apps, a)
	return nil
}

// tend has the app served whose turn it is. It is to be called when one starts, and then once per second.
func (d *desk) tend(now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serve(now)
}

// leave ends what is served of an app that is stopped. The next one has its turn.
func (d *desk) leave(a *App, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.apps, a)
	if i < 0 {
		return
	}
	d.apps = slices.Delete(d.apps, i, i+1)
	d.serve(now)
	if !slices.ContainsFunc(d.apps, func(other *App) bool { return other.shares == a.shares }) {
		a.shares.Close()
	}
}

// serve has the last of the apps served that have lasted, or the first of all.
func (d *desk) serve(now time.Duration) {
	due := map[duty]bool{}
	for i, a := range slices.Backward(d.apps) {
		if i == 0 || now-a.started >= lasting {
			due = a.duties(now)
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
			d.duties[is] = is.store.Serve(is.link, is.kind, is.name, is.unit)
		}
	}
}
