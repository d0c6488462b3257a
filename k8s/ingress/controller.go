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
	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/translate"
)

const (
	// settle is how long is waited after a change for more of them: what belongs
	// together, a Service and its endpoints, comes within milliseconds.
	settle = 20 * time.Millisecond

	// idleRatio is how much longer than the last rebuild took is waited until the
	// next, up to longestPause, so that a cluster in turmoil does not cost more than
	// a fifth of a processor.
	idleRatio    = 4
	longestPause = time.Second

	// checkEvery is how often everything is looked at without a change, to forget
	// what is gone.
	checkEvery = time.Minute

	// freshWithin is how long ago the API server may have been heard of for what is
	// missing in the cluster to be reported. Ours: the leader hears of it every 2 s.
	freshWithin = 10 * time.Second

	// joinPatience is how long a new replica waits to be seen by the others as one
	// of them before it takes requests, if it sees itself at once; and
	// strangerPatience if it does not see itself at all.
	joinPatience     = time.Second
	strangerPatience = 10 * time.Second

	// resignPatience is how long the process waits at its end to give up the lead.
	resignPatience = 2 * time.Second
)

// A controller keeps a Snapshot of what the cluster asks for.
type controller struct {
	config     App
	log        *zap.Logger
	cluster    *cluster.Cluster
	translator *translate.Translator

	snapshot atomic.Pointer[Snapshot]
	draining atomic.Bool
	bodies   atomic.Int64                    // bytes of bodies that have been read early
	shields  atomic.Pointer[caddymodule.App] // shows them; of the config that was started last
	*measures

	// For rebuild, which is for one goroutine.
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
		began, joined time.Duration // when it began to look, and saw itself first, or nobody; 0: not yet
		warn          sync.Once
	}
}

func newController(config App, log *zap.Logger) (*controller, error) {
	c := &controller{config: config, log: log, live: newLive(), measures: newMeasures(), ended: make(chan struct{})}
	var err error
	c.cluster, err = cluster.New(cluster.Config{
		Kubeconfig: config.Kubeconfig, Namespaces: config.Namespaces, Namespace: config.Namespace, Pod: config.Pod,
	}, log)
	if err != nil {
		return nil, err
	}
	c.translator = translate.New(translate.Options{
		Controller: config.Controller, ClassName: config.IngressClass,
		WatchWithoutClass: config.WatchWithoutClass, NginxAnnotations: config.NginxAnnotations,
		ShareHosts: config.ShareHosts, PreferIPv6: config.PreferIPv6,
		DefaultCertificate: config.DefaultCertificate, Self: config.Service,
		Published: config.PublishAddresses, PublishService: config.PublishService,
	})
	c.ctx, c.end = context.WithCancel(context.Background())
	return c, nil
}

// handBack has before show the shields again, if it is app that does.
func (c *controller) handBack(app, before *caddymodule.App) {
	if c.shields.CompareAndSwap(app, before) && before != nil {
		if s := c.snapshot.Load(); s != nil {
			before.Show(s.shields)
		}
	}
}

// start begins to watch, the first time that a config with it is started. From now on
// it is app that shows the shields, and not the one that it returns.
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
					c.log.Error("the cluster is not watched any more", zap.Error(err))
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
	ctx, cancel := context.WithTimeout(context.Background(), resignPatience)
	defer cancel()
	c.leave(ctx)
	c.end()
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
	return nil
}

// leave gives up the lead. The last replica also takes the addresses out of the status
// of all Ingresses: nobody serves there any more.
func (c *controller) leave(ctx context.Context) {
	s := c.snapshot.Load()
	if s != nil && caddy.Exiting() && c.config.Service != "" && c.cluster.Leading() && slices.Equal(s.Model.Replicas, []string{c.config.Pod}) {
		c.publish(s.Model, nil, true)
		if err := c.cluster.Flush(ctx); err != nil {
			c.log.Warn("the status of Ingresses may still have the addresses of this", zap.Error(err))
		}
	}
	if err := c.cluster.Resign(ctx); err != nil {
		c.log.Warn("the lead is not given up; it ends by itself", zap.Error(err))
	}
}

// publish has the status of Ingresses say where they can be reached; nowhere any more
// from the last time on.
func (c *controller) publish(m *model.Model, addresses []cluster.Address, last bool) {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	if c.published {
		return // a rebuild, because of what was published last
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
		if !wait(min(longestPause, took*idleRatio)) {
			return
		}
		next := checkEvery
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
	// What is missing may only not have been seen yet, while the API server comes back.
	if time.Since(c.cluster.Fresh()) < freshWithin {
		c.cluster.Report(problems)
	}
}

// join takes note of the replicas that there are.
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
		// The others have seen this pod since it has an address, before it was
		// started: they have made room for it, or will have when it is ready.
		at -= policy.Settle
	}
	switch {
	case rank < 0 && count > 0: // it is one more, whether the others know or not
		c.division.See(at, count, count+1)
		if c.membership.joined > 0 || now-c.membership.began > strangerPatience {
			c.strange()
		}
	default:
		c.division.See(at, max(0, rank), max(1, count))
		if c.membership.joined == 0 {
			c.membership.joined = now
		}
	}
}

// strange warns that the others do not know of this replica, once.
func (c *controller) strange() {
	c.membership.warn.Do(func() {
		c.log.Warn("this pod is not an endpoint of the service whose replicas share the limits: together they admit more than the limits say",
			zap.String("service", c.config.Service), zap.String("pod", c.config.Pod))
	})
}

// divisionTime returns now as the Division has it: later by as much as it may be told
// that its first look is older, since nothing is before 0.
func divisionTime(now time.Duration) time.Duration { return now + policy.Settle }

var (
	errNothing = errors.New("the objects of the cluster have not all been seen yet")
	errAlone   = errors.New("the other replicas may not have seen this one yet")
)

// ready returns why requests should not come here, or nil. That the API server cannot
// be reached is no reason: what was seen last is served.
func (c *controller) ready() error {
	switch {
	case c.draining.Load():
		return errDraining
	case c.snapshot.Load() == nil:
		return errNothing
	}
	if c.config.Service == "" || c.config.Replicas == local {
		return nil
	}
	c.membership.Lock()
	defer c.membership.Unlock()
	now := shield.Now()
	if joined := c.membership.joined; joined > 0 && now-joined > joinPatience || now-c.membership.began > strangerPatience {
		return nil
	}
	return errAlone
}

// addresses returns what the status of Ingresses is to say.
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
