package caddymodule

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
)

const storeSecret = "correct horse battery staple"

func TestStoreIsChecked(t *testing.T) {
	nonsense := filepath.Join(t.TempDir(), "nonsense.pem")
	if err := os.WriteFile(nonsense, []byte("horse"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHIELD_TEST_STORE", storeSecret)
	good := Store{Type: "redis", Address: []string{"127.0.0.1:6379"}, Secret: "{env.SHIELD_TEST_STORE}"}
	if c, err := good.check(); err != nil || string(c.Secret) != storeSecret {
		t.Errorf("a good store is %+v, %v", c, err)
	}
	for want, change := range map[string]func(*Store){
		"type is \"memcached\"; use redis":          func(s *Store) { s.Type = "memcached" },
		"addresses are missing; add at least one":   func(s *Store) { s.Address = nil },
		"address is \"redis://h:1\"; use host:port": func(s *Store) { s.Address = []string{"redis://h:1"} },
		"secret is missing from the block of store; use at least 16 bytes, the same in all replicas, such as the output of openssl rand -hex 16": func(s *Store) { s.Secret = "" },
		"secret has 13 bytes; use at least 16":                                                  func(s *Store) { s.Secret = "correct horse" },
		"secret has an empty or unknown placeholder, {env.SHIELD_TEST_NO_SUCH}; use {env.NAME}": func(s *Store) { s.Secret = storeSecret + "{env.SHIELD_TEST_NO_SUCH}" },
		"password has an empty or unknown placeholder; use {env.NAME}":                          func(s *Store) { s.Password = "horse {horse}" },
		"username is \"me\", but password is empty; use both":                                   func(s *Store) { s.Username = "me" },
		"prefix is \"{shop}:\"; use 1 to 32":                                                    func(s *Store) { s.Prefix = `\{shop}:` },
		"replicas is 0; use more than 0, or leave it out":                                       func(s *Store) { s.Replicas = new(0) },
		"tls: open /no/such/file":                                                               func(s *Store) { s.TLS = &StoreTLS{CA: "/no/such/file"} },
		"tls: " + nonsense + " has no certificate; use a PEM file with at least one":            func(s *Store) { s.TLS = &StoreTLS{CA: nonsense} },
		"tls_client: tls: failed to find any PEM data in certificate input":                     func(s *Store) { s.TLSClient = &StoreCertificate{nonsense, nonsense} },
	} {
		s := good
		change(&s)
		_, err := s.check()
		if err == nil || !strings.Contains(err.Error(), "store: "+want) || strings.Contains(err.Error(), "horse") {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

func TestStoreAddresses(t *testing.T) {
	for _, c := range []struct{ address, sentinel, want string }{
		{"localhost", "", "localhost:6379"},
		{"127.0.0.1:7000", "", "127.0.0.1:7000"},
		{"[::1]", "", "[::1]:6379"},
		{"::1", "", "[::1]:6379"},
		{"redis-1", "main", "redis-1:26379"},
		{"192.0.2.1:6379", "", "192.0.2.1:6379"},
	} {
		s := Store{Type: "redis", Address: []string{c.address}, Sentinel: c.sentinel, Secret: storeSecret}
		if config, err := s.check(); err != nil || config.Addresses[0] != c.want {
			t.Errorf("%q is %q, %v; want %q", c.address, config.Addresses, err, c.want)
		}
	}
}

// With a store everything is shared that can be, but for what the operator excepts.
func TestWhatIsShared(t *testing.T) {
	config := func(app *App, handler string) (shield.Config, error) {
		var h Handler
		if err := json.Unmarshal([]byte(handler), &h); err != nil {
			t.Fatal(err)
		}
		if app.Store != nil {
			app.store = &storeConfig{Sharing: Sharing{Secret: []byte(storeSecret)}}
		}
		return app.Check(&h, "")
	}
	const zones, limits = `"zones": [{"name": "a", "rate": 1}, {"name": "b", "rate": 1, "shared": false}]`, `"capacity": {"rate": 1}`
	for _, c := range []struct {
		handler         string
		backend, secret bool
	}{
		{`{` + zones + `, ` + limits + `}`, true, true},
		{`{` + zones + `, ` + limits + `, "shared": false}`, false, true},
		{`{` + zones + `}`, false, true},
		{`{` + zones + `, "concurrency": {"adaptive": true}}`, true, true},
	} {
		got, err := config(&App{Store: new(Store)}, c.handler)
		if err != nil || got.Shared != c.backend || !got.Zones[0].Shared || got.Zones[1].Shared || string(got.Secret) != storeSecret {
			t.Errorf("%s: %+v, %v", c.handler, got, err)
		}
		if got, err = config(new(App), c.handler); err != nil || got.Shared || got.Zones[0].Shared || got.Secret != nil {
			t.Errorf("%s without a store: %+v, %v", c.handler, got, err)
		}
	}
	for _, on := range []string{`{"capacity": {"rate": 1}, "shared": true}`, `{"zones": [{"rate": 1, "shared": true}]}`} {
		if _, err := config(new(App), on); err == nil || !strings.Contains(err.Error(), "shared is on without a store; add one in the global option shield, like store redis 127.0.0.1:6379") {
			t.Errorf("%s: the error is %v", on, err)
		}
	}
	app := &App{Store: new(Store)}
	_, err := config(app, `{"name": "x", "capacity": {"rate": 1}}`)
	if _, other := config(app, `{"name": "x", "capacity": {"rate": 1}, "shared": false}`); err != nil || other == nil || !strings.Contains(other.Error(), `shield "x" is defined twice`) {
		t.Errorf("two handlers share one backend, and do not: %v, %v", err, other)
	}
	// Tickets are signed with the store's secret, or with their own.
	for want, secret := range map[string]string{storeSecret: "", "the secret of tickets": `, "secret": "the secret of tickets"`} {
		got, err := config(&App{Store: new(Store)}, `{"name": "shop", "capacity": {"rate": 1}, "retries": {"tickets": true`+secret+`}}`)
		if err != nil || string(got.Retries.Secret) != want || got.Retries.Issuer != "shop" {
			t.Errorf("tickets are signed with %q, %v; want %q", got.Retries.Secret, err, want)
		}
	}
}

// A store that is away keeps no config from being loaded, and one that is wrong does.
func TestStoreInConfigs(t *testing.T) {
	r := &rig{T: t, addr: freeAddr(t)}
	for address, want := range map[string]string{"127.0.0.1:1": "<nil>", "h:99999": `address is "h:99999"`} {
		store := fmt.Sprintf(`{"type": "redis", "address": [%q], "secret": %q}`, address, storeSecret)
		err := r.tryLoad(setup{apps: `"shield": {"store": ` + store + `},`, handlers: `{"handler": "shield", "zones": [{"rate": 1}]},` + respondOK})
		if text := fmt.Sprint(err); !strings.Contains(text, want) || strings.Contains(text, "horse") {
			t.Errorf("%s: the error is %v, want %s", address, err, want)
		}
		_ = caddy.Stop()
	}
}
