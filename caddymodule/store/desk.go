package store

import (
	"slices"
	"sync"
	"time"

	"github.com/herdshield/shield/share/redis"
)

// A Desk serves what one config shares with other replicas. During a reload several run: the first is served until the
// second has run for Lasting, or until it is stopped itself, so that a config that fails to start interrupts nothing, and
// one that shares the same goes on with the same exchanges. The zero Desk is ready. It is safe for concurrent use.
type Desk struct {
	mu      sync.Mutex
	configs []*Config       // that run, by when they were started; guarded by mu
	duties  map[Duty]func() // what is served, and what ends that and waits for it; guarded by mu
}

// Lasting is how long a config runs until it takes the place of the one before.
const Lasting = time.Second

// A Config is one that has a store; nil is one that has none.
type Config struct {
	*Connection
	Started time.Duration
	Duties  func(now time.Duration) map[Duty]bool // what it shares
	release func()                                // gives the connection back
	left    bool                                  // guarded by the Desk: its last Tend may come after its Leave
}

// A Duty is what is to be served: a link to a store, under a name.
type Duty struct {
	Store *Connection
	Link  redis.Link
	Kind  redis.Kind
	Name  string // of the backend or zone
	Unit  string // how it is defined, and under which secret: replicas share what has the same name and unit
}

// Tend has a config served, if it is its turn. It is to be called when it starts, and then once per second.
func (d *Desk) Tend(c *Config, now time.Duration) {
	if c == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.left {
		return
	}
	if !slices.Contains(d.configs, c) {
		d.configs = append(d.configs, c)
	}
	d.serve(now)
}

// Leave ends what is served of a config that is stopped, and gives its connection back, once. The next one has its turn.
func (d *Desk) Leave(c *Config, now time.Duration) {
	if c == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.left {
		return
	}
	c.left = true
	d.configs = slices.DeleteFunc(d.configs, func(one *Config) bool { return one == c })
	d.serve(now)
	c.release()
}

// Configs returns those that run.
func (d *Desk) Configs() []*Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.configs)
}

// serve has the last of the configs served that have lasted, or the first of all.
func (d *Desk) serve(now time.Duration) {
	due := map[Duty]bool{}
	for i, c := range slices.Backward(d.configs) {
		if i == 0 || now-c.Started >= Lasting {
			due = c.Duties(now)
			break
		}
	}
	var ended sync.WaitGroup
	for is, end := range d.duties {
		if !due[is] {
			ended.Go(end) // it may wait for the store
			delete(d.duties, is)
		}
	}
	ended.Wait()
	for is := range due {
		if d.duties[is] == nil {
			if d.duties == nil {
				d.duties = map[Duty]func(){}
			}
			d.duties[is] = is.Store.Serve(is.Link, is.Kind, is.Name, is.Unit)
		}
	}
}
