package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/share"
)

// A Shell is the program around a Client.
type Shell struct {
	Now  func() time.Duration     // the clock of the links
	Lost func(err error)          // the store does not answer, or too late; nil: not told
	Back func(away time.Duration) // it answers again, after that time; nil: not told

	// Differ is told that other replicas share other limits under a name; nil: not told.
	Differ func(name, what string, others []Unit)
}

// A Client carries exchanges between links and one store. Its methods may be called
// concurrently.
type Client struct {
	options Options
	shell   Shell

	ctx  context.Context // of all that uses connections
	stop context.CancelFunc
	done sync.WaitGroup

	wire context.Context // of connections, which end later: there is a last word to be said
	cut  context.CancelFunc

	driver *driver
	silent atomic.Bool // the last exchange was given up
	probe  sync.Mutex  // held by the one exchange that tries while it is silent

	health health
	plans  exchanges
	takes  exchanges

	mu       sync.Mutex // guards what is served
	backends map[*backend]bool
	zones    map[*zone]bool
}

// Open returns a Client of a store that need not be there yet: it connects in the
// background, and goes on trying until Close. It returns an error if the Options are wrong.
func Open(o Options, shell Shell) (*Client, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	c := &Client{options: o, shell: shell, backends: map[*backend]bool{}, zones: map[*zone]bool{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.wire, c.cut = context.WithCancel(context.Background())
	c.health.begin(shell.Now())
	c.driver = o.newDriver(c.wire)
	c.done.Go(c.lookAround)
	return c, nil
}

// Close ends all that the Client does, links that it still serves included, and returns
// when it has ended.
func (c *Client) Close() {
	c.stop()
	c.done.Wait()
	c.cut()
	c.driver.Close()
}

// served returns the backends and zones that the Client serves, by name.
func (c *Client) served() (backends []*backend, zones []*zone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	backends = slices.SortedFunc(maps.Keys(c.backends), func(a, b *backend) int { return strings.Compare(a.name, b.name) })
	zones = slices.SortedFunc(maps.Keys(c.zones), func(a, b *zone) int { return strings.Compare(a.name, b.name) })
	return backends, zones
}

var errSilent = fmt.Errorf("no answer within %v", share.GiveUp)

// run runs a script once, and returns its answer. An exchange that is given up may have
// run, or run later; its answer is dropped.
func (c *Client) run(ctx context.Context, s *script, keys []string, args ...any) (string, error) {
	if c.silent.Load() { // what waits for a frozen server leaves no room for others
		if !c.probe.TryLock() {
			return "", errSilent
		}
		defer c.probe.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, share.GiveUp)
	defer cancel()
	answer, err := s.run(ctx, c.driver, keys, args...)
	if err != nil {
		err = c.explain(err)
	}
	return answer, err
}
