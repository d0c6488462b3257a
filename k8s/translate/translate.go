package translate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/model"
)

// DefaultController is the spec.controller of IngressClasses that are shield's.
const DefaultController = "herdshield.io/ingress"

// Objects are all objects of a cluster that matter. Their order does not, nils are
// skipped, and nothing in them is modified. A Model shares no memory with them, but
// for strings.
type Objects struct {
	Classes    []*networkingv1.IngressClass
	Ingresses  []*networkingv1.Ingress
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Secrets    []*corev1.Secret
	ConfigMaps []*corev1.ConfigMap // that IngressClasses have their parameters in
}

// Options say how objects are read.
type Options struct {
	// Controller is the spec.controller of the IngressClasses that are ours. "":
	// DefaultController.
	Controller string

	// ClassName is for those who may not read IngressClasses, which belong to the
	// cluster: the class of that name is ours, and has no parameters. Objects.Classes
	// are then not looked at.
	ClassName string

	// WatchWithoutClass takes Ingresses that name no class, also where no class of
	// ours is the default one.
	WatchWithoutClass bool

	// NginxAnnotations reads ingress-nginx's limits of Ingresses that have none of
	// shield's own.
	NginxAnnotations bool

	// DefaultCertificate is the Secret ("namespace/name") for hosts without one.
	DefaultCertificate string

	// Self is shield's own Service ("namespace/name"), for Model.Replicas. "": they
	// are not asked for.
	Self string

	// Published are the addresses, IPs and host names, that shield writes into the
	// status of its Ingresses. An Ingress that is not ours, and has one of them there,
	// had been ours if it was seen as such, or if it names a class that there is not,
	// as far as classes can be read; all others are never touched.
	Published []string

	// PublishService is the Service ("namespace/name") whose addresses are written
	// there instead of Published: those of its load balancer, and its external IPs. Those
	// that it had before are remembered.
	PublishService string

	// ShareHosts lets Ingresses of several namespaces have rules for one host.
	// Otherwise only those of the namespace that it belongs to may.
	ShareHosts bool

	// PreferIPv6 takes IPv6 addresses of Services that have both. Otherwise it is
	// IPv4. The other family is used where the preferred one has nobody who serves.
	PreferIPv6 bool

	// Now tells whether a certificate has expired. nil: time.Now.
	Now func() time.Time
}

// A Translator makes Models. It remembers the last good policy of every IngressClass,
// Ingress and Service that it has read one of, by UID and as long as the object is
// there; the certificates in use, by the UID and resourceVersion of their Secret; whose
// status may have shield's addresses, and some addresses of PublishService. It is not for concurrent use.
type Translator struct {
	opts Options
	memory
	expires time.Time
}

// memory is what one translation leaves to the next.
type memory struct {
	classes      map[identity]classDefaults
	ingresses    map[identity]ingressPolicy
	services     map[identity]servicePolicy
	certificates map[identity]*secretCertificate

	// statuses has the Ingresses that are ours, or were: true when they have been
	// seen with our addresses since.
	statuses  map[identity]bool
	addresses []string // of PublishService; those that it had last come first
}

// newMemory returns one with room for as much as there was last.
func newMemory(last memory) memory {
	return memory{
		classes:      make(map[identity]classDefaults, len(last.classes)),
		ingresses:    make(map[identity]ingressPolicy, len(last.ingresses)),
		services:     make(map[identity]servicePolicy, len(last.services)),
		certificates: make(map[identity]*secretCertificate, len(last.certificates)),
		statuses:     make(map[identity]bool, len(last.statuses)),
	}
}

// keep copies what is remembered of objects that are there, but were not read.
func keep[T any, P object[T], V any](all []P, last, next map[identity]V) {
	for _, o := range all {
		if o == nil {
			continue
		}
		id := identityOf(o)
		if _, read := next[id]; read {
			continue
		}
		if v, seen := last[id]; seen {
			next[id] = v
		}
	}
}

// New returns a Translator that has seen nothing yet.
func New(o Options) *Translator {
	if o.Controller == "" {
		o.Controller = DefaultController
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Translator{opts: o}
}

// Expires is when the first of the certificates expires that the last Model has:
// then the same objects give another Model. Zero: there are none.
func (t *Translator) Expires() time.Time { return t.expires }

// Translate returns what the objects ask for.
func (t *Translator) Translate(o Objects) *model.Model {
	r := &run{
		opts: &t.opts, last: t.memory, next: newMemory(t.memory), now: t.opts.Now(),
		services: indexed(o.Services), secrets: indexed(o.Secrets), configMaps: indexed(o.ConfigMaps),
		slices:   slicesByService(o.Slices),
		rules:    make(map[place]*claim, 4*len(o.Ingresses)),
		backends: make(map[portKey]*model.Backend, len(t.memory.services)),
		used:     make(map[key]*model.Service, len(t.memory.services)),
		problems: make(problems),
	}
	r.readClasses(o.Classes)
	m := new(model.Model)
	ours := r.readIngresses(o.Ingresses, m)
	r.readNames(ours)

	var catchAll *model.Target
	for _, in := range ours {
		r.route(in, &catchAll)
	}
	for _, in := range ours {
		r.borrow(in, catchAll)
	}
	m.Default = catchAll
	m.Rules = r.sortedRules()
	m.Certificates = r.certificates(ours)
	m.DefaultCertificate = r.defaultCertificate()
	m.Replicas = r.replicas()
	m.Problems = r.problems.sorted()

	// Who is not ours, or not used, for a moment only has not changed its policy.
	keep(o.Classes, r.last.classes, r.next.classes)
	keep(o.Ingresses, r.last.ingresses, r.next.ingresses)
	keep(o.Services, r.last.services, r.next.services)
	t.memory, t.expires = r.next, r.expires
	return m
}

// A run is one translation.
type run struct {
	opts       *Options
	last, next memory
	now        time.Time
	expires    time.Time

	services   map[key]*corev1.Service
	secrets    map[key]*corev1.Secret
	configMaps map[key]*corev1.ConfigMap
	slices     map[key][]*discoveryv1.EndpointSlice // by Service

	classes      map[string]*classDefaults // ours
	others       map[string]bool           // whether a class that there is is another controller's
	defaultClass *classDefaults            // of Ingresses that name none; nil: those are not ours

	named, implied names // hosts in specs, and in certificates alone

	rules    map[place]*claim
	used     map[key]*model.Service
	backends map[portKey]*model.Backend
	problems problems
}

// A key is what objects of one kind are found by.
type key struct{ namespace, name string }

func (k key) String() string { return k.namespace + "/" + k.name }

// splitKey reads "namespace/name".
func splitKey(s string) key {
	ns, name, _ := strings.Cut(s, "/")
	return key{ns, name}
}

// An identity tells an object from one of the same name that was there before.
type identity string

func identityOf(o metav1.Object) identity {
	if uid := o.GetUID(); uid != "" {
		return identity(uid)
	}
	return identity(o.GetNamespace() + "/" + o.GetName()) // an API server always gives a UID
}

func refTo(kind string, o metav1.Object) model.Ref {
	return model.Ref{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
}

// An object is a pointer to one of Kubernetes' structs.
type object[T any] interface {
	*T
	metav1.Object
}

func indexed[T any, P object[T]](list []P) map[key]P {
	index := make(map[key]P, len(list))
	for _, o := range list {
		if o == nil {
			continue
		}
		k := key{o.GetNamespace(), o.GetName()}
		// Two of one name cannot be in an API server. If they are here, their order
		// must not matter.
		if other := index[k]; other == nil || o.GetUID() < other.GetUID() {
			index[k] = o
		}
	}
	return index
}

// oldestFirst is the order in which objects have their say.
func oldestFirst[P metav1.Object](a, b P) int {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(
		ta.Time.Compare(tb.Time),
		strings.Compare(a.GetNamespace(), b.GetNamespace()),
		strings.Compare(a.GetName(), b.GetName()),
		strings.Compare(string(a.GetUID()), string(b.GetUID())),
	)
}

func compareRefs(a, b model.Ref) int {
	return cmp.Or(
		strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
		strings.Compare(a.UID, b.UID),
	)
}

// withoutNil returns a copy of list that may be sorted.
func withoutNil[T any, P object[T]](list []P) []P {
	return slices.DeleteFunc(slices.Clone(list), func(o P) bool { return o == nil })
}
