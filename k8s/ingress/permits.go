package ingress

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/herdshield/shield/k8s/endpoint"
	"github.com/herdshield/shield/k8s/model"
)

// endpoints are the endpoints of a port of a Service. Ports that lead to the same ports of
// the same pods share them, and so the permits there.
type endpoints struct {
	endpoint.Set
	total int           // permits of all together, in the last Model
	used  time.Duration // when the last Model with them was made
	port  string        // of the Service; of several, the first
	list  []model.Endpoint
}

// busy reports whether any endpoint has requests in flight.
func (e *endpoints) busy(now time.Duration) bool {
	return slices.ContainsFunc(e.Stats(now), func(s endpoint.Stat) bool { return s.InFlight > 0 })
}

// updateEndpoints finds the endpoints of all Backends, and updates those with as many permits
// as before, or more. settle updates those with fewer. The caller must call it when the
// shields of this Model are in force, so that they never admit more requests than there
// are permits.
func (b *builder) updateEndpoints(targets []*model.Target) (settle func()) {
	var later []func()
	for _, t := range targets {
		backend := t.Backend
		if backend == nil || b.sets[backend] != nil {
			continue
		}
		e := b.service(backend.Service).find(backend, b.now)
		b.sets[backend] = e
		b.backends = append(b.backends, backendEntry{backend, backendLabel(backend), e})
		if e.used == b.now {
			continue // another port of the Service leads there, too
		}
		e.used, e.list = b.now, backend.Endpoints
		list, permits, total := b.permits(backend)
		b.totals[backend.Service.UID] += total
		update := func() { e.Update(b.now, list, permits) }
		if permits == nil {
			total = math.MaxInt
		}
		if total < e.total {
			later = append(later, update)
		} else {
			update()
		}
		e.total = total
	}
	slices.SortFunc(b.backends, func(x, y backendEntry) int { return cmp.Compare(x.label, y.label) })
	// A port that is spoken to in two ways has the same endpoints.
	b.backends = slices.CompactFunc(b.backends, func(x, y backendEntry) bool { return x.label == y.label })
	return func() {
		for _, update := range later {
			update()
		}
	}
}

// find returns the endpoints of a Backend: those of another port of the Service with the
// same endpoints in this Model; else those that this port had in the last Model, even if
// they have changed; else equal ones of another port; else new ones.
func (s *serviceState) find(b *model.Backend, now time.Duration) *endpoints {
	var had, equal *endpoints
	for _, e := range s.sets {
		same := slices.Equal(e.list, b.Endpoints)
		switch {
		case e.used == now && same:
			return e
		case e.used != now && e.port == b.Port:
			had = e
		case e.used != now && same && len(e.list) > 0:
			equal = e
		}
	}
	if had == nil {
		had = equal // of a port that comes later, or is gone
	}
	if had == nil {
		had = new(endpoints)
		s.sets = append(s.sets, had)
	}
	had.port = b.Port
	return had
}

// permits returns the endpoints of a Backend that this replica may send requests to, how
// many each may have in flight from it (nil: any number), and how many all usable ones may
// have together (0: any number).
func (b *builder) permits(backend *model.Backend) (mine []model.Endpoint, permits func(model.Endpoint) int, total int) {
	limit := backend.Service.Policy.EndpointConcurrency
	if limit == 0 {
		return backend.Endpoints, nil, 0
	}
	usable := model.Draining
	if slices.ContainsFunc(backend.Endpoints, func(e model.Endpoint) bool { return e.State == model.Ready }) {
		usable = model.Ready
	}
	var those []model.Endpoint
	for _, e := range backend.Endpoints {
		if e.State == usable {
			those = append(those, e)
		}
	}
	salts := saltsOf(backend.Endpoints, those, limit, len(b.replicas))
	shares := map[netip.AddrPort]int{}
	for i, e := range backend.Endpoints {
		share := b.division.Share(divisionTime(b.now), limit, salts[i])
		if share == 0 {
			continue // its permits are other replicas'
		}
		mine = append(mine, e)
		shares[e.Addr] = share
		if e.State == usable {
			total += share
		}
	}
	if total == 0 && len(those) > 0 {
		// It would have to reject all requests, so it takes a permit of another replica: each
		// a different one, if there are enough. Then it gets a share when the shares have
		// settled.
		e := those[max(0, slices.Index(b.replicas, b.pod))%len(those)]
		mine, total, shares[e.Addr] = []model.Endpoint{e}, 1, 1
		if limit*len(those) < len(b.replicas) {
			b.problems = append(b.problems, model.Problem{
				Object: backend.Service.Ref, Reason: "MoreReplicasThanPermits",
				Message: fmt.Sprintf("endpoint-concurrency is %d, so there are fewer permits than replicas of shield. Each replica uses one, so the limit can be exceeded; use a higher limit or fewer replicas", limit),
			})
		}
	}
	if backend.Service.Policy.Observe {
		return backend.Endpoints, nil, total
	}
	return mine, func(e model.Endpoint) int { return shares[e.Addr] }, total
}

// saltsOf returns the salts by which replicas share the permits of each endpoint. By default
// a salt is a hash of the address, so that a change of one endpoint moves no permits of
// others. With few permits that may leave a replica without any while there are enough. Then
// the remainders of even division are dealt out in turn, over all usable endpoints.
func saltsOf(list, usable []model.Endpoint, limit, replicas int) []uint64 {
	salts := make([]uint64, len(list))
	for i, e := range list {
		salts[i] = saltOf(e.Addr)
	}
	if replicas <= 1 || limit >= replicas || limit*len(usable) < replicas {
		return salts // each replica has a permit at each endpoint, or there are too few
	}
	has := make([]bool, replicas) // as in Division.Share: (rank + salt) mod replicas < limit
	for _, e := range usable {
		for permit := range limit {
			n := uint64(replicas)
			has[(uint64(permit)+n-saltOf(e.Addr)%n)%n] = true
		}
	}
	if !slices.Contains(has, false) {
		return salts
	}
	next := uint64(0) // the owner of the next permit; salts are negative, so that ranks count upwards
	for i, e := range list {
		if slices.Contains(usable, e) {
			next += uint64(limit)
			salts[i] = -next
		}
	}
	return salts
}

// saltOf returns a hash of an address: the same in all replicas.
func saltOf(a netip.AddrPort) uint64 {
	hash := fnv.New64a()
	b, _ := a.MarshalBinary() // no error is possible
	_, _ = hash.Write(b)
	return hash.Sum64()
}
