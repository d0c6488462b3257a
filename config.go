package shield

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/meter"
	"github.com/herdshield/shield/pushback"
)

// Config is what you set. A Guard without zones, capacity and concurrency admits everything.
type Config struct {
	Observe bool   // admit every request, and count what would have been rejected
	Zones   []Zone // per-client quotas; a request can be in several

	// Capacity is how many requests per second the backend can serve in total, as limiter.NewCapacity reads it.
	// The zero Config means no limit.
	Capacity limiter.Config

	// Concurrency is how many requests can be in flight to the backend: at most loadshed.MaxConcurrency. 0
	// means no limit, unless Adaptive is set, which finds one. A request counts as many times as its Weight
	// says, here and in PerClient.
	Concurrency int
	Adaptive    *loadshed.AdaptiveConfig

	// PerClient is how many requests each client can have in flight, identified by Request.InFlightKey: at most
	// loadshed.MaxConcurrency. 0 means no limit.
	PerClient int

	// Streams says which responses return their permit when they start to stream. "" means StreamsAuto.
	Streams Streams

	// Disconnected says what happens to a request whose client disconnects. "" means DisconnectedKeep.
	Disconnected Disconnected

	// Queue lets requests over the concurrency limit wait briefly instead of being rejected.
	Queue loadshed.QueueConfig

	// Classes are priority classes, which decide who goes first at the concurrency limit: see loadshed.Class.
	// nil means that all requests are alike.
	Classes []loadshed.Class

	Pushback pushback.ResponseConfig // what rejections look like
	Retries  Retries                 // how appointments are enforced

	// Shared shares Capacity, Concurrency and the appointments with other replicas, if the Backend is linked to a
	// store. All replicas must set them to the same values.
	Shared bool

	// Secret is what client names are hashed with, so that all replicas with the same Secret agree on a client's
	// Key: at least limiter.MinSecret bytes. It is required if anything is shared. nil means a random seed.
	Secret []byte

	// Replica names this replica, differently from all others; "" means a random name. The store sees it.
	// Replicas is how many there are, until the store has counted them. Until then each replica uses an even
	// part of what is shared. 0 means DefaultReplicas.
	Replica  string
	Replicas int

	// Client identifies the client of a request, for Guard.Handler only. Appointments, PerClient and zones
	// without a Key use it. nil means the peer's address, with IPv6 by /64.
	//
	// Behind a load balancer, all clients share its address. Use an API key, a session, or an address the
	// balancer vouches for instead. Remember that clients choose their own headers: reject those that are
	// repeated or that Connection names, because the backend may read them differently.
	Client func(*http.Request) string

	// CostUnknown is called with the name of a zone the first time a response doesn't report its cost. It must
	// not block.
	CostUnknown func(zone string)

	// Class returns the class of a request, for Guard.Handler only. Names missing from Classes, including "",
	// mean the default class, and so does a nil Class.
	Class func(*http.Request) string

	// Weight returns how many permits a request takes, of Concurrency or Adaptive and of PerClient, for
	// Guard.Handler only. 0 means 1, or what Zone.Permit says, and more than there are means all of them. nil means 1.
	Weight func(*http.Request) int
}

// Bounds and defaults of a Config.
const (
	DefaultMaxKeys  = 200_000
	DefaultReplicas = 2 // sharing takes at least two
	MaxReplicas     = 1000

	// inFlightPolicy is what clients are told that PerClient is called.
	inFlightPolicy = "in_flight"
)

// Retries says what shield remembers of rejected clients.
type Retries struct {
	// Lenient admits clients that retry before their appointment, if no limit rejects them.
	Lenient bool

	// MaxClients is how many rejected clients to remember, at 16 bytes each: pushback.MinMaxClients to
	// pushback.MaxMaxClients. 0 means pushback.DefaultMaxClients.
	MaxClients int

	// Tickets signs appointments and gives them to clients as cookies, so that other replicas and a restarted
	// one honor them.
	Tickets bool

	// Secret signs tickets: at least 16 bytes, the same on all replicas. nil means a random one that only this
	// Backend has, so no other process honors its tickets.
	Secret []byte

	// Issuer names the shield, the same on all replicas and after a restart: see Save. Several shields can use
	// one Secret without honoring each other's tickets.
	Issuer string
}

// A Zone is a quota that each client has for itself.
type Zone struct {
	// Name identifies the zone in metrics and in rejections: 1 to 64 letters, digits and _ - . / : only,
	// different from the other zones' names.
	Name string

	Limit limiter.Config // what each client can send, as limiter.New reads it
	// Unit is what Limit counts; "" means requests. It is only shown to people, with two exceptions: "seconds"
	// of backend time can be fractions, and "bytes" are those of responses.
	Unit string

	// Cost is how much of the quota a request takes: up to the burst. 0 means 1. With AutoCost it is learned:
	// the highest of the key's last eight costs. A new key starts with those of the zone, or before any are
	// known, with what it earns in a minute, but at most the burst. A Request can state its own.
	Cost      float64
	AutoCost  bool
	CostAsked bool // requests state their own

	// Settle says where to find the real cost in the response. The difference from what was taken is charged or
	// refunded. A key can go into debt by a burst, or by what it earns in an hour if that is more. nil means
	// that what was taken is final.
	Settle *meter.Source

	// Permit, if not 0, has a request that states no Weight take one permit for each so many units that it costs
	// here, rounded up. With AutoCost, that is the median of the last eight costs of its key, and one if none is
	// known. If several zones have a Permit, the highest weight counts. Settle must not be time.
	Permit float64

	// Headers says what admitted responses tell clients about what is left.
	Headers Headers

	// Calendar, if set, renews the whole quota, which is Limit.Rate, at midnight or on the first of a month,
	// instead of continuously. Limit.Per is 24 hours or Month then.
	Calendar *Calendar

	// MinRate, if not 0, lets requests carry their client's own rate (Ask.Rate), from MinRate to Limit.Rate. It
	// scales the burst by the same factor.
	MinRate float64

	// MaxKeys is how many clients to remember: limiter.MinKeys to limiter.MaxKeys. 0 means DefaultMaxKeys.
	// limiter.Table explains which clients are forgotten first.
	MaxKeys int

	// Shared shares the quotas with other replicas, if the ZoneState is linked to a store. Limit and Cost must be
	// the same on all of them.
	Shared bool

	// Key identifies the client of a request, for Guard.Handler only. Requests with the same key, including "",
	// share one bucket. nil means Config.Client, which has advice on choosing one.
	Key func(*http.Request) string

	// Ask returns the cost or rate a request states for itself, for Guard.Handler only. nil means nothing.
	Ask func(*http.Request) Ask
}

// settings is a checked Config: what never changes in a Guard.
type settings struct {
	observe      bool
	costUnknown  func(zone string)
	hasCapacity  bool
	capacity     limiter.Limit
	preflights   limiter.Limit
	plan         *loadshed.Plan
	streams      Streams
	disconnected Disconnected
	terms        pushback.Terms
	maxClients   int
	issuer       string // names the backend in what is saved

	// How it works with other replicas.
	shared   bool
	replica  string
	replicas int

	// How clients and classes of requests are told apart.
	hasher limiter.Hasher
	client func(*http.Request) string
	class  func(*http.Request) string
	weight func(*http.Request) int
}

// New returns a Guard that works on s; nil means a new State. New adds missing zones to s, but changes nothing
// else before the Guard's first decision, so you can discard a Guard without side effects. The error names
// everything that is wrong with c.
func New(c Config, s *State) (*Guard, error) {
	s = cmp.Or(s, new(State))
	g := &Guard{settings: settings{observe: c.Observe, costUnknown: c.CostUnknown, streams: c.Streams, disconnected: c.Disconnected, client: c.Client, class: c.Class, weight: c.Weight}}
	var errs []error
	check := func(what string, err error) {
		if err != nil && what != "" {
			err = fmt.Errorf("%s: %w", what, err)
		}
		errs = append(errs, err)
	}
	policies, err := g.checkZones(c.Zones, c.PerClient > 0)
	check("", err)
	if c.Capacity != (limiter.Config{}) {
		g.hasCapacity = true
		g.capacity, err = limiter.NewCapacity(c.Capacity)
		check("capacity", err)
	}
	preflights := limiter.Config{Rate: 100, Burst: 1000} // see Request.Preflight
	if g.hasCapacity {
		preflights.Rate = max(1, g.capacity.Rate())
	}
	g.preflights, err = limiter.New(preflights)
	check("preflights", err)
	g.plan, err = loadshed.NewPlan(loadshed.PlanConfig{
		Limit: c.Concurrency, Adaptive: c.Adaptive, PerClient: c.PerClient, Queue: c.Queue, Classes: c.Classes, Observe: c.Observe,
	})
	check("", err)
	if !slices.Contains([]Streams{"", StreamsAuto, StreamsFree, StreamsHold}, c.Streams) {
		check("concurrency", fmt.Errorf("streams is %q; use %s, %s or %s", c.Streams, StreamsAuto, StreamsFree, StreamsHold))
	}
	if !slices.Contains([]Disconnected{"", DisconnectedKeep, DisconnectedFree}, c.Disconnected) {
		check("concurrency", fmt.Errorf("disconnected is %q; use %s or %s", c.Disconnected, DisconnectedKeep, DisconnectedFree))
	}
	g.terms.Wall = At
	g.issuer = c.Retries.Issuer
	g.terms.Secret, err = c.Retries.secret(s)
	check("retries", err)
	g.terms.Enforce = !c.Retries.Lenient && !c.Observe
	g.hasher, err = c.hasher()
	check("", err)
	g.shared, g.replica, g.replicas = c.Shared, cmp.Or(c.Replica, processName), cmp.Or(c.Replicas, DefaultReplicas)
	if g.replicas < 1 || g.replicas > MaxReplicas {
		check("", fmt.Errorf("replicas is %d; use 1 to %d", c.Replicas, MaxReplicas))
	}
	if c.PerClient > 0 {
		policies = append(policies, pushback.Policy{Name: inFlightPolicy, Quota: c.PerClient, Concurrent: true})
	}
	g.terms.Responses, err = pushback.NewResponses(c.Pushback, policies)
	check("pushback", err)
	g.maxClients = cmp.Or(c.Retries.MaxClients, pushback.DefaultMaxClients)
	if g.maxClients < pushback.MinMaxClients || g.maxClients > pushback.MaxMaxClients {
		check("retries", fmt.Errorf("max_clients is %d; use %d to %d", g.maxClients, pushback.MinMaxClients, pushback.MaxMaxClients))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	g.join(s, c.Zones)
	return g, nil
}

// checkZones sets the Guard's zones and their keys, and returns what clients are told
// of them. perClient: they are told of a limit in flight, too.
func (g *Guard) checkZones(zones []Zone, perClient bool) (policies []pushback.Policy, err error) {
	var errs []error
	seen := map[string]bool{}
	for i, z := range zones {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("zone %q: %w", z.Name, fmt.Errorf(format, args...)))
		}
		if err := CheckName(z.Name); err != nil {
			bad("%w", err)
		}
		if seen[z.Name] {
			bad("another zone has this name; use different names")
		}
		if perClient && z.Name == inFlightPolicy {
			bad("the name is reserved for the per-client in-flight limit; use another name")
		}
		seen[z.Name] = true
		is, err := z.check()
		if err != nil {
			bad("%w", err)
		}
		if is.MaxKeys < limiter.MinKeys || is.MaxKeys > limiter.MaxKeys {
			bad("max_keys is %d; use %d to %d", is.MaxKeys, limiter.MinKeys, limiter.MaxKeys)
		}
		is.index = i
		g.zones = append(g.zones, is)
		policies = append(policies, pushback.Policy{Name: z.Name, Quota: is.quota(), Unit: z.quotaUnit(), Window: is.limit.Refill()})
	}
	return policies, errors.Join(errs...)
}

// secret returns what signs the tickets for s, nil if none are given.
func (r *Retries) secret(s *State) ([]byte, error) {
	secret := r.Secret
	switch {
	case !r.Tickets && secret != nil:
		return nil, errors.New("secret is set, but tickets are off; use both or neither")
	case !r.Tickets:
		return nil, nil
	case secret == nil:
		s.Backend = cmp.Or(s.Backend, new(Backend))
		secret = s.Backend.ownSecret()
	}
	_, err := limiter.NewHasher(secret) // which says what is wrong with a secret
	return pushback.IssuerSecret(secret, r.Issuer), err
}

// hasher returns what makes the Keys of clients.
func (c *Config) hasher() (limiter.Hasher, error) {
	shares := c.Shared || slices.ContainsFunc(c.Zones, func(z Zone) bool { return z.Shared })
	if c.Secret == nil && !shares {
		return limiter.Hasher{}, nil
	}
	h, err := limiter.NewHasher(c.Secret)
	if err != nil && shares {
		err = fmt.Errorf("sharing: %w", err)
	}
	return h, err
}

// serial numbers the Guards of the process.
var serial atomic.Uint64

// join has the Guard work on s.
func (g *Guard) join(s *State, zones []Zone) {
	if s.Zones == nil {
		s.Zones = map[string]*ZoneState{}
	}
	for i, z := range zones {
		s.Zones[z.Name] = cmp.Or(s.Zones[z.Name], NewZoneState(z.Name))
		g.zones[i].ZoneState = s.Zones[z.Name]
		g.zones[i].salt = uint64(g.hasher.KeyOf("zone " + z.Name))
	}
	slices.SortFunc(g.zones, func(a, b zone) int { return strings.Compare(a.name, b.name) })
	g.serial = serial.Add(1)
	s.Backend = cmp.Or(s.Backend, new(Backend))
	g.backend, g.clients = s.Backend, &s.Backend.clients
	for _, c := range g.plan.Classes {
		counts, _ := g.backend.classes.LoadOrStore(c.Name, new(classCounts))
		g.classes = append(g.classes, counts.(*classCounts))
	}
}

// CheckName returns an error unless name can appear unquoted in headers, labels and logs.
func CheckName(name string) error {
	if !pushback.IsPolicyName(name) {
		return fmt.Errorf("name is %q; use 1 to 64 letters, digits and _ - . / : only", name)
	}
	return nil
}

// Hasher returns what turns client names into the Keys of a Request.
func (g *Guard) Hasher() limiter.Hasher { return g.hasher }

// Responses returns what writes this Guard's rejections.
func (g *Guard) Responses() *pushback.Responses { return g.terms.Responses }

// Plan returns the in-flight limit, the queue and the classes of the Config. Request.Class is 1 + an index into
// its Classes.
func (g *Guard) Plan() *loadshed.Plan { return g.plan }

// Limit returns how many requests can be in flight now; 0 means any number.
func (g *Guard) Limit() int { return g.backend.inFlight.Limit(g.plan) }

// Tickets reports whether appointments are signed. If so, set Request.ClientID.
func (g *Guard) Tickets() bool { return g.terms.Secret != nil }

// RatePerClient returns the Config of the most common limit: a rate in requests per second, and a burst, for
// each client address. To identify clients in another way, set its Client.
//
//	handler = shield.Must(shield.New(shield.RatePerClient(50, 100), nil)).Handler(handler)
func RatePerClient(rate float64, burst int) Config {
	return Config{Zones: []Zone{{Name: "clients", Limit: limiter.Config{Rate: rate, Burst: burst}}}}
}

// Must returns g, and panics if err is not nil. Use it for a Config that is part of your program.
func Must(g *Guard, err error) *Guard {
	if err != nil {
		panic(err)
	}
	return g
}
