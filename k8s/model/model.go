// Package model describes in plain structs what a cluster asks of shield: routes, limits
// and certificates. Front ends make a Model of the objects they know: package translate
// does for Ingresses, and one for the Gateway API would be the second. Package ingress
// makes it live. The package knows neither Kubernetes' types nor clocks nor traffic.
//
// A Model is immutable once it has been handed on.
package model

import (
	"crypto/tls"
	"net/netip"
	"regexp"

	"github.com/herdshield/shield/k8s/policy"
)

// A Model is all that the objects of a cluster ask for at one moment.
type Model struct {
	// Rules are the routes, in order of precedence: of two with the same Host, Path and
	// Exact, the first counts.
	Rules []Rule

	// Default gets the requests that match no rule. nil: they are answered 404.
	Default *Target

	// Certificates are in order of precedence: of two with the same host name the first counts.
	// DefaultCertificate is for all other names; nil means a self-signed one.
	Certificates       []Certificate
	DefaultCertificate *tls.Certificate

	// Problems are what is wrong with the objects, for their owners to read.
	Problems []Problem

	// Mine are the objects whose status the controller writes. NotMine are those whose
	// status still has its addresses, though they are no longer the controller's.
	Mine, NotMine []Ref

	// Replicas are the names of shield's own replicas that may be serving now, sorted.
	// Empty: they are not known, or not needed.
	Replicas []string
}

// A Rule sends the requests for a host and path to a Target.
type Rule struct {
	// Host is in lower case, without port. "*.example.com" matches one label
	// more, "" every host that no other rule names.
	Host string

	// Path is decoded, and begins with a slash. Exact means this path only. Otherwise
	// it is a prefix by elements: "/a" and "/a/" match /a, /a/ and /a/b, but not /ab.
	Path  string
	Exact bool

	// Pattern, unless nil, matches the paths of the rule instead: it is anchored at
	// their beginning. Path is then its text, which has precedence by its length.
	Pattern *regexp.Regexp

	// AnyCase rules match all paths that begin with the bytes of Path, in upper or lower case,
	// whether they are Exact or not. They have precedence by their length, with patterns.
	AnyCase bool

	// Fallback rules match only if no other rule of the Host does. An object's default
	// backend is one for its own hosts.
	Fallback bool

	Target
}

// A Target is where requests go, and whose limits apply on the way.
type Target struct {
	// Origin is the object that asked for it.
	Origin *Origin

	// Backend is nil if the Service or its port does not exist. Then requests are answered 503.
	Backend *Backend

	// Closed, unless empty, is why requests are answered 503: the object asks for a guard
	// that is not there. Its rules stay its own.
	Closed string

	// Filters are what is done to requests and answers; nil, as for most: nothing. They
	// are shared by all rules of an Ingress.
	Filters *policy.Filters

	// Rewrite is what the path of requests becomes, after all limits; nil: it stays.
	Rewrite *Rewrite

	// Timeouts are how long a request may take there.
	Timeouts Timeouts
}

// Timeouts are those of [policy.Timeouts].
type Timeouts = policy.Timeouts

// A Rewrite changes paths of requests that a rule matches. One of its fields Pattern and
// Prefix is set, or none: then To takes the place of the whole path.
type Rewrite struct {
	Pattern *regexp.Regexp // the rule's: To may have its groups, as $1 to $9
	Prefix  string         // as Rule.Path: To takes the place of this part
	To      string         // decoded
}

// An Origin is an object that routes requests: an Ingress.
type Origin struct {
	Ref

	// Policy limits its clients, over all its rules together.
	Policy policy.Ingress

	// TLSHosts are the hosts, as in Rule.Host, for which it asks for TLS, with or without a certificate. Plain
	// HTTP for them is redirected, unless NoRedirect is set. With ForceRedirect plain HTTP for all hosts is.
	TLSHosts                  []string
	NoRedirect, ForceRedirect bool
}

// A Service is protected as a whole, by whatever routes requests get there.
type Service struct {
	Ref
	Policy policy.Service
}

// A Backend is one port of a Service. Backends of one Service share the *Service.
type Backend struct {
	Service  *Service
	Port     string // its name, or its number if it has none: for logs and metrics
	Protocol Protocol

	// Endpoints are sorted by address, without duplicates.
	Endpoints []Endpoint
}

// A Protocol is the protocol of a Backend.
type Protocol uint8

// The protocols.
const (
	HTTP  Protocol = iota // HTTP/1.1
	H2C                   // HTTP/2 without TLS: gRPC
	HTTPS                 // HTTP/1.1 or HTTP/2 over TLS; the certificate is not verified, as other ingress controllers do by default
)

// An Endpoint is one address of a Backend.
type Endpoint struct {
	Addr  netip.AddrPort
	State EndpointState
}

// EndpointState says what an Endpoint may be used for.
type EndpointState uint8

// The states of an Endpoint.
const (
	Ready    EndpointState = iota // gets requests
	Draining                      // terminating, but serving: gets requests only if no endpoint is Ready
	NotReady                      // gets none
)

// A Certificate with the names that it is for.
type Certificate struct {
	Hosts       []string // as Rule.Host
	Certificate *tls.Certificate
}

// A Ref names an object.
type Ref struct {
	Kind      string // Ingress, Service, Secret, IngressClass
	Namespace string
	Name      string
	UID       string
}

// String returns "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// A Problem is something wrong with an object. Reason is in CamelCase and from a
// fixed set. Message says what is wrong, what is wanted, and where.
type Problem struct {
	Object  Ref
	Reason  string
	Message string
}
