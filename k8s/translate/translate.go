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
	"github.com/herdshield/shield/k8s/policy"
)

// DefaultController is the spec.controller of IngressClasses that are shield's.
const DefaultController = "herdshield.io/ingress"

// Objects are all relevant objects of a cluster, in any order. Nils are skipped, and no
// object is modified. A Model shares no memory with them, except for strings.
type Objects struct {
	Classes    []*networkingv1.IngressClass
	Ingresses  []*networkingv1.Ingress
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Secrets    []*corev1.Secret
	ConfigMaps []*corev1.ConfigMap // with the parameters of IngressClasses
}

// Options say how objects are read.
type Options struct {
	// Controller is the spec.controller of the IngressClasses that are ours. "": DefaultController.
	Controller string

	// ClassName is for a controller that may not read IngressClasses, which are cluster-wide: the class
	// of that name is ours, and has no parameters. Objects.Classes are then ignored.
	ClassName string

	// WatchWithoutClass takes Ingresses that name no class, even if no class of ours is the default one.
	WatchWithoutClass bool

	// NginxAnnotations reads ingress-nginx's limits of Ingresses that have none of shield's own.
	NginxAnnotations bool

	// Timeouts are those of Ingresses without any of their own.
	Timeouts model.Timeouts

	// DefaultCertificate is the Secret ("namespace/name") for hosts without one.
	DefaultCertificate string

	// Self is shield's own Service ("namespace/name"), for Model.Replicas. "": there are no Replicas.
	Self string

	// Published are the addresses, IPs and host names, that shield writes into the status of its Ingresses. An
	// Ingress of another controller with one of them counts as formerly ours if it was ours before, or if it
	// names a class that does not exist, as far as classes can be read. All others are never touched.
	Published []string

	// PublishService is the Service ("namespace/name") whose addresses are written instead of Published:
	// those of its load balancer, and its external IPs. Its former addresses are remembered.
	PublishService string

	// ShareHosts lets Ingresses of several namespaces have rules for one host.
	// Otherwise only those of the namespace that it belongs to may.
	ShareHosts bool

	// AuthHosts are the hosts that auth-url may name, each perhaps with "*." for any first label.
	// nil: any.
	AuthHosts []string

	// PreferIPv6 takes the IPv6 addresses of Services with both families; the default is
	// IPv4. The other family is used if the preferred one has no serving endpoint.
	PreferIPv6 bool

	// Now is the clock that certificates expire by. nil: time.Now.
	Now func() time.Time
}

// A Translator makes Models. It remembers the last good policy of every IngressClass, Ingress and
// Service, by UID and as long as the object exists. It also remembers patterns; parsed certificates, by
// the UID and resourceVersion of their Secret; the objects whose status may have shield's addresses; and
// some addresses of PublishService. It is not for concurrent use.
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
	filters      map[identity]*policy.Filters
	patterns     map[string]compiled // by text; used in the last Model
	certificates map[identity]*secretCertificate

	// statuses has the Ingresses that are ours, or were: true if they have been seen with our addresses since.
	statuses  map[identity]bool
	addresses []string // of PublishService; the latest come first
}

// newMemory returns an empty memory with the capacity of the last one.
func newMemory(last memory) memory {
	return memory{
		classes:      make(map[identity]classDefaults, len(last.classes)),
		ingresses:    make(map[identity]ingressPolicy, len(last.ingresses)),
		services:     make(map[identity]servicePolicy, len(last.services)),
		filters:      make(map[identity]*policy.Filters, len(last.filters)),
		patterns:     make(map[string]compiled, len(last.patterns)),
		certificates: make(map[identity]*secretCertificate, len(last.certificates)),
		statuses:     make(map[identity]bool, len(last.statuses)),
	}
}

// keep copies the memory of objects that exist, but were not read.
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

// New returns a Translator without memory.
func New(o Options) *Translator {
	if o.Controller == "" {
		o.Controller = DefaultController
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Translator{opts: o}
}

// Expires returns when the first certificate of the last Model expires: from then on the
// same objects give another Model. Zero: there is none.
func (t *Translator) Expires() time.Time { return t.expires }

// Translate returns what the objects ask for.
func (t *Translator) Translate(o Objects) *model.Model {
	r := &run{
		opts: &t.opts, last: t.memory, next: newMemory(t.memory), now: t.opts.Now(),
		services: indexed(o.Services), secrets: indexed(o.Secrets), configMaps: indexed(o.ConfigMaps),
		slices:   slicesByService(o.Slices),
		rules:    make(map[ruleKey]*claim, 4*len(o.Ingresses)),
		backends: make(map[portKey]*model.Backend, len(t.memory.services)),
		used:     make(map[key]*model.Service, len(t.memory.services)),
		patterns: make(map[string]int),
		problems: make(problems),
	}
	r.readClasses(o.Classes)
	m := new(model.Model)
	ours := r.readIngresses(o.Ingresses, m)
	r.readNames(ours)
	r.readHosts(ours)

	var catchAll *model.Target
	for _, in := range ours {
		r.route(in, &catchAll)
	}
	for _, in := range ours {
		r.inheritDefault(in, catchAll)
		r.redirectWWW(in)
	}
	m.Default = catchAll
	m.Rules = r.sortedRules()
	m.Certificates = r.certificates(ours)
	m.DefaultCertificate = r.defaultCertificate()
	m.Replicas = r.replicas()
	m.Problems = r.problems.sorted()

	// An object that is not ours, or not used, for a moment keeps its last good policy.
	keep(o.Classes, r.last.classes, r.next.classes)
	keep(o.Ingresses, r.last.ingresses, r.next.ingresses)
	keep(o.Ingresses, r.last.filters, r.next.filters)
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
	others       map[string]bool           // existing classes: whether they are another controller's
	defaultClass *classDefaults            // of Ingresses that name none; nil: those are not ours

	named, implied names               // hosts in specs, and in certificates alone
	ruled          map[string]bool     // hosts of rules
	anyCase        map[string]bool     // hosts whose paths are in any case
	closed         map[string]*ingress // hosts with a guard that is not there, by the Ingress that asks for it

	rules    map[ruleKey]*claim
	used     map[key]*model.Service
	backends map[portKey]*model.Backend
	patterns map[string]int // their states, by host
	problems problems
}

// A key names an object of a given kind.
type key struct{ namespace, name string }

func (k key) String() string { return k.namespace + "/" + k.name }

// splitKey reads "namespace/name".
func splitKey(s string) key {
	ns, name, _ := strings.Cut(s, "/")
	return key{ns, name}
}

// An identity tells an object from an earlier one of the same name.
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
		// An API server has no duplicate names. If there are some here, their order must not matter.
		if other := index[k]; other == nil || o.GetUID() < other.GetUID() {
			index[k] = o
		}
	}
	return index
}

// oldestFirst is the order of precedence of objects.
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

// withoutNil returns a copy of list without nils, which may be sorted.
func withoutNil[T any, P object[T]](list []P) []P {
	return slices.DeleteFunc(slices.Clone(list), func(o P) bool { return o == nil })
}
