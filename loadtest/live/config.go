package live

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/herdshield/shield/loadtest/clients"
)

// Bounds of a Load. Ours: a machine that plays more clients is too busy to time answers.
const (
	MaxClients  = 20_000 // at one time
	MaxRate     = 100_000
	MaxDuration = time.Hour
	MaxPatience = time.Hour
	MaxTimeout  = 10 * time.Minute
	MaxRequests = 10_000_000
	MaxBody     = 1 << 20
)

// LoadConfig describes a Load: a herd, clients in an open loop, or both. Each wants one answer.
// The flags of shield loadtest check its bounds.
type LoadConfig struct {
	Target Target // of NewTarget

	// Insecure takes any TLS certificate.
	Insecure bool

	// KeepAlive lets clients share as many connections as they need. Otherwise each attempt
	// opens one, as from separate machines.
	KeepAlive bool

	// Connected opens connections beforehand, one for the first attempt of each client of the
	// herd.
	Connected bool

	Method string      // "" means GET
	Header http.Header // of every request; a Host replaces the URL's
	Body   []byte      // of every request

	// Rate is how many clients come per second, whether or not earlier ones have been
	// answered (an open loop): 0 for none, up to 100,000. They come for Duration, up to 1h.
	Rate     float64
	Duration time.Duration

	// Herd is how many clients come together: 0 to 20,000. They come within Within, up to
	// 1m, from HerdAfter on, up to 1h.
	Herd              int
	Within, HerdAfter time.Duration

	Even bool               // arrivals are spaced evenly; else they are a Poisson process, and uniform for a herd
	Mix  clients.Population // how clients retry

	// Timeout is how long a client waits for a whole response: more than 0, up to 10m.
	Timeout time.Duration

	// Patience is how long after its first attempt a client may still begin another, up
	// to 1h: 0 allows no retry. It bounds a run, whatever servers tell clients.
	Patience time.Duration

	// Attempts bounds the attempts of a client: up to 1000; 0 leaves them to its policy.
	Attempts int

	// Identities is how many addresses the clients share in X-Forwarded-For, counting
	// from FirstAddress, an IPv4 address. 0 means one for each client. Without
	// FirstAddress there is no X-Forwarded-For.
	Identities   int
	FirstAddress netip.Addr

	// Requests bounds those of a run, retries included: 1 to 10 million; 0 means 1 million.
	Requests int

	Seed uint64 // of everything that is random
}

func (c LoadConfig) withDefaults() LoadConfig {
	c.Method = cmp.Or(c.Method, http.MethodGet)
	c.Requests = cmp.Or(c.Requests, 1_000_000)
	return c
}

// address returns the X-Forwarded-For of client number i, "" for none. The addresses begin again after the last.
func (c LoadConfig) address(i int) string {
	if !c.FirstAddress.Is4() {
		return ""
	}
	if c.Identities > 0 {
		i %= c.Identities
	}
	first := c.FirstAddress.As4()
	n := binary.BigEndian.Uint32(first[:]) + uint32(i)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n))).String()
}

// comingEnds returns when the last client is due, since the start of the run.
func (c LoadConfig) comingEnds() time.Duration {
	var end time.Duration
	if c.Herd > 0 {
		end = c.HerdAfter + c.Within
	}
	if c.Rate > 0 {
		end = max(end, c.Duration)
	}
	return end
}

// check returns an error that names what would go wrong in a run by the flag of shield loadtest. The
// bounds of numbers are checked as flags are read.
func (c LoadConfig) check() error {
	var errs []error
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(c.Insecure && c.Target.URL.Scheme != "https", "--insecure is set, but the target is %s; use https", c.Target.URL)
	add(c.Herd == 0 && c.Rate == 0, "--rate and --herd are both 0; use one of them, or both")
	add(!httpguts.ValidHeaderFieldName(c.Method) || c.Method == http.MethodConnect, "--method is %q; use an HTTP method, like GET or POST", c.Method)
	for name, values := range c.Header {
		canonical := http.CanonicalHeaderKey(name)
		add(canonical == "Content-Length" || canonical == "Transfer-Encoding", "--header has %s, which follows from the body; leave it out", canonical)
		add(canonical == "Host" && len(values) > 1, "--header has %d values of Host, %q; use one", len(values), values)
		add(!httpguts.ValidHeaderFieldName(name) || len(values) == 0, "--header has the field name %q; use a valid HTTP field name, and a value", name)
		for _, v := range values {
			add(!httpguts.ValidHeaderFieldValue(v), "--header %s has the value %q; remove the control characters", name, v)
		}
	}
	return errors.Join(errs...)
}
