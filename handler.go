package shield

import (
	"bytes"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"time"

	"github.com/herdshield/shield/dialect"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// Handler returns a handler that passes admitted requests to next and responds to all others with a rejection.
// Its type, func(http.Handler) http.Handler, is that of middleware.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var keys [8]limiter.Key // on the stack, for as many zones as most have
		now := Now()
		q := g.request(r, now, keys[:0])
		d := g.Enter(r.Context(), now, q)
		if !d.Admit {
			if at, ok := d.Deliver(r.Context()); ok {
				g.Responses().Write(w, r, d.Rejection(), At(at))
			} else {
				w.WriteHeader(GoneStatus(r.Context()))
			}
			return
		}
		if d.Backlog > 0 {
			g.Responses().Warn(w.Header(), d.Backlog)
		}
		g.Remaining(w.Header(), d.At(), &q)
		g.serve(dialect.Restore(w, r), r, &d, next)
	})
}

// request returns what the Guard has to know of r, which arrives at now.
func (g *Guard) request(r *http.Request, now time.Duration, keys []limiter.Key) Request {
	q := g.Describe(r)
	var buf [128]byte
	var name []byte
	if g.client != nil {
		name = append(buf[:0], g.client(r)...)
	} else {
		peer, _ := netip.ParseAddrPort(r.RemoteAddr)
		name = AppendNetwork(buf[:0], peer.Addr(), 32, 64)
	}
	g.Identify(&q, name, keys)
	for i := range g.zones {
		z := &g.zones[i]
		if z.Key != nil {
			q.Keys[z.index] = g.hasher.KeyOf(z.Key(r))
		}
		if z.Ask != nil {
			if q.Asks == nil {
				q.Asks = make([]Ask, len(g.zones))
			}
			q.Asks[z.index] = z.Ask(r)
		}
	}
	if g.class != nil {
		g.Classify(&q, g.class(r))
	}
	if g.weight != nil {
		q.Weight = g.weight(r)
	}
	q.Deadline = Deadline(r, now)
	return q
}

// Identify sets the client of a request, which appointments, in-flight limits and zones go by. It appends the
// zones' keys to keys, which can be nil.
func (g *Guard) Identify(q *Request, client []byte, keys []limiter.Key) {
	q.Client = g.hasher.KeyOfBytes(client)
	q.InFlightKey = q.Client
	for range g.zones {
		keys = append(keys, q.Client)
	}
	q.Keys = keys
	if g.Tickets() {
		q.ClientID = bytes.Clone(client)
	}
}

// Classify puts a request into the class of that name, or into the default class if there is none.
func (g *Guard) Classify(q *Request, class string) {
	if i, ok := g.plan.ClassNamed(class); ok {
		q.Class = uint8(1 + i)
	}
}

// serve has next serve an admitted request.
func (g *Guard) serve(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	if !d.permit.Held() && !d.Charged() {
		next.ServeHTTP(w, r)
		return
	}
	_, proxied := next.(*httputil.ReverseProxy)
	own := len(w.Header()["Ratelimit"]) // which is not the backend's
	x, inner := g.Begin(w, r, d, proxied, 0)
	defer x.End(Detached, 0) // if it panics; else it has ended already
	next.ServeHTTP(x, inner)
	r.MultipartForm, r.Pattern = inner.MultipartForm, inner.Pattern // net/http removes its files; middleware reads the pattern
	x.End(x.Result(x.Status(), func(name string) string {
		if name == "Ratelimit" {
			values := x.Header()[name]
			return strings.Join(values[min(own, len(values)):], ", ")
		}
		return x.Header().Get(name)
	}))
}

// Rejection returns what to write for a Decision that rejects.
func (d *Decision) Rejection() pushback.Rejection {
	policy := d.Zone
	switch d.Reason {
	case PerClient:
		policy = d.policy
	case Blocked:
		policy = pushback.BlockedPolicy
	}
	return pushback.Rejection{Policy: policy, Hint: d.Hint, Ticket: d.Ticket}
}

// Describe returns the Request for r, except for its Deadline and what Identify sets.
func (g *Guard) Describe(r *http.Request) Request {
	q := Request{Retry: pushback.Retry(r.Header), Precise: g.terms.Responses.Precise(r), Agent: r.UserAgent(), Preflight: r.Method == http.MethodOptions && dialect.IsPreflight(r)}
	if g.Tickets() {
		q.Ticket = pushback.TicketOf(r)
	}
	return q
}

// AppendNetwork appends a name for the network of address a to b: the first v4 bits (1 to 32) of an IPv4
// address, even if it is mapped to IPv6, or the first v6 bits (1 to 128) of an IPv6 address. An IPv6 customer
// usually has at least a /64, so limiting single IPv6 addresses would limit nobody. The zero Addr has a name,
// too.
func AppendNetwork(b []byte, a netip.Addr, v4, v6 int) []byte {
	a = a.Unmap()
	bits, family := v6, byte(6)
	if a.Is4() {
		bits, family = v4, 4
	}
	p, _ := a.WithZone("").Prefix(bits)
	network := p.Addr().As16()
	return append(append(b, family), network[:]...)
}
