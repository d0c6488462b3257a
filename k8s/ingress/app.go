package ingress

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
)

func init() { caddy.RegisterModule(new(App)) }

// App watches a Kubernetes cluster and keeps the routes, limits and certificates of its
// Ingresses, for http.handlers.shield_ingress and tls.get_certificate.shield_ingress.
//
// A change in the cluster changes no config: it touches no listener, closes no connection
// and keeps all counts. A reload keeps them, too, if this app's part of the config stays
// the same. If it changes, all clients are unknown.
type App struct {
	// The path of a kubeconfig. The default is the service account of the pod.
	Kubeconfig string `json:"kubeconfig,omitempty"`

	// The `spec.controller` of the IngressClasses that this controller serves (default
	// `herdshield.io/ingress`).
	Controller string `json:"controller,omitempty"`

	// The name of the IngressClass, with `namespaces`: then IngressClasses cannot be read
	// (default `shield`).
	IngressClass string `json:"ingress_class,omitempty"`

	// Serve Ingresses that name no class, too.
	WatchWithoutClass bool `json:"watch_ingress_without_class,omitempty"`

	// Watch these namespaces only (default: all).
	Namespaces []string `json:"namespaces,omitempty"`

	// Where clients reach the controller: its Service as `namespace/name`, or addresses and
	// host names. They are written into the status of Ingresses.
	PublishService   string   `json:"publish_service,omitempty"`
	PublishAddresses []string `json:"publish_addresses,omitempty"`

	// The Secret with the certificate for all other names, as `namespace/name` (default: a
	// self-signed certificate).
	DefaultCertificate string `json:"default_certificate,omitempty"`

	// Let Ingresses of several namespaces share a host. By default a host belongs to the
	// namespace of the oldest Ingress that names it. A wildcard includes the names that it
	// matches.
	ShareHosts bool `json:"share_hosts,omitempty"`

	// The hosts that the annotation `auth-url` may name, like `auth.example.com` or
	// `*.auth.svc.cluster.local` (default: any). Ingresses that name another are answered 503.
	AuthHosts []string `json:"auth_hosts,omitempty"`

	// Send requests to the IPv6 addresses of pods with both families (default: to the
	// IPv4 addresses).
	PreferIPv6 bool `json:"prefer_ipv6,omitempty"`

	// Read the annotations of ingress-nginx that shield has the like of.
	NginxAnnotations bool `json:"nginx_annotations,omitempty"`

	// How many bytes the body of a request may have where no annotation says so; negative:
	// any number (default 100 MiB; with `nginx_annotations` 1 MiB, as in ingress-nginx).
	BodySize int64 `json:"body_size,omitempty"`

	// How long a request may take in all, how long one attempt at a backend, and how long a
	// backend may be waited for, where no annotation says so; negative: any time (default:
	// any time, but 60s for the last).
	RequestTimeout  caddy.Duration `json:"request_timeout,omitempty"`
	BackendTimeout  caddy.Duration `json:"backend_timeout,omitempty"`
	ResponseTimeout caddy.Duration `json:"response_timeout,omitempty"`

	// The meaning of limits with several replicas: `divided` (default), each has its part
	// of them; `shared`, they are for all replicas together, through the store of the app
	// `shield`; or `local`, for each.
	Replicas string `json:"replicas,omitempty"`

	// The Service whose endpoints are the replicas, as `namespace/name`. It need not be
	// the one that clients use. Required for `divided` with more than one replica.
	Service string `json:"service,omitempty"`

	// The namespace and the name of the controller's pod.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`

	controller *controller
	key        string
	shield     *caddymodule.App
	before     *caddymodule.App // showed the controller's shields until this config was started
}

// The values of Replicas.
const (
	divided = "divided"
	shared  = "shared"
	local   = "local"
)

// controllers has the controllers in use, by the JSON of their App. They outlive configs.
var controllers = caddy.NewUsagePool()

// CaddyModule implements caddy.Module.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "shield_ingress", New: func() caddy.Module { return new(App) }}
}

// Provision implements caddy.Provisioner.
func (a *App) Provision(ctx caddy.Context) error {
	if err := a.check(); err != nil {
		return err
	}
	module, err := ctx.App("shield")
	if err != nil {
		return err
	}
	a.shield = module.(*caddymodule.App)
	sharing := a.shield.Sharing()
	if (sharing != nil) != (a.Replicas == shared) {
		return errors.New("replicas are shared, but there is no store in the app shield, or vice versa; use both or neither")
	}
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	key := string(b)
	c, _, err := controllers.LoadOrNew(key, func() (caddy.Destructor, error) {
		return newController(*a, sharing, caddy.Log().Named("shield_ingress"))
	})
	if err != nil {
		return err
	}
	a.key, a.controller = key, c.(*controller)
	var registry prometheus.Registerer = ctx.GetMetricsRegistry()
	return registry.Register(collector{a.controller})
}

// check returns all mistakes in the config.
func (a *App) check() error {
	var errs []error
	bad := func(name, is, want string) {
		errs = append(errs, fmt.Errorf("%s is %q; use %s", name, is, want))
	}
	for name, is := range map[string]string{"publish_service": a.PublishService, "default_certificate": a.DefaultCertificate, "service": a.Service} {
		if namespace, object, ok := strings.Cut(is, "/"); is != "" && (!ok || namespace == "" || object == "" || strings.Contains(object, "/")) {
			bad(name, is, "namespace/name")
		}
	}
	switch a.Replicas {
	case "", divided, shared, local:
	default:
		bad("replicas", a.Replicas, divided+", "+shared+" or "+local)
	}
	for _, address := range a.PublishAddresses {
		if net.ParseIP(address) == nil && (address == "" || strings.ContainsAny(address, " /:_*")) {
			bad("publish_addresses", address, "IP addresses or host names")
		}
	}
	if a.PublishService != "" && len(a.PublishAddresses) > 0 {
		errs = append(errs, errors.New("publish_service and publish_addresses are both set; use one of them"))
	}
	if a.Service != "" && a.Replicas != local && a.Pod == "" {
		errs = append(errs, errors.New("service is set without pod; set the name of the controller's pod, too"))
	}
	return errors.Join(errs...)
}

// takeoverTimeout is how long a new config waits for the cluster's objects, while the app of
// the old config serves.
const takeoverTimeout = 10 * time.Second

// Start implements caddy.App.
func (a *App) Start() error {
	a.before = a.controller.start(a.shield)
	serving := false
	controllers.Range(func(_, c any) bool {
		serving = serving || c != a.controller && c.(*controller).snapshot.Load() != nil
		return !serving
	})
	for began := shield.Now(); serving && a.Snapshot() == nil && shield.Now()-began < takeoverTimeout; {
		time.Sleep(settle)
	}
	return nil
}

// Stop implements caddy.App. It does not stop the controller: Caddy stops apps in any order,
// and requests are served until all have stopped. If this config could not be started, the
// one before takes over again.
func (a *App) Stop() error {
	a.controller.handBack(a.shield, a.before)
	a.before = nil
	return nil
}

// Cleanup implements caddy.CleanerUpper.
func (a *App) Cleanup() error {
	if a.controller == nil {
		return nil
	}
	_, err := controllers.Delete(a.key)
	return err
}

// Snapshot returns the current Snapshot; nil until all objects have been listed once.
func (a *App) Snapshot() *Snapshot { return a.controller.snapshot.Load() }

// Ready returns why this replica should not get requests, or nil.
func (a *App) Ready() error { return a.controller.ready() }

// Drain makes every App in use not ready, and asks clients to reconnect for their next
// request. It is for when the process is told to end.
func Drain() {
	controllers.Range(func(_, c any) bool {
		c.(*controller).draining.Store(true)
		return true
	})
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
