// Package model says what a cluster asks of shield, in plain structs: which requests
// go where, what may be asked of whom, and which certificates there are. Front ends
// (package translate for Ingresses; one for the Gateway API would be the second)
// make a Model of the objects they know; package ingress makes it live. Nothing in
// it knows Kubernetes' types, clocks or what traffic has done.
//
// A Model is not changed any more once it has been handed on.
package model

import (
	"crypto/tls"
	"net/netip"

	"github.com/herdshield/shield/k8s/policy"
)

// A Model is all that the objects of a cluster ask for at one moment.
type Model struct {
	// Rules say which requests go where, those with precedence first: where two of
	// them have the same Host, Path and Exact, the first counts.
	Rules []Rule

	// Default gets the requests that no rule takes. nil: they are answered 404.
	Default *Target

	// Certificates, those with precedence first: of two with the same host name the
	// first counts. DefaultCertificate is for all other names; nil means one
	// that shield signs by itself.
	Certificates       []Certificate
	DefaultCertificate *tls.Certificate

	// Problems are what is wrong with the objects, for their owners to read.
	Problems []Problem

	// Mine are the objects that the controller is responsible for, for their status.
	// NotMine are those that had been, by their status, and are not any more.
	Mine, NotMine []Ref

	// Replicas are the names of this shield's own replicas, sorted: all that may be
	// serving now. Empty: it is not known, or nobody has asked.
	Replicas []string
}

// A Rule sends the requests for a host and path to a Target.
type Rule struct {
	// Host is in lower case, without port; "*.example.com" stands for one label
	// more, "" for every host that no other rule names.
	Host string

	// Path is decoded, and begins with a slash. Exact means this path only; otherwise
	// it is a prefix, by elements: "/a" and "/a/" take /a, /a/ and /a/b, but not /ab.
	Path  string
	Exact bool

	// Fallback: only where no other rule of the Host takes the path. It is what an
	// object's default backend is for its own hosts.
	Fallback bool

	Target
}

// A Target is where requests go, and whose limits they meet on their way.
type Target struct {
	// Origin is the object that asked for it.
	Origin *Origin

	// Backend is nil if there is none: no such Service, or no such port. Then
	// requests are answered 503.
	Backend *Backend
}

// An Origin is an object that routes requests: an Ingress.
type Origin struct {
	Ref

	// Policy limits its clients: whatever rule of it a request takes.
	Policy policy.Ingress

	// TLSHosts are the hosts, as in Rule.Host, for which it asks for TLS, whether there
	// is a certificate or not. Plain HTTP for them is redirected, unless NoRedirect
	// says not to.
	TLSHosts   []string
	NoRedirect bool
}

// A Service is what is protected as a whole, by whatever ways requests get there.
type Service struct {
	Ref
	Policy policy.Service
}

// A Backend is one port of a Service. Backends of one Service share the *Service.
type Backend struct {
	Service  *Service
	Port     string // its name, or its number if it has none: for logs and metrics
	Protocol Protocol

	// Endpoints are sorted by address, each there once.
	Endpoints []Endpoint
}

// A Protocol is what a Backend speaks.
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
	Draining                      // terminating, but serving: gets requests only if nobody is Ready
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

// A Problem is something wrong with an object. Reason is in CamelCase and of a
// fixed set, Message says what is, what is wanted, and where.
type Problem struct {
	Object  Ref
	Reason  string
	Message string
}
