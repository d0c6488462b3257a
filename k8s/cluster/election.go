package cluster

import (
	"context"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The times of an election, as in Kubernetes' own controllers. A leader that has not renewed its Lease
// for renewDeadline stops leading; others may take over only leaseDuration after they saw it renewed
// last. The time between allows for clocks of different speeds, and for the leader's last requests.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	leaseTimeout  = 5 * time.Second // of one request
)

// A candidate is one replica's view of the Lease, and decides by it. It is the algorithm of
// client-go's leaderelection: the times in the Lease are for people; what counts is when,
// by its own clock, the candidate saw it change last.
type candidate struct {
	id     string
	lease  *coordinationv1.Lease // as last seen; nil: never seen
	seenAt time.Time             // when it was first seen in this state
}

// see records the Lease.
func (c *candidate) see(now time.Time, lease *coordinationv1.Lease) {
	if c.lease == nil || !reflect.DeepEqual(c.lease.Spec, lease.Spec) {
		c.seenAt = now
	}
	c.lease = lease
}

// free returns when the candidate may take the Lease if it does not change: the zero Time means at once.
func (c *candidate) free() time.Time {
	holder := c.holder()
	if holder == "" || holder == c.id {
		return time.Time{}
	}
	duration := leaseDuration
	if s := c.lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		duration = time.Duration(*s) * time.Second
	}
	return c.seenAt.Add(duration)
}

// holder returns the holder of the Lease, "" if there is none.
func (c *candidate) holder() string {
	if c.lease == nil || c.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *c.lease.Spec.HolderIdentity
}

// claim returns the Lease with the candidate as its holder.
func (c *candidate) claim(wall time.Time) *coordinationv1.Lease {
	claimed := new(coordinationv1.Lease)
	if c.lease != nil {
		claimed = c.lease.DeepCopy()
	}
	s := &claimed.Spec
	at := metav1.NewMicroTime(wall)
	if c.holder() != c.id || s.AcquireTime == nil {
		transitions := int32(0)
		if c.lease != nil && s.LeaseTransitions != nil {
			transitions = *s.LeaseTransitions + 1
		}
		s.AcquireTime, s.LeaseTransitions = &at, &transitions
	}
	seconds := int32(leaseDuration / time.Second)
	s.HolderIdentity, s.LeaseDurationSeconds, s.RenewTime = &c.id, &seconds, &at
	return claimed
}

// release returns the Lease without a holder.
func (c *candidate) release(wall time.Time) *coordinationv1.Lease {
	released := c.lease.DeepCopy()
	at, seconds := metav1.NewMicroTime(wall), int32(1)
	s := &released.Spec
	s.HolderIdentity, s.LeaseDurationSeconds, s.RenewTime = new(string), &seconds, &at
	return released
}

// An election runs a candidate.
type election struct {
	leases  leases
	name    string
	log     *zap.Logger
	elected func() // called when this replica has become the leader; must not block

	until   atomic.Pointer[time.Time] // this replica leads until then; nil: it does not
	stopped chan struct{}
	stop    func()

	mu        sync.Mutex // guards the fields below; held for one step
	candidate candidate
	led       bool // after the last step
	failing   bool // the last step failed
}

func newElection(config Config, leases leases, log *zap.Logger, elected func()) *election {
	e := &election{
		leases: leases, name: config.Lease, log: log, elected: elected,
		stopped: make(chan struct{}), candidate: candidate{id: config.Identity},
	}
	e.stop = sync.OnceFunc(func() { close(e.stopped) })
	return e
}

func (e *election) leading() bool {
	until := e.until.Load()
	return until != nil && time.Now().Before(*until)
}

// run takes part until ctx ends, or resign is called.
func (e *election) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		wait := time.NewTimer(e.step(ctx))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// step renews the Lease, or tries to get it, and returns how long to wait before the next step.
func (e *election) step(ctx context.Context) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() != nil {
		return 0
	}
	err := e.try(ctx)
	if led := e.leading(); led != e.led {
		e.led = led
		if led {
			e.log.Info("this replica has become the leader", zap.String("identity", e.candidate.id))
		} else if ctx.Err() == nil {
			e.log.Warn("this replica has lost leadership", zap.String("leader", e.candidate.holder()), zap.Error(err))
		}
	}
	if failing := err != nil; failing != e.failing && ctx.Err() == nil {
		e.failing = failing // logged once, not each time
		if failing {
			e.log.Warn("the Lease cannot be used, retrying", zap.String("lease", e.name), zap.Error(err))
		} else {
			e.log.Info("the Lease can be used again", zap.String("lease", e.name))
		}
	}
	wait := retryPeriod + rand.N(retryPeriod/10) // not all candidates at once
	if free := e.candidate.free(); err == nil && !free.IsZero() {
		wait = min(wait, max(time.Until(free), time.Millisecond)) // the next step is due when the Lease expires
	}
	return wait
}

// try sends one or two requests. A leader need not read its Lease before it renews it: if
// another replica has written it since, that is a conflict.
func (e *election) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	c := &e.candidate
	if c.holder() == c.id {
		err := e.write(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	lease, err := e.leases.get(ctx, e.name)
	switch {
	case apierrors.IsNotFound(err):
		c.lease = nil
	case err != nil:
		return err
	default:
		c.see(time.Now(), lease)
	}
	if c.holder() != c.id {
		e.until.Store(nil)
	}
	if time.Now().Before(c.free()) {
		return nil
	}
	if err := e.write(ctx); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil // another replica was faster
}

// write claims the Lease. The leader's time begins before the request is sent.
func (e *election) write(ctx context.Context) error {
	begin := time.Now()
	c := &e.candidate
	lease, err := e.leases.write(ctx, e.name, c.claim(begin))
	if err != nil {
		return err
	}
	c.see(time.Now(), lease)
	was, until := e.leading(), begin.Add(renewDeadline)
	e.until.Store(&until)
	if !was { // even if only for a moment
		e.elected()
	}
	return nil
}

func (e *election) resign(ctx context.Context) error {
	e.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.candidate
	e.until.Store(nil) // first, so that this replica writes no more statuses and Events
	e.led = false
	if c.holder() != c.id {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	lease, err := e.leases.write(ctx, e.name, c.release(time.Now()))
	if apierrors.IsConflict(err) {
		// A renewal may have been abandoned before its response arrived.
		if lease, err = e.leases.get(ctx, e.name); err == nil {
			c.see(time.Now(), lease)
			if c.holder() != c.id {
				return nil
			}
			lease, err = e.leases.write(ctx, e.name, c.release(time.Now()))
		}
	}
	if err != nil {
		return err
	}
	c.see(time.Now(), lease)
	e.log.Info("this replica has resigned as the leader")
	return nil
}

// leases are the Leases of one namespace. write creates one that has no version; otherwise
// it fails with a conflict if the version is not the latest.
type leases interface {
	get(ctx context.Context, name string) (*coordinationv1.Lease, error)
	write(ctx context.Context, name string, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// leaseClient is leases in an API server.
type leaseClient struct {
	client    rest.Interface
	namespace string
}

func (l *leaseClient) get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease := new(coordinationv1.Lease)
	return lease, l.client.Get().Namespace(l.namespace).Resource("leases").Name(name).Do(ctx).Into(lease)
}

func (l *leaseClient) write(ctx context.Context, name string, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	request := l.client.Put().Name(name)
	if lease.ResourceVersion == "" {
		lease.Name, lease.Namespace = name, l.namespace
		request = l.client.Post()
	}
	written := new(coordinationv1.Lease)
	return written, request.Namespace(l.namespace).Resource("leases").Body(lease).Do(ctx).Into(written)
}
