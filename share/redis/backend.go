package redis

import (
	"context"
	"sync"

	"github.com/herdshield/shield/share"
)

// Backend is what a Client knows of a backend that replicas share.
type Backend struct {
	Name     string  `json:"name"`
	Alone    bool    `json:"alone"`    // this replica works without the store
	Replicas int     `json:"replicas"` // how many there are, this one included
	Pool     float64 `json:"pool"`     // tokens that no replica held at the last exchange
	Epochs   uint64  `json:"epochs"`   // how often the store has begun anew, the first time included

	Granted  float64 `json:"granted"`  // slots
	Guessed  float64 `json:"guessed"`  // booked without a grant
	Returned float64 `json:"returned"` // given back
	Told     uint64  `json:"told"`     // promises, made or kept, that the others were told
	Heard    uint64  `json:"heard"`    // those that they have told

	What   string `json:"what"`             // its unit
	Others []Unit `json:"others,omitempty"` // replicas that share other limits
}

// A backend is one that the Client serves.
type backend struct {
	link *share.Link
	*unit

	mu   sync.Mutex // guards born and seen
	born int64
	seen Backend
}

// Serve carries the exchanges of a backend's link until stop is called. Replicas share a
// backend if they give it the same name and unit: a text of all that must be defined alike,
// such as its limits and a fingerprint of the secret. Others of the same name are told of
// in Status, with their unit.
func (c *Client) Serve(l *share.Link, name, what string) (stop func()) {
	b := &backend{link: l, unit: c.unit("b", name, what, leaseScript), seen: Backend{Name: name, Epochs: 1}}
	c.mu.Lock()
	c.backends[b] = true
	c.mu.Unlock()
	end := start(c, l, func(ctx context.Context, ask share.LeaseAsk) (answer share.LeaseAnswer, err error) {
		if err = c.exchange(ctx, leaseScript, leaseKeys(b.tag, ask.Keys), &ask, &answer, ask.Notes); err == nil {
			answer.Bound(&ask)
			b.count(&ask, &answer)
		}
		return answer, err
	}, &c.plans)
	return func() {
		end()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.backends, b)
	}
}

func (b *backend) count(ask *share.LeaseAsk, answer *share.LeaseAnswer) {
	if answer.Over || answer.Stale {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.seen
	if s.Replicas = answer.N; answer.Born != b.born {
		b.born, s.Epochs = answer.Born, s.Epochs+1
	}
	if len(answer.Pools) > 0 && ask.Keys[0] == share.TokensPool {
		s.Pool = answer.Pools[0].Left
	}
	if ask.Slots != nil && answer.Slots != nil {
		s.Granted += float64(len(answer.Slots.Times))
		s.Guessed += sizes(ask.Slots.Guessed)
		s.Returned += sizes(ask.Slots.Back)
	}
	s.Told += uint64(share.CountNews(ask.Notes))
	for _, news := range answer.News {
		s.Heard += uint64(share.CountNews(news))
	}
}

func sizes(slots []share.Slot) (sum float64) {
	for _, s := range slots {
		sum += s.Size
	}
	return sum
}

// status returns what is known of the backend.
func (b *backend) status() Backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.seen
	s.Alone, _ = b.link.Alone()
	s.What, s.Others = b.what, b.others()
	return s
}
