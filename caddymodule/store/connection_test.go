package store

import (
	"crypto/tls"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield/share/redis"
)

// A store that nothing has been asked of is not lost.
func TestStoreThatIsNotAskedIsNotLost(t *testing.T) {
	var desk Desk
	now, s := time.Duration(0), &Settings{Options: redis.Options{Addresses: []string{"127.0.0.1:1"}}}
	c, err := desk.Open(s, func() time.Duration { return now }, func(time.Duration) map[Duty]bool { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer desk.Leave(c, 0)
	now = time.Hour
	c.Report(c.Status(), func(_ zapcore.Level, message, _ string, _ ...zap.Field) { t.Errorf("it is said that %s", message) })
}

// A store that is back has been lost for as long as this time, not for as long as in all.
func TestStoreIsLostForSoLong(t *testing.T) {
	var c Connection
	var after []time.Duration
	for _, s := range []redis.Status{
		{Error: "none", ForSeconds: 1, AloneSeconds: 2}, {Up: true, AloneSeconds: 4},
		{Error: "none", ForSeconds: 5, AloneSeconds: 9}, {Up: true, AloneSeconds: 10},
	} {
		c.Report(s, func(_ zapcore.Level, _, event string, fields ...zap.Field) {
			if event == "shield_store_back" {
				after = append(after, time.Duration(fields[0].Integer))
			}
		})
	}
	if want := []time.Duration{3 * time.Second, 6 * time.Second}; !slices.Equal(after, want) {
		t.Errorf("it was lost for %v, want %v", after, want)
	}
}

// A reload with the same store keeps its connection. Whatever leads to another one makes a new one, such as a new file of certificates.
func TestConnectionIsToOneStore(t *testing.T) {
	var desk Desk
	open := func(change func(*Settings)) *Connection {
		s := &Settings{Options: redis.Options{Addresses: []string{"127.0.0.1:1"}, Username: "me", Password: "secret"}, Files: "one"}
		change(s)
		c, err := desk.Open(s, func() time.Duration { return 0 }, func(time.Duration) map[Duty]bool { return nil })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { desk.Leave(c, 0) })
		return c.Connection
	}
	first := open(func(*Settings) {})
	for i, change := range []func(*Settings){
		func(*Settings) {}, func(s *Settings) { s.Addresses = []string{"127.0.0.1:2"} }, func(s *Settings) { s.Sentinel = "main" }, func(s *Settings) { s.Username = "you" },
		func(s *Settings) { s.Password = "other" }, func(s *Settings) { s.TLS = new(tls.Config) }, func(s *Settings) { s.Files = "other" }, func(s *Settings) { s.Prefix = "shop" },
	} {
		if kept := open(change) == first; kept != (i == 0) {
			t.Errorf("change %d: the connection is kept: %v", i, kept)
		}
	}
}
