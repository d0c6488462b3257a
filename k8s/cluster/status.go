package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/herdshield/shield/k8s/model"
)

const (
	statusTries    = 5                // for one Ingress, if others write it at the same time
	statusTimeout  = 10 * time.Second // of one request
	minStatusRetry = time.Second      // wait after a failure, doubled each time
	maxStatusRetry = time.Minute
	maxPast        = 64 // formerly published addresses that are remembered
)

// Address is where an Ingress can be reached: one of IP and Hostname.
type Address = networkingv1.IngressLoadBalancerIngress

// Publish sets the addresses in the status of Ingresses: those in mine get exactly these, those in
// notMine lose these and all that were published before, and keep others. It returns at once.
// Differences are patched in the background while this replica is the leader, and when it becomes the
// leader. Only the latest call counts. The arguments must not be modified after that.
func (c *Cluster) Publish(mine, notMine []model.Ref, addresses []Address) {
	c.status.publish(mine, notMine, sorted(addresses))
}

// Flush waits until the cluster has what was published last, or this replica is not the leader.
func (c *Cluster) Flush(ctx context.Context) error { return c.status.flush(ctx) }

// wanted has the arguments of Publish.
type wanted struct {
	mine, notMine []model.Ref
	addresses     []Address
	past          []Address // published before; the latest come first
	done          bool      // the cluster has had all of it
}

// status writes the status of Ingresses.
type status struct {
	cluster *Cluster
	wake    chan struct{}

	mu      sync.Mutex // guards the fields below
	latest  *wanted    // nil: nothing has been published
	changed chan struct{}
}

func newStatus(c *Cluster) *status {
	return &status{cluster: c, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (s *status) publish(mine, notMine []model.Ref, addresses []Address) {
	w := &wanted{mine: mine, notMine: notMine, addresses: addresses}
	s.mu.Lock()
	if s.latest != nil {
		w.past = remember(s.latest.past, s.latest.addresses, addresses)
	}
	s.latest = w
	s.mu.Unlock()
	signal(s.wake)
}

// remember returns the addresses of last that are no longer published, followed by past: at most maxPast.
func remember(past, last, now []Address) []Address {
	gone := slices.DeleteFunc(slices.Clone(last), func(a Address) bool { return has(now, a) })
	if len(gone) == 0 {
		return past // an address in it may be published again, which does no harm
	}
	past = slices.DeleteFunc(slices.Clone(past), func(a Address) bool { return has(gone, a) })
	all := append(gone, past...)
	return all[:min(len(all), maxPast)]
}

func (s *status) current() *wanted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

func (s *status) done(w *wanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.done = true
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *status) flush(ctx context.Context) error {
	for {
		s.mu.Lock()
		done, changed := s.latest == nil || s.latest.done, s.changed
		s.mu.Unlock()
		if done || !s.cluster.Leading() {
			return nil
		}
		poll := time.NewTimer(time.Second) // losing leadership sends no signal
		select {
		case <-changed:
		case <-poll.C:
		case <-ctx.Done():
			poll.Stop()
			return ctx.Err()
		}
		poll.Stop()
	}
}

func (s *status) run(ctx context.Context) {
	retry := minStatusRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		w := s.current()
		if w == nil || !s.cluster.Leading() || !s.cluster.Synced() {
			continue // a wake signal follows
		}
		err := s.pass(ctx, w)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.cluster.log.Warn("cannot write the status of Ingresses, retrying", zap.Error(err), zap.Duration("in", retry))
			timer.Reset(retry)
			retry = min(2*retry, maxStatusRetry)
			continue
		}
		retry = minStatusRetry
	}
}

// pass patches all statuses that differ. It ends early if something newer is published.
func (s *status) pass(ctx context.Context, w *wanted) error {
	failed, first := 0, error(nil)
	for i := range len(w.mine) + len(w.notMine) {
		if s.current() != w || !s.cluster.Leading() {
			return nil
		}
		ref, mine := model.Ref{}, i < len(w.mine)
		if mine {
			ref = w.mine[i]
		} else {
			ref = w.notMine[i-len(w.mine)]
		}
		err := s.set(ctx, ref, mine, w)
		if err == nil {
			continue
		}
		if failed++; first == nil {
			first = fmt.Errorf("%v: %w", ref, err)
		}
		if answer := apierrors.APIStatus(nil); !errors.As(err, &answer) {
			return first // no response: other requests would get none either
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d failed, the first: %w", failed, first)
	}
	s.done(w)
	return nil
}

// set adds the addresses to one Ingress, or removes them. It does nothing if the Ingress does not exist.
func (s *status) set(ctx context.Context, ref model.Ref, mine bool, w *wanted) error {
	ingress := find[*networkingv1.Ingress](s.cluster.ingresses, ref.Namespace, ref.Name)
	for try := 1; ; try++ {
		if ingress == nil || string(ingress.UID) != ref.UID {
			return nil
		}
		wants, different := w.status(ingress.Status.LoadBalancer.Ingress, mine)
		if !different {
			return nil
		}
		err := s.patch(ctx, ingress, wants, !mine)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || try == statusTries:
			return err
		}
		if ingress, err = s.get(ctx, ref); err != nil {
			return err
		}
	}
}

// status returns the addresses that an Ingress should have, and whether they differ from those that it
// has. An Ingress that is not mine keeps the entries of others, with their ports and in their order.
func (w *wanted) status(is []Address, mine bool) (wants []Address, different bool) {
	if mine {
		return w.addresses, !slices.EqualFunc(sorted(is), w.addresses, func(a, b Address) bool { return compare(a, b) == 0 })
	}
	for _, a := range is {
		if !has(w.addresses, a) && !has(w.past, a) {
			wants = append(wants, a)
		}
	}
	return wants, len(wants) < len(is)
}

// has reports whether an address is in all, ignoring ports.
func has(all []Address, a Address) bool {
	return slices.ContainsFunc(all, func(b Address) bool { return compare(a, b) == 0 })
}

// patch writes the addresses. It fails with a conflict if the Ingress has been replaced, or,
// with unchanged, if it has changed at all: entries of others must not be lost.
func (s *status) patch(ctx context.Context, ingress *networkingv1.Ingress, addresses []Address, unchanged bool) error {
	var patch struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion,omitempty"`
		} `json:"metadata"`
		Status struct {
			LoadBalancer struct {
				Ingress []Address `json:"ingress"` // none: null, which removes it
			} `json:"loadBalancer"`
		} `json:"status"`
	}
	patch.Metadata.UID = ingress.UID
	if unchanged {
		patch.Metadata.ResourceVersion = ingress.ResourceVersion
	}
	patch.Status.LoadBalancer.Ingress = addresses
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return s.cluster.clients.statuses.Patch(types.MergePatchType).
		Namespace(ingress.Namespace).Resource("ingresses").Name(ingress.Name).SubResource("status").
		Param("fieldManager", s.cluster.config.Lease).Body(body).Do(ctx).Error()
}

// get reads an Ingress, nil if there is none.
func (s *status) get(ctx context.Context, ref model.Ref) (*networkingv1.Ingress, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	ingress := new(networkingv1.Ingress)
	err := s.cluster.clients.statuses.Get().Namespace(ref.Namespace).Resource("ingresses").Name(ref.Name).Do(ctx).Into(ingress)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return ingress, err
}

// sorted returns the addresses in order, without ports and duplicates; nil for none.
func sorted(addresses []Address) []Address {
	var out []Address
	for _, a := range addresses {
		out = append(out, Address{IP: a.IP, Hostname: a.Hostname})
	}
	slices.SortFunc(out, compare)
	return slices.CompactFunc(out, func(a, b Address) bool { return compare(a, b) == 0 })
}

func compare(a, b Address) int {
	if c := strings.Compare(a.IP, b.IP); c != 0 {
		return c
	}
	return strings.Compare(a.Hostname, b.Hostname)
}
