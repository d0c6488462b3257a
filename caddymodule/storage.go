package caddymodule

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis"
)

// A storeRecord is the connection to a store. It is part of the pooled state: a reload with
// the same store keeps it.
type storeRecord struct {
	*redis.Client
	address string
	trips   prometheus.Histogram // of exchanges

	mu   sync.Mutex
	news bulletin // that is not told yet; guarded by mu
}

// storeKey is the key of a store in the pool: the hash of all that the connection depends on.
type storeKey string

func (c *storeConfig) key() storeKey {
	b, _ := json.Marshal([]any{c.Addresses, c.Sentinel, c.Username, c.Password, c.TLS != nil, c.files, c.Prefix}) // of texts
	sum := sha256.Sum256(b)
	return storeKey(hex.EncodeToString(sum[:]))
}

// openStore opens the connection to the app's store, or takes that of another config.
func (a *App) openStore() error {
	if a.store == nil {
		return nil
	}
	record, _, err := pool.LoadOrNew(a.store.key(), func() (caddy.Destructor, error) {
		r := &storeRecord{address: strings.Join(a.store.Addresses, ","), trips: prometheus.NewHistogram(tripOpts)}
		var err error
		r.Client, err = redis.Open(a.store.Options, redis.Shell{Now: shield.Now, Lost: r.lost, Back: r.back, Answered: r.answered, Differ: r.differ})
		return r, err
	})
	if err == nil {
		a.storage = record.(*storeRecord)
	}
	return err
}

// closeStore ends all that is served through it, and closes it, unless another config uses it.
func (a *App) closeStore(now time.Duration) {
	if a.storage != nil {
		a.leaveAll(now)
		_, _ = pool.Delete(a.store.key()) // Destruct never fails
	}
}

// Destruct implements caddy.Destructor.
func (r *storeRecord) Destruct() error {
	r.Close()
	return nil
}

func (r *storeRecord) lost(err error) {
	r.add(zap.WarnLevel, "the store is lost; this replica has its part of all limits until it is back", "shield_store_lost", zap.Error(err))
}

func (r *storeRecord) back(away time.Duration) {
	r.add(zap.InfoLevel, "the store is back", "shield_store_back", zap.Duration("after", away))
}

func (r *storeRecord) answered(trip time.Duration) { r.trips.Observe(trip.Seconds()) }

func (r *storeRecord) differ(name, what string, others []share.Unit) {
	r.add(zap.WarnLevel, "other replicas define what is shared in another way, so that they do not share it with this one", "",
		zap.String("name", name), zap.String("here", what), zap.Any("there", others))
}

func (r *storeRecord) add(level zapcore.Level, message, event string, fields ...zap.Field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.news) < maxStoreNews {
		r.news.add(level, message, event, fields...)
	}
}

// maxStoreNews is how many changes of a store are remembered until they are told, once a
// second. Ours: it takes a second to be lost.
const maxStoreNews = 16

// report returns the news since the last report.
func (r *storeRecord) report() bulletin {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}

// serve serves a duty until finish is called.
func (r *storeRecord) serve(d duty) (finish func()) {
	return r.Serve(d.link, d.kind, d.name, d.unit)
}
