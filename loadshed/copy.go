package loadshed

import (
	"maps"
	"sync/atomic"
)

// CopyTo makes a zero Concurrency one that decides on requests as c would now. No request
// to it changes c: the requests that wait in c have copies there, which get verdicts of
// their own. Of an adaptive limit it has the value.
func (c *Concurrency) CopyTo(to *Concurrency) {
	for _, v := range [...][2]*atomic.Int64{
		{&to.gate.inFlight, &c.gate.inFlight},
		{&to.gate.service, &c.gate.service},
		{&to.adaptive.limit, &c.adaptive.limit},
		{&to.lease.places, &c.lease.places},
		{&to.lease.until, &c.lease.until},
		{&to.lease.free, &c.lease.free},
		{&to.pause.until, &c.pause.until},
		{&to.pause.probeAt, &c.pause.probeAt},
		{&to.shortAt, &c.shortAt},
	} {
		v[0].Store(v[1].Load())
	}
	to.throughput.rate.Store(c.throughput.rate.Load())
	for i := range c.shares.until {
		to.shares.until[i].Store(c.shares.until[i].Load())
	}
	c.clients.copyTo(&to.clients)
	c.budget.copyTo(&to.budget)
	c.queue.copyTo(&to.queue)
	if p := c.plan.Load(); p != nil {
		to.Use(p)
	}
}

func (f *clientCounts) copyTo(to *clientCounts) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		to.shards[i].n = maps.Clone(s.n)
		to.clients.Add(int64(len(s.n)))
		s.mu.Unlock()
	}
}

func (b *budget) copyTo(to *budget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to.first.Store(b.first.Load())
	to.at, to.before, to.left = b.at, b.before, b.left
}

func (q *queue) copyTo(to *queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	to.service = q.service
	for rank := range q.ranks {
		for e := q.ranks[rank].Front(); e != nil; e = e.Next() {
			w := e.Value.(*waiter)
			to.link(&waiter{told: make(chan Verdict, 1), joined: w.joined, until: w.until, rank: w.rank})
		}
		to.ranks[rank].filledAt = q.ranks[rank].filledAt
	}
}
