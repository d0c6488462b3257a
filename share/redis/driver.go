package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// masterEvery is how often a driver asks a Sentinel for the master: one that has been
	// replaced may still answer.
	masterEvery = time.Second

	// nodesEvery is how often it asks for the nodes of a Cluster. That is seldom, as a node
	// says which slots it has lost.
	nodesEvery = 5 * time.Second

	// lookAfter is the shortest time between two such questions: a call that has found no
	// server, or the wrong one, has it ask at once.
	lookAfter = 50 * time.Millisecond

	// mostHops is how many nodes of a Cluster a call asks: a node may refer it to another
	// that has lost the slot, too.
	mostHops = 4
)

// A driver sends commands to the servers of a store, each to the one that has the key. Its
// methods may be called concurrently.
type driver struct {
	options Options
	mode    string        // server, cluster or sentinel
	every   time.Duration // how often it looks for servers

	ctx  context.Context // of connections
	stop context.CancelFunc
	done sync.WaitGroup
	look chan struct{} // the servers may be others by now

	mu    sync.Mutex // guards the following
	where topology
	pools map[string]*pool // by address
}

// newDriver returns the driver of a store. That of a single server there is also if the
// server is away: it connects with the next call. One address is taken for a server that
// is no Cluster, unless cluster is true.
func (o Options) newDriver(ctx context.Context, cluster bool) (*driver, error) {
	d := &driver{options: o, look: make(chan struct{}, 1), pools: map[string]*pool{}}
	d.ctx, d.stop = context.WithCancel(ctx)
	switch {
	case o.Sentinel != "":
		d.mode, d.every = "sentinel", masterEvery
	case cluster || len(o.Addresses) > 1:
		d.mode, d.every = "cluster", nodesEvery
	default:
		d.mode, d.where = "server", topology{master: o.Addresses[0]}
	}
	if d.mode != "server" {
		if err := d.find(); err != nil {
			d.Close()
			return nil, err
		}
		d.done.Go(d.follow)
	}
	d.done.Go(d.ping)
	return d, nil
}

// Close ends what runs in the background, and closes all connections that no call uses.
func (d *driver) Close() {
	d.stop()
	d.done.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pools {
		p.close()
	}
}

// do sends a command about a key to the server that has it, once, and returns the reply.
func (d *driver) do(ctx context.Context, key, command string, args ...any) (reply any, err error) {
	d.mu.Lock()
	address, ok := d.where.of(key)
	d.mu.Unlock()
	if !ok {
		d.lookAgain()
		return nil, fmt.Errorf("no node of the Cluster has slot %d", slot(key))
	}
	k, asking := aServer, false
	if d.mode == "sentinel" {
		k = aMaster
	}
	for range mostHops {
		reply, err = d.doAt(ctx, address, k, asking, command, args...)
		to, ask, ok := redirection(err, address)
		if !ok || d.mode != "cluster" {
			break
		}
		if address, asking = to, ask; !ask {
			d.lookAgain()
		}
	}
	if _, ok := replied(err); code(err) == "READONLY" || err != nil && !ok {
		d.lookAgain()
	}
	return reply, err
}

// doAt sends a command to one server.
func (d *driver) doAt(ctx context.Context, address string, k kind, asking bool, command string, args ...any) (any, error) {
	d.mu.Lock()
	p := d.pools[address]
	if p == nil {
		p = d.options.newPool(d.ctx, address, k)
		d.pools[address] = p
	}
	d.mu.Unlock()
	return p.do(ctx, asking, command, args...)
}

// ping finds out which connections are dead, of those that no call uses.
func (d *driver) ping() {
	for d.wait(pingAfter) {
		d.mu.Lock()
		pools := slices.Collect(maps.Values(d.pools))
		d.mu.Unlock()
		var all sync.WaitGroup
		for _, p := range pools {
			all.Go(p.ping)
		}
		all.Wait()
	}
}

// wait returns after a time, and whether the driver is still open.
func (d *driver) wait(t time.Duration) bool {
	select {
	case <-d.ctx.Done():
		return false
	case <-time.After(t):
		return true
	}
}

// lookAgain has the driver look for servers soon.
func (d *driver) lookAgain() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}

// follow looks for servers from time to time, and when they seem to be others.
func (d *driver) follow() {
	for d.wait(lookAfter) {
		select {
		case <-d.ctx.Done():
			return
		case <-d.look:
		case <-time.After(d.every):
		}
		_ = d.find() // what was known before stays; calls tell what does not answer
	}
}

// find asks for the servers of the store: those that are known, then the addresses that
// were configured. The first that answers is believed.
func (d *driver) find() (why error) {
	d.mu.Lock()
	asked := slices.Concat(d.where.tell, d.options.Addresses)
	d.mu.Unlock()
	for i, address := range asked {
		if slices.Contains(asked[:i], address) {
			continue
		}
		ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
		where, err := d.ask(ctx, address)
		cancel()
		if err == nil {
			d.move(where)
			return nil
		}
		if _, ok := replied(err); why == nil || ok { // says more than that a server is away
			why = err
		}
	}
	return why
}

// move has calls go to the servers of a topology from now on.
func (d *driver) move(to topology) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.where = to
	for address, p := range d.pools {
		if address != to.master && !slices.Contains(to.tell, address) {
			delete(d.pools, address)
			p.close()
		}
	}
}
