// Package translate makes a model.Model of a cluster's objects. No other package interprets Kubernetes' types.
//
// # Responsibility
//
// An IngressClass is ours if its spec.controller is Options.Controller. An Ingress is ours if
// spec.ingressClassName names such a class; else if the annotation kubernetes.io/ingress.class does; else, if
// it names none, only if one of our classes is the default one, or with Options.WatchWithoutClass.
//
// # Precedence
//
// Ingresses are read oldest first, by creationTimestamp, then by namespace and name. If two ask for the
// same host, path and type, the older one gets it and the other one's rule is left out. The same holds
// for default backends of a host and of the cluster. Paths are decoded before they are compared.
//
// A host belongs to the namespace of the oldest Ingress that names it, in its rules or in spec.tls. A wildcard
// names all hosts of one label more. Other namespaces get no certificates and no redirects for it, and, unless
// Options.ShareHosts is set, neither rules nor default backends. Rules without host belong to no namespace.
//
// # Problems
//
// A mistake in an object becomes a model.Problem, and as little as possible is left out. A bad policy
// leaves the last good one in force, or without one the class's defaults. A rule whose Service is
// missing stays and has no Backend. A bad Secret leaves the host to the default certificate. There is
// one Problem for each object and reason. Reasons are the constants of this package.
//
// # Promises
//
// The same objects give the same Model, in whatever order they are passed, if the earlier translations
// were the same. No object makes Translate panic, whatever is nil in it. None costs more than some
// milliseconds: the excess of a large one is left out. Memory is bounded by the objects that exist.
package translate
