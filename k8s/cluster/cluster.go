// Package cluster connects shield to a Kubernetes cluster. It keeps a copy of the objects that routing
// needs, elects a leader among the replicas, writes the addresses into the status of Ingresses, and
// reports problems to the owners of objects by Events. It does not interpret the objects.
//
// While the API server cannot be reached, the last state of everything stays in force.
//
// It uses only a part of client-go (its REST client, reflectors and event recorder, with a scheme of the
// four API groups that are needed). All of client-go would make the program 27 MB larger.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/herdshield/shield/k8s/translate"
)

// Config says which cluster to connect to, which part of it to read, and who connects.
type Config struct {
	// Kubeconfig is the path of a kubeconfig. "" means the credentials of the pod if this
	// process runs in one, else $KUBECONFIG, else ~/.kube/config.
	Kubeconfig string

	// Namespaces are the namespaces whose objects are read. None means all. With some,
	// cluster-wide objects are not read: IngressClasses.
	Namespaces []string

	// Namespace and Pod name this process. By default the namespace is that of the
	// credentials, and the pod has the name of the host.
	Namespace, Pod string

	// Lease is the name of the Lease in Namespace that the leader holds. Statuses and
	// Events are written under the same name. Default: shield-ingress.
	Lease string

	// Identity is the name of this process as holder of the Lease; it must be unique.
	// Default: Pod and a random suffix.
	Identity string
}

func (c *Config) setDefaults(namespace string) error {
	if c.Namespace == "" {
		c.Namespace = namespace
	}
	if c.Lease == "" {
		c.Lease = "shield-ingress"
	}
	if c.Pod == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("neither the pod nor the host has a name: %w", err)
		}
		c.Pod = host
	}
	if c.Identity == "" {
		c.Identity = c.Pod + "_" + rand.Text()[:8]
	}
	if slices.Contains(c.Namespaces, "") {
		return fmt.Errorf("namespaces are %q; use names, or none for all namespaces", c.Namespaces)
	}
	c.Namespaces = slices.Compact(slices.Sorted(slices.Values(c.Namespaces)))
	return nil
}

// A Cluster is a connection to a cluster. It is safe for concurrent use.
type Cluster struct {
	config  Config
	log     *zap.Logger
	clients *clients

	classes, ingresses, services, slices, secrets, configMaps []*feed // by namespace

	changed  chan struct{}
	synced   atomic.Bool
	election *election
	status   *status
	reporter *reporter
}

// New returns the Cluster of a Config. It reads files, but does not connect.
func New(config Config, log *zap.Logger) (*Cluster, error) {
	clients, namespace, err := connect(config.Kubeconfig, log)
	if err != nil {
		return nil, fmt.Errorf("credentials for Kubernetes: %w", err)
	}
	if err := config.setDefaults(namespace); err != nil {
		return nil, err
	}
	c := &Cluster{config: config, log: log, clients: clients, changed: make(chan struct{}, 1)}
	c.subscribe()
	c.status = newStatus(c)
	c.reporter = newReporter(c)
	c.election = newElection(config, &leaseClient{clients.coordination, config.Namespace}, log, func() {
		signal(c.status.wake)
		signal(c.reporter.wake)
	})
	return c, nil
}

// subscribe makes the feeds of all objects that are needed.
func (c *Cluster) subscribe() {
	everywhere := c.config.Namespaces
	own := everywhere
	if len(everywhere) == 0 {
		everywhere, own = []string{""}, []string{""}
		c.classes = c.feeds(c.clients.networking, "ingressclasses", &networkingv1.IngressClass{}, &networkingv1.IngressClassList{}, everywhere)
	} else if !slices.Contains(everywhere, c.config.Namespace) {
		// Shield's own Service, for the replicas and the address, is elsewhere.
		own = append(slices.Clone(everywhere), c.config.Namespace)
	}
	c.ingresses = c.feeds(c.clients.networking, "ingresses", &networkingv1.Ingress{}, &networkingv1.IngressList{}, everywhere)
	c.services = c.feeds(c.clients.core, "services", &corev1.Service{}, &corev1.ServiceList{}, own)
	c.slices = c.feeds(c.clients.discovery, "endpointslices", &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}, own)
	c.secrets = c.feeds(c.clients.core, "secrets", &corev1.Secret{}, &corev1.SecretList{}, everywhere)
	c.configMaps = c.feeds(c.clients.core, "configmaps", &corev1.ConfigMap{}, &corev1.ConfigMapList{}, []string{c.config.Namespace})
}

// Run keeps the copies up to date, takes part in the election, and writes statuses and Events, until ctx
// ends. It is called once. If the API server cannot be reached, or rejects, Run retries without end.
func (c *Cluster) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logger(c.log, c.clients.contact.down))
	var running sync.WaitGroup
	for _, f := range c.all() {
		running.Go(func() { f.controller.RunWithContext(ctx) })
	}
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), c.listed) {
			c.synced.Store(true)
			c.log.Info("all objects of the cluster have been listed")
			signal(c.changed)
			signal(c.status.wake)
		}
	})
	running.Go(func() { c.election.run(ctx) })
	running.Go(func() { c.status.run(ctx) })
	running.Go(func() { c.reporter.run(ctx) })
	running.Wait()
	if err := ctx.Err(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (c *Cluster) all() []*feed {
	return slices.Concat(c.classes, c.ingresses, c.services, c.slices, c.secrets, c.configMaps)
}

// Changed returns a channel that gets a value when Objects have changed since the last
// receive. Changes come in bursts, so the caller should wait a little.
func (c *Cluster) Changed() <-chan struct{} { return c.changed }

// Synced reports whether all objects have been listed once. Before that, objects may exist
// that are missing in Objects.
func (c *Cluster) Synced() bool { return c.synced.Load() }

func (c *Cluster) listed() bool {
	return !slices.ContainsFunc(c.all(), func(f *feed) bool { return !f.controller.HasSynced() })
}

// Fresh returns the last time when Objects were certainly up to date: some seconds ago at most, unless
// the API server cannot be reached or does not answer. It is the zero Time before they are Synced.
func (c *Cluster) Fresh() time.Time {
	if !c.Synced() {
		return time.Time{}
	}
	oldest := c.clients.contact.last.Load()
	for _, f := range c.all() {
		oldest = min(oldest, f.until())
	}
	return time.Now().Add(time.Duration(oldest) - now()) // the clock may have been set since epoch
}

// Objects returns the objects as they are now. They must not be modified.
func (c *Cluster) Objects() translate.Objects {
	return translate.Objects{
		Classes:    list[*networkingv1.IngressClass](c.classes),
		Ingresses:  list[*networkingv1.Ingress](c.ingresses),
		Services:   list[*corev1.Service](c.services),
		Slices:     list[*discoveryv1.EndpointSlice](c.slices),
		Secrets:    list[*corev1.Secret](c.secrets),
		ConfigMaps: list[*corev1.ConfigMap](c.configMaps),
	}
}

// Namespace returns the namespace of this process.
func (c *Cluster) Namespace() string { return c.config.Namespace }

// Leading reports whether this replica is the leader. At any time at most one is, if the
// speeds of the replicas' clocks differ by less than a third.
func (c *Cluster) Leading() bool { return c.election.leading() }

// Resign gives up leadership for good, so that another replica need not wait until the
// Lease expires. Run may have ended.
func (c *Cluster) Resign(ctx context.Context) error { return c.election.resign(ctx) }

// signal makes sure that the channel, which has a buffer of one, has a value.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// epoch is when this process began.
var epoch = time.Now()

// now returns the time since epoch, by the monotonic clock.
func now() time.Duration { return time.Since(epoch) }
