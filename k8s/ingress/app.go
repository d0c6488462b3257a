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

// App watches a Kubernetes cluster and keeps what its Ingresses ask for, for
// http.handlers.shield_ingress and tls.get_certificate.shield_ingress.
//
// A change in the cluster changes no config: no listener is touched, no connection
// closed, no limit forgotten. Neither does a reload forget anything, as long as this
// app's part of the config stays the same; if it changes, all clients are strangers.
type App struct {
	// The path of a kubeconfig. By default, the service account of the pod that it
	// runs in.
	Kubeconfig string `json:"kubeconfig,omitempty"`

	// What an IngressClass has as `spec.controller` for its Ingresses to be ours
	// (default `herdshield.io/ingress`).
	Controller string `json:"controller,omitempty"`

	// The name of the IngressClass where IngressClasses cannot be read, which is with
	// `namespaces` (default `shield`).
	IngressClass string `json:"ingress_class,omitempty"`

	// Take Ingresses that name no class at all, too.
	WatchWithoutClass bool `json:"watch_ingress_without_class,omitempty"`

	// Watch these namespaces only. By default, all.
	Namespaces []string `json:"namespaces,omitempty"`

	// Where clients reach this: the Service in front of it, as `namespace/name`, or
	// addresses and host names. It is what the status of Ingresses says.
	PublishService   string   `json:"publish_service,omitempty"`
	PublishAddresses []string `json:"publish_addresses,omitempty"`

	// The Secret with the certificate for names that no other is for, as
	// `namespace/name`. By default, one that is made and signed at the start.
	DefaultCertificate string `json:"default_certificate,omitempty"`

	// Let Ingresses of several namespaces share a host. By default a host belongs to the
	// namespace of the oldest Ingress that names it, with all names beneath if it is a
	// wildcard, and others are refused.
	ShareHosts bool `json:"share_hosts,omitempty"`

	// Send requests to the IPv6 addresses of pods that have both. By default, to
	// those of IPv4.
	PreferIPv6 bool `json:"prefer_ipv6,omitempty"`

	// Read the `limit-*` annotations of ingress-nginx.
	NginxAnnotations bool `json:"nginx_annotations,omitempty"`

	// What limits mean where there are several replicas of this: `divided` (default),
	// they are for all of them together; or `local`, for each.
	Replicas string `json:"replicas,omitempty"`

	// The Service whose endpoints the replicas are, as `namespace/name`; it need not
	// be the one that clients come by. Required for `divided`, unless there is only
	// one replica.
	Service string `json:"service,omitempty"`

	// The namespace and the name of the pod that it runs in.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`

	controller *controller
	key        string
	shield     *caddymodule.App
	before     *caddymodule.App // that showed the controller's shields until this config was started
}

// What Replicas may be.
const (
	divided = "divided"
	local   = "local"
)

// controllers are those in use, by the JSON of their App: they outlive configs.
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
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	key := string(b)
	c, _, err := controllers.LoadOrNew(key, func() (caddy.Destructor, error) { return newController(*a, caddy.Log().Named("shield_ingress")) })
	if err != nil {
		return err
	}
	a.key, a.controller = key, c.(*controller)
	var registry prometheus.Registerer = ctx.GetMetricsRegistry()
	return registry.Register(collector{a.controller})
}

// check returns what is wrong with the config.
func (a *App) check() error {
	var errs []error
	bad := func(name, is, want string) {
		errs = append(errs, fmt.Errorf("%s is %q; want %s", name, is, want))
	}
	for name, is := range map[string]string{"publish_service": a.PublishService, "default_certificate": a.DefaultCertificate, "service": a.Service} {
		if namespace, object, ok := strings.Cut(is, "/"); is != "" && (!ok || namespace == "" || object == "" || strings.Contains(object, "/")) {
			bad(name, is, "namespace/name")
		}
	}
	switch a.Replicas {
	case "", divided, local:
	default:
		bad("replicas", a.Replicas, divided+" or "+local)
	}
	for _, address := range a.PublishAddresses {
		if net.ParseIP(address) == nil && (address == "" || strings.ContainsAny(address, " /:_*")) {
			bad("publish_addresses", address, "IP addresses or host names")
		}
	}
	if a.PublishService != "" && len(a.PublishAddresses) > 0 {
		errs = append(errs, errors.New("there are publish_service and publish_addresses; want one of them"))
	}
	if a.Service != "" && a.Replicas != local && a.Pod == "" {
		errs = append(errs, errors.New("there is a service to share limits with, and no pod; want the name of the pod that this runs in"))
	}
	return errors.Join(errs...)
}

// takeoverPatience is how long a config waits for the cluster's objects, whose app of
// this kind takes the place of another one that serves.
const takeoverPatience = 10 * time.Second

// Start implements caddy.App.
func (a *App) Start() error {
	a.before = a.controller.start(a.shield)
	serving := false
	controllers.Range(func(_, c any) bool {
		serving = serving || c != a.controller && c.(*controller).snapshot.Load() != nil
		return !serving
	})
	for began := shield.Now(); serving && a.Snapshot() == nil && shield.Now()-began < takeoverPatience; {
		time.Sleep(settle)
	}
	return nil
}

// Stop implements caddy.App. The controller is not stopped here: Caddy stops apps in no
// order, and requests are served until all have been. If another config has not taken
// over, because it is this one that could not be started, the one before goes on.
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

// Snapshot returns what the cluster asks for now; nil until everything in it has been
// seen once.
func (a *App) Snapshot() *Snapshot { return a.controller.snapshot.Load() }

// Ready returns why requests should not come here, or nil.
func (a *App) Ready() error { return a.controller.ready() }

// Drain has every App in use be not ready from now on, and asks clients to go elsewhere
// with their next request. It is for the moment when the process is told to end.
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
