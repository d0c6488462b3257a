package live

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// A Proto is how a Load speaks to its Target.
type Proto string

const (
	H1   Proto = "h1"   // HTTP/1.1, over TLS if the URL is https
	H2   Proto = "h2"   // HTTP/2 over TLS
	H2C  Proto = "h2c"  // HTTP/2 without TLS, by prior knowledge
	GRPC Proto = "grpc" // unary gRPC calls, over TLS if the URL is https
)

var Protos = []Proto{H1, H2, H2C, GRPC}

// HealthCheck is the method of gRPC's health checking protocol, which most servers have. A
// Load of GRPC calls it by default.
const HealthCheck = "/grpc.health.v1.Health/Check"

// A reply is the result of one attempt.
type reply struct {
	status int           // HTTP status, or the one that stands for a gRPC code; clients.NoAnswer or clients.NoConnection
	failed int           // the status that policies get instead; 0: the same
	label  string        // the status in the protocol's words, "" if there is none
	hint   pushback.Hint // when to come back
	why    string        // the error of a NoConnection
}

// maxHeader bounds the header of an answer, of which 20,000 clients may hold one each.
const maxHeader = 64 << 10

// A wire carries attempts to a target, by HTTP or gRPC. It is safe for concurrent use.
type wire struct {
	cfg       LoadConfig
	transport *http.Transport
	pools     []*pool // HTTP/2: one connection each, or more if it is full; else none
}

func newWire(c LoadConfig, d *dialer) *wire {
	w := &wire{cfg: c, transport: &http.Transport{
		// No Proxy: the environment must not send the load elsewhere.
		DialContext:            d.dial,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: c.Insecure}, // the operator says so
		DisableKeepAlives:      c.Proto == H1 && !c.KeepAlive,
		DisableCompression:     true, // send no field but those configured
		MaxIdleConnsPerHost:    MaxClients,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}}
	if c.Proto == H1 {
		w.transport.Protocols.SetHTTP1(true)
		return w
	}
	secure := c.Target.URL.Scheme == "https"
	w.transport.Protocols.SetHTTP2(secure)
	w.transport.Protocols.SetUnencryptedHTTP2(!secure)
	for range c.connections() {
		w.pools = append(w.pools, &pool{
			turn: make(chan struct{}, 1),
			wait: c.Proto == GRPC,
			dial: func(ctx context.Context) (*http.ClientConn, error) {
				return w.transport.NewClientConn(ctx, c.Target.URL.Scheme, c.Target.Addresses[0].String())
			},
		})
	}
	// The name is the URL's, whatever address is connected to.
	w.transport.TLSClientConfig.ServerName = c.Target.URL.Hostname()
	return w
}

// send sends one attempt of c and reads the whole answer. It returns soon after ctx ends.
func (w *wire) send(ctx context.Context, c *client) reply {
	var transport http.RoundTripper = w.transport
	if w.pools != nil {
		conn, err := w.pools[c.index%len(w.pools)].get(ctx)
		if err != nil {
			return failed(ctx, err)
		}
		transport = conn
	}
	ctx = withConn(ctx, c.conn)
	resp, err := transport.RoundTrip(w.request(ctx, c))
	if refused, ok := errors.AsType[http2.StreamError](err); ok && refused.Code == http2.ErrCodeRefusedStream {
		resp, err = transport.RoundTrip(w.request(ctx, c)) // it has not been processed: RFC 9113, section 8.7
	}
	if err != nil {
		return failed(ctx, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return failed(ctx, err)
	}
	if w.cfg.Proto == GRPC {
		return grpcReply(resp)
	}
	return reply{status: resp.StatusCode, label: strconv.Itoa(resp.StatusCode), hint: hintOf(resp.Header.Get, time.Now())}
}

// failed is the reply of an attempt without a complete answer.
func failed(ctx context.Context, err error) reply {
	if ctx.Err() != nil {
		return reply{status: clients.NoAnswer}
	}
	return reply{status: clients.NoConnection, why: err.Error()}
}

// request returns the request of c. It panics if the config has not been checked.
func (w *wire) request(ctx context.Context, c *client) *http.Request {
	method, body := w.cfg.Method, string(w.cfg.Body)
	if w.cfg.Proto == GRPC {
		method, body = http.MethodPost, emptyMessage
	}
	req, err := http.NewRequestWithContext(ctx, method, w.cfg.Target.URL.String(), strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("User-Agent", "shield-loadtest")
	for name, values := range w.cfg.Header {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	if address := w.cfg.address(c.index); address != "" {
		req.Header.Set("X-Forwarded-For", address)
	}
	if w.cfg.Proto == GRPC {
		w.cfg.asGRPC(req)
	} else if w.cfg.Mix[c.share].Precise {
		req.Header.Set("Shield-Retry", "yes") // asks for the exact wait
	}
	return req
}

// connect opens the connections that senders share, as far as it can until ctx ends.
func (w *wire) connect(ctx context.Context) {
	var all sync.WaitGroup
	for _, p := range w.pools {
		all.Go(func() {
			if conn, err := p.get(ctx); err == nil {
				conn.Release()
			}
		})
	}
	all.Wait()
}

func (w *wire) close() {
	w.transport.CloseIdleConnections()
	for _, p := range w.pools {
		p.close()
	}
}

// A pool is one HTTP/2 connection that clients share, or more: see LoadConfig.Connections.
// Until a server announces how many requests it allows at once, net/http assumes 100. If it
// is less, requests may wait in a new connection.
type pool struct {
	dial func(context.Context) (*http.ClientConn, error)
	wait bool // requests wait in a full connection, as those of gRPC libraries do

	turn  chan struct{}      // a lock for conns and for dialling, with a context
	conns []*http.ClientConn // guarded by turn
}

// get returns a connection on which one request is reserved. One client dials at a time;
// the others wait for its connection.
func (p *pool) get(ctx context.Context) (*http.ClientConn, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.conns = slices.DeleteFunc(p.conns, func(c *http.ClientConn) bool { return c.Err() != nil })
	for _, c := range p.conns {
		if p.wait || c.Reserve() == nil {
			return c, nil
		}
	}
	c, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	p.conns = append(p.conns, c)
	if p.wait {
		return c, nil
	}
	return c, c.Reserve()
}

func (p *pool) close() {
	p.turn <- struct{}{}
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
	<-p.turn
}

// hintOf reads the retry hint of an answer that came at now. Longer waits are cut to 2^31-1
// seconds, which fit into a Duration and are longer than any client waits.
//
//   - Retry-After: whole seconds, or a date (RFC 9110, section 10.2.3).
//   - Retry-After-Ms: milliseconds, as the OpenAI and Azure SDKs read them.
//   - X-Should-Retry: false: never, as the Stripe and OpenAI SDKs read it.
//
// A Retry-After of 0 counts as none, as in curl and urllib3. The client decides in which
// answers a hint counts: see asks.
func hintOf(field func(name string) string, now time.Time) (hint pushback.Hint) {
	if field("X-Should-Retry") == "false" {
		return pushback.Hint{Never: true}
	}
	if after := field("Retry-After"); after != "" {
		if n, ok := wholeNumber(after); ok {
			hint.Seconds = int(min(n, math.MaxInt32))
		} else if at, err := http.ParseTime(after); err == nil {
			hint.Seconds = int(min(max(math.Ceil(at.Sub(now).Seconds()), 0), math.MaxInt32))
		}
	}
	if n, ok := wholeNumber(field("Retry-After-Ms")); ok {
		hint.Ms = int(min(n, math.MaxInt32*1000))
	}
	return hint
}

// wholeNumber reads digits. A number that overflows becomes the greatest uint64.
func wholeNumber(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil || errors.Is(err, strconv.ErrRange)
}

// told is the wait of a Hint, by its whole seconds if it has any: 0 if it has no wait.
func told(h pushback.Hint) time.Duration {
	return cmp.Or(time.Duration(h.Seconds)*time.Second, time.Duration(h.Ms)*time.Millisecond)
}

func (c LoadConfig) connections() int { return cmp.Or(c.Connections, defaultConnections) }
