package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"
)

// A Target is a URL and the addresses of its host, resolved once. A Load connects to no
// other address, even if the name resolves differently later.
type Target struct {
	URL       *url.URL
	Addresses []netip.AddrPort // at least one
}

// resolving bounds how long the lookup of a host may take.
const resolving = 5 * time.Second

// ErrRemote is NewTarget's error for hosts other than this machine.
var ErrRemote = errors.New("use a loopback address, or allow another machine explicitly")

// NewTarget parses an http or https URL and resolves its host. Unless remote is true, it
// returns an ErrRemote if any address of the host is not a loopback address: a load test
// of a machine of other people is an attack.
func NewTarget(ctx context.Context, rawURL string, remote bool) (Target, error) {
	u, err := url.Parse(rawURL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Opaque != "", u.Hostname() == "":
		return Target{}, fmt.Errorf("target is %q; use http://host:port/path or https://host:port/path", rawURL)
	case u.User != nil:
		return Target{}, errors.New("target has a user name in it; put credentials in a header")
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]), 10, 16)
	if err != nil || port == 0 {
		return Target{}, fmt.Errorf("target is %q, with port %s; use 1 to 65535", rawURL, u.Port())
	}
	ctx, cancel := context.WithTimeout(ctx, resolving)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return Target{}, fmt.Errorf("resolving the target's host: %w", err)
	}
	u.Fragment = ""
	t := Target{URL: u}
	for _, ip := range ips {
		ip = ip.Unmap()
		if !remote && !ip.IsLoopback() {
			return Target{}, fmt.Errorf("target %s is %v; %w", u.Host, ip, ErrRemote)
		}
		t.Addresses = append(t.Addresses, netip.AddrPortFrom(ip, uint16(port)))
	}
	if len(t.Addresses) == 0 {
		return Target{}, fmt.Errorf("target %s has no address", u.Host)
	}
	return t, nil
}

// A dialer connects to the addresses of a Target. It is safe for concurrent use.
type dialer struct {
	addresses []netip.AddrPort
	good      atomic.Int32 // index of the address that was reached last
}

type sparesKey struct{}

// dial returns one of the context's connections, or one to the first address that accepts, beginning
// with the one that was reached last.
func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	spares, _ := ctx.Value(sparesKey{}).(chan net.Conn)
	select {
	case conn := <-spares:
		return conn, nil
	default:
	}
	first := int(d.good.Load())
	var err error
	for i := range d.addresses {
		n := (first + i) % len(d.addresses)
		conn, fault := new(net.Dialer).DialContext(ctx, "tcp", d.addresses[n].String())
		if fault == nil {
			d.good.Store(int32(n))
			return conn, nil
		}
		if err = fault; ctx.Err() != nil {
			break
		}
	}
	return nil, err
}
