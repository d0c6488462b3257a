package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/herdshield/shield/share"
)

const (
	// dialTimeout bounds the first connection, which no exchange waits for.
	dialTimeout = time.Second

	// pingAfter is how long a connection is silent until it is asked whether it lives. One
	// that is not, is closed after share.GiveUp.
	pingAfter = share.GiveUp

	// bufferSize is that of each direction of a connection: rueidis' own, 512 KiB, is for
	// values that are a hundred times as large as ours.
	bufferSize = 64 << 10

	// ringScale makes room for 2^8 calls in flight on a connection, the least that rueidis
	// advises: a link has one.
	ringScale = 8

	// DefaultPrefix is the Prefix of Options that have none.
	DefaultPrefix = "shield"
)

// Options say where the store is.
type Options struct {
	Addresses []string // host:port of the server, of some nodes of a Cluster, or of Sentinels
	Sentinel  string   // name of the master whose Sentinels the Addresses are; "": they are servers
	Username  string   // of the ACL; "": the default user
	Password  string   // "": none. Sentinels are given it without the Username
	TLS       *tls.Config
	Prefix    string // of all keys, 1 to 32 letters, digits, '-', '_' or '.'; "": DefaultPrefix
}

var isPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

// Check returns what is wrong, all of it.
func (o Options) Check() error {
	var errs []error
	if len(o.Addresses) == 0 {
		errs = append(errs, errors.New("addresses of the store: none; want at least one host:port"))
	}
	for _, address := range o.Addresses {
		host, port, err := net.SplitHostPort(address)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			errs = append(errs, fmt.Errorf("address of the store is %q; want host:port, and a port of 1 to 65535",
				address[strings.LastIndexByte(address, '@')+1:])) // a password may be before it
		}
	}
	if o.Username != "" && o.Password == "" {
		errs = append(errs, fmt.Errorf("username of the store is %q and its password is empty; want both, or none", o.Username))
	}
	if o.Prefix != "" && !isPrefix.MatchString(o.Prefix) {
		errs = append(errs, fmt.Errorf("prefix of the store is %q; want 1 to 32 letters, digits, '-', '_' or '.'", o.Prefix))
	}
	return errors.Join(errs...)
}

// driver returns the Options in rueidis' words. One address is taken for a server that is
// no Cluster, unless cluster is true.
func (o Options) driver(ctx context.Context, cluster bool) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:         o.Addresses,
		Sentinel:            rueidis.SentinelOption{MasterSet: o.Sentinel, Password: o.Password, TLSConfig: o.TLS, TopologyRefreshInterval: 5 * time.Second},
		Username:            o.Username,
		Password:            o.Password,
		TLSConfig:           o.TLS,
		Dialer:              net.Dialer{Timeout: dialTimeout, KeepAlive: pingAfter},
		DialCtxFn:           dialUntil(ctx),
		ConnWriteTimeout:    share.GiveUp,
		RingScaleEachConn:   ringScale,
		ReadBufferEachConn:  bufferSize,
		WriteBufferEachConn: bufferSize,
		PipelineMultiplex:   -1, // one connection to each server
		ClientName:          "shield",
		ClientSetInfo:       rueidis.DisableClientSetInfo, // its right does not exist before Redis 7.2
		DisableCache:        true,                         // all that is read is in the answer of a script
		DisableRetry:        true,                         // a call may have run
		ForceSingleClient:   o.Sentinel == "" && len(o.Addresses) == 1 && !cluster,
	}
}

// dialUntil returns a function that dials as rueidis' own does, until ctx is done.
func dialUntil(ctx context.Context) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(call context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		call, cancel := context.WithCancelCause(call)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		if t != nil {
			return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(call, "tcp", address)
		}
		return d.DialContext(call, "tcp", address)
	}
}
