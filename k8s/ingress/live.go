package ingress

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/endpoint"
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
	counts *caddymodule.LiveBackend // of promises about its quotas alone; nil: not used yet
	zones  map[string]*caddymodule.LiveZone
	ref    model.Ref
	used   time.Duration
}

func (s *originState) zone(name string) *caddymodule.LiveZone {
	z := s.zones[name]
	if z == nil {
		z = caddymodule.NewLiveZone(label(s.ref, "/"+name))
		s.zones[name] = z
	}
	return z
}

// serviceState is what traffic has written about a Service.
type serviceState struct {
	label  string
	counts *caddymodule.LiveBackend // nil: not used yet
	ports  map[string]*endpoint.Set
	used   time.Duration
}

// counted returns what is counted of a Service or an Ingress. It takes 15 KB, so it is
// made for those alone that limit anything.
func counted(counts **caddymodule.LiveBackend) *caddymodule.LiveBackend {
	if *counts == nil {
		*counts = caddymodule.NewLiveBackend()
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
	unlimited := map[*model.Origin]*model.Origin{}
	for i := range rules {
		if r := &rules[i]; r.Origin != nil && ofACME(r.Path) {
			r.Origin = exempt(unlimited, r.Origin)
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
		live: l, now: now, division: d, replicas: len(m.Replicas), rank: slices.Index(m.Replicas, pod),
		classes: classes(targets), rooms: map[string]int{}, used: map[pair]*shields{}, sets: map[*model.Backend]*endpoint.Set{},
	}
	b.updateEndpoints(targets)
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

// exempt returns o without what would be in the way of an ACME challenge.
func exempt(done map[*model.Origin]*model.Origin, o *model.Origin) *model.Origin {
	if done[o] == nil {
		done[o] = &model.Origin{Ref: o.Ref, NoRedirect: true}
	}
	return done[o]
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
	replicas int // of shield
	rank     int // of this one; -1: it is not known
	classes  map[string]bool
	rooms    map[string]int // of Services whose endpoints are limited, by UID
	used     map[pair]*shields
	sets     map[*model.Backend]*endpoint.Set
	backends []liveBackend
}

// updateEndpoints tells the Sets of all Backends what they have now.
func (b *builder) updateEndpoints(targets []*model.Target) {
	for _, t := range targets {
		backend := t.Backend
		if backend == nil || b.sets[backend] != nil {
			continue
		}
		service := b.service(backend.Service)
		set := service.ports[backend.Port]
		if set == nil {
			set = new(endpoint.Set)
			service.ports[backend.Port] = set
		}
		service.used = b.now
		endpoints, places := b.places(backend)
		set.Update(b.now, endpoints, places)
		b.sets[backend] = set
		b.backends = append(b.backends, liveBackend{backend, label(backend.Service.Ref, "/"+backend.Port), set})
	}
	slices.SortFunc(b.backends, func(x, y liveBackend) int { return cmp.Compare(x.label, y.label) })
}

// places returns which endpoints of a Backend this replica may send requests to, and how
// many each may have in flight from it; nil: any number. What all may have together is
// added to the Service's room.
func (b *builder) places(backend *model.Backend) ([]model.Endpoint, func(model.Endpoint) int) {
	service := backend.Service
	limit := service.Policy.EndpointConcurrency
	if limit == 0 {
		return backend.Endpoints, nil
	}
	var mine []model.Endpoint
	shares := map[netip.AddrPort]int{}
	usable := usableState(backend.Endpoints)
	room := 0
	for _, e := range backend.Endpoints {
		share := b.division.Share(divisionTime(b.now), limit, saltOf(e.Addr))
		if share == 0 {
			continue // its places are other replicas'
		}
		mine = append(mine, e)
		shares[e.Addr] = share
		if e.State == usable {
			room += share
		}
	}
	if room == 0 {
		// There are more replicas than places: this one has none. It would have to
		// refuse everybody, so it takes one that is not its own.
		if e, ok := b.borrow(backend.Endpoints, usable); ok {
			mine, room, shares[e.Addr] = []model.Endpoint{e}, 1, 1
			b.problems = append(b.problems, model.Problem{
				Object: service.Ref, Reason: "MoreReplicasThanPlaces",
				Message: fmt.Sprintf("endpoint-concurrency is %d for %d endpoints, and there are %d replicas of shield; want at least a place for each: until then more may be in flight", limit, len(backend.Endpoints), b.replicas),
			})
		}
	}
	b.rooms[service.UID] += room
	if service.Policy.Observe {
		return backend.Endpoints, nil
	}
	return mine, func(e model.Endpoint) int { return shares[e.Addr] }
}

// usableState returns the state of those endpoints that get requests.
func usableState(endpoints []model.Endpoint) model.EndpointState {
	if slices.ContainsFunc(endpoints, func(e model.Endpoint) bool { return e.State == model.Ready }) {
		return model.Ready
	}
	return model.Draining
}

// borrow returns an endpoint of that state: to each replica another one, if there are
// enough.
func (b *builder) borrow(endpoints []model.Endpoint, state model.EndpointState) (e model.Endpoint, ok bool) {
	var those []model.Endpoint
	for _, e := range endpoints {
		if e.State == state {
			those = append(those, e)
		}
	}
	if len(those) == 0 {
		return e, false
	}
	return those[max(0, b.rank)%len(those)], true
}

// passage returns what requests to t meet.
func (b *builder) passage(t *model.Target) *passage {
	p := &passage{origin: t.Origin}
	if t.Backend == nil {
		return p
	}
	p.set, p.protocol = b.sets[t.Backend], t.Backend.Protocol
	var next caddyhttp.Handler = p
	for _, h := range slices.Backward(b.handlers(t)) {
		next = guarded{h, next}
	}
	p.first = next
	return p
}

// handlers returns the shields on the way of t. If its policy turns out to be one that
// cannot be, which its parser should have found, the last ones stay.
func (b *builder) handlers(t *model.Target) []*caddymodule.LiveHandler {
	origin, service := b.origin(t.Origin), b.service(t.Backend.Service)
	key := pair{t.Origin.UID, t.Backend.Service.UID}
	if p := t.Origin.Policy; p.Zones == nil && p.PerClient == 0 && p.Class == "" && p.RetryAfterMax == 0 {
		key.origin = "" // all that ask for nothing are alike: most are
	}
	if used := b.used[key]; used != nil {
		return used.handlers
	}
	is := protection{
		origin:  t.Origin.Policy.Divide(divisionTime(b.now), b.division),
		service: t.Backend.Service.Policy.Divide(divisionTime(b.now), b.division),
		room:    b.rooms[t.Backend.Service.UID], classes: b.classes[t.Backend.Service.UID],
	}
	was := b.shields[key]
	if was == nil || !reflect.DeepEqual(was.is, is) {
		handlers, err := is.shields(origin, service)
		switch {
		case err == nil:
			was = &shields{is, handlers}
		case was == nil:
			was = &shields{}
			fallthrough
		default:
			b.problems = append(b.problems, model.Problem{Object: t.Origin.Ref, Reason: "PolicyInvalid", Message: err.Error()})
		}
	}
	b.used[key] = was
	return was.handlers
}

func (b *builder) origin(o *model.Origin) *originState {
	s := b.origins[o.UID]
	if s == nil {
		s = &originState{label: label(o.Ref, ""), ref: o.Ref, zones: map[string]*caddymodule.LiveZone{}}
		b.origins[o.UID] = s
	}
	s.used = b.now
	return s
}

func (b *builder) service(m *model.Service) *serviceState {
	s := b.services[m.UID]
	if s == nil {
		s = &serviceState{label: label(m.Ref, ""), ports: map[string]*endpoint.Set{}}
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
		if now-s.used > forgetAfter {
			delete(l.services, uid)
		}
	}
}

// saltOf tells endpoints apart where replicas share the places of each: the same in all
// replicas.
func saltOf(a netip.AddrPort) uint64 {
	hash := fnv.New64a()
	b, _ := a.MarshalBinary() // no error is possible
	_, _ = hash.Write(b)
	return hash.Sum64()
}
