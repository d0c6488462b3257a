package policy

import (
	"net/netip"
	"time"

	"github.com/herdshield/shield/limiter"
)

// An Ingress is the policy of an Ingress object: limits of single clients. The zero Ingress
// has none.
type Ingress struct {
	// Zones are the quotas of single clients: a request must pass all of them, and
	// is charged to all or to none. nil: there are none.
	Zones []Zone

	// Key tells clients apart: a template with Caddy's placeholders. "" is the client's
	// address.
	Key string

	// IPv6Prefix is how many bits of a client's IPv6 address count in Key: 1 to 128.
	// 0: shield's default, 64. ingress-nginx counts all 128.
	IPv6Prefix int

	// PerClient is how many requests one client may have in flight, at most
	// loadshed.MaxConcurrency. 0: not limited.
	PerClient int

	// Class is the priority of its requests when a backend has no capacity for all:
	// critical, default or sheddable. "" is default.
	Class string

	// Allow are the addresses that the limits do not count: masked, sorted, without
	// duplicates. nil: there are none.
	Allow []netip.Prefix

	// RetryAfterMax is the longest Retry-After: whole seconds, 1 s to 59 s. 0: shield's
	// default.
	RetryAfterMax time.Duration

	// Status is the status of rejections that are the client's fault. 0: 429.
	Status int

	// Observe counts what would be rejected, and rejects nothing.
	Observe bool

	// Local limits are for each replica, like ingress-nginx's. Otherwise they are for all
	// replicas together, and Divide gives each its share.
	Local bool
}

// Matters reports whether the policy makes any difference to a request: it limits clients,
// or changes how a Service's limits treat them.
func (p *Ingress) Matters() bool {
	return p.Zones != nil || p.PerClient != 0 || p.Class != "" || p.RetryAfterMax != 0
}

// A Zone is one quota of single clients.
type Zone struct {
	// Name is "rate"; of ingress-nginx's annotations "rps" and "rpm".
	Name string

	// Limit is one that limiter.New accepts.
	Limit limiter.Config
}

// A Service is the policy of a Service object: the budget of its backend, by whatever route
// requests arrive. The zero Service has no limits.
type Service struct {
	// Capacity is what the backend can take in all. A Rate of 0: no limit.
	Capacity limiter.Config

	// Concurrency is how many requests may be in flight to the backend in all, at
	// most loadshed.MaxConcurrency. 0: not limited, or the limit that Adaptive finds.
	Concurrency int
	Adaptive    bool

	// EndpointConcurrency is how many requests may be in flight to each endpoint, from
	// all replicas together: at most loadshed.MaxConcurrency. 0: not limited.
	EndpointConcurrency int

	// Queue is how many requests over the limit may wait: 1 to loadshed.MaxQueue. 0:
	// shield's default; QueueOff: none.
	Queue int

	// QueueTimeout is how long a request may wait, at most loadshed.MaxQueueTimeout. 0:
	// shield's default.
	QueueTimeout time.Duration

	// RetryAfterMax is the longest Retry-After: whole seconds, 1 s to 59 s. 0: shield's
	// default.
	RetryAfterMax time.Duration

	// Observe counts what would be rejected, and rejects nothing.
	Observe bool
}

// QueueOff is the Queue of a Service without one.
const QueueOff = -1
