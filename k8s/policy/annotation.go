package policy

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// Prefix begins the name of every annotation of shield's.
const Prefix = "shield.herdshield.io/"

// zoneName is the name of the Zone that the annotation rate makes.
const zoneName = "rate"

// off is the value that removes a limit.
const off = "off"

// The bounds of retry-after-max, which are those of pushback.ResponseConfig.Max.
const (
	minRetryAfterMax = time.Second
	maxRetryAfterMax = 59 * time.Second
)

// An Annotation is one row of the tables below. Parsing loops over them; the admission
// policies, the chart's schema and the tables of docs/kubernetes/install-and-limit.md are made of
// them by
//
//	cd k8s && go test . -run TestGenerated -update
type Annotation struct {
	Name string // without Prefix

	// Meaning, Range and Default are the columns of the page's table, in Markdown. Range
	// is what the form of the value says, unless the row says otherwise.
	Meaning, Range, Default string

	// Needs is an example of the annotation without which this one is an error:
	// its name and a value. Empty: it can stand alone.
	Needs [2]string

	// Want is what errors ask for. Rule is a CEL expression over the value x for the API
	// server: false only where parsing fails, too.
	Want, Rule string

	// Single: it is no parameter of an IngressClass.
	Single bool

	// overridesNginx: an Ingress with a good value of it has no limits of ingress-nginx's.
	overridesNginx bool
}

// A row is an Annotation and what it sets in a policy. set is nil for one that a function
// of its own reads, so that a mistake in it leaves the limits in force.
type row[P any] struct {
	Annotation
	set func(r *reader, value string, p *P)
}

// rowOf makes a row of an Annotation, the form of its value, and what the value sets. set
// is not called for a value that is an error, and may report more errors. It may
// look at what the rows before it have set.
func rowOf[P, V any](a Annotation, f form[V], set func(r *reader, p *P, v V)) row[P] {
	made := rowApart[P](a, f)
	made.set = func(r *reader, text string, p *P) {
		if v, ok := parse(r, a.Name, f, text); ok {
			set(r, p, v)
		}
	}
	return made
}

// rowApart makes a row that read leaves out.
func rowApart[P, V any](a Annotation, f form[V]) row[P] {
	a.Want, a.Rule = f.want, f.rule
	if a.Range == "" {
		a.Range = f.page
	}
	return row[P]{Annotation: a}
}

// The annotations of an Ingress, which are also the parameters of an IngressClass. Values
// are read in this order.
var ingressRows = []row[Ingress]{
	rowOf(Annotation{
		Name: "rate", overridesNginx: true,
		Meaning: "How many requests each client can send per `s`, `m`, or `h`, counted over all hosts and paths of the Ingress. `off` removes the IngressClass's limit",
		Default: "none",
	}, rateForm(off), func(r *reader, p *Ingress, c limiter.Config) {
		if c == (limiter.Config{}) {
			p.Zones = nil
		} else if c, ok := r.limit("rate", c); ok {
			p.Zones = []Zone{{Name: zoneName, Limit: c}}
		}
	}),
	rowOf(Annotation{
		Name: "burst", Needs: [2]string{"rate", "50/s"},
		Meaning: "How many requests each client can send in one burst after a pause",
		Range:   "at least 1, at most 366 days' worth of the rate",
		Default: "the number in the rate: 50 for `50/s`, 100 for `100/m`",
	}, burstForm, setIngressBurst),
	rowOf(Annotation{
		Name: "concurrency", overridesNginx: true,
		Meaning: "How many requests each client can have in flight. `off` removes the IngressClass's limit",
		Default: "none",
	}, numberForm(loadshed.MaxConcurrency, off), func(_ *reader, p *Ingress, n int) { p.PerClient = n }),
	rowOf(Annotation{
		Name: "key", Needs: [2]string{"rate", "50/s"},
		Meaning: "What identifies a client, such as an API key or a session cookie. [Choose something clients can't vary](../reference/identify-clients.md). Requests without a value share one limit",
		Default: "the client's address (for IPv6, its first 64 bits)",
	}, keyForm, func(r *reader, p *Ingress, template string) {
		switch {
		case p.Zones != nil || p.PerClient != 0:
			p.Key = template
		case r.errs == nil:
			r.fail("key", "has no effect without a client limit; set %[1]srate or %[1]sconcurrency, too", r.prefix)
		}
	}),
	rowOf(Annotation{
		Name:    "class",
		Meaning: "[Priority class](#priority-classes) of the Ingress's requests while the Service is full",
		Default: "`default`",
	}, wordForm(loadshed.Critical, loadshed.Default, loadshed.Sheddable), func(_ *reader, p *Ingress, class string) { p.Class = class }),
	rowOf(Annotation{
		Name:    "allow-cidrs",
		Meaning: "Clients exempt from this Ingress's limits, though not from the Service's",
		Default: "none",
	}, prefixForm, func(_ *reader, p *Ingress, list []netip.Prefix) { p.Allow = list }),
	rowOf(Annotation{
		Name:    "retry-after-max",
		Meaning: "Longest `Retry-After`",
		Default: "`30s`",
	}, retryAfterMaxForm, func(_ *reader, p *Ingress, d time.Duration) { p.RetryAfterMax = d }),
	rowOf(Annotation{
		Name:    "mode",
		Meaning: "`observe` counts what these limits would reject, but lets every request through",
		Default: "`enforce`",
	}, modeForm, func(_ *reader, p *Ingress, mode string) { p.Observe = mode == observe }),
	rowApart[Ingress](Annotation{
		Name:    "ssl-redirect",
		Meaning: "Redirect plain HTTP to HTTPS with 308, for hosts in `spec.tls` or, with `force`, for all hosts",
		Default: "`true`",
	}, tlsForm), // by SSLRedirect
	rowApart[Ingress](Annotation{
		Name:    ignoreNginx,
		Meaning: "ingress-nginx annotations that shield should [ignore](migrate-from-ingress-nginx.md#serve-it-anyway). Not available as an IngressClass default", Single: true,
		Default: "none",
	}, namesForm), // by Heeded
}

const ignoreNginx = "ignore-nginx"

// The annotations of a Service. Values are read in this order.
var serviceRows = []row[Service]{
	rowOf(Annotation{
		Name:    "capacity",
		Meaning: "How many requests per `s`, `m`, or `h` the backend can take in total",
		Default: "none",
	}, rateForm(""), func(r *reader, p *Service, c limiter.Config) {
		if c, ok := r.limit("capacity", c); ok {
			p.Capacity = c
		}
	}),
	rowOf(Annotation{
		Name: "burst", Needs: [2]string{"capacity", "500/s"},
		Meaning: "How many requests can arrive in one burst",
		Range:   "at least 1, at most 366 days' worth of the rate",
		Default: "a tenth of a second's worth, but at least 10, and never more than a second's worth: 50 for `500/s`, 2 for `2/s`",
	}, burstForm, func(r *reader, _ *Service, _ int) { // capacity reads the number
		if !r.has("capacity") {
			r.fail("burst", "has no effect without a capacity; set %scapacity, too, like 500/s", r.prefix)
		}
	}),
	rowOf(Annotation{
		Name:    "concurrency",
		Meaning: "How many requests can be in flight to the whole Service. `adaptive` [finds the number](../explain/adaptive-limits.md)",
		Default: "none",
	}, numberForm(loadshed.MaxConcurrency, adaptive), func(_ *reader, p *Service, n int) { p.Concurrency, p.Adaptive = n, n == 0 }),
	rowOf(Annotation{
		Name:    "endpoint-concurrency",
		Meaning: "How many requests can be in flight to each pod. The total grows and shrinks with the number of pods",
		Default: "none",
	}, numberForm(loadshed.MaxConcurrency, ""), func(_ *reader, p *Service, n int) { p.EndpointConcurrency = n }),
	rowOf(Annotation{
		Name: "queue", Needs: [2]string{"concurrency", "10"},
		Meaning: "How many requests can wait for a free permit",
		Default: strconv.Itoa(loadshed.DefaultQueue),
	}, numberForm(loadshed.MaxQueue, off), func(r *reader, p *Service, n int) {
		switch {
		case n == 0:
			p.Queue = QueueOff
		case r.has("concurrency") || r.has("endpoint-concurrency"):
			p.Queue = n
		default:
			r.fail("queue", "has no effect without a concurrency limit; set %[1]sconcurrency or %[1]sendpoint-concurrency, too", r.prefix)
		}
	}),
	rowOf(Annotation{
		Name: "queue-timeout", Needs: [2]string{"concurrency", adaptive},
		Meaning: "Longest time a request waits",
		Default: "[up to 2 s](../explain/adaptive-limits.md#the-queue), or 4 s for `critical` requests",
	}, queueTimeoutForm, func(r *reader, p *Service, d time.Duration) {
		if p.Queue == QueueOff || !r.has("concurrency") && !r.has("endpoint-concurrency") {
			r.fail("queue-timeout", "has no effect without a queue; set %[1]sconcurrency or %[1]sendpoint-concurrency, but not %[1]squeue to off", r.prefix)
			return
		}
		p.QueueTimeout = d
	}),
	rowOf(Annotation{
		Name:    "retry-after-max",
		Meaning: "Longest `Retry-After`. If the Ingress sets one, too, the shorter of the two applies",
		Default: "`30s`",
	}, retryAfterMaxForm, func(_ *reader, p *Service, d time.Duration) { p.RetryAfterMax = d }),
	rowOf(Annotation{
		Name:    "mode",
		Meaning: "Same as on an Ingress, for the Service's limits",
		Default: "`enforce`",
	}, modeForm, func(_ *reader, p *Service, mode string) { p.Observe = mode == observe }),
	rowApart[Service](Annotation{
		Name:    "backend-protocol",
		Meaning: "Protocol of all the Service's ports. `GRPC` means HTTP/2 without TLS, as `H2C` does. With `HTTPS`, shield doesn't verify the backend's certificate",
		Default: "the port's `appProtocol`, such as `kubernetes.io/h2c`, `https`, or `grpc`; otherwise HTTP/1.1",
	}, protocolForm), // by BackendProtocol
}

// setIngressBurst sets the burst of the class's rate. The burst of the Ingress's own rate
// has been read with that.
func setIngressBurst(r *reader, p *Ingress, n int) {
	rate, hasRate := r.get("rate")
	switch {
	case rate == off:
		r.fail("burst", "has no effect while %srate is off; remove one of them", r.prefix)
	case hasRate:
	case len(p.Zones) != 1:
		r.fail("burst", "has no effect without a rate; set %srate, too, like 50/s", r.prefix)
	default:
		zone := p.Zones[0]
		if zone.Limit.Burst = n; r.check("burst", zone.Limit) {
			p.Zones = []Zone{zone}
		}
	}
}

// OnIngress returns the annotations of an Ingress: those that limit, in the order of the
// page's table, and then OnFilters.
func OnIngress() []Annotation { return append(annotations(ingressRows), OnFilters()...) }

// LimitsOnIngress returns the annotations of an Ingress but for OnFilters.
func LimitsOnIngress() []Annotation { return annotations(ingressRows) }

// OnService returns the annotations of a Service, in the order of the page's table.
func OnService() []Annotation { return annotations(serviceRows) }

func annotations[P any](rows []row[P]) (list []Annotation) {
	for _, row := range rows {
		list = append(list, row.Annotation)
	}
	return list
}

func names(list []Annotation) (names []string) {
	for _, a := range list {
		names = append(names, a.Name)
	}
	return names
}

// OverridesNginx returns the first annotation of shield's that replaces the limits of
// ingress-nginx's, with Prefix, or "". One that is wrong does not.
func OverridesNginx(annotations map[string]string) string {
	for _, row := range ingressRows {
		if v, ok := annotations[Prefix+row.Name]; ok && row.overridesNginx {
			r := reader{prefix: Prefix, values: map[string]string{Prefix + row.Name: v}}
			if row.set(&r, v, new(Ingress)); r.errs == nil {
				return Prefix + row.Name
			}
		}
	}
	return ""
}
