package caddymodule

import (
	"crypto/tls"
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis"
)

// A store that nothing has been asked of is not lost.
func TestStoreThatIsNotAskedIsNotLost(t *testing.T) {
	now := time.Duration(0)
	client, err := redis.Open(redis.Options{Addresses: []string{"127.0.0.1:1"}}, func() time.Duration { return now }, func(time.Duration) {})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := connection{Client: client}
	now = time.Hour
	if said := c.report(c.Status()); len(said) > 0 {
		t.Errorf("it is said that %+v", said)
	}
}

// A store that is back has been lost for as long as this time, not for as long as in all.
func TestStoreIsLostForSoLong(t *testing.T) {
	var c connection
	var after []time.Duration
	for _, s := range []redis.Status{
		{Error: "none", ForSeconds: 1, AloneSeconds: 2}, {Up: true, AloneSeconds: 4},
		{Error: "none", ForSeconds: 5, AloneSeconds: 9}, {Up: true, AloneSeconds: 10},
	} {
		for _, n := range c.report(s) {
			if n.event == "shield_store_back" {
				after = append(after, time.Duration(n.fields[0].Integer))
			}
		}
	}
	if want := []time.Duration{3 * time.Second, 6 * time.Second}; !slices.Equal(after, want) {
		t.Errorf("it was lost for %v, want %v", after, want)
	}
}

// A reload with the same store keeps its connection. Whatever leads to another one makes a new one, such as a new file of certificates.
func TestConnectionIsToOneStore(t *testing.T) {
	var d desk
	open := func(change func(*storeConfig)) *connection {
		a := &App{store: &storeConfig{Options: redis.Options{Addresses: []string{"127.0.0.1:1"}, Username: "me", Password: "secret"}, files: "one"}}
		change(a.store)
		if err := d.open(a, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.leave(a, 0) })
		return a.shares
	}
	first := open(func(*storeConfig) {})
	for i, change := range []func(*storeConfig){
		func(*storeConfig) {}, func(s *storeConfig) { s.Addresses = []string{"127.0.0.1:2"} }, func(s *storeConfig) { s.Sentinel = "main" }, func(s *storeConfig) { s.Username = "you" },
		func(s *storeConfig) { s.Password = "other" }, func(s *storeConfig) { s.TLS = new(tls.Config) }, func(s *storeConfig) { s.files = "other" }, func(s *storeConfig) { s.Prefix = "shop" },
	} {
		if kept := open(change) == first; kept != (i == 0) {
			t.Errorf("change %d: the connection is kept: %v", i, kept)
		}
	}
}
