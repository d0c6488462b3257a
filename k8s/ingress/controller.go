package ingress

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/caddymodule/upload"
	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/translate"
)

const (
	// settle is the wait for more changes after a change: related ones, of a Service and
	// its endpoints, come within milliseconds.
	settle = 20 * time.Millisecond

	// idleRatio is the wait until the next rebuild over the time of the last, up to
	// maxPause, so that a busy cluster costs at most a fifth of a processor.
	idleRatio = 4
	maxPause  = time.Second

	// checkInterval is how often the Snapshot is rebuilt without a change, to forget
	// objects that are gone.
	checkInterval = time.Minute

	// freshWithin is how old the last contact with the API server may be for missing
	// objects to be reported. Ours: the leader has contact every 2 s.
	freshWithin = 10 * time.Second

	// joinDelay is how long a new replica waits for the others to see it before it is
	// ready, once it sees itself. unlistedTimeout is how long it waits to see itself.
	joinDelay       = time.Second
	unlistedTimeout = 10 * time.Second

	// leaveTimeout bounds the wait at the end of the process for the API server, and
	// unpublishTimeout what of it the status of Ingresses may take. The rest is for the Lease.
	leaveTimeout     = 2 * time.Second
	unpublishTimeout = leaveTimeout * 3 / 4
)

// A controller keeps a Snapshot of the cluster.
type controller struct {
	config     App
	log        *zap.Logger
	cluster    *cluster.Cluster
	translator *translate.Translator

	snapshot atomic.Pointer[Snapshot]
	draining atomic.Bool
	bodies   upload.Early
	shields  atomic.Pointer[caddymodule.App] // of the last config started; it shows the shields
	*measures

	// Of the goroutine of rebuild.
	live     *live
	division policy.Division

	begin sync.Once
	end   context.CancelFunc
	ended chan struct{}
	ctx   context.Context

	publishing sync.Mutex
	published  bool // for the last time; guarded by publishing

	membership struct {
		sync.Mutex
		began  time.Duration // first look at the replicas; 0: none yet
		joined time.Duration // when it was first listed, or no replica was; 0: not yet
		warn   sync.Once
	}
}

func newController(config App, sharing *caddymodule.Sharing, log *zap.Logger) (*controller, error) {
	c := &controller{config: config, log: log, live: newLive(), measures: newMeasures(), ended: make(chan struct{})}
	c.live.sharing = sharing
	var err error
	c.cluster, err = cluster.New(cluster.Config{
		Kubeconfig: config.Kubeconfig, Namespaces: config.Namespaces, Namespace: config.Namespace, Pod: config.Pod,
	}, log)
	if err != nil {
		return nil, err
	}
	class := config.IngressClass
	if class == "" && len(config.Namespaces) > 0 {
		class = "shield" // IngressClasses cannot be read
	}
	c.translator = translate.New(translate.Options{
		Controller: config.Controller, ClassName: class,
		WatchWithoutClass: config.WatchWithoutClass, NginxAnnotations: config.NginxAnnotations,
		ShareHosts: config.ShareHosts, PreferIPv6: config.PreferIPv6, AuthHosts: config.AuthHosts,
		DefaultCertificate: config.DefaultCertificate, Self: config.Service,
		Published: config.PublishAddresses, PublishService: config.PublishService,
		Timeouts: config.timeouts(),
	})
	c.ctx, c.end = context.WithCancel(context.Background())
	return c, nil
}

// handBack has before show the shields again, if app shows them now.
func (c *controller) handBack(app, before *caddymodule.App) {
	if c.shields.CompareAndSwap(app, before) && before != nil {
		if s := c.snapshot.Load(); s != nil {
			before.Show(s.shields)
		}
	}
}

// start begins to watch the cluster, if it has not begun. From now on app shows the shields,
// and the App that start returns no longer does.
func (c *controller) start(app *caddymodule.App) (before *caddymodule.App) {
	before = c.shields.Swap(app)
	if s := c.snapshot.Load(); s != nil {
		app.Show(s.shields)
	}
	c.begin.Do(func() {
		go func() {
			defer close(c.ended)
			watching := make(chan struct{})
			go func() {
				defer close(watching)
				if err := c.cluster.Run(c.ctx); err != nil && c.ctx.Err() == nil {
					c.log.Error("watching the cluster has ended", zap.Error(err))
				}
			}()
			c.run()
			<-watching
		}()
	})
	return before
}

// Destruct implements caddy.Destructor.
func (c *controller) Destruct() error {
	started := true
	c.begin.Do(func() { started = false })
	if !started {
		c.end()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	c.leave(ctx)
	c.end()
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
	return nil
}

// leave resigns as the leader. The last replica also removes the addresses from the status
// of all Ingresses, since no replica serves there.
func (c *controller) leave(ctx context.Context) {
	s := c.snapshot.Load()
	if s != nil && caddy.Exiting() && c.config.Service != "" && c.cluster.Leading() && slices.Equal(s.Model.Replicas, []string{c.config.Pod}) {
		c.publish(s.Model, nil, true)
		flush, cancel := context.WithTimeout(ctx, unpublishTimeout)
		defer cancel()
		if err := c.cluster.Flush(flush); err != nil {
			c.log.Warn("the status of Ingresses may still have this controller's addresses", zap.Error(err))
		}
	}
	if err := c.cluster.Resign(ctx); err != nil {
		c.log.Warn("cannot resign as the leader; the Lease expires", zap.Error(err))
	}
}

// publish sets the addresses in the status of Ingresses. After the last time it does
// nothing.
func (c *controller) publish(m *model.Model, addresses []cluster.Address, last bool) {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	if c.published {
		return // a rebuild, caused by the last publication
	}
	c.published = last
	c.cluster.Publish(m.Mine, m.NotMine, addresses)
}

// run rebuilds the Snapshot when something has changed.
func (c *controller) run() {
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-c.ctx.Done():
			return false
		}
	}
	for !c.cluster.Synced() {
		if !wait(settle) {
			return
		}
	}
	for {
		began := shield.Now()
		c.rebuild(began)
		took := shield.Now() - began
		if !wait(min(maxPause, took*idleRatio)) {
			return
		}
		next := checkInterval
		if at := c.translator.Expires(); !at.IsZero() {
			next = min(next, max(0, time.Until(at)))
		}
		if now := divisionTime(shield.Now()); c.division.Next(now) > 0 {
			next = min(next, max(0, c.division.Next(now)-now))
		}
		select {
		case <-c.cluster.Changed():
			if !wait(settle) {
				return
			}
		case <-time.After(next):
		case <-c.ctx.Done():
			return
		}
	}
}

// rebuild makes a new Snapshot.
func (c *controller) rebuild(now time.Duration) {
	objects := c.cluster.Objects()
	m := c.translator.Translate(objects)
	c.join(now, m.Replicas)
	s := c.live.apply(now, m, &c.division, c.config.Pod)
	c.snapshot.Store(s)
	s.settle()
	problems := slices.Concat(m.Problems, c.live.problems)
	c.rebuilt(s, problems, shield.Now()-now, c.division.Fraction(divisionTime(now)))
	if app := c.shields.Load(); app != nil {
		app.Show(s.shields)
	}
	c.publish(m, c.addresses(objects.Services), false)
	// While the API server comes back, missing objects may only not be listed yet.
	if time.Since(c.cluster.Fresh()) < freshWithin {
		c.cluster.Report(problems)
	}
}

// join records the current replicas.
func (c *controller) join(now time.Duration, replicas []string) {
	if c.config.Service == "" || c.config.Replicas == local {
		return
	}
	rank, count := slices.Index(replicas, c.config.Pod), len(replicas)
	c.membership.Lock()
	defer c.membership.Unlock()
	at := divisionTime(now)
	if c.membership.began == 0 {
		c.membership.began = now
		// The others have seen this pod since it got an address, before it was started.
		// By the time it is ready they have reduced their shares.
		at -= policy.Settle
	}
	switch {
	case rank < 0 && count > 0: // one more than listed
		c.division.See(at, count, count+1)
		if c.membership.joined > 0 || now-c.membership.began > unlistedTimeout {
			c.warnUnlisted()
		}
	default:
		c.division.See(at, max(0, rank), max(1, count))
		if c.membership.joined == 0 {
			c.membership.joined = now
		}
	}
}

// warnUnlisted warns, once, that the other replicas do not know this one.
func (c *controller) warnUnlisted() {
	c.membership.warn.Do(func() {
		c.log.Warn("this pod is not an endpoint of the Service whose replicas share the limits: together they exceed the limits",
			zap.String("service", c.config.Service), zap.String("pod", c.config.Pod))
	})
}

// divisionTime returns now in the Division's time, which is ahead by Settle: join backdates
// the first look by that, and no time is below 0.
func divisionTime(now time.Duration) time.Duration { return now + policy.Settle }

var (
	errNotSynced = errors.New("not all objects of the cluster have been listed")
	errJoining   = errors.New("the other replicas may not have seen this one yet")
)

// ready returns why this replica should not get requests, or nil. An outage of the API
// server is no reason: the last known state is served.
func (c *controller) ready() error {
	switch {
	case c.draining.Load():
		return errDraining
	case c.snapshot.Load() == nil:
		return errNotSynced
	}
	if c.config.Service == "" || c.config.Replicas == local {
		return nil
	}
	c.membership.Lock()
	defer c.membership.Unlock()
	now := shield.Now()
	if joined := c.membership.joined; joined > 0 && now-joined > joinDelay || now-c.membership.began > unlistedTimeout {
		return nil
	}
	return errJoining
}

// addresses returns the addresses for the status of Ingresses.
func (c *controller) addresses(services []*corev1.Service) []cluster.Address {
	var list []cluster.Address
	if c.config.PublishService == "" {
		for _, a := range c.config.PublishAddresses {
			if net.ParseIP(a) != nil {
				list = append(list, cluster.Address{IP: a})
			} else {
				list = append(list, cluster.Address{Hostname: a})
			}
		}
		return list
	}
	for _, s := range services {
		if s.Namespace+"/"+s.Name != c.config.PublishService {
			continue
		}
		for _, i := range s.Status.LoadBalancer.Ingress {
			list = append(list, cluster.Address{IP: i.IP, Hostname: i.Hostname})
		}
		for _, ip := range s.Spec.ExternalIPs {
			list = append(list, cluster.Address{IP: ip})
		}
	}
	return list
}
