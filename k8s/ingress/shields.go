package ingress

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// maxClients is how many refused clients are remembered for one Service or Ingress, at
// 16 bytes each, from its first refusal on. Less than shield's default, since there
// may be a thousand of them in a cluster; a herd that is larger is deferred.
const maxClients = 1 << 15

// allKeys is how many clients the quotas of all Ingresses remember together, at 18 to 32
// bytes each, and fewestKeys how many each does at least. What is not used takes no
// memory.
const (
	allKeys    = 1 << 22
	fewestKeys = limiter.MinKeys
)

// maxKeys returns how many clients each of so many quotas remembers: a power of two,
// so that another quota seldom changes it.
func maxKeys(quotas int) int {
	n := 1 << 17 // near shield's default
	for n > fewestKeys && n*quotas > allKeys {
		n /= 2
	}
	return max(n, fewestKeys)
}

// A protection is what one Origin's requests to one Service meet: what both ask for,
// as it is for this replica. Equal protections are served by the same shields.
type protection struct {
	origin  policy.Ingress
	service policy.Service

	// room is how many requests may be in flight to all endpoints together, where
	// each endpoint's are limited; else 0.
	room int

	// classes: some Origin of the Service has a class.
	classes bool

	// maxKeys is how many clients each quota remembers.
	maxKeys int
}

func (p protection) limitsClients() bool { return len(p.origin.Zones) > 0 || p.origin.PerClient > 0 }

func (p protection) limitsService() bool { return p.service.Capacity.Rate > 0 || p.limitsRoom() }

func (p protection) limitsRoom() bool {
	return p.service.Concurrency > 0 || p.service.Adaptive || p.service.EndpointConcurrency > 0
}

// apart reports whether two shields are needed, one before the other. One is better: it
// charges nobody for what the backend has no room for, and makes one appointment for
// both. But what a client has in flight counts for all Services of an Ingress, and
// a shield either observes or enforces.
func (p protection) apart() bool {
	return p.limitsClients() && p.limitsService() && (p.origin.PerClient > 0 || p.origin.Observe != p.service.Observe)
}

// shields returns what has to be passed, the first one first. Most often it is one,
// or none.
func (p protection) shields(origin *originState, service *serviceState) ([]*caddymodule.LiveHandler, error) {
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
	var handlers []*caddymodule.LiveHandler
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
func (p protection) shield(origin *originState, service *serviceState) (*caddymodule.LiveHandler, error) {
	h := caddymodule.Handler{
		Name: origin.label, Mode: mode(p.origin.Observe),
		Retries:  &caddymodule.Retries{MaxClients: new(maxClients)},
		Pushback: &caddymodule.Pushback{Respond: "direct"},
	}
	live := caddymodule.Live{}
	if len(p.origin.Allow) > 0 {
		live.Allow = p.origin.Allows
	}
	if !p.limitsService() {
		live.Backend = counted(&origin.counts)
	} else {
		h.Name, live.Backend = service.label, counted(&service.counts)
		if !p.limitsClients() {
			h.Mode = mode(p.service.Observe)
		}
	}
	for _, z := range p.origin.Zones {
		zone := &caddymodule.Zone{Name: z.Name, Key: p.origin.Key, Rate: rate(z.Limit), MaxKeys: &p.maxKeys}
		if p.origin.IPv6Prefix > 0 {
			zone.IPv6Prefix = &p.origin.IPv6Prefix
		}
		h.Zones = append(h.Zones, zone)
		live.Zones = append(live.Zones, origin.zone(z.Name))
	}
	if p.service.Capacity.Rate > 0 {
		h.Capacity = new(rate(p.service.Capacity))
	}
	if p.limitsRoom() {
		h.Concurrency, h.Queue = p.concurrency(), p.queue()
	}
	if p.origin.PerClient > 0 {
		if h.Concurrency == nil {
			h.Concurrency = &caddymodule.Concurrency{Limit: shield.MaxConcurrency}
		}
		h.Concurrency.Per = &caddymodule.PerClient{Key: p.origin.Key, Limit: p.origin.PerClient}
		live.PerClientIPv6Prefix = p.origin.IPv6Prefix
	}
	if p.classes && p.limitsRoom() {
		h.Classes = []*caddymodule.Class{{Name: "critical"}, {Name: "default"}, {Name: "sheddable"}}
		live.Class = p.origin.Class
	}
	if longest := p.retryAfterMax(); longest > 0 {
		h.Pushback.Max = new(caddy.Duration(longest))
	}
	if p.origin.Status > 0 {
		h.Pushback.Status = &p.origin.Status
	}
	live.Handler = h
	return live.New()
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

// concurrency returns how many requests may be in flight to the Service: no more than
// its endpoints may have in all, so that one that is let in finds a place.
func (p protection) concurrency() *caddymodule.Concurrency {
	c := &caddymodule.Concurrency{Limit: p.service.Concurrency, Adaptive: p.service.Adaptive}
	if p.service.EndpointConcurrency == 0 {
		return c
	}
	room := min(max(1, p.room), shield.MaxConcurrency) // without any endpoint it is not for want of room that nobody is served
	switch {
	case p.service.Adaptive:
		room = min(room, loadshed.MaxLimit)
		c.Max = &room
		c.Min = new(min(2, room))
	case c.Limit == 0 || c.Limit > room:
		c.Limit = room
	}
	return c
}

// queue returns where requests wait for room. Endpoints' limits have a queue by
// default, as an adaptive one has.
func (p protection) queue() *caddymodule.Queue {
	size := p.service.Queue
	if size == 0 && p.service.EndpointConcurrency > 0 {
		size = shield.DefaultQueue
	}
	switch {
	case size == policy.QueueOff:
		return &caddymodule.Queue{Off: true}
	case size == 0 && p.service.QueueTimeout == 0:
		return nil
	case size == 0:
		size = shield.DefaultQueue
	}
	q := &caddymodule.Queue{Size: &size}
	if p.service.QueueTimeout > 0 {
		q.Timeout = new(caddy.Duration(p.service.QueueTimeout))
	}
	return q
}

func rate(c limiter.Config) caddymodule.Rate {
	r := caddymodule.Rate{Rate: c.Rate}
	if c.Per > 0 {
		r.Per = new(caddy.Duration(c.Per))
	}
	if c.Burst > 0 {
		r.Burst = &c.Burst
	}
	return r
}

func mode(observe bool) string {
	if observe {
		return "observe"
	}
	return "enforce"
}

// maxLabel is how long a shield's name may be. Those of Kubernetes' objects may be
// longer.
const maxLabel = 64

// label returns how metrics, logs and status call an object, with more after it: as
// much of its name as there is room for, and a hash of the rest.
func label(r model.Ref, more string) string {
	kind := map[string]string{"Ingress": "ingress/", "Service": "service/"}[r.Kind]
	l := kind + r.Namespace + "/" + r.Name + more
	if len(l) <= maxLabel {
		return l
	}
	hash := fnv.New64a()
	fmt.Fprint(hash, l)
	// No name of an object has a colon, so nobody can have theirs taken for this.
	tail := ":" + strconv.FormatUint(hash.Sum64(), 36) + more
	if len(tail) > maxLabel/2 { // a port's name is short, a quota's too
		tail = tail[:maxLabel/2]
	}
	return l[:maxLabel-len(tail)] + tail
}
