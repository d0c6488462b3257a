package redis

import (
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
	// masterEvery is how often a driver asks a Sentinel for the master, as one that has been replaced may
	// still answer.
	masterEvery = time.Second

	// mostHops is how many nodes of a Cluster refer a call to another, which may have lost the slot, too.
	mostHops = 3

	// mostCalls bounds the calls in flight, each of which has a connection of its own: 1,600 calls a second that
	// take 20 ms each.
	mostCalls = 32

	// dialTime bounds connecting, which may take longer than an exchange: the next one has the connection then.
	dialTime = time.Second

	// idleTime is how long a connection is kept that is not needed: firewalls forget connections later.
	idleTime = time.Minute

	// mostKeys bounds the keys whose node is remembered.
	mostKeys = 10_000
)

// A driver sends commands to the servers of a store, each to the one that has the key. It connects as it is needed. Its
// methods may be called concurrently.
type driver struct {
	options Options
	calls   chan struct{} // one for each in flight

	mu     sync.Mutex // guards what follows
	conns  map[string]*redigo.Pool
	known  []string          // the addresses of the Options: the first one is asked
	where  map[string]string // of a Cluster: the node that has a key, if it is not the first one
	master string            // that Sentinels name; "": not known
	why    error             // it is not known
	asked  time.Time         // when they were asked for it
}

func (o Options) newDriver() *driver {
	return &driver{options: o, calls: make(chan struct{}, mostCalls), conns: map[string]*redigo.Pool{}, known: slices.Clone(o.Addresses), where: map[string]string{}, why: errors.New("the Sentinels are asked for the master")}
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
// run.
func (d *driver) run(ctx context.Context, keys []string, args ...any) (string, error) {
	all := []any{scriptSum, len(keys)}
	for _, key := range keys {
		all = append(all, key)
	}
	all = append(all, args...)
	reply, err := d.do(ctx, keys[0], "EVALSHA", all...)
	if code(err) == "NOSCRIPT" {
		all[0] = share.Script
		reply, err = d.do(ctx, keys[0], "EVAL", all...)
	}
	return redigo.String(reply, err)
}

// do sends a command about a key to the server that has it, or to which servers refer it, and returns the reply.
func (d *driver) do(ctx context.Context, key, command string, args ...any) (reply any, err error) {
	select {
	case d.calls <- struct{}{}:
		defer func() { <-d.calls }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	address, err := d.of(ctx, key)
	for hop, asking := 0, false; err == nil; hop++ {
		if reply, err = d.call(ctx, address, asking, command, args...); err == nil {
			return reply, nil
		}
		to, ask, ok := redirection(err, address)
		if !ok || hop == mostHops {
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
func (d *driver) of(ctx context.Context, key string) (address string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.options.Sentinel == "" {
		if at, ok := d.where[key]; ok {
			return at, nil
		}
		return d.known[0], nil
	}
	if ago := time.Since(d.asked); ago > masterEvery || d.master == "" && ago > share.Beat {
		d.asked = time.Now()
		found := make(chan error, 1)
		go func() { found <- d.findMaster() }()
		if d.master == "" {
			d.mu.Unlock()
			select {
			case err = <-found:
			case <-ctx.Done():
				err = ctx.Err()
			}
			d.mu.Lock()
		}
	}
	if d.master == "" && err == nil {
		err = d.why
	}
	return d.master, err
}

// findMaster asks the Sentinels for the master, each for a part of the time.
func (d *driver) findMaster() (why error) {
	for _, address := range d.options.Addresses {
		ctx, cancel := context.WithTimeout(context.Background(), share.GiveUp)
		at, err := redigo.Strings(d.call(ctx, address, false, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", d.options.Sentinel))
		cancel()
		if err == redigo.ErrNil {
			err = fmt.Errorf("the Sentinels know no master %q", d.options.Sentinel)
		} else if err == nil && len(at) != 2 {
			err = fmt.Errorf("a Sentinel names %q as the master; want a host and a port", at)
		}
		if err == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.master, d.why = net.JoinHostPort(at[0], at[1]), errors.New("the master does not answer")
			return nil
		}
		if _, ok := replied(err); why == nil || ok { // says more than that a server is away
			why = err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why = why
	return why
}

// moved notes where a key is, as a node of a Cluster has said.
func (d *driver) moved(key, to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.where) >= mostKeys {
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

// mode returns server, cluster or sentinel.
func (d *driver) mode() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.options.Sentinel != "":
		return "sentinel"
	case len(d.known) > 1 || len(d.where) > 0:
		return "cluster"
	}
	return "server"
}

// call sends a command to one server. If the connection breaks, all connections to it are made anew.
func (d *driver) call(ctx context.Context, address string, asking bool, command string, args ...any) (reply any, err error) {
	d.mu.Lock()
	p := d.conns[address]
	if p == nil {
		p = &redigo.Pool{MaxIdle: mostCalls, IdleTimeout: idleTime,
			DialContext: func(ctx context.Context) (redigo.Conn, error) { return d.dial(ctx, address) }}
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
	if conn.Err() != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.conns[address] == p {
			delete(d.conns, address)
			p.Close()
		}
	}
	return reply, err
}

// dial connects to a server. Where there are several, they have to be one Cluster: two stores would give out everything
// twice. Sentinels are given the password without the username, or none if they have none.
func (d *driver) dial(ctx context.Context, address string) (redigo.Conn, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTime)
	defer cancel()
	o := &d.options
	connect := func(user, password string) (redigo.Conn, error) {
		return redigo.DialContext(ctx, "tcp", address, redigo.DialUsername(user), redigo.DialPassword(password), redigo.DialUseTLS(o.TLS != nil),
			redigo.DialTLSConfig(o.TLS), redigo.DialReadTimeout(dialTime), redigo.DialWriteTimeout(share.GiveUp), redigo.DialKeepAlive(share.GiveUp))
	}
	if o.Sentinel != "" && slices.Contains(o.Addresses, address) {
		conn, err := connect("", o.Password)
		if code(err) == "ERR" { // it has no password
			conn, err = connect("", "")
		}
		return conn, err
	}
	conn, err := connect(o.Username, o.Password)
	if err != nil || o.Sentinel != "" || len(o.Addresses) == 1 {
		return conn, err
	}
	if _, err = redigo.DoContext(conn, ctx, "CLUSTER", "SLOTS"); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// redirection returns the node to which a node of a Cluster refers a call, which has not run, and whether it has to be
// asked for a slot that is on its way there. An empty host is that of the one that was asked, and "?" one that it does
// not know.
func redirection(err error, from string) (address string, ask, ok bool) {
	text, _ := replied(err)
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return "", false, false
	}
	colon := strings.LastIndexByte(words[2], ':')
	if colon < 0 || words[2][:colon] == "?" {
		return "", false, false
	}
	host := strings.Trim(words[2][:colon], "[]") // IPv6 comes with brackets, or without
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, words[2][colon+1:]), words[0] == "ASK", true
}
