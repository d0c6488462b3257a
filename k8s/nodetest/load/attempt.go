package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// Kinds of responses that are not errors. The kinds of errors are free text: a status, or
// what happened to the connection.
const (
	served   = "served"   // 2xx
	rejected = "rejected" // 429 or 503, and Retry-After
)

// A response is the outcome of one attempt.
type answer struct {
	began  time.Time
	took   time.Duration
	kind   string
	status int // 0: there was none
	hint   pushback.Hint
	err    error  // why there was none
	pod    string // of the backend, "" if it does not say so
	depth  int    // requests that the pod had in flight with this one
}

// after is how long an obedient client waits before it retries. After an error it waits a
// little, so as not to flood the log.
func (a answer) after() time.Duration {
	switch a.kind {
	case served:
		return 0
	case rejected:
		return time.Duration(a.hint.Seconds) * time.Second
	}
	return 20 * time.Millisecond
}

// told returns the status that a clients.Policy gets.
func (a answer) told() int {
	if a.status == 0 {
		return clients.NoConnection
	}
	return a.status
}

// transport returns the transport of client i: with one keep-alive connection, or a new one for each attempt.
func (l *load) transport(i int, keep bool) *http.Transport {
	dialer := net.Dialer{Timeout: l.timeout}
	if a := addressAfter(l.from, i); a.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	return &http.Transport{
		// No Proxy: the environment must not send the load elsewhere.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			l.dialled.Add(1)
			return dialer.DialContext(ctx, network, address)
		},
		DisableKeepAlives:   !keep,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 1,
	}
}

// addressAfter returns the IPv4 address i after first, the zero Addr if there is none.
func addressAfter(first netip.Addr, i int) netip.Addr {
	if !first.Is4() {
		return netip.Addr{}
	}
	b := first.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrFrom4(b)
}

// attempt sends one request and reads the whole response. Only the timeout cuts it off, not the end of the load.
func (l *load) attempt(t *http.Transport) answer {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	a := answer{began: time.Now()}
	req, err := http.NewRequestWithContext(ctx, l.method, l.url, nil)
	if err != nil {
		return answer{kind: "no request", err: err}
	}
	if l.host != "" {
		req.Host = l.host
	}
	if l.body > 0 { // set here, without GetBody: it must not be sent again
		req.Body = io.NopCloser(bytes.NewReader(make([]byte, l.body)))
		req.ContentLength = int64(l.body)
	}
	resp, err := t.RoundTrip(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	a.took = time.Since(a.began)
	if err != nil {
		a.kind, a.err = kindOf(err), err
		return a
	}
	a.status = resp.StatusCode
	a.pod = resp.Header.Get("X-Backend-Pod")
	a.depth, _ = strconv.Atoi(resp.Header.Get("X-Backend-In-Flight"))
	a.hint.Seconds, _ = strconv.Atoi(resp.Header.Get("Retry-After"))
	switch {
	case a.status >= 200 && a.status < 300:
		a.kind = served
	case a.hint.Seconds > 0 && (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable):
		a.kind = rejected
	default:
		a.kind = "status " + strconv.Itoa(a.status)
	}
	return a
}

// kindOf describes in a few words what happened to a connection.
func kindOf(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "server closed idle connection"):
		return "connection closed"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route"
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EMFILE):
		return "fault of this machine"
	}
	return "other"
}
