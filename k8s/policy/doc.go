// Package policy says what limits the annotations of Kubernetes objects ask for, and
// which part of them is one replica's.
//
// # Annotations
//
// All begin with Prefix. On an Ingress they limit single clients, on a Service they
// are the budget of its backend, whatever way requests get there.
//
//	Ingress               value                          meaning
//	rate                  50/s, 100/m, 3/h, off          what one client may do
//	burst                 whole number                   of it at once; default: one second's worth, at least 1
//	key                   text with placeholders         who is one client; default: the client's address
//	concurrency           1 to 1000000, off              what one client may have in flight
//	class                 critical, default, sheddable   who is let in first
//	allow-cidrs           addresses, with commas         who is not counted
//	retry-after-max       1s to 59s                      the most that Retry-After says
//	mode                  enforce, observe
//	ssl-redirect          true, false                    see SSLRedirect
//
//	Service               value                          meaning
//	capacity              500/s, 9000/m                  what the backend can take in all
//	burst                 whole number                   of it at once
//	concurrency           1 to 1000000, adaptive         what may be in flight to it in all
//	endpoint-concurrency  1 to 1000000                   what may be in flight to each endpoint
//	queue                 1 to 10000, off                how many may wait for room
//	queue-timeout         more than 0, to 1m             how long one may wait
//	retry-after-max       1s to 59s
//	mode                  enforce, observe
//	backend-protocol      HTTP, HTTPS, H2C, GRPC         see BackendProtocol
//
// The parameters of an IngressClass, a ConfigMap, have the names of the first table
// as their keys: they are defaults for its Ingresses. An annotation replaces its
// default, and a rate replaces its default's burst with it; off is no limit where the
// class has one.
//
// Parsing is strict. Whatever is not known, is out of range, is on the wrong kind of
// object or says nothing is an error; all errors of an object are reported
// together, in an order that does not change. What has parsed is accepted by
// limiter.New and shield.New.
//
// # Replicas
//
// A limit is one of all replicas together. A Division says which part of it is this
// one's.
package policy
