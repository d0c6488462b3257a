package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
)

const (
	// masterEvery is how often a driver asks a Sentinel for the master, as one that has been replaced may
	// still answer; nodesEvery is how often it asks a Cluster for its nodes, which say themselves what they
	// have lost.
	masterEvery = time.Second
	nodesEvery  = 5 * time.Second

	// mostHops is how many nodes of a Cluster a call asks: a node may refer it to another that has lost the
	// slot, too.
	mostHops = 4

	// mostCalls bounds the calls in flight, each of which has a connection of its own: 1,600 calls a second
	// that take 20 ms each.
	mostCalls = 32

	// callTimeout bounds a call, connecting included. No exchange waits so long: a connection on which one
	// was given up is closed after that time.
	callTimeout = time.Second

	// idleTime is how long a connection is kept that is not needed: firewalls forget connections later.
	idleTime = time.Minute

	// mostKnown bounds the addresses and the keys whose node is remembered.
	mostKnown = 10_000
)

var errBusy = fmt.Errorf("%d calls are in flight: %w", mostCalls, context.DeadlineExceeded)

// A driver sends commands to the servers of a store, each to the one that has the key. It connects as it is needed. Its
// methods may be called concurrently.
type driver struct {
	options Options
	ctx     context.Context // of connections
	stop    context.CancelFunc
	done    sync.WaitGroup
	calls   chan struct{} // one for each in flight

	mu      sync.Mutex // guards what follows
	conns   map[string]*redigo.Pool
	known   []string          // addresses of Sentinels, or of servers: the first one is asked
	where   map[string]string // of a Cluster: the node that has a key, if it is not the first one
	master  string            // that Sentinels name; "": not known
	cluster bool              // it has several nodes
	looked  bool              // they were asked for
	answers bool              // a server has answered
}

func (o Options) newDriver(ctx context.Context) *driver {
	d := &driver{options: o, calls: make(chan struct{}, mostCalls), conns: map[string]*redigo.Pool{},
		known: slices.Clone(o.Addresses), where: map[string]string{}, cluster: o.Sentinel == "" && len(o.Addresses) > 1}
	d.ctx, d.stop = context.WithCancel(ctx)
	d.done.Go(d.follow)
	return d
}

// Close ends what runs in the background, and closes all connections.
func (d *driver) Close() {
	d.stop()
	d.done.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.conns {
		p.Close()
	}
}

// mode returns server, cluster or sentinel; "": no server has answered yet.
func (d *driver) mode() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.answers:
		return ""
	case d.options.Sentinel != "":
		return "sentinel"
	case d.cluster:
		return "cluster"
	}
	return "server"
}

// do sends a command about a key to the server that has it, and returns the reply. If ctx ends first, the call goes on
// in the background: a connection that is only slow is kept for the next.
func (d *driver) do(ctx context.Context, key, command string, args ...any) (any, error) {
	select {
	case d.calls <- struct{}{}:
	case <-ctx.Done():
		return nil, errBusy
	}
	type result struct {
		reply any
		err   error
	}
	got := make(chan result, 1)
	d.done.Go(func() {
		defer func() { <-d.calls }()
		ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
		defer cancel()
		reply, err := d.route(ctx, key, command, args...)
		got <- result{reply, err}
	})
	select {
	case r := <-got:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// route sends a command to where the key is, and to where servers refer it.
func (d *driver) route(ctx context.Context, key, command string, args ...any) (reply any, err error) {
	address, k, err := d.of(ctx, key)
	for hop, asking := 0, false; err == nil && hop < mostHops; hop++ {
		if reply, err = d.call(ctx, address, k, asking, command, args...); err == nil {
			return reply, nil
		}
		to, ask, ok := redirection(err, address)
		if !ok || k == aMaster || hop == mostHops-1 {
			break
		}
		if address, asking, err = to, ask, nil; !ask {
			d.moved(key, to)
		}
	}
	if _, ok := replied(err); !ok || code(err) == "READONLY" {
		d.forget(key, address)
	}
	return nil, err
}

// of returns the server to be asked about a key.
func (d *driver) of(ctx context.Context, key string) (address string, k kind, err error) {
	d.mu.Lock()
	looks := d.options.Sentinel != "" && d.master == "" || d.cluster && !d.looked
	d.mu.Unlock()
	if looks {
		if err := d.look(ctx); err != nil {
			return "", 0, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.options.Sentinel != "" {
		return d.master, aMaster, nil
	}
	if at, ok := d.where[key]; ok {
		return at, aServer, nil
	}
	return d.known[0], aServer, nil
}

// moved notes where a key is, as a node has said.
func (d *driver) moved(key, to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cluster = true; len(d.where) >= mostKnown {
		clear(d.where)
	}
	d.where[key] = to
}

// forget has another server be asked: this one does not answer, or is no master.
func (d *driver) forget(key, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.where, key)
	if d.master = ""; d.known[0] == address {
		d.known = append(d.known[1:], address)
	}
}

// call sends a command to one server. If the connection breaks, all connections to it are made anew.
func (d *driver) call(ctx context.Context, address string, k kind, asking bool, command string, args ...any) (reply any, err error) {
	d.mu.Lock()
	p := d.conns[address]
	if p == nil {
		p = &redigo.Pool{MaxIdle: mostCalls, IdleTimeout: idleTime,
			DialContext: func(ctx context.Context) (redigo.Conn, error) { return d.options.dial(ctx, address, k) }}
		d.conns[address] = p
	}
	d.mu.Unlock()
	conn, err := p.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if asking {
		_, err = redigo.DoContext(conn, ctx, "ASKING")
	}
	if err == nil {
		reply, err = redigo.DoContext(conn, ctx, command, args...)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answers = d.answers || err == nil; conn.Err() != nil && d.conns[address] == p {
		delete(d.conns, address)
		p.Close()
	}
	return reply, err
}

// follow looks from time to time whether the servers are others.
func (d *driver) follow() {
	every := nodesEvery
	if d.options.Sentinel != "" {
		every = masterEvery
	}
	for ticker := time.NewTicker(every); ; {
		select {
		case <-d.ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		if mode := d.mode(); mode == "sentinel" || mode == "cluster" {
			ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
			_ = d.look(ctx) // what was known before stays; calls tell what does not answer
			cancel()
		}
	}
}

// look asks for the servers: those that are known, in turn, each for a part of the time.
func (d *driver) look(ctx context.Context) (why error) {
	d.mu.Lock()
	asked := slices.Clone(d.known)
	d.mu.Unlock()
	for _, address := range asked {
		part, cancel := context.WithTimeout(ctx, share.GiveUp)
		master, nodes, err := d.ask(part, address)
		cancel()
		if err != nil {
			if _, ok := replied(err); why == nil || ok { // says more than that a server is away
				why = err
			}
			continue
		}
		d.mu.Lock()
		d.master, d.looked = master, true
		for _, node := range nodes {
			if !slices.Contains(d.known, node) && len(d.known) < mostKnown {
				d.known = append(d.known, node)
			}
		}
		d.mu.Unlock()
		return nil
	}
	return why
}

// ask asks one Sentinel for the master and the other Sentinels, or one node of a Cluster for the others.
func (d *driver) ask(ctx context.Context, address string) (master string, others []string, err error) {
	name := d.options.Sentinel
	if name == "" {
		slots, err := redigo.Values(d.call(ctx, address, aServer, false, "CLUSTER", "SLOTS"))
		for _, slot := range slots {
			nodes, _ := redigo.Values(slot, nil)
			for _, node := range nodes[min(2, len(nodes)):] { // the first slot, the last, and the nodes that have them
				fields, _ := redigo.Values(node, nil)
				if len(fields) < 2 {
					continue
				}
				host, _ := redigo.String(fields[0], nil)
				port, _ := redigo.Int(fields[1], nil)
				if node, ok := endpoint(host, strconv.Itoa(port), address); ok {
					others = append(others, node)
				}
			}
		}
		if err == nil && len(others) == 0 {
			err = errors.New("the Cluster has no node with slots")
		}
		return "", others, err
	}
	sentinels, err := redigo.Values(d.call(ctx, address, aSentinel, false, "SENTINEL", "SENTINELS", name))
	if err != nil {
		return "", nil, err
	}
	at, err := redigo.Strings(d.call(ctx, address, aSentinel, false, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name))
	if err != nil {
		return "", nil, err
	}
	if len(at) != 2 {
		return "", nil, fmt.Errorf("a Sentinel names %q as the master; want a host and a port", at)
	}
	for _, other := range sentinels {
		if facts, err := redigo.StringMap(other, nil); err == nil && facts["ip"] != "" {
			others = append(others, net.JoinHostPort(facts["ip"], facts["port"]))
		}
	}
	return net.JoinHostPort(at[0], at[1]), others, nil
}

// redirection returns the node to which a node of a Cluster refers a call, which has not run, and whether it has to be
// asked for a slot that is on its way there.
func redirection(err error, from string) (address string, ask, ok bool) {
	text, _ := replied(err)
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return "", false, false
	}
	colon := strings.LastIndexByte(words[2], ':')
	if colon < 0 {
		return "", false, false
	}
	address, ok = endpoint(words[2][:colon], words[2][colon+1:], from)
	return address, words[0] == "ASK", ok
}

// endpoint returns the address of a node as another tells it: an empty host is that of the one that was asked, and "?" is
// one that it does not know.
func endpoint(host, port, from string) (address string, ok bool) {
	if host == "?" {
		return "", false
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port), true // IPv6 comes with brackets, or without
}
