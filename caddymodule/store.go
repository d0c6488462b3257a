package caddymodule

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/redis"
)

// Store is the server in which replicas keep what they share: Redis 5 or later, or Valkey.
//
// Every text may have placeholders that are known when the config is loaded:
// `{env.NAME}`, `{file./path}`.
type Store struct {
	// The kind of store: `redis`. Required.
	Type string `json:"type" caddyfile:"-"`

	// The server, as `host:port`. Several are the nodes of a Cluster, or Sentinels. The port defaults to 6379,
	// and to 26379 for Sentinels. Required.
	Address []string `json:"address" caddyfile:"-"`

	// The user in the server's ACL, and its password. Without a name, it is the default user.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// Connect with TLS. Without it, traffic to the store, including its password, is unencrypted.
	TLS *StoreTLS `json:"tls,omitempty"`

	// Present a client certificate. It implies `tls`.
	TLSClient *StoreCertificate `json:"tls_client,omitempty"`

	// The name of the master, if the addresses are Sentinels.
	Sentinel string `json:"sentinel,omitempty"`

	// The prefix of all keys in the store: 1 to 32 letters, digits and `-_.` (default `shield`). Only shields
	// with the same prefix share.
	Prefix string `json:"prefix,omitempty"`

	// What client names are hashed with before they leave the process: at least 16 bytes, the same on all
	// replicas. It also signs tickets that have no secret of their own. Required.
	Secret string `json:"secret,omitempty"`

	// How many replicas to assume before the store has counted them: 1 to 1000 (default 2). Until then, each
	// uses its part of the limits.
	Replicas *int `json:"replicas,omitempty"`
}

// StoreTLS says how to verify the store's certificate.
type StoreTLS struct {
	// A PEM file of the certificates to trust (default: those the system trusts).
	CA string `json:"ca,omitempty"`
}

// StoreCertificate is the client certificate that the store sees.
type StoreCertificate struct {
	// The PEM files of the certificate and its key.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

func (s *Store) parse(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) < 2 {
		return d.Errf("store is %q; use its type and address, like redis 127.0.0.1:6379", strings.Join(args, " "))
	}
	s.Type, s.Address = args[0], args[1:]
	return parseBlock(d, s)
}

func (t *StoreTLS) parse(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) > 1 {
		return d.Errf("tls is %q; use at most one file, of certificates", strings.Join(args, " "))
	}
	t.CA = strings.Join(args, "")
	return nil
}

func (c *StoreCertificate) parse(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 2 {
		return d.Errf("tls_client is %q; use two files, of a certificate and its key", strings.Join(args, " "))
	}
	c.Certificate, c.Key = args[0], args[1]
	return nil
}

// A storeConfig is a checked Store.
type storeConfig struct {
	store.Settings
	Sharing
}

// check returns what is to be used. The error has everything that is wrong, and no secret.
func (s *Store) check() (*storeConfig, error) {
	f := new(faults)
	f.of("store: ")
	c := &storeConfig{Sharing: Sharing{Replicas: explicit(f, "replicas", s.Replicas)}}
	if s.Type != "redis" {
		f.addf("type is %q; use redis, also for Valkey", s.Type)
	}
	c.Options = redis.Options{
		Sentinel: f.known("sentinel", s.Sentinel), Username: f.known("username", s.Username),
		Password: f.known("password", s.Password), Prefix: f.known("prefix", s.Prefix),
	}
	port := "6379"
	if c.Sentinel != "" {
		port = "26379"
	}
	for _, address := range s.Address {
		c.Addresses = append(c.Addresses, withPort(f.known("address", address), port))
	}
	if s.Secret == "" {
		f.addf("secret is missing from the block of store; use at least %d bytes, the same in all replicas, such as the output of openssl rand -hex 16",
			limiter.MinSecret)
	} else if secret := f.known("secret", s.Secret); secret != "" {
		c.Secret = []byte(secret)
		_, err := limiter.NewHasher(c.Secret)
		f.add(err)
	}
	f.add(s.checkTLS(c))
	f.add(c.Options.Check())
	return c, errors.Join(f.errs...)
}

// withPort adds the usual port to an address without one. The check of the Options says what is wrong with others.
func withPort(address, port string) string {
	host := strings.Trim(address, "[]")
	if _, err := netip.ParseAddr(host); err == nil || !strings.ContainsAny(host, ":/") {
		return net.JoinHostPort(host, port)
	}
	return address
}

func (s *Store) checkTLS(c *storeConfig) error {
	if s.TLS == nil && s.TLSClient == nil {
		return nil
	}
	c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if s.TLS != nil && s.TLS.CA != "" {
		pem, err := os.ReadFile(s.TLS.CA)
		if err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		c.TLS.RootCAs = x509.NewCertPool()
		if !c.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("tls: %s has no certificate; use a PEM file with at least one", s.TLS.CA)
		}
		c.Files += string(pem)
	}
	if s.TLSClient != nil {
		own, err := tls.LoadX509KeyPair(s.TLSClient.Certificate, s.TLSClient.Key)
		if err != nil {
			return fmt.Errorf("tls_client: %w", err)
		}
		c.TLS.Certificates = []tls.Certificate{own}
		c.Files += string(own.Certificate[0])
	}
	return nil
}

// defaultShared writes out whether h and its zones are shared, where there is a store.
func (a *App) defaultShared(f *faults, h *Handler) {
	set := func(f *faults, shared **bool) {
		if a.Store != nil && *shared == nil {
			*shared = new(true)
		} else if a.Store == nil && *shared != nil && **shared {
			f.addf("shared is on without a store; add one in the global option shield, like store redis 127.0.0.1:6379")
		}
	}
	set(f.of(""), &h.Shared)
	for _, z := range h.Zones {
		set(f.of("zone %q: ", z.Name), &z.Shared)
	}
}

// A Sharing is what a Live shield needs to be shared: its Config's Secret and Replicas.
type Sharing struct {
	Secret   []byte
	Replicas int
}

// Sharing returns nil if there is no store. It must not be called before the app has been
// provisioned.
func (a *App) Sharing() *Sharing {
	if a.store == nil {
		return nil
	}
	return &a.store.Sharing
}

// share sets in c what of h replicas share. An App that is not loaded shares nothing.
func (a *App) share(h *Handler, c *shield.Config) {
	switch {
	case a.store != nil:
		c.Secret, c.Replicas = a.store.Secret, a.store.Replicas // also if h shares nothing: its client has one name in all handlers
	case a.keeper != nil:
		c.Secret = a.keeper.secret
	}
	if c.Retries.Tickets && c.Retries.Secret == nil {
		c.Retries.Secret = c.Secret
	}
	if a.store == nil {
		return
	}
	c.Shared = *h.Shared && (h.Capacity != nil || h.Concurrency != nil)
	for i, z := range h.Zones {
		c.Zones[i].Shared = *z.Shared
	}
}

var isStoreURL = regexp.MustCompile(`^redis(s?)://(?:([^:@/?]*)(?::([^@/?]*))?@)?([^@/?]+)(?:/0?)?(?:\?([^@]*))?$`)

// ParseStoreURL reads a Store from one line:
//
//	redis://[<username>[:<password>]@]<host>[:<port>][,<host>[:<port>]...][/][?<option>=<value>&...]
//
// rediss connects by TLS. The options are prefix, sentinel, replicas, ca, cert and key, the
// last two of the certificate that the store is shown. Names and values are percent-encoded.
// No error shows the username or the password.
func ParseStoreURL(text string) (s Store, err error) {
	of := isStoreURL.FindStringSubmatch(text)
	if of == nil {
		return s, errors.New("store isn't a redis:// or rediss:// URL; use one like redis://127.0.0.1:6379 or rediss://me:password@a,b/?prefix=shop. Only database 0 works; " +
			"in names and values, write %2F for /, %3F for ?, %40 for @ and %25 for %")
	}
	s.Type, s.Address = "redis", strings.Split(of[4], ",")
	if slices.Contains(s.Address, "") {
		return s, errors.New("store has an empty address in its URL; use host:port, and commas between several")
	}
	var bad error
	s.Username, err = url.PathUnescape(of[2])
	if s.Password, bad = url.PathUnescape(of[3]); err != nil || bad != nil {
		return Store{}, errors.New("store has a username or password in its URL that isn't percent-encoded; write %25 for a %")
	}
	options, err := url.ParseQuery(of[5])
	if err != nil {
		return s, fmt.Errorf("store has options that cannot be read in its URL: %w", err)
	}
	own, replicas, ca := StoreCertificate{}, "", ""
	fields := map[string]*string{"prefix": &s.Prefix, "sentinel": &s.Sentinel, "replicas": &replicas, "ca": &ca, "cert": &own.Certificate, "key": &own.Key}
	for name, values := range options {
		switch field := fields[name]; {
		case field == nil:
			return s, fmt.Errorf("store has the option %q; use prefix, sentinel, replicas, ca, cert or key", name)
		case len(values) > 1 || values[0] == "":
			return s, fmt.Errorf("store: %s is empty or set twice; use one value", name)
		default:
			*field = values[0]
		}
	}
	if ca != "" || of[1] != "" {
		s.TLS = &StoreTLS{CA: ca}
	}
	if own != (StoreCertificate{}) {
		s.TLSClient = &own
	}
	if n, bad := strconv.Atoi(replicas); bad == nil {
		s.Replicas = &n
	} else if replicas != "" {
		return s, fmt.Errorf("store: replicas is %q; use a whole number", replicas)
	}
	return s, nil
}

// desk serves what one app at a time shares.
var desk store.Desk

// duties returns what is to be served of an app. What a newer config does not share, whose requests come already, has no
// link.
func (a *App) duties(now time.Duration) map[store.Duty]bool {
	due := map[store.Duty]bool{}
	shields, zones := a.roster()
	for _, s := range shields {
		if !s.force.Load().config.Shared {
			continue
		}
		if l := s.guard().Link(now); l != nil {
			due[store.Duty{Store: a.shares.Connection, Link: l, Kind: redis.Backend, Name: s.Name, Unit: s.unit()}] = true
		}
	}
	for _, z := range zones {
		if !z.config().Shared {
			continue
		}
		if l := z.of.guard().Zones(now)[z.index]; l != nil {
			due[store.Duty{Store: a.shares.Connection, Link: l, Kind: redis.Zone, Name: z.record.shown, Unit: z.unit(a.store.Secret)}] = true
		}
	}
	return due
}

func (h *Handler) unit() string {
	c, text := &h.force.Load().config, ""
	if c.Capacity.Rate > 0 {
		text += fmt.Sprintf("capacity %s, ", rateOf(c.Capacity, limiter.NewCapacity))
	}
	if c.Concurrency > 0 {
		text += fmt.Sprintf("concurrency %d, ", c.Concurrency)
	}
	_, longest := h.guard().Responses().Bounds()
	return text + fmt.Sprintf("max %v, secret %s", longest, fingerprint(c.Secret))
}

func (z *handlerZone) unit(secret []byte) string {
	c := z.config()
	cost := strings.TrimSpace(fmt.Sprint(cmp.Or(c.Cost, 1), " ", c.Unit))
	if c.MinRate > 0 {
		cost += fmt.Sprint(", min ", c.MinRate)
	}
	if c.Settle != nil {
		cost += " settled by " + c.Settle.String()
	}
	return fmt.Sprintf("rate %s, cost %s, secret %s", rateOf(c.Limit, limiter.New), cost, fingerprint(secret))
}

func rateOf(c limiter.Config, read func(limiter.Config) (limiter.Limit, error)) string {
	s := rateStatus(c, read)
	return fmt.Sprintf("%v per %s burst %d", s.Rate, s.Per, s.Burst)
}

// fingerprint tells secrets apart, and does not tell what they are.
func fingerprint(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("shield: fingerprint"))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}
