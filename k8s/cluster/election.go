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

// The times of an election, as Kubernetes' own controllers have them. A leader that
// has not renewed its Lease for renewDeadline does not think of itself as the leader
// any more; others may think so only leaseDuration after they saw it renewed last.
// The time between is for clocks that do not go equally fast, and for what the
// leader has sent last.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	leaseTimeout  = 5 * time.Second // of one request
)

// A candidate is what one replica knows of the Lease, and decides by that. It is the
// algorithm of client-go's leaderelection: the times in the Lease are for people; what
// counts is when, by its own clock, the candidate saw it change last.
type candidate struct {
	id     string
	lease  *coordinationv1.Lease // as seen last; nil: not at all
	seenAt time.Time             // when it was first seen as it is
}

// see takes note of the Lease.
func (c *candidate) see(now time.Time, lease *coordinationv1.Lease) {
	if c.lease == nil || !reflect.DeepEqual(c.lease.Spec, lease.Spec) {
		c.seenAt = now
	}
	c.lease = lease
}

// free returns when the candidate may take the Lease, if it does not change: the zero
// Time if at once.
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

// holder returns whose the Lease is, "" if nobody's.
func (c *candidate) holder() string {
	if c.lease == nil || c.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *c.lease.Spec.HolderIdentity
}

// claim returns the Lease as it is to become: the candidate's, now.
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

// release returns the Lease as nobody's.
func (c *candidate) release(wall time.Time) *coordinationv1.Lease {
	released := c.lease.DeepCopy()
	at, seconds, nobody := metav1.NewMicroTime(wall), int32(1), ""
	s := &released.Spec
	s.HolderIdentity, s.LeaseDurationSeconds, s.RenewTime = &nobody, &seconds, &at
	return released
}

// An election keeps a candidate going.
type election struct {
	leases  leases
	name    string
	log     *zap.Logger
	elected func() // called when this replica has become the leader; must not block

	until   atomic.Pointer[time.Time] // this replica leads until then; nil: it does not
	stopped chan struct{}
	stop    func()

	mu        sync.Mutex // guards what follows; held for one step
	candidate candidate
	led       bool // after the last step
	failing   bool // the last step
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

// step renews the Lease, or tries to get it, and returns after how long to try again.
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
			e.log.Info("this replica is the leader now", zap.String("identity", e.candidate.id))
		} else if ctx.Err() == nil {
			e.log.Warn("this replica is not the leader any more", zap.String("leader", e.candidate.holder()), zap.Error(err))
		}
	}
	if failing := err != nil; failing != e.failing && ctx.Err() == nil {
		e.failing = failing // said once, not each time
		if failing {
			e.log.Warn("the Lease cannot be used, and is tried again", zap.String("lease", e.name), zap.Error(err))
		} else {
			e.log.Info("the Lease can be used again", zap.String("lease", e.name))
		}
	}
	wait := retryPeriod + rand.N(retryPeriod/10) // not all candidates at once
	if free := e.candidate.free(); err == nil && !free.IsZero() {
		wait = min(wait, max(time.Until(free), time.Millisecond)) // it is not left alone for longer than it is valid
	}
	return wait
}

// try is one request or two. A leader need not read its Lease before it renews it: if
// somebody else has written it since, that is a conflict.
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
	return nil // somebody was faster
}

// write claims the Lease. Who gets it leads for a time that begins before that.
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
	if !was { // be it for a moment
		e.elected()
	}
	return nil
}

func (e *election) resign(ctx context.Context) error {
	e.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.candidate
	e.until.Store(nil) // first of all, so that nothing is written any more
	e.led = false
	if c.holder() != c.id {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	lease, err := e.leases.write(ctx, e.name, c.release(time.Now()))
	if apierrors.IsConflict(err) {
		// A renewal may have been given up whose answer had not come yet.
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
	e.log.Info("this replica has resigned from being the leader")
	return nil
}

// leases are the Leases of one namespace. write creates one that has no version yet;
// otherwise it is a conflict if the version is not the latest.
type leases interface {
	get(ctx context.Context, name string) (*coordinationv1.Lease, error)
	write(ctx context.Context, name string, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// leaseClient is where the Leases are in truth.
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
