package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
)

const (
	// masterTime is for how long a connection to a master is used that Sentinels have named, as one that has been
	// replaced may still answer.
	masterTime = time.Second

	// mostHops is how many nodes of a Cluster refer a call to another, which may have lost the slot, too.
	mostHops = 3

	// mostCalls bounds the calls in flight, each of which has a connection of its own: 1,600 calls a second that
	// take 20 ms each.
	mostCalls = 32

	// dialTime bounds connecting, which may take longer than an exchange: the next one has the connection then.
	dialTime = time.Second

	// idleTime is how long a connection is kept that is not needed: firewalls forget connections later.
	idleTime = time.Minute
)

// A driver sends commands to the servers of a store. It connects as it is needed. Its methods may be called concurrently.
type driver struct {
	options Options
	calls   chan struct{} // one for each in flight

	mu     sync.Mutex // guards what follows
	conns  map[string]*redigo.Pool
	known  []string // the addresses of the Options: the first one is asked
	master string   // that a Sentinel has named last
}

func (o Options) newDriver() *driver {
	return &driver{options: o, calls: make(chan struct{}, mostCalls), conns: map[string]*redigo.Pool{}, known: slices.Clone(o.Addresses)}
}

// Close closes all connections.
func (d *driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.conns {
		p.Close()
	}
}

// run runs the lease script once: by its sum, and with its text if the server does not know it, in which case it has not
// run. node is the one of a Cluster that had the keys before, "" for any.
func (d *driver) run(ctx context.Context, node *string, keys []string, args ...any) (string, error) {
	all := []any{scriptSum, len(keys)}
	for _, key := range keys {
		all = append(all, key)
	}
	all = append(all, args...)
	reply, err := d.do(ctx, node, "EVALSHA", all...)
	if code(err) == "NOSCRIPT" {
		all[0] = share.Script
		reply, err = d.do(ctx, node, "EVAL", all...)
	}
	return redigo.String(reply, err)
}

// do sends a command to a node, or to which nodes refer it, and returns the reply.
func (d *driver) do(ctx context.Context, node *string, command string, args ...any) (reply any, err error) {
	select {
	case d.calls <- struct{}{}:
		defer func() { <-d.calls }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	address := cmp.Or(*node, d.first())
	for range mostHops {
		reply, err = d.call(ctx, address, command, args...)
		to, ok := moved(err, address)
		if !ok {
			break
		}
		address, *node = to, to
	}
	if _, ok := replied(err); err != nil && (!ok || code(err) == "READONLY") { // it does not answer, or is no master
		*node = ""
		d.next(address)
	}
	return reply, err
}

// first returns the address that is asked.
func (d *driver) first() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[0]
}

// next has another address be asked.
func (d *driver) next(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known[0] == address {
		d.known = append(d.known[1:], address)
	}
}

// call sends a command to one server. If the connection breaks, all connections to it are made anew.
func (d *driver) call(ctx context.Context, address string, command string, args ...any) (reply any, err error) {
	d.mu.Lock()
	p := d.conns[address]
	if p == nil {
		p = &redigo.Pool{MaxIdle: mostCalls, IdleTimeout: idleTime,
			DialContext: func(ctx context.Context) (redigo.Conn, error) { return d.dial(ctx, address) }}
		if d.options.Sentinel != "" {
			p.MaxConnLifetime = masterTime
		}
		d.conns[address] = p
	}
	d.mu.Unlock()
	conn, err := p.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reply, err = redigo.DoContext(conn, ctx, command, args...)
	if conn.Err() != nil || code(err) == "READONLY" {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.conns[address] == p {
			delete(d.conns, address)
			p.Close()
		}
	}
	return reply, err
}

// dial connects to a server: that of the address, or the master that the Sentinel there names. Where there are several,
// they have to be one Cluster: two stores would give out everything twice.
func (d *driver) dial(ctx context.Context, address string) (conn redigo.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTime)
	defer cancel()
	o := &d.options
	if o.Sentinel != "" {
		if address, err = d.masterOf(ctx, address); err != nil {
			return nil, err
		}
	}
	if conn, err = o.connect(ctx, address, o.Username, o.Password); err != nil || o.Sentinel != "" || len(o.Addresses) == 1 {
		return conn, err
	}
	if _, err = redigo.DoContext(conn, ctx, "CLUSTER", "SLOTS"); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (o *Options) connect(ctx context.Context, address, user, password string) (redigo.Conn, error) {
	return redigo.DialContext(ctx, "tcp", address, redigo.DialUsername(user), redigo.DialPassword(password), redigo.DialUseTLS(o.TLS != nil),
		redigo.DialTLSConfig(o.TLS), redigo.DialReadTimeout(dialTime), redigo.DialWriteTimeout(share.GiveUp), redigo.DialKeepAlive(share.GiveUp))
}

// masterOf asks a Sentinel for the master. It is given the password without the username, or none if it has none. If it
// does not answer, the master is the one that was named last, and another Sentinel is asked the next time.
func (d *driver) masterOf(ctx context.Context, sentinel string) (address string, err error) {
	conn, err := d.options.connect(ctx, sentinel, "", d.options.Password)
	if code(err) == "ERR" {
		conn, err = d.options.connect(ctx, sentinel, "", "")
	}
	var at []string
	if err == nil {
		at, err = redigo.Strings(redigo.DoContext(conn, ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", d.options.Sentinel))
		conn.Close()
	}
	if errors.Is(err, redigo.ErrNil) || err == nil && len(at) != 2 {
		err = fmt.Errorf("the Sentinels know no master %q", d.options.Sentinel)
	}
	if err != nil {
		d.next(sentinel)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.master = net.JoinHostPort(at[0], at[1])
	} else if d.master == "" {
		return "", err
	}
	return d.master, nil
}

// moved returns the node to which a node of a Cluster refers a call, which has not run. An empty host is that of the one
// that was asked, and "?" one that it does not know.
func moved(err error, from string) (address string, ok bool) {
	text, _ := replied(err)
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != "MOVED" {
		return "", false
	}
	colon := strings.LastIndexByte(words[2], ':')
	if colon < 0 || words[2][:colon] == "?" {
		return "", false
	}
	host := strings.Trim(words[2][:colon], "[]") // IPv6 comes with brackets, or without
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, words[2][colon+1:]), true
}
