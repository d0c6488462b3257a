package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
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

// ServeZone carries the exchanges of a zone's links until stop is called. Name and unit are
// as those of Serve.
func (c *Client) ServeZone(of *share.Zone, name, what string) (stop func()) {
	if n := len(of.Links()); n > 1 { // a replica with another number would look for keys elsewhere
		what += fmt.Sprintf(", %d slots", n)
	}
	z := &zone{Zone: of, unit: c.unit("z0", name, what, takeScript)}
	c.mu.Lock()
	c.zones[z] = true
	c.mu.Unlock()
	var ends []func()
	for slot, link := range of.Links() {
		tag := c.unit(fmt.Sprint("z", slot), name, what, takeScript).tag
		ends = append(ends, start(c, link, func(ctx context.Context, ask share.TakeAsk) (answer share.TakeAnswer, err error) {
			z.keys.Add(uint64(len(ask.Keys)))
			err = c.exchange(ctx, takeScript, takeKeys(tag, ask.Keys), &ask, &answer)
			return answer, err
		}, &c.takes))
	}
	return func() {
		var all sync.WaitGroup
		for _, end := range ends { // each may wait for the store
			all.Go(end)
		}
		all.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.zones, z)
	}
}

// exchange runs a script with an ask, and reads its answer.
func (c *Client) exchange(ctx context.Context, s *script, keys []string, ask, answer any) error {
	text, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	reply, err := c.run(ctx, s, keys, string(text))
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(reply), answer); err != nil {
		return fmt.Errorf("an answer is not understood: %w", err)
	}
	return nil
}

// takeKeys are the keys of takeScript, as KEYS.
func takeKeys(tag string, keys []share.KeyTake) []string {
	list := make([]string, 2, 2+len(keys))
	list[0], list[1] = tag+":lives", tag+":news"
	for _, k := range keys {
		list = append(list, tag+":"+k.Key)
	}
	return list
}

// status returns what is known of the zone.
func (z *zone) status(now time.Duration) Zone {
	e := z.Escrow()
	s := Zone{Name: z.name, Replicas: e.Replicas(), Hot: e.Hot(), Keys: z.keys.Load(), What: z.what, Others: z.others()}
	for slot := range z.Links() {
		s.Alone = s.Alone || e.IsAlone(slot, now)
	}
	return s
}
