package ingress

import (
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

// forgetAfter is how long what traffic has written about an object is kept when the
// object is gone, or asks for nothing any more: long enough that who deletes and
// restores a policy forgives nobody, and far beyond the longest Retry-After.
const forgetAfter = 10 * time.Minute

// acmePath is where certificate authorities look for the answers to their challenges
// (RFC 8555, section 8.3), over plain HTTP: no request for it is redirected, and rules
// for it alone are not limited.
const acmePath = "/.well-known/acme-challenge"

// ofACME reports whether a path is the one of ACME's challenges, or beneath it.
func ofACME(path string) bool {
	rest, ok := strings.CutPrefix(path, acmePath)
	return ok && (rest == "" || rest[0] == '/')
}

// live makes one Model after another live, and keeps what traffic has written about
// their objects, by UID, from one to the next: a change forgives nobody and closes
// nothing. It is for one goroutine; what it returns is for all.
type live struct {
	origins  map[string]*originState
	services map[string]*serviceState
	shields  map[pair]*shields

	generation uint64
	problems   []model.Problem // of the last Model, found while it was made live
}

// pair is a way from an Origin to a Service, by their UIDs.
type pair struct{ origin, service string }

// shields are what requests meet on one such way.
type shields struct {
	is       protection
	handlers []*caddymodule.LiveHandler
}

// originState is what traffic has written about an Ingress.
type originState struct {
	label  string
	counts *caddymodule.LiveState // of promises about its quotas alone; nil: not used yet
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

// serviceState is what traffic has written about a Service.
type serviceState struct {
	label  string
	counts *caddymodule.LiveState // nil: not used yet
	sets   []*endpoints
	used   time.Duration
}

// counted returns what is counted of a Service or an Ingress. It takes 20 KB, so it is
// made for those alone that limit anything.
func counted(counts **caddymodule.LiveState) *caddymodule.LiveState {
	if *counts == nil {
		*counts = caddymodule.NewLiveState()
	}
	return *counts
}

func newLive() *live {
	return &live{
		origins: map[string]*originState{}, services: map[string]*serviceState{}, shields: map[pair]*shields{},
	}
}

// apply returns a Snapshot of m, as it is for the replica in this pod, which has this
// part of the limits.
func (l *live) apply(now time.Duration, m *model.Model, d *policy.Division, pod string) *Snapshot {
	l.generation++
	l.problems = nil
	s := &Snapshot{
		Generation: l.generation, Model: m, ways: make(map[way]*passage, len(m.Rules)),
		certificates: newCertificates(m.Certificates, m.DefaultCertificate),
	}
	rules := slices.Clone(m.Rules)
	unlimited := map[*model.Origin]bool{}
	for i := range rules {
		if r := &rules[i]; r.Origin != nil && ofACME(r.Path) {
			r.Origin = &model.Origin{Ref: r.Origin.Ref}
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
		rooms: map[string]int{}, used: map[pair]*shields{}, sets: map[*model.Backend]*endpoints{},
	}
	seen := map[*model.Origin]bool{}
	for _, t := range targets {
		if t.Origin != nil && !seen[t.Origin] {
			seen[t.Origin] = true
			b.zones += len(t.Origin.Policy.Zones)
		}
	}
	s.settle = b.updateEndpoints(targets)
	for _, t := range targets {
		key := way{t.Origin, t.Backend}
		if s.ways[key] == nil {
			s.ways[key] = b.passage(t)
		}
	}
	s.table = route.New(rules, m.Default)
	for _, used := range b.used {
		s.shields = append(s.shields, used.handlers...)
	}
	s.backends = b.backends
	l.shields = b.used
	l.forget(now)
	return s
}

// classes returns the Services that some Origin has a class for, by UID.
func classes(targets []*model.Target) map[string]bool {
	is := map[string]bool{}
	for _, t := range targets {
		if t.Origin != nil && t.Origin.Policy.Class != "" && t.Backend != nil {
			is[t.Backend.Service.UID] = true
		}
	}
	return is
}

// builder is what is known while one Model is made live.
type builder struct {
	*live
	now      time.Duration
	division *policy.Division
	replicas []string               // of shield
	pod      string                 // this one
	classes  map[string]bool        // Services that somebody has a class for, by UID
	exempt   map[*model.Origin]bool // that nothing limits
	zones    int                    // quotas of all Origins
	rooms    map[string]int         // of Services whose endpoints are limited, by UID
	used     map[pair]*shields
	sets     map[*model.Backend]*endpoints
	backends []liveBackend
}

// passage returns what requests to t meet.
func (b *builder) passage(t *model.Target) *passage {
	p := &passage{origin: t.Origin}
	if t.Backend == nil {
		return p
	}
	p.endpoints, p.protocol = b.sets[t.Backend], t.Backend.Protocol
	p.patience = patience(t.Backend.Service.Policy)
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

// patience returns how long a request that has been let in waits for a place at an
// endpoint: as in the queue before. It may have to where nothing is limited, if that has
// changed while it was on its way.
func patience(p policy.Service) time.Duration {
	switch {
	case p.Queue == policy.QueueOff:
		return 0
	case p.QueueTimeout > 0:
		return p.QueueTimeout
	}
	return defaultPatience
}

// defaultPatience is the longest that the queue has anybody wait by default.
const defaultPatience = 200 * time.Millisecond

// handlers returns the shields on the way of t. If its policy turns out to be one that
// cannot be, which its parser should have found, the last ones stay.
func (b *builder) handlers(t *model.Target) []*caddymodule.LiveHandler {
	origin, service := b.origin(t.Origin), b.service(t.Backend.Service)
	key := pair{t.Origin.UID, t.Backend.Service.UID}
	asks := t.Origin.Policy
	if asks.Zones == nil && asks.PerClient == 0 && asks.Class == "" && asks.RetryAfterMax == 0 {
		key.origin, asks = "", policy.Ingress{} // all that ask for nothing are alike: most are
	}
	if used := b.used[key]; used != nil {
		return used.handlers
	}
	is := protection{
		origin:  asks.Divide(divisionTime(b.now), b.division),
		service: t.Backend.Service.Policy.Divide(divisionTime(b.now), b.division),
		places:  b.rooms[t.Backend.Service.UID], classes: b.classes[t.Backend.Service.UID],
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

// forget forgets what has not been asked for for long.
func (l *live) forget(now time.Duration) {
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
