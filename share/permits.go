package share

import (
	"time"

	"github.com/herdshield/shield/loadshed"
)

const (
	// permitsLease is for how long after it was heard of a replica uses what it was
	// granted. From then on it uses no more than its even part, if it finds that it is
	// alone, and else nothing. Ours: requests have a third of RosterTime to end before the
	// store gives their permits to others.
	permitsLease = RosterTime * 2 / 3

	// permitsRetry is the time between two exchanges out of turn. Ours: a twentieth of the Beat
	// uses 0.96 of a limit of 48 that eight replicas share, at twice the load, nine tenths of it at one: a tenth uses 0.94.
	permitsRetry = Beat / 20

	// triesTime is how long after its last answer a replica may find that it is alone, at
	// the latest. One that was frozen meanwhile has lost its permits to others.
	triesTime = 2 * time.Second
)

// permits is one replica's part of a limit in flight that all replicas share. It is not
// safe for concurrent use. The zero permits was never heard of: it has none until it is
// answered or alone.
//
// The sum of all replicas' Limits is at most the limit, whatever is lost on the way, with
// two exceptions. A replica that is cut off while others reach the store has its even part
// in addition after RosterTime, one that begins so after Lease. And of replicas that are
// alone each has one permit at least. Requests count for RosterTime at most after their
// replica has fallen silent.
type permits struct {
	granted int           // permits
	free    int           // that no replica had then
	heard   time.Duration // when the ask was sent that was answered last; 0: there was none
	alone   time.Duration // for how long the replica has tried since, in vain
	missed  time.Duration // when it did so last
	limit   int           // that may be in flight; what it has beyond this it gives back as requests end
	until   time.Duration // that may be relied on without asking again

	asked time.Duration // when the store was told last
	held  int           // of what
	want  int           // permits that there was use for
	hits  uint64        // until then
}

// ask returns what to tell the store beside the last limit: the permits that this replica uses, or may use, whichever is more;
// and those that it has use for. The replica must obey that limit already.
func (p *permits) ask(now time.Duration, limit int, u loadshed.Usage) (held, want int) {
	p.want = min(p.demand(u), limit)
	p.asked, p.held, p.hits = now, max(p.limit, u.InFlight), u.Hits
	return p.held, p.want
}

// demand returns how many permits there is use for: as many as are in flight, and wait or have found none; of those that were
// rejected, no more than are in flight.
func (p *permits) demand(u loadshed.Usage) int {
	return u.InFlight + max(u.Waiting, int(min(u.Hits-p.hits, uint64(max(1, u.InFlight)))))
}

// answered takes the answer to the last ask. An answer to an earlier one must not be taken:
// the store counts with what was told later.
func (p *permits) answered(granted, free int) {
	p.granted, p.free, p.heard, p.alone = granted, free, p.asked, 0
}

// unanswered tells that the last ask is not answered. It is to be called at each Beat while
// the store is gone.
func (p *permits) unanswered(now time.Duration) {
	if p.alone == 0 {
		p.missed = now
	}
	// A replica that was frozen has not tried meanwhile.
	p.alone += max(1, min(now-p.missed, IdleBeat+GiveUp))
	p.missed = now
}

// follow sets limit and until, of all replicas' limit.
func (p *permits) follow(now time.Duration, limit, replicas int) {
	known, part := p.heard > 0, max(1, limit/replicas)
	n, over := p.granted, p.heard+permitsLease
	p.until = over
	switch {
	case p.alone >= RosterTime || !known && p.alone >= Lease:
		n, p.until = part, now+permitsLease
	case !known:
		n = 0
	case now >= over && p.alone >= now-p.heard-triesTime:
		n, p.until = min(n, part), now+RosterTime-permitsLease
	case now >= over:
		n = 0
	}
	p.limit = min(n, limit)
}

// hurry returns when an exchange before the next beat is of use: the limit binds and the
// store may have more, or there is something to give back; never if there is none.
func (p *permits) hurry(now time.Duration, limit, replicas int, u loadshed.Usage) time.Duration {
	binds := u.Waiting > 0 || u.Hits != p.hits || u.InFlight >= max(1, p.limit)
	more := p.limit < limit && (p.free > 0 || p.limit < limit/replicas) // or others have all that it could use
	last := p.limit <= 1 && limit <= 2*replicas                         // it would be asked for again soon, and by all: eight permits of eight replicas were used 0.65, and 0.58 with it
	gives := max(p.limit, u.InFlight) < p.held || p.free == 0 && !last && 4*p.demand(u) < 3*p.want
	if p.heard > 0 && (binds && more || gives) {
		return p.asked + permitsRetry
	}
	return never
}
