package ingress

import (
	"crypto/tls"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/route"
)

// A Snapshot has everything that requests need. It is immutable, but points to the counts
// of requests in flight and to appointments.
type Snapshot struct {
	// Generation counts the Snapshots from 1.
	Generation uint64
	Model      *model.Model

	table        *route.Table
	passages     map[*model.Target]*passage
	certificates *certificates
	shields      []*caddymodule.Handler
	backends     []backendEntry
	traffics     []*traffic
	settle       func() // see builder.updateEndpoints
}

// backendEntry is a Backend in metrics.
type backendEntry struct {
	*model.Backend
	label     string
	endpoints *endpoints
}

// Certificate returns the certificate for a TLS server name, "" if the client sends none:
// that of the name, of the wildcard one label above, or the default one. It is never
// nil.
func (s *Snapshot) Certificate(name string) *tls.Certificate { return s.certificates.find(name) }

// A passage is the way of requests from one Origin to one Backend, with the same timeouts: its
// shields, and as the last step the passage itself, which passes them to an endpoint.
type passage struct {
	origin  *model.Origin
	traffic *traffic
	first   caddyhttp.Handler // a shield, or the passage itself; nil: there is no Backend
	*endpoints
	protocol model.Protocol
	limited  bool          // what is in flight is limited, so that idle clients must not hold permits
	maxWait  time.Duration // for a permit at an endpoint
	timeouts model.Timeouts
}

// guarded is a shield and the handler behind it.
type guarded struct {
	shield *caddymodule.Handler
	next   caddyhttp.Handler
}
