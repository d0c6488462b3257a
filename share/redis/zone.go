package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/share"
)

// Zone is what a Client knows of a zone that replicas share.
type Zone struct {
	Name     string `json:"name"`
	Alone    bool   `json:"alone"`    // this replica works without the store, for some keys at least
	Replicas int    `json:"replicas"` // how many there are, this one included
	Hot      int    `json:"hot"`      // keys whose tokens come from the store
	Keys     uint64 `json:"keys"`     // that exchanges were about, in all

	What   string `json:"what"`             // its unit
	Others []Unit `json:"others,omitempty"` // replicas that share other limits
}

// A zone is one that the Client serves.
type zone struct {
	*share.Zone
	*unit
	keys atomic.Uint64
}

// ServeZone carries the exchanges of a zone until stop is called. Name and unit are as those of Serve.
func (c *Client) ServeZone(of *share.Zone, name, what string) (stop func()) {
	z := &zone{Zone: of, unit: c.unit("z", name, what, leaseScript)}
	c.mu.Lock()
	c.zones[z] = true
	c.mu.Unlock()
	end := start(c, of, func(ctx context.Context, ask share.LeaseAsk) (answer share.LeaseAnswer, err error) {
		z.keys.Add(uint64(len(ask.Pools)))
		err = c.exchange(ctx, leaseScript, leaseKeys(z.tag, ask.Keys), &ask, &answer, ask.Notes)
		return answer, err
	}, &c.takes)
	return func() {
		end()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.zones, z)
	}
}

// exchange runs a script with an ask, and reads its answer.
func (c *Client) exchange(ctx context.Context, s *script, keys []string, ask, answer any, more ...any) error {
	text, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	reply, err := c.run(ctx, s, keys, append([]any{string(text)}, more...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(reply), answer); err != nil {
		return fmt.Errorf("an answer is not understood: %w", err)
	}
	return nil
}

// leaseKeys are the keys of leaseScript, as KEYS.
func leaseKeys(tag string, pools []string) []string {
	list := make([]string, 2, 2+len(pools))
	list[0], list[1] = tag+":roster", tag+":notes"
	for _, name := range pools {
		list = append(list, tag+":"+name)
	}
	return list
}

// status returns what is known of the zone.
func (z *zone) status(now time.Duration) Zone {
	e := z.Escrow()
	return Zone{Name: z.name, Alone: e.IsAlone(now), Replicas: e.Replicas(), Hot: e.Hot(), Keys: z.keys.Load(), What: z.what, Others: z.others()}
}
