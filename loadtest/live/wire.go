package live

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// A reply is the result of one attempt.
type reply struct {
	status int           // HTTP status; clients.NoAnswer or clients.NoConnection
	hint   pushback.Hint // when to come back
	why    string        // the error of a NoConnection
}

// maxHeader bounds the header of a response, of which 20,000 clients may hold one each.
const maxHeader = 64 << 10

// newTransport carries attempts to a target, by HTTP/1.1.
func newTransport(c LoadConfig, d *dialer) *http.Transport {
	t := &http.Transport{
		// No Proxy: the environment must not send the load elsewhere.
		DialContext:            d.dial,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: c.Insecure}, // the operator says so
		DisableKeepAlives:      !c.KeepAlive,
		DisableCompression:     true, // send no field but those configured
		MaxIdleConnsPerHost:    MaxClients,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// exchange sends one attempt of c and reads the whole response. It returns soon after ctx ends.
func (l *Load) exchange(ctx context.Context, c *client) reply {
	resp, err := l.transport.RoundTrip(l.cfg.request(ctx, c))
	if err != nil {
		return failed(ctx, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return failed(ctx, err)
	}
	return reply{status: resp.StatusCode, hint: hintOf(resp.Header.Get, time.Now())}
}

// failed is the reply of an attempt without a complete answer.
func failed(ctx context.Context, err error) reply {
	if ctx.Err() != nil {
		return reply{status: clients.NoAnswer}
	}
	return reply{status: clients.NoConnection, why: err.Error()}
}

// request returns the request of a client. It panics if the config has not been checked.
func (c LoadConfig) request(ctx context.Context, of *client) *http.Request {
	req, err := http.NewRequestWithContext(ctx, c.Method, c.Target.URL.String(), bytes.NewReader(c.Body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("User-Agent", "shield-loadtest")
	for name, values := range c.Header {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	if address := c.address(of.index); address != "" {
		req.Header.Set("X-Forwarded-For", address)
	}
	if c.Mix[of.share].Precise {
		req.Header.Set("Shield-Retry", "yes") // asks for the exact wait
	}
	return req
}

// hintOf reads the retry hint of a response that came at now: Retry-After, whole seconds or a date
// (RFC 9110, section 10.2.3); Retry-After-Ms, as the OpenAI and Azure SDKs read it; and X-Should-Retry,
// where false means never, as the Stripe and OpenAI SDKs read it. One of 2^31 s or more is none.
//
// A Retry-After of 0 counts as none, as in curl and urllib3. The client decides in which
// answers a hint counts: see asks.
func hintOf(field func(name string) string, now time.Time) pushback.Hint {
	if field("X-Should-Retry") == "false" {
		return pushback.Hint{Never: true}
	}
	after := math.Ceil(shield.RetryAfter(field("Retry-After"), now).Seconds())
	ms, _ := strconv.ParseUint(field("Retry-After-Ms"), 10, 41) // 0 if it is no number
	return pushback.Hint{Seconds: int(min(after, math.MaxInt32)), Ms: int(ms)}
}

// told is the wait of a Hint, by its whole seconds if it has any: 0 if it has no wait.
func told(h pushback.Hint) time.Duration {
	return cmp.Or(time.Duration(h.Seconds)*time.Second, time.Duration(h.Ms)*time.Millisecond)
}
