// Package translate makes a model.Model of a cluster's objects: it is the one place
// that knows what Kubernetes' types mean.
//
// # Whose Ingress is it
//
// An IngressClass is ours if its spec.controller is Options.Controller. An Ingress
// is ours if spec.ingressClassName names such a class; else if the annotation
// kubernetes.io/ingress.class does; else, if it names none, only where one of our
// classes is the default one, or with Options.WatchWithoutClass.
//
// # Who is first
//
// Ingresses are read oldest first, by creationTimestamp, then by namespace and name.
// Where two ask for the same host, path and type, the older one has it and the other
// one's rule is left out. The same holds for default backends, of a host and of the
// cluster. Paths are decoded before that: two that requests cannot tell apart are one,
// however they are written.
//
// A host belongs to the namespace of the oldest Ingress that names it, in its rules or
// in spec.tls. To name a wildcard is to name all hosts of one label more. Other
// namespaces have no certificates and no redirects for it, and neither rules nor
// default backends, unless Options.ShareHosts says so. To be without host belongs to
// nobody.
//
// # What is wrong with an object
//
// It becomes a model.Problem, and as little as possible is left out: a bad policy
// leaves the last good one in force (at first sight: the class's defaults), a rule
// whose Service is missing stays and has no Backend, a bad Secret leaves the host to
// the default certificate. There is one Problem for each object and reason. Reasons
// are the constants of this package.
//
// # Promises
//
// The same objects give the same Model, in whatever order they are passed, if what
// was translated before is the same, too. No object makes Translate panic, whatever
// is nil in it, and none costs more than some milliseconds: what is too large in one is
// left out. What is remembered is bounded by the objects that are there.
package translate
