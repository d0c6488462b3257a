package live

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"golang.org/x/net/http/httpguts"
)

// Bounds of a Load. Ours: a machine that plays more clients is too busy to time answers.
const (
	MaxClients     = 20_000 // at one time
	MaxRate        = 100_000
	MaxDuration    = time.Hour
	MaxPatience    = time.Hour
	MaxTimeout     = 10 * time.Minute
	MaxRequests    = 10_000_000
	MaxAttempts    = 1000
	MaxConnections = 1000
	MaxBody        = 1 << 20

	defaultConnections = 32
)

// LoadConfig describes a Load: a herd, clients in an open loop, or both. Each wants one answer.
type LoadConfig struct {
	Target Target // of NewTarget
	Proto  Proto  // "" means H1

	// Insecure takes any TLS certificate.
	Insecure bool

	// Connections is how many connections the clients of H2, H2C and GRPC share: 1 to 1000;
	// 0 means 32. More are opened only if a server allows too few requests at once on one.
	// GRPC waits there instead, and its latencies include that wait. In H1 each attempt opens
	// a connection, as from separate machines, unless KeepAlive lets clients share as many as
	// they need.
	Connections int
	KeepAlive   bool

	// Connected opens connections beforehand: shared ones before the run, and in H1 one for
	// the first attempt of each client of the herd, shortly before it comes, because servers
	// close idle connections.
	Connected bool

	// Balance picks one of the Target's Addresses for attempt number n, from 1 on, of a
	// client, as a load balancer before several servers does: for H1, with a connection for
	// each attempt. It is called concurrently. nil: whichever address was reached last.
	Balance func(client, n int) int

	// Method is an HTTP method, "" for GET; or of GRPC the full name of a unary method, ""
	// for HealthCheck, which is called with an empty message.
	Method string
	Header http.Header // of every request; a Host replaces the URL's
	Body   []byte      // of every request; not for GRPC

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

	// Timeout is how long a client waits for a whole answer: more than 0, up to 10m.
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
	c.Proto = cmp.Or(c.Proto, H1)
	method := http.MethodGet
	if c.Proto == GRPC {
		method = HealthCheck
	}
	c.Method = cmp.Or(c.Method, method)
	c.Requests = cmp.Or(c.Requests, 1_000_000)
	return c
}

// mostArrivals bounds how many clients come. For a Poisson process, the probability that
// more come is below 1e-20.
func (c LoadConfig) mostArrivals() int {
	n := c.Rate * c.Duration.Seconds()
	if n > 0 && !c.Even {
		n += 10*math.Sqrt(n) + 30
	}
	return c.Herd + int(math.Ceil(n))
}

// address returns the X-Forwarded-For of client number i, "" for none.
func (c LoadConfig) address(i int) string {
	if !c.FirstAddress.IsValid() {
		return ""
	}
	if c.Identities > 0 {
		i %= c.Identities
	}
	return addressAfter(c.FirstAddress, i).String()
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

// check returns an error that names every field of c that is out of range by the flag of
// shield loadtest: --herd-after is HerdAfter.
func (c LoadConfig) check() error {
	if c.Target.URL == nil || len(c.Target.Addresses) == 0 {
		return errors.New("target is missing")
	}
	var f faults
	c.checkProto(&f)
	c.checkRequest(&f)
	c.checkArrivals(&f)
	f.add(c.Timeout <= 0 || c.Timeout > MaxTimeout, "--timeout is %v; want more than 0, at most %s", c.Timeout, brief(MaxTimeout))
	f.atMost("patience", c.Patience, MaxPatience)
	f.within("attempts", c.Attempts, 0, MaxAttempts)
	f.within("clients", c.Identities, 0, MaxRequests)
	f.within("requests", c.Requests, 1, MaxRequests)
	if c.FirstAddress.IsValid() && len(f) == 0 { // else the number of clients is unknown
		n := cmp.Or(c.Identities, c.mostArrivals())
		f.add(!addressAfter(c.FirstAddress, n-1).IsValid(), "--x-forwarded-for is %v; want IPv4, with room for %d after it", c.FirstAddress, n-1)
	}
	return errors.Join(f...)
}

type faults []error

func (f *faults) add(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

func (f *faults) within(name string, n, least, most int) {
	f.add(n < least || n > most, "--%s is %d; want %d to %d", name, n, least, most)
}

func (f *faults) atMost(name string, d, most time.Duration) {
	f.add(d < 0 || d > most, "--%s is %v; want 0 to %s", name, d, brief(most))
}

func (c LoadConfig) checkProto(f *faults) {
	scheme := c.Target.URL.Scheme
	f.add(!slices.Contains(Protos, c.Proto), "--proto is %q; want h1, h2, h2c or grpc", c.Proto)
	f.add(c.Proto == H2 && scheme != "https", "--proto is h2, which is over TLS, and the target is %s; want https, or h2c", c.Target.URL)
	f.add(c.Proto == H2C && scheme != "http", "--proto is h2c, which is without TLS, and the target is %s; want http, or h2", c.Target.URL)
	f.add(c.Insecure && scheme != "https", "--insecure is set, and the target is %s; want https", c.Target.URL)
	f.within("connections", c.Connections, 0, MaxConnections)
	f.add(c.Connections > 0 && c.Proto == H1, "--connections is %d, and --proto is h1; want h2, h2c or grpc, or --keep-alive instead", c.Connections)
	f.add(c.KeepAlive && c.Proto != H1, "--keep-alive is set, and --proto is %s, which always keeps connections; want h1", c.Proto)
	f.add(c.Balance != nil && (c.Proto != H1 || c.KeepAlive || c.Connected), "attempts go to several addresses; want h1, and neither --keep-alive nor --connected")
	f.add(c.KeepAlive && c.Connected, "--keep-alive and --connected are both set; want one of them")
}

func (c LoadConfig) checkArrivals(f *faults) {
	rated := c.Rate >= 0 && c.Rate <= MaxRate // false for NaN
	f.add(!rated, "--rate is %v per second; want 0 to %d", c.Rate, MaxRate)
	f.add(rated && c.Rate > 0 && (c.Duration <= 0 || c.Duration > MaxDuration), "--duration is %v; want more than 0, at most %s", c.Duration, brief(MaxDuration))
	f.within("herd", c.Herd, 0, MaxClients)
	f.add(c.Herd == 0 && c.Rate == 0, "--rate and --herd are both 0; want one of them, or both")
	f.atMost("within", c.Within, time.Minute)
	f.atMost("herd-after", c.HerdAfter, MaxDuration)
	err := c.Mix.Check()
	f.add(err != nil, "--policy: %w", err)
}

func (c LoadConfig) checkRequest(f *faults) {
	if c.Proto == GRPC {
		service, method, ok := strings.Cut(strings.TrimPrefix(c.Method, "/"), "/")
		f.add(!strings.HasPrefix(c.Method, "/") || !ok || service == "" || method == "" || strings.Contains(method, "/"),
			"--method is %q; want that of gRPC, as %s", c.Method, HealthCheck)
		f.add(len(c.Body) > 0, "--body is set, and --proto is grpc, which sends an empty message; want none")
	} else {
		f.add(!httpguts.ValidHeaderFieldName(c.Method) || c.Method == http.MethodConnect, "--method is %q; want one of HTTP, as GET or POST", c.Method)
	}
	f.add(len(c.Body) > MaxBody, "--body has %d bytes; want at most %d", len(c.Body), MaxBody)
	for name, values := range c.Header {
		canonical := http.CanonicalHeaderKey(name)
		f.add(canonical == "Content-Length" || canonical == "Transfer-Encoding", "--header has %s, which follows from the body; want none", canonical)
		f.add(canonical == "Host" && len(values) > 1, "--header has %d values of Host, %q; want one", len(values), values)
		f.add(!httpguts.ValidHeaderFieldName(name) || len(values) == 0, "--header has the field name %q; want one of HTTP, and a value", name)
		for _, v := range values {
			f.add(!httpguts.ValidHeaderFieldValue(v), "--header %s has the value %q; want no control characters", name, v)
		}
	}
}

// brief writes a Duration without zeros at its end: 1m, not 1m0s.
func brief(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// addressAfter returns the address n after first, the zero Addr if there is none.
func addressAfter(first netip.Addr, n int) netip.Addr {
	if !first.Is4() || n < 0 {
		return netip.Addr{}
	}
	bytes := first.As4()
	sum := uint64(binary.BigEndian.Uint32(bytes[:])) + uint64(n)
	if sum > math.MaxUint32 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(sum))))
}
