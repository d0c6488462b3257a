package store

import (
	"cmp"
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

	"github.com/herdshield/shield/share/redis"
)

// Settings are what a connection depends on.
type Settings struct {
	redis.Options
	Files string // what the files of TLS hold: the store is another one if they change
}

// key is that of a connection in a pool.
type key string

func (s *Settings) key() key {
	b, _ := json.Marshal([]any{s.Addresses, s.Sentinel, s.Username, s.Password, s.TLS != nil, s.Files, s.Prefix}) // of texts
	sum := sha256.Sum256(b)
	return key(hex.EncodeToString(sum[:]))
}

// A Connection is that to a store. A pool keeps it, so that a reload with the same store does.
type Connection struct {
	*redis.Client
	Address string // to show
	prefix  string
	trips   prometheus.Histogram // of exchanges

	mu      sync.Mutex // guards what follows: what has been reported
	lost    bool
	alone   time.Duration   // before it was lost
	differs map[string]bool // the names of what others define in another way
}

// Open opens the connection to a store, or takes that of another config from the pool. Each one needs
// one Close. now is the clock of what is served.
func Open(pool *caddy.UsagePool, s *Settings, now func() time.Duration) (*Connection, error) {
	c, _, err := pool.LoadOrNew(s.key(), func() (caddy.Destructor, error) {
		c := &Connection{Address: strings.Join(s.Addresses, ","), prefix: cmp.Or(s.Prefix, redis.DefaultPrefix), trips: prometheus.NewHistogram(tripOpts)}
		var err error
		c.Client, err = redis.Open(s.Options, redis.Shell{Now: now, Answered: func(trip time.Duration) { c.trips.Observe(trip.Seconds()) }})
		return c, err
	})
	if err != nil {
		return nil, err
	}
	return c.(*Connection), nil
}

// Close ends all that is served through a connection, and closes it, unless another config uses it.
func Close(pool *caddy.UsagePool, s *Settings) { _, _ = pool.Delete(s.key()) } // Destruct never fails

// Destruct implements caddy.Destructor.
func (c *Connection) Destruct() error {
	c.Client.Close()
	return nil
}

// lostAfter is how long no exchange was answered in time until the store counts as lost. What is shared works alone long
// before: this is about what an operator is told.
const lostAfter = time.Second

// Report tells the news since the last report: log lines, and the events that go with them, if any.
func (c *Connection) Report(tell func(level zapcore.Level, message, event string, fields ...zap.Field)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.Status()
	switch {
	case !s.Up && !c.lost && s.Error != "" && s.For >= lostAfter: // without an error it has not been asked
		c.lost, c.alone = true, s.Alone-s.For
		tell(zap.WarnLevel, "the store is lost; this replica has its part of all limits until it is back", "shield_store_lost", zap.String("error", s.Error))
	case s.Up && c.lost:
		c.lost = false
		tell(zap.InfoLevel, "the store is back", "shield_store_back", zap.Duration("after", s.Alone-c.alone))
	}
	differs := map[string]bool{}
	for _, of := range s.Shared {
		name := string(of.Kind) + of.Name
		if differs[name] = len(of.Others) > 0; differs[name] && !c.differs[name] {
			tell(zap.WarnLevel, "other replicas define what is shared in another way, so that they do not share it with this one", "",
				zap.String("name", of.Name), zap.String("here", of.What), zap.Any("there", of.Others))
		}
	}
	c.differs = differs
}
