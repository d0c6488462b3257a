package redis

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
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

// script is run by its sum, or with its text if the server does not know it, in which case it has not run.
var script = redigo.NewScript(-1, share.Script) // -1: how many keys there are is an argument

// A driver runs the script on the servers of a store. It connects as it is needed. Its methods may be called concurrently.
type driver struct {
	Options
	calls  chan struct{}          // one for each in flight
	pools  sync.Map               // of connections, by address
	turn   atomic.Uint32          // of the addresses of the Options
	master atomic.Pointer[string] // that a Sentinel has named last
}

// Close closes all connections. No call is in flight.
func (d *driver) Close() {
	for _, p := range d.pools.Range {
		p.(*redigo.Pool).Close()
	}
}

// run runs the script on a node, or to which nodes refer it, and returns the reply. node is the one of a Cluster that had
// the keys before, "" for any.
func (d *driver) run(node *string, args ...any) (reply string, err error) {
	select {
	case d.calls <- struct{}{}:
		defer func() { <-d.calls }()
	case <-time.After(share.GiveUp / 2): // or there would be no time left for the answer
		return "", os.ErrDeadlineExceeded
	}
	for range mostHops {
		address := cmp.Or(*node, d.Addresses[d.turn.Load()%uint32(len(d.Addresses))])
		pool := d.pool(address)
		conn := pool.Get() // if there is none, its error is that of all that is done with it
		reply, err = redigo.String(script.Do(conn, args...))
		conn.Close()
		if to := moved(err, address); to != "" {
			*node = to
			continue
		}
		// If it does not answer, or is no master, another address is asked the next time, and all connections to this one
		// are made anew.
		if c := code(err); err != nil && (c == "" || c == "READONLY") {
			d.pools.CompareAndDelete(address, pool)
			pool.Close()
			*node = ""
			d.turn.Add(1)
		}
		break
	}
	return reply, err
}

// pool returns the connections to an address.
func (d *driver) pool(address string) *redigo.Pool {
	of, known := d.pools.Load(address)
	if !known {
		fresh := &redigo.Pool{MaxIdle: mostCalls, IdleTimeout: idleTime, Dial: func() (redigo.Conn, error) { return d.dial(address) }}
		if d.Sentinel != "" {
			fresh.MaxConnLifetime = masterTime
		}
		of, _ = d.pools.LoadOrStore(address, fresh)
	}
	return of.(*redigo.Pool)
}

// dial connects to a server: that of the address, or the master that the Sentinel there names. Where there are several,
// they have to be one Cluster: two stores would give out everything twice.
func (d *driver) dial(address string) (conn redigo.Conn, err error) {
	if d.Sentinel != "" {
		if address, err = d.masterOf(address); err != nil {
			return nil, err
		}
	}
	if conn, err = d.connect(address, d.Username, d.Password); err != nil || d.Sentinel != "" || len(d.Addresses) == 1 {
		return conn, err
	}
	if _, err = conn.Do("CLUSTER", "SLOTS"); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (d *driver) connect(address, user, password string) (redigo.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTime}
	dial := dialer.Dial
	if d.TLS != nil {
		dial = (&tls.Dialer{NetDialer: dialer, Config: d.TLS}).Dial
	}
	return redigo.Dial("tcp", address, redigo.DialUsername(user), redigo.DialPassword(password),
		redigo.DialReadTimeout(share.GiveUp), redigo.DialWriteTimeout(share.GiveUp),
		redigo.DialNetDial(func(network, address string) (net.Conn, error) {
			conn, err := dial(network, address)
			return &bounded{Conn: conn}, err
		}))
}

// masterOf asks a Sentinel for the master. It is given the password without the username, or none if it has none. If it
// does not answer, the master is the one that was named last, and another Sentinel is asked the next time.
func (d *driver) masterOf(sentinel string) (address string, err error) {
	conn, err := d.connect(sentinel, "", d.Password)
	if code(err) == "ERR" {
		conn, err = d.connect(sentinel, "", "")
	}
	var at []string
	if err == nil {
		at, err = redigo.Strings(conn.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", d.Sentinel))
		conn.Close()
	}
	if errors.Is(err, redigo.ErrNil) || err == nil && len(at) != 2 {
		err = fmt.Errorf("the Sentinels have no master %q", d.Sentinel)
	}
	if err == nil {
		address = net.JoinHostPort(at[0], at[1])
		d.master.Store(&address)
		return address, nil
	}
	d.turn.Add(1)
	if last := d.master.Load(); last != nil {
		return *last, nil
	}
	return "", err
}

// An IPv6 address comes with brackets, or without.
var isMoved = regexp.MustCompile(`^MOVED \d+ \[?(.*?)\]?:(\d+)$`)

// moved returns the node to which a node of a Cluster refers a call, which has not run; "" if it does not. An empty host
// is that of the one that was asked, and "?" one that it does not know.
func moved(err error, from string) (address string) {
	found := isMoved.FindStringSubmatch(fmt.Sprint(err))
	if found == nil || found[1] == "?" {
		return ""
	}
	host := found[1]
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, found[2])
}
