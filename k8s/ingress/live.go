package ingress

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/route"
)

// forgetAfter is how long counts of an object are kept when it is gone, or has no limits:
// far beyond the longest Retry-After, and long enough that deleting and restoring a policy
// resets no count.
const forgetAfter = 10 * time.Minute

// acmePath is where certificate authorities read the answers to their challenges (RFC 8555,
// section 8.3), over plain HTTP: requests for it are not redirected, and rules for it alone
// are not limited.
const acmePath = "/.well-known/acme-challenge"

// ofACME reports whether a path is acmePath or beneath it.
func ofACME(path string) bool {
	rest, ok := strings.CutPrefix(path, acmePath)
	return ok && (rest == "" || rest[0] == '/')
}

// live makes a Snapshot of each Model, and keeps the counts of their objects, by UID, from
// one to the next: a change resets no count and closes no connection. It is for one
// goroutine; Snapshots are for all.
type live struct {
	origins  map[string]*originState
	services map[string]*serviceState
	shields  map[pair]*shields
	traffics map[trafficKey]*traffic

	sharing *caddymodule.Sharing // nil: each replica has its part of the limits

	generation uint64
	problems   []model.Problem // found in the last Model by apply
}

// A pair is an Origin and a Service, by their UIDs.
type pair struct{ origin, service string }

// shields are the shields of a pair.
type shields struct {
	is       protection
	handlers []*caddymodule.Handler
}

// originState has the counts of an Ingress.
type originState struct {
	label  string
	counts *caddymodule.LiveState // with appointments for its quotas alone; nil: not used yet
	zones  map[string]*caddymodule.LiveZoneState
	ref    model.Ref
	used   time.Duration
}

func (s *originState) zone(name string) *caddymodule.LiveZoneState {
	z := s.zones[name]
	if z == nil {
		z = caddymodule.NewLiveZoneState(label(s.ref, "/"+name))
		s.zones[name] = z
	}
	return z
}

// serviceState has the counts of a Service.
type serviceState struct {
	label  string
	counts *caddymodule.LiveState // nil: not used yet
	sets   []*endpoints
	used   time.Duration
}

// counted returns the counts of a Service or an Ingress. They take 20 KB, so only objects
// with limits have them.
func counted(counts **caddymodule.LiveState) *caddymodule.LiveState {
	if *counts == nil {
		*counts = new(caddymodule.LiveState)
	}
	return *counts
}

func newLive() *live {
	return &live{
		origins: map[string]*originState{}, services: map[string]*serviceState{}, shields: map[pair]*shields{}, traffics: map[trafficKey]*traffic{},
	}
}

// apply returns a Snapshot of m for the replica in this pod, which has this part of the
// limits.
func (l *live) apply(now time.Duration, m *model.Model, d *policy.Division, pod string) *Snapshot {
	l.generation++
	l.problems = nil
	s := &Snapshot{
		Generation: l.generation, Model: m, passages: make(map[*model.Target]*passage, len(m.Rules)),
		certificates: newCertificates(m.Certificates, m.DefaultCertificate),
	}
	rules := slices.Clone(m.Rules)
	unlimited := map[*model.Origin]bool{}
	for i := range rules {
		if r := &rules[i]; r.Origin != nil && r.Pattern == nil && ofACME(r.Path) { // a pattern may match more
			r.Origin, r.Filters, r.Rewrite, r.Closed = &model.Origin{Ref: r.Origin.Ref}, nil, nil, ""
			unlimited[r.Origin] = true
		}
	}
	targets := make([]*model.Target, 0, len(rules)+1)
	for i := range rules {
		targets = append(targets, &rules[i].Target)
	}
	if m.Default != nil {
		targets = append(targets, m.Default)
	}
	b := builder{
		live: l, now: now, division: d, replicas: m.Replicas, pod: pod,
		classes: classes(targets), exempt: unlimited,
		totals: map[string]int{}, used: map[pair]*shields{}, sets: map[*model.Backend]*endpoints{},
	}
	seen := map[*model.Origin]bool{}
	for _, t := range targets {
		if t.Origin != nil && !seen[t.Origin] {
			seen[t.Origin] = true
			b.zones += len(t.Origin.Policy.Zones)
		}
	}
	s.settle = b.updateEndpoints(targets)
	type way struct {
		origin   *model.Origin
		backend  *model.Backend
		timeouts model.Timeouts
	}
	ways := make(map[way]*passage, len(targets))
	for _, t := range targets {
		key := way{t.Origin, t.Backend, t.Timeouts}
		if ways[key] == nil {
			ways[key] = b.passage(t)
		}
		s.passages[t] = ways[key]
	}
	s.table = route.New(rules, m.Default)
	for _, used := range b.used {
		s.shields = append(s.shields, used.handlers...)
	}
	s.backends = b.backends
	l.shields = b.used
	l.forget(now)
	s.traffics = slices.Collect(maps.Values(l.traffics))
	return s
}

// classes returns the Services to which an Origin with a class leads, by UID.
func classes(targets []*model.Target) map[string]bool {
	is := map[string]bool{}
	for _, t := range targets {
		if t.Origin != nil && t.Origin.Policy.Class != "" && t.Backend != nil {
			is[t.Backend.Service.UID] = true
		}
	}
	return is
}

// A builder has the state of one call of apply.
type builder struct {
	*live
	now      time.Duration
	division *policy.Division
	replicas []string               // of shield
	pod      string                 // this one
	classes  map[string]bool        // Services to which an Origin with a class leads, by UID
	exempt   map[*model.Origin]bool // without limits
	zones    int                    // quotas of all Origins
	totals   map[string]int         // permits of Services whose endpoints are limited, by UID
	used     map[pair]*shields
	sets     map[*model.Backend]*endpoints
	backends []backendEntry
}

// passage returns the passage of requests to t.
func (b *builder) passage(t *model.Target) *passage {
	p := &passage{origin: t.Origin, traffic: b.trafficOf(t), timeouts: t.Timeouts}
	if t.Backend == nil {
		return p
	}
	p.endpoints, p.protocol = b.sets[t.Backend], t.Backend.Protocol
	p.maxWait = maxWait(t.Backend.Service.Policy)
	p.limited = protection{service: t.Backend.Service.Policy}.limitsInFlight()
	p.first = p
	if b.exempt[t.Origin] {
		return p
	}
	var next caddyhttp.Handler = p
	for _, h := range slices.Backward(b.handlers(t)) {
		next = guarded{h, next}
	}
	p.first = next
	return p
}

// maxWait returns how long an admitted request waits for a permit at an endpoint: as long as
// in the queue. It may have to wait even without limits, if they have just been removed.
func maxWait(p policy.Service) time.Duration {
	switch {
	case p.Queue == policy.QueueOff:
		return 0
	case p.QueueTimeout > 0:
		return p.QueueTimeout
	}
	return defaultMaxWait
}

// defaultMaxWait is the longest wait in a queue with the default timeout.
const defaultMaxWait = 200 * time.Millisecond

// handlers returns the shields on the way of t. If its policy is invalid, which its parser
// should have found, the last ones stay.
func (b *builder) handlers(t *model.Target) []*caddymodule.Handler {
	origin, service := b.origin(t.Origin), b.service(t.Backend.Service)
	key := pair{t.Origin.UID, t.Backend.Service.UID}
	asks := t.Origin.Policy
	if !asks.Matters() {
		key.origin, asks = "", policy.Ingress{} // most Ingresses, which share their shields
	}
	if used := b.used[key]; used != nil {
		return used.handlers
	}
	is := protection{
		origin:  b.ofClients(asks),
		service: b.ofBackend(t.Backend.Service.Policy),
		sharing: b.known(),
		permits: b.totals[t.Backend.Service.UID], classes: b.classes[t.Backend.Service.UID],
		maxKeys: maxKeys(b.zones),
	}
	was := b.shields[key]
	if was == nil || !reflect.DeepEqual(was.is, is) {
		handlers, err := is.shields(origin, service)
		switch {
		case err == nil:
			was = &shields{is, handlers}
		case was == nil: // then at least what the Ingress asks for
			handlers, _ = protection{origin: is.origin, maxKeys: is.maxKeys}.shields(origin, service)
			was = &shields{handlers: handlers}
			fallthrough
		default:
			b.problems = append(b.problems, model.Problem{Object: t.Backend.Service.Ref, Reason: "PolicyInvalid", Message: err.Error()})
		}
	}
	b.used[key] = was
	return was.handlers
}

func (b *builder) origin(o *model.Origin) *originState {
	s := b.origins[o.UID]
	if s == nil {
		s = &originState{label: label(o.Ref, ""), ref: o.Ref, zones: map[string]*caddymodule.LiveZoneState{}}
		b.origins[o.UID] = s
	}
	s.used = b.now
	return s
}

func (b *builder) service(m *model.Service) *serviceState {
	s := b.services[m.UID]
	if s == nil {
		s = &serviceState{label: label(m.Ref, "")}
		b.services[m.UID] = s
	}
	s.used = b.now
	return s
}

// forget deletes the counts of objects that have not been used for forgetAfter.
func (l *live) forget(now time.Duration) {
	maps.DeleteFunc(l.traffics, func(_ trafficKey, t *traffic) bool { return now-t.used > forgetAfter })
	for uid, s := range l.origins {
		if now-s.used > forgetAfter {
			delete(l.origins, uid)
		}
	}
	for uid, s := range l.services {
		s.sets = slices.DeleteFunc(s.sets, func(e *endpoints) bool { return e.used < now && !e.busy(now) })
		if now-s.used > forgetAfter && len(s.sets) == 0 {
			delete(l.services, uid)
		}
	}
}
