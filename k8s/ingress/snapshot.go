package ingress

import (
	"crypto/tls"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/route"
)

// A Snapshot is all that requests need to know. It is not changed any more once it is
// there; what it points to counts what is in flight, and what was promised.
type Snapshot struct {
	// Generation counts the Snapshots from 1.
	Generation uint64
	Model      *model.Model

	table        *route.Table
	ways         map[way]*passage
	certificates *certificates
	shields      []*caddymodule.LiveHandler
	backends     []liveBackend
	settle       func() // see builder.updateEndpoints
}

// way is what tells one passage from another.
type way struct {
	origin  *model.Origin
	backend *model.Backend
}

// liveBackend is a Backend at work, for metrics.
type liveBackend struct {
	*model.Backend
	label     string
	endpoints *endpoints
}

// Certificate returns the certificate for a TLS server name, "" if the client sends none:
// that of the name, of the wildcard one label above, or the default one. It is never
// nil.
func (s *Snapshot) Certificate(name string) *tls.Certificate { return s.certificates.find(name) }

// A passage is what requests meet on their way from one Origin to one Backend. It is
// the last step itself: the endpoint.
type passage struct {
	origin *model.Origin
	first  caddyhttp.Handler // a shield, or the passage itself; nil: there is no Backend
	*endpoints
	protocol model.Protocol
	limited  bool          // what is in flight is limited, so that nobody must hold a place for nothing
	patience time.Duration // how long to wait for a place at an endpoint
}

// guarded is one shield, and what comes after it.
type guarded struct {
	shield *caddymodule.LiveHandler
	next   caddyhttp.Handler
}
