// Package redis keeps in a Redis or Valkey server what replicas share: it is the store of
// package share. It needs version 5 or later: one server, a Cluster, or Sentinels.
package redis

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/herdshield/shield/share"
)

// A Client carries exchanges between links and one store. Its methods may be called
// concurrently.
type Client struct {
	driver   driver
	now      func() time.Duration
	answered func(trip time.Duration)

	ctx  context.Context // of all that is served
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex    // guards what follows, and the Others of each of served
	status Status        // but for what depends on now, and Shared; AloneSeconds are until since
	since  time.Duration // of Up, or of the last answer before
	served map[*served]bool
}

// Open returns a Client of a store that need not be there yet: it connects as it has something to tell, and goes on
// trying until Close. It returns an error if the Options are wrong. now is the clock of the links, and answered, if not nil,
// is told how long an exchange took that was answered or slow, as Status has it.
func Open(o Options, now func() time.Duration, answered func(trip time.Duration)) (*Client, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	c := &Client{
		driver: driver{Options: o, calls: make(chan struct{}, mostCalls)}, now: now, answered: answered,
		status: Status{
			Address: strings.Join(o.Addresses, ","), Prefix: o.Prefix,
			Exchanges: map[string]uint64{inTime: 0, slow: 0, late: 0, rejected: 0, failed: 0},
		},
		since: now(), served: map[*served]bool{},
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Close ends all that the Client does, links that it still serves included, and returns
// when it has ended.
func (c *Client) Close() {
	c.stop()
	c.done.Wait()
	c.driver.Close()
}

// A Link is the state machine whose exchanges a Client carries: a share.Link or a share.Zone.
type Link interface {
	OnWake(wake func())                                      // sets what says that Due should be called
	Due(now time.Duration) (share.LeaseAsk, bool)            // the exchange that is to be sent now
	Heard(now, sent time.Duration, answer share.LeaseAnswer) // its answer
	Missed(now time.Duration)                                // it has none, and will not have
	Next(now time.Duration) (at time.Duration)               // when to call Due again at the latest
	Bye(now time.Duration) (share.LeaseAsk, bool)            // the last exchange
	Alone(now time.Duration) (alone bool, replicas int)
}

// A Kind is what a link is about: names of one kind are not those of the other.
type Kind string

// The Kinds.
const (
	Backend Kind = "b"
	Zone    Kind = "z"
)

// A served is a link that the Client serves.
type served struct {
	Link
	shown     Shared // but for what the Link knows
	base, tag string // of its keys, which a Cluster keeps together
	node      string // of the Cluster: that has them
}

// Serve carries the exchanges of a link until stop is called. Replicas share it if they give it the same name and the same
// text of all that must be defined alike, such as its limits and a fingerprint of the secret. Others of the same name are
// told of in Status, with theirs.
func (c *Client) Serve(l Link, kind Kind, name, what string) (stop func()) {
	what += " script " + script.Hash()[:8]
	s := &served{Link: l, shown: Shared{Kind: kind, Name: name, Sharing: share.Sharing{Unit: what}}}
	sum := sha256.Sum256([]byte(what))
	s.base = "shield:{" + c.driver.Prefix + ":" + string(kind) + ":" + url.QueryEscape(name) + "}:"
	s.tag = s.base + hex.EncodeToString(sum[:8]) + ":"
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	c.mu.Lock()
	c.served[s] = true
	c.mu.Unlock()
	c.done.Go(func() {
		defer close(ended)
		c.serve(ctx, s)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.served, s)
	})
	return func() {
		cancel()
		<-ended
	}
}

// serve carries the exchanges of one link, one at a time, until ctx is done. One that is on its way then has its time,
// and so has the last one.
func (c *Client) serve(ctx context.Context, s *served) {
	wake := make(chan struct{}, 1)
	s.OnWake(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer func() {
		if ask, ok := s.Bye(c.now()); ok {
			_, _ = c.exchange(s, &ask) // nothing is left to be done without an answer
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		now := c.now()
		for ask, due := s.Due(now); due && ctx.Err() == nil; ask, due = s.Due(now) {
			sent := now
			ask.What = s.shown.Unit
			answer, err := c.exchange(s, &ask)
			if now = c.now(); c.note(s, sent, now, answer, err) {
				s.Heard(now, sent, answer)
			} else {
				s.Missed(now)
			}
		}
		timer.Reset(max(0, s.Next(now)-now))
	}
}

// exchange tells the store an ask, and returns its answer. One that is given up may be heard, or be heard later.
func (c *Client) exchange(s *served, ask *share.LeaseAsk) (answer share.LeaseAnswer, err error) {
	text, err := json.Marshal(ask)
	if err != nil {
		return answer, err
	}
	args := []any{3 + len(ask.Keys), s.tag + "roster", s.tag + "notes", s.base + "units"}
	for _, name := range ask.Keys {
		args = append(args, s.tag+name)
	}
	args = append(args, "", text, ask.Notes) // "": the time is the server's own
	reply, err := c.driver.run(&s.node, args...)
	if err != nil {
		return answer, c.driver.explain(err)
	}
	if err := json.Unmarshal([]byte(reply), &answer); err != nil {
		return answer, fmt.Errorf("a response is unreadable: %w", err)
	}
	return answer, nil
}
