package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// A target is a front end that runs.
type target struct {
	address string
	tls     *tls.Config // nil: plain HTTP
	want    int         // the status of all responses
}

// A load sends requests until ctx ends. An error is one of the connection; answers with another
// status are counted.
type load func(ctx context.Context, t *target, c *count) error

// A count is what a load has seen so far.
type count struct {
	answered, wrong, sent atomic.Uint64

	mu     sync.Mutex
	waits  []time.Duration // of honest clients for their responses; guarded by mu
	unlike int             // a status that was wrong; guarded by mu
}

func (c *count) note(status, want int) {
	if status == want {
		c.answered.Add(1)
		return
	}
	c.wrong.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlike = status
}

// together runs clients, and returns the first error of one.
func together(clients int, run func(i int) error) error {
	var g errgroup.Group
	for i := range clients {
		g.Go(func() error { return run(i) })
	}
	return g.Wait()
}

// ended returns the error of a client, which is none if ctx has ended it.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// The hammer, and honest clients beside it. All are from addresses of their own.
const (
	hammerRate      = 50_000 // per second, from all
	hammerAddresses = 10
	hammerConns     = 8 // of each address
	honestRate      = 100
	honestAddresses = 64
)

// hammer sends at its rate whatever comes back, as far as connections are free: an
// answer that is late delays those after it.
func hammer(vary bool) load {
	return func(ctx context.Context, t *target, c *count) error {
		const hammering = hammerAddresses * hammerConns
		return together(hammering+honestAddresses, func(i int) error {
			if i < hammering {
				p := pace{from: fmt.Sprintf("127.0.1.%d", 1+i%hammerAddresses), every: time.Second * hammering / hammerRate, vary: vary}
				return p.run(ctx, t, c, nil)
			}
			p := pace{from: fmt.Sprintf("127.0.2.%d", 1+i-hammering), every: time.Second * honestAddresses / honestRate}
			return p.run(ctx, t, c, &c.waits)
		})
	}
}

// A pace is that of one connection.
type pace struct {
	from  string
	every time.Duration
	vary  bool
}

// run sends until ctx ends. The waits are those since a request was due, and its client wants to be
// admitted; nil: a client that is sometimes, and does not care.
func (p pace) run(ctx context.Context, t *target, c *count, waits *[]time.Duration) error {
	conn, err := t.dial(ctx, p.from, "http/1.1")
	if err != nil {
		return err
	}
	defer closeWith(ctx, conn)()
	client := newClient1(conn, "")
	for due := time.Now().Add(rand.N(p.every)); ; due = due.Add(p.every) {
		if early := time.Until(due); early > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(early):
			}
		}
		if p.vary {
			client.vary(c.sent.Add(1))
		}
		status, err := client.do()
		if err != nil {
			return ended(ctx, err)
		}
		want := 200
		if waits == nil && status != want {
			want = t.want
		}
		c.note(status, want)
		if waits != nil {
			c.mu.Lock()
			*waits = append(*waits, time.Since(due))
			c.mu.Unlock()
		}
	}
}
