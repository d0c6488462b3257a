// Package cluster is shield's view of a Kubernetes cluster, and its voice there: it
// keeps a copy of the objects that routing needs, has the replicas elect a leader,
// writes the addresses into the status of Ingresses, and tells the owners of objects
// what is wrong with them by Events. What the objects mean is no business of it.
//
// While the API server cannot be reached, everything keeps what it had last.
//
// client-go is used narrowly (its REST client, reflectors and event recorder, with a
// scheme of the four API groups that are needed): the whole of it would make the
// program 27 MB larger.
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

// Config says which cluster, what of it, and who asks.
type Config struct {
	// Kubeconfig is the path of a kubeconfig. "" means what a pod is given if this
	// is one, else $KUBECONFIG, else ~/.kube/config.
	Kubeconfig string

	// Namespaces are those whose objects count. None means all. With some, nothing
	// is read that belongs to no namespace: IngressClasses.
	Namespaces []string

	// Namespace and Pod are where and what this process is. By default the namespace is
	// that of the credentials, and the pod is called as the host.
	Namespace, Pod string

	// Lease is the name of the Lease in Namespace that the leader holds. It is also
	// the name under which statuses and Events are written. Default: shield-ingress.
	Lease string

	// Identity is what the holder of the Lease is called, unlike all other processes.
	// Default: Pod, and something random.
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
			return fmt.Errorf("the pod has no name, and the host neither: %w", err)
		}
		c.Pod = host
	}
	if c.Identity == "" {
		c.Identity = c.Pod + "_" + rand.Text()[:8]
	}
	if slices.Contains(c.Namespaces, "") {
		return fmt.Errorf("namespaces are %q; want names, or none for all namespaces", c.Namespaces)
	}
	c.Namespaces = slices.Compact(slices.Sorted(slices.Values(c.Namespaces)))
	return nil
}

// A Cluster is a connection to one. It is safe for concurrent use.
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

// New returns the Cluster of a Config. It reads files, but does not connect yet.
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
		// Its own Service, for the replicas and its address, is not among them.
		own = append(slices.Clone(everywhere), c.config.Namespace)
	}
	c.ingresses = c.feeds(c.clients.networking, "ingresses", &networkingv1.Ingress{}, &networkingv1.IngressList{}, everywhere)
	c.services = c.feeds(c.clients.core, "services", &corev1.Service{}, &corev1.ServiceList{}, own)
	c.slices = c.feeds(c.clients.discovery, "endpointslices", &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}, own)
	c.secrets = c.feeds(c.clients.core, "secrets", &corev1.Secret{}, &corev1.SecretList{}, everywhere)
	c.configMaps = c.feeds(c.clients.core, "configmaps", &corev1.ConfigMap{}, &corev1.ConfigMapList{}, []string{c.config.Namespace})
}

// Run keeps the copies up to date, takes part in the election, and writes what is to
// be written, until ctx ends. It is called once. An API server that cannot be reached,
// or that refuses, is tried again for ever.
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

// Changed returns a channel that has something in it when Objects have changed since
// it was emptied last. Changes come in bursts; it is for the caller to wait a little.
func (c *Cluster) Changed() <-chan struct{} { return c.changed }

// Synced reports whether all objects have been listed once: before that, what is
// missing in Objects may exist all the same.
func (c *Cluster) Synced() bool { return c.synced.Load() }

func (c *Cluster) listed() bool {
	return !slices.ContainsFunc(c.all(), func(f *feed) bool { return !f.controller.HasSynced() })
}

// Fresh returns when Objects were certainly as they are in the cluster: some seconds ago
// at most, unless the API server cannot be reached or refuses to answer. It is the
// zero Time as long as they are not Synced.
func (c *Cluster) Fresh() time.Time {
	if !c.Synced() {
		return time.Time{}
	}
	oldest := c.clients.contact.last.Load()
	for _, f := range c.all() {
		oldest = min(oldest, f.until())
	}
	return epoch.Add(time.Duration(oldest))
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

// Leading reports whether this replica is the leader. At any time at most one is, as
// long as the clocks of the replicas go equally fast to within a third.
func (c *Cluster) Leading() bool { return c.election.leading() }

// Resign gives up leadership, so that another replica need not wait until the Lease
// expires, and does not take part in the election any more. Run may have ended.
func (c *Cluster) Resign(ctx context.Context) error { return c.election.resign(ctx) }

// signal makes sure that there is something in the channel, which has room for one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// epoch is the beginning of time for everything in this process.
var epoch = time.Now()

// now returns the time since then, from the monotonic clock.
func now() time.Duration { return time.Since(epoch) }
