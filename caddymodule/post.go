package caddymodule

import (
	"slices"
	"sync"
	"time"

	"github.com/herdshield/shield/share/redis"
)

// A post is where the exchanges of one backend or zone with the store are served. During a
// reload several apps want to: one of them does. The first stays until the second has run for
// a second, or until it is stopped itself, so that a config that fails to start interrupts
// nothing, and one that shares the same goes on with the same exchanges.
//
// The zero post is ready. It is part of the pooled state.
type post struct {
	mu     sync.Mutex
	crew   []member // of those that are not stopped, by when they came; guarded by mu
	duty   duty     // what is served; guarded by mu
	finish func()   // ends it, and waits for that; nil: none is served; guarded by mu
	warned int      // of a burst that is small for so many replicas; guarded by mu
}

// A member is an app that has a backend or zone shared.
type member struct {
	app    *App
	entry  sharer
	lasted bool // for a second
}

// A sharer is a shieldEntry or a zoneEntry.
type sharer interface {
	// duty returns what is to be served. ok is false if there is nothing, because a newer
	// config does not share it, whose requests come already.
	duty(a *App, now time.Duration) (d duty, ok bool)
}

// A duty is what is to be served: a link to a store, under a name.
type duty struct {
	store interface{ serve(duty) (finish func()) } // a storeRecord
	link  redis.Link
	kind  redis.Kind
	name  string // of the backend or zone
	unit  string // says how it is defined
}

// tend has an app serve the post, if it is its turn.
func (p *post) tend(now time.Duration, a *App, entry sharer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.index(a); i < 0 {
		p.crew = append(p.crew, member{a, entry, false})
	} else {
		p.crew[i] = member{a, entry, true}
	}
	p.serve(now)
}

// leave ends what an app does there. Another one goes on.
func (p *post) leave(now time.Duration, a *App) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.index(a); i >= 0 {
		p.crew = slices.Delete(p.crew, i, i+1)
	}
	p.serve(now)
}

func (p *post) index(a *App) int {
	return slices.IndexFunc(p.crew, func(m member) bool { return m.app == a })
}

// serve has the last of those serve that have lasted, or the first of all. If that is what is done already, nothing is
// interrupted.
func (p *post) serve(now time.Duration) {
	var d duty
	ok := false
	if len(p.crew) > 0 {
		m := p.crew[0]
		for _, one := range p.crew {
			if one.lasted {
				m = one
			}
		}
		d, ok = m.entry.duty(m.app, now)
	}
	if ok && p.duty == d {
		return
	}
	if p.finish != nil {
		p.finish()
	}
	if p.duty, p.finish = (duty{}), nil; ok {
		p.duty, p.finish = d, d.store.serve(d)
	}
}

// serveAll has everything served that the app shares, and ends what it shares no more.
func (a *App) serveAll(now time.Duration) {
	if a.storage == nil {
		return
	}
	a.posts.mu.Lock()
	defer a.posts.mu.Unlock()
	all, shared := a.roster(), map[*post]bool{}
	tend := func(p *post, s sharer) {
		shared[p] = true
		p.tend(now, a, s)
	}
	for _, s := range all.shields {
		if s.config().Shared {
			tend(&s.record.sharing, s)
		}
	}
	for _, z := range all.zones {
		if z.config().Shared {
			tend(&z.record.sharing, z)
		}
	}
	for p := range a.posts.of {
		if !shared[p] {
			p.leave(now, a)
		}
	}
	a.posts.of = shared
}

// leaveAll ends all that the app serves.
func (a *App) leaveAll(now time.Duration) {
	a.posts.mu.Lock()
	defer a.posts.mu.Unlock()
	var all sync.WaitGroup
	for p := range a.posts.of { // each may wait for the store
		all.Go(func() { p.leave(now, a) })
	}
	all.Wait()
	a.posts.of = nil
}

// posts are where an app is in the crew.
type posts struct {
	mu sync.Mutex
	of map[*post]bool
}

func (s *shieldEntry) duty(a *App, now time.Duration) (d duty, ok bool) {
	l := s.guard().Link(now)
	return duty{a.storage, l, redis.Backend, s.name, s.unit()}, l != nil
}

func (z *zoneEntry) duty(a *App, now time.Duration) (d duty, ok bool) {
	l := z.guard().Zones(now)[z.index]
	return duty{a.storage, l, redis.Zone, z.record.shown, z.unit(a.store)}, l != nil
}
