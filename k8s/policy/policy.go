package policy

import (
	"net/netip"
	"time"

	"github.com/herdshield/shield/limiter"
)

// An Ingress is what an Ingress object asks for: limits of single clients. The
// zero Ingress has none.
type Ingress struct {
	// Zones are the quotas of single clients: a request must pass all of them, and
	// is charged to all or to none. nil: there are none.
	Zones []Zone

	// Key is what tells clients apart: a template with Caddy's placeholders. "" is
	// the client's address.
	Key string

	// IPv6Prefix is how many bits of a client's IPv6 address count in Key: 1 to 128.
	// 0: shield's default, which is 64. ingress-nginx counts all 128.
	IPv6Prefix int

	// PerClient is how many requests one client may have in flight, at most
	// shield.MaxConcurrency. 0: not limited.
	PerClient int

	// Class is the priority of its requests when a backend has not room for all:
	// critical, default or sheddable. "" is default.
	Class string

	// Allow are the addresses that the limits do not count: masked, sorted, each
	// there once. nil: there are none.
	Allow []netip.Prefix

	// RetryAfterMax is the most that Retry-After says: whole seconds, 1 s to
	// 59 s. 0: shield's default.
	RetryAfterMax time.Duration

	// Status is that of refusals for what the client itself did. 0: 429.
	Status int

	// Observe counts what would be refused, and refuses nobody.
	Observe bool

	// Local: the limits are each replica's own, as ingress-nginx's are. Otherwise they
	// are for all replicas together, and Divide gives each its part.
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

// A Service is what a Service object asks for: the budget of its backend, whatever
// way requests come. The zero Service has no limits.
type Service struct {
	// Capacity is what the backend can take in all. A Rate of 0: no limit.
	Capacity limiter.Config

	// Concurrency is how many requests may be in flight to the backend in all, at
	// most shield.MaxConcurrency. 0: not limited, or as many as Adaptive finds.
	Concurrency int
	Adaptive    bool

	// EndpointConcurrency is how many requests may be in flight to each endpoint, from
	// all replicas together: at most shield.MaxConcurrency. 0: not limited.
	EndpointConcurrency int

	// Queue is how many requests may wait for room: 1 to shield.MaxQueue. 0:
	// shield's default; QueueOff: none.
	Queue int

	// QueueTimeout is how long one may wait, at most shield.MaxQueueTimeout. 0:
	// shield's default.
	QueueTimeout time.Duration

	// RetryAfterMax is the most that Retry-After says: whole seconds, 1 s to
	// 59 s. 0: shield's default.
	RetryAfterMax time.Duration

	// Observe counts what would be refused, and refuses nobody.
	Observe bool
}

// QueueOff is a Service's Queue that nobody may wait in.
const QueueOff = -1
