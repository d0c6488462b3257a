package ingress

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// maxClients is how many rejected clients are remembered for one Service or Ingress, at
// 16 bytes each, from its first rejection on. It is less than shield's default, since a
// cluster may have a thousand of them; clients of a larger herd are deferred.
const maxClients = 1 << 15

// allKeys is how many clients the quotas of all Ingresses remember together, at 18 to 32
// bytes each, and minKeys how many each does at least. Unused ones take no memory.
const (
	allKeys = 1 << 22
	minKeys = limiter.MinKeys
)

// maxKeys returns how many clients each of so many quotas remembers: a power of two, so that
// one more quota rarely changes it.
func maxKeys(quotas int) int {
	n := 1 << 17 // near shield's default
	for n > minKeys && n*quotas > allKeys {
		n /= 2
	}
	return max(n, minKeys)
}

// A protection has the limits for requests of one Origin to one Service: those of both, for
// this replica. Equal protections are served by the same shields.
type protection struct {
	origin  policy.Ingress
	service policy.Service

	// permits is how many requests may be in flight to all endpoints together, where
	// each endpoint's are limited; else 0.
	permits int

	// classes: an Origin of the Service has a class.
	classes bool

	// maxKeys is how many clients each quota remembers.
	maxKeys int

	// sharing is how replicas share the limits; nil: each has its part.
	sharing *caddymodule.Sharing
}

func (p protection) limitsClients() bool { return len(p.origin.Zones) > 0 || p.origin.PerClient > 0 }

func (p protection) limitsService() bool { return p.service.Capacity.Rate > 0 || p.limitsInFlight() }

func (p protection) limitsInFlight() bool {
	return p.service.Concurrency > 0 || p.service.Adaptive || p.service.EndpointConcurrency > 0
}

// apart reports whether two shields are needed, one before the other. One is better: it does
// not charge clients for requests that the backend has no capacity for, and makes one
// appointment for both. But the requests that a client has in flight count for all
// Services of an Ingress, and a shield either observes or enforces.
func (p protection) apart() bool {
	return p.limitsClients() && p.limitsService() && (p.origin.PerClient > 0 || p.origin.Observe != p.service.Observe)
}

// shields returns the shields that requests pass, in order: mostly one or none.
func (p protection) shields(origin *originState, service *serviceState) ([]*caddymodule.Handler, error) {
	clients, backend := p, p
	clients.service = policy.Service{}
	backend.origin.Zones, backend.origin.PerClient = nil, 0
	var parts []protection
	switch {
	case p.apart():
		parts = []protection{clients, backend}
	case p.limitsClients() || p.limitsService():
		parts = []protection{p}
	}
	var handlers []*caddymodule.Handler
	for _, part := range parts {
		h, err := part.shield(origin, service)
		if err != nil {
			return nil, err
		}
		handlers = append(handlers, h)
	}
	return handlers, nil
}

// shield returns the one shield that does all of p.
func (p protection) shield(origin *originState, service *serviceState) (*caddymodule.Handler, error) {
	live := caddymodule.Live{Name: origin.label, Config: p.config(), Key: p.origin.Key, IPv6Prefix: p.origin.IPv6Prefix}
	if p.limitsService() {
		live.Name, live.State = service.label, counted(&service.counts)
	} else {
		live.State = counted(&origin.counts)
	}
	for _, z := range p.origin.Zones {
		live.Zones = append(live.Zones, origin.zone(z.Name))
	}
	if len(p.origin.Allow) > 0 {
		live.Allow = p.origin.Allows
	}
	if live.Config.Classes != nil {
		live.Class = p.origin.Class
	}
	return live.New()
}

// config returns the limits of p.
func (p protection) config() shield.Config {
	c := shield.Config{
		Observe:   p.origin.Observe,
		Capacity:  p.service.Capacity,
		PerClient: p.origin.PerClient,
		Pushback:  pushback.ResponseConfig{Max: p.retryAfterMax(), QuotaMax: p.retryAfterMax(), Status: p.origin.Status},
		Retries:   shield.Retries{MaxClients: maxClients},
	}
	if p.limitsService() && !p.limitsClients() {
		c.Observe = p.service.Observe
	}
	for _, z := range p.origin.Zones {
		c.Zones = append(c.Zones, shield.Zone{Name: z.Name, Limit: z.Limit, MaxKeys: p.maxKeys})
	}
	p.share(&c)
	if p.limitsInFlight() {
		p.limitInFlight(&c)
		c.Queue = p.queue()
		if p.classes {
			c.Classes = []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}, {Name: loadshed.Sheddable}}
		}
	} else if p.origin.PerClient > 0 {
		c.Concurrency = loadshed.MaxConcurrency
	}
	return c
}

// retryAfterMax returns the shorter of what both ask for; 0: the default.
func (p protection) retryAfterMax() time.Duration {
	a, b := p.origin.RetryAfterMax, p.service.RetryAfterMax
	if !p.limitsService() {
		b = 0
	}
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// limitInFlight sets how many requests may be in flight to the Service: at most as many as
// its endpoints may have in all, so that an admitted request finds a permit.
func (p protection) limitInFlight(c *shield.Config) {
	c.Concurrency = p.service.Concurrency
	if p.service.Adaptive {
		c.Adaptive = new(loadshed.AdaptiveConfig)
	}
	if p.service.EndpointConcurrency == 0 {
		return
	}
	permits := min(max(1, p.permits), loadshed.MaxConcurrency) // without any endpoint, a lack of permits is not what fails requests
	switch {
	case c.Adaptive != nil:
		c.Adaptive.Max = min(permits, loadshed.MaxLimit)
		c.Adaptive.Min = min(2, c.Adaptive.Max)
	case c.Concurrency == 0 || c.Concurrency > permits:
		c.Concurrency = permits
	}
}

// queue returns where requests over the limit wait.
func (p protection) queue() loadshed.QueueConfig {
	if p.service.Queue == policy.QueueOff {
		return loadshed.QueueConfig{Size: loadshed.NoQueue}
	}
	return loadshed.QueueConfig{Size: p.service.Queue, Timeout: p.service.QueueTimeout}
}

// maxLabel bounds a shield's name. Names of Kubernetes' objects may be longer.
const maxLabel = 64

// backendLabel returns the name of a Backend in metrics.
func backendLabel(b *model.Backend) string { return label(b.Service.Ref, "/"+b.Port) }

// label returns the name of an object in metrics, logs and status, with more after it. A
// long name is cut, and gets a hash.
func label(r model.Ref, more string) string {
	kind := map[string]string{"Ingress": "ingress/", "Service": "service/"}[r.Kind]
	l := kind + r.Namespace + "/" + r.Name + more
	if len(l) <= maxLabel {
		return l
	}
	hash := fnv.New64a()
	fmt.Fprint(hash, l)
	// No name of an object has a colon, so none can be mistaken for this.
	tail := ":" + strconv.FormatUint(hash.Sum64(), 36) + more
	if len(tail) > maxLabel/2 { // a port's name is short, a quota's too
		tail = tail[:maxLabel/2]
	}
	return l[:maxLabel-len(tail)] + tail
}
