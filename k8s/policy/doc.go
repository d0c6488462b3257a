// Package policy says what limits the annotations of Kubernetes objects ask for, and
// which part of them is one replica's.
//
// # Annotations
//
// All begin with Prefix; OnIngress and OnService list them. On an Ingress they limit single
// clients. On a Service they are the budget of its backend, by whatever route requests
// arrive.
//
// The parameters of an IngressClass, a ConfigMap, have the names of an Ingress's
// annotations as their keys: they are defaults for its Ingresses. An annotation replaces
// its default, and a rate replaces its default's burst with it; off means no limit where
// the class has one.
//
// Parsing is strict. An unknown name, a value out of range, an annotation on the wrong kind
// of object and an empty value are errors. All errors of an object are reported
// together, in a fixed order. Policies without an error are accepted by limiter.New and
// shield.New.
//
// # Replicas
//
// A limit is one limit of all replicas together. A Division says which part of it is this
// replica's.
package policy
