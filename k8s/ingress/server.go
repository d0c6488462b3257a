package ingress

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddytls"

	"github.com/herdshield/shield/caddymodule"

	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/proxyprotocol" // what Config names
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	_ "github.com/caddyserver/caddy/v2/modules/metrics"
)

// Options are the options of a Caddy config for a cluster.
type Options struct {
	// App says which cluster to serve, and which part of it.
	App *App

	// Store is what replicas share; nil: nothing. App.Replicas says the same.
	Store *caddymodule.Store

	// The ports to listen on, on all addresses, 1 to 65535: for HTTP, for HTTPS, and
	// for probes and metrics.
	HTTPPort, HTTPSPort, StatusPort int

	// TrustedProxies are the proxies in front whose X-Forwarded-* fields are trusted: the
	// client is the nearest address in X-Forwarded-For that is not one of them. None:
	// the client is the peer of the connection.
	TrustedProxies []netip.Prefix

	// ProxyProtocolFrom are the load balancers that may begin connections with a
	// header of the PROXY protocol, version 1 or 2. From others, such a header is a
	// bad request.
	ProxyProtocolFrom []netip.Prefix

	// ShutdownDelay is how long the process accepts requests after it has been told to
	// end, for load balancers to notice. GracePeriod is how long the requests in flight may
	// take after that.
	ShutdownDelay, GracePeriod time.Duration

	// LogLevel is DEBUG, INFO, WARN or ERROR; "" means INFO. AccessLog writes a line
	// of JSON to the standard output for each request.
	LogLevel  string
	AccessLog bool

	address string // to listen on; "": all. For tests
}

// DefaultOptions returns Options for a pod without privileges.
func DefaultOptions() Options {
	return Options{
		App:           new(App),
		HTTPPort:      8080,
		HTTPSPort:     8443,
		StatusPort:    10254,
		ShutdownDelay: 10 * time.Second,
		GracePeriod:   20 * time.Second,
		LogLevel:      "INFO",
	}
}

const (
	// readHeaderTimeout is how long a client may take to send a header. Ours: a
	// hundred times what a bad line needs, and short enough that clients that trickle
	// bytes hold few connections.
	readHeaderTimeout = 10 * time.Second

	// idleTimeout is how long a connection may wait for its next request. Ours: well
	// above the 60 s after which load balancers commonly close theirs, so that they
	// close first.
	idleTimeout = 3 * time.Minute

	// stallTimeout is how long a client may pause while it sends a body. There is no
	// limit on the whole body. It is Envoy's default for streams, since a request may
	// be a stream in both directions (gRPC).
	stallTimeout = 5 * time.Minute

	// maxHeaderBytes bounds a request's header: nginx's default.
	maxHeaderBytes = 32 << 10
)

// Version is that of shield.
func Version() string { return caddymodule.Version() }

// Config returns the config of a Caddy that serves the Ingresses of a cluster, as JSON. It
// is static: the modules of this package read the cluster. The error names all mistakes
// in o.
func Config(o Options) ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	app := o.App
	if app == nil {
		app = new(App)
	}
	persist := false
	config := caddy.Config{
		// The config cannot be changed or read at run time.
		Admin:      &caddy.AdminConfig{Disabled: true, Config: &caddy.ConfigSettings{Persist: &persist}},
		Logging:    o.logging(),
		StorageRaw: object("module", "file_system", map[string]any{"root": filepath.Join(os.TempDir(), "shield-ingress")}),
		AppsRaw: caddy.ModuleMap{
			"shield_ingress": encode(app),
			"tls":            encode(tlsApp()),
			"http": encode(&caddyhttp.App{
				HTTPPort:      o.HTTPPort,
				HTTPSPort:     o.HTTPSPort,
				ShutdownDelay: caddy.Duration(o.ShutdownDelay),
				GracePeriod:   caddy.Duration(o.GracePeriod),
				Servers: map[string]*caddyhttp.Server{
					"http":   o.server(o.HTTPPort, "h1"),
					"https":  o.secure(o.server(o.HTTPSPort, "h1", "h2")),
					"status": o.status(),
				},
			}),
		},
	}
	if o.Store != nil {
		config.AppsRaw["shield"] = encode(&caddymodule.App{Store: o.Store})
	}
	return json.Marshal(config)
}

// check returns all mistakes in o.
func (o *Options) check() error {
	var errs []error
	ports := []struct {
		name   string
		number int
	}{{"HTTP", o.HTTPPort}, {"HTTPS", o.HTTPSPort}, {"status", o.StatusPort}}
	for i, p := range ports {
		if p.number < 1 || p.number > 65535 {
			errs = append(errs, fmt.Errorf("the %s port is %d; use 1 to 65535", p.name, p.number))
			continue
		}
		for _, other := range ports[:i] {
			if other.number == p.number {
				errs = append(errs, fmt.Errorf("the %s port and the %s port are both %d; use different ports", other.name, p.name, p.number))
			}
		}
	}
	for _, d := range []struct {
		name string
		is   time.Duration
		min  time.Duration
	}{{"shutdown delay", o.ShutdownDelay, 0}, {"grace period", o.GracePeriod, 1}} { // a grace period of 0 has no end for Caddy
		if d.is < d.min || d.is > time.Hour {
			errs = append(errs, fmt.Errorf("the %s is %v; use %v to 1h", d.name, d.is, d.min))
		}
	}
	if o.LogLevel != "" && !slices.Contains(LogLevels, o.LogLevel) {
		errs = append(errs, fmt.Errorf("the log level is %q; use one of %s", o.LogLevel, strings.Join(LogLevels, ", ")))
	}
	for _, list := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"trusted proxies", o.TrustedProxies}, {"proxies that speak the PROXY protocol", o.ProxyProtocolFrom}} {
		for _, p := range list.prefixes {
			if !p.IsValid() {
				errs = append(errs, fmt.Errorf("one of the %s is not a valid CIDR", list.name))
			}
		}
	}
	return errors.Join(errs...)
}

// LogLevels are the values of Options.LogLevel.
var LogLevels = []string{"DEBUG", "INFO", "WARN", "ERROR"}

// logging returns Caddy's default, a log to standard error, with sampling of lines with the
// same text.
func (o *Options) logging() *caddy.Logging {
	all := &caddy.CustomLog{BaseLog: caddy.BaseLog{
		Level:    o.LogLevel,
		Sampling: &caddy.LogSampling{Interval: time.Second, First: 20, Thereafter: 1000},
	}}
	// reverse_proxy warns of each response that breaks off, which any client can cause.
	// shield_ingress_requests_total counts them.
	all.Exclude = []string{proxyLog}
	logs := map[string]*caddy.CustomLog{
		"default": all,
		"proxy":   {BaseLog: caddy.BaseLog{Level: "ERROR", Sampling: all.Sampling}, Include: []string{proxyLog}},
	}
	if o.AccessLog {
		all.Exclude = append(all.Exclude, accessLog)
		logs["access"] = &caddy.CustomLog{
			BaseLog: caddy.BaseLog{
				WriterRaw:  object("output", "stdout", nil),
				EncoderRaw: object("format", "json", nil),
			},
			Include: []string{accessLog},
		}
	}
	return &caddy.Logging{Logs: logs}
}

// Caddy's names of loggers.
const (
	accessLog = "http.log.access"
	proxyLog  = "http.handlers.reverse_proxy"
)

// tlsApp returns the config of Caddy's TLS: certificates come from Secrets only.
func tlsApp() *caddytls.TLS {
	return &caddytls.TLS{
		Automation: &caddytls.AutomationConfig{
			Policies: []*caddytls.AutomationPolicy{{
				OnDemand:            true,
				ManagersRaw:         []json.RawMessage{object("via", "shield_ingress", nil)},
				DisableOCSPStapling: true,
			}},
			OnDemand: &caddytls.OnDemandConfig{PermissionRaw: object("module", "shield_ingress", nil)},
		},
		DisableOCSPStapling: true,
		DisableStorageCheck: true, // the storage is empty
		DisableStorageClean: true,
	}
}

// server returns a server for clients.
func (o *Options) server(port int, protocols ...string) *caddyhttp.Server {
	s := &caddyhttp.Server{
		Listen:            []string{caddy.JoinNetworkAddress("tcp", o.address, fmt.Sprint(port))},
		ReadHeaderTimeout: caddy.Duration(readHeaderTimeout),
		ReadIdleTimeout:   caddy.Duration(stallTimeout),
		IdleTimeout:       caddy.Duration(idleTimeout),
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         protocols,
		AutoHTTPS:         &caddyhttp.AutoHTTPSConfig{Disabled: true},
		Routes:            caddyhttp.RouteList{{HandlersRaw: []json.RawMessage{object("handler", "shield_ingress", nil)}}},
	}
	if len(o.TrustedProxies) > 0 {
		s.TrustedProxiesRaw = object("source", "static", map[string]any{"ranges": o.TrustedProxies})
		s.TrustedProxiesStrict = 1
		s.ClientIPHeaders = []string{"X-Forwarded-For"}
	}
	if len(o.ProxyProtocolFrom) > 0 {
		s.ListenerWrappersRaw = []json.RawMessage{
			object("wrapper", "proxy_protocol", map[string]any{
				"allow":           o.ProxyProtocolFrom,
				"fallback_policy": "SKIP",
				"timeout":         caddy.Duration(5 * time.Second),
			}),
			object("wrapper", "tls", nil), // inside the PROXY protocol
		}
	}
	if o.AccessLog {
		s.Logs = new(caddyhttp.ServerLogConfig)
	} else { // it has no line for most requests that are rejected at the door
		s.ListenerWrappersRaw = append(s.ListenerWrappersRaw, object("wrapper", "shield", nil))
	}
	return s
}

// secure makes s a server of TLS, version 1.2 or later.
func (o *Options) secure(s *caddyhttp.Server) *caddyhttp.Server {
	s.TLSConnPolicies = caddytls.ConnectionPolicies{{
		ALPN:        []string{"h2", "http/1.1"},
		ProtocolMin: "tls1.2",
	}}
	s.ListenerWrappersRaw = append(s.ListenerWrappersRaw, object("wrapper", "shield_ingress", nil))
	return s
}

// status returns the server for probes and metrics.
func (o *Options) status() *caddyhttp.Server {
	return &caddyhttp.Server{
		Listen:            []string{caddy.JoinNetworkAddress("tcp", o.address, fmt.Sprint(o.StatusPort))},
		ReadHeaderTimeout: caddy.Duration(readHeaderTimeout),
		IdleTimeout:       caddy.Duration(idleTimeout),
		Protocols:         []string{"h1"},
		AutoHTTPS:         &caddyhttp.AutoHTTPSConfig{Disabled: true},
		Routes: caddyhttp.RouteList{
			{HandlersRaw: []json.RawMessage{object("handler", "shield_ingress_health", nil)}},
			{
				MatcherSetsRaw: caddyhttp.RawMatcherSets{{"path": encode([]string{"/metrics"})}},
				HandlersRaw:    []json.RawMessage{object("handler", "metrics", nil)},
				Terminal:       true,
			},
			{HandlersRaw: []json.RawMessage{object("handler", "static_response", map[string]any{"status_code": 404})}},
		},
	}
}

// object returns the JSON of a module: its fields, with its name under key.
func object(key, name string, fields map[string]any) json.RawMessage {
	all := map[string]any{key: name}
	for k, v := range fields {
		all[k] = v
	}
	return encode(all)
}

// encode returns v as JSON.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("ingress: a config that is not JSON: " + err.Error()) // plain values always are
	}
	return b
}
