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

// Config is what the operator sets. A Guard without zones, capacity and
// concurrency admits everything.
type Config struct {
	Observe bool   // every request is admitted; what would have been rejected is counted
	Zones   []Zone // the quotas of single clients. A request may be in several

	// Capacity is how many requests per second the backend can take in all, as
	// limiter.NewCapacity reads it. The zero Config means no limit.
	Capacity limiter.Config

	// Concurrency is how many requests may be in flight to the backend: at most
	// loadshed.MaxConcurrency. 0 means no limit, or the one that Adaptive finds, if it is not nil. A request counts as many times
	// as its Weight says, here and in PerClient.
	Concurrency int
	Adaptive    *loadshed.AdaptiveConfig

	// PerClient is how many requests one client, by Request.InFlightKey, may have in
	// flight: at most loadshed.MaxConcurrency. 0 means no limit.
	PerClient int

	// Streams says which responses give back their permit in flight when they begin to
	// stream. "" means StreamsAuto.
	Streams Streams

	// Disconnected says what is done about requests whose clients hang up. "" means DisconnectedKeep.
	Disconnected Disconnected

	// Queue holds requests over the concurrency limit for a moment.
	Queue loadshed.QueueConfig

	// Classes are the priority classes, which decide who goes first at the concurrency
	// limit: see loadshed.Class. nil means that all requests are alike.
	Classes []loadshed.Class

	Pushback pushback.ResponseConfig // how rejections are worded
	Retries  Retries                 // how clients are held to the times they were told

	// Shared shares Capacity, Concurrency and the appointments with other replicas, if
	// the Backend is linked to a store. All of them must set those alike.
	Shared bool

	// Secret makes the Keys of clients from their names, the same in all replicas that have
	// it: at least limiter.MinSecret bytes. It is required if anything is shared. nil means
	// a seed of the process.
	Secret []byte

	// Replica names this replica, differently from all others; "" means a random name. The
	// store sees it. Replicas is how many there are, as long as no store has told: then each
	// has its even part of what is shared. 0 means DefaultReplicas.
	Replica  string
	Replicas int

	// Client names the client of a request, for Guard.Handler only. Appointments,
	// PerClient and zones without a Key count by that name. nil means the address of
	// the peer: IPv4 by address, IPv6 by /64. Behind a load balancer all users share
	// one address; name them by an API key, a session, or an address that the balancer
	// vouches for. A client chooses its headers: take none that comes in several lines
	// or that Connection names, if the backend may read it in another way.
	Client func(*http.Request) string

	// CostUnknown is called with the name of a zone when its cost of a response is not found for the first time. It must not block.
	CostUnknown func(zone string)

	// Class names the class of a request, for Guard.Handler only; a name that is not
	// in Classes, "" too, means the default class. nil means that all are of that.
	Class func(*http.Request) string

	// Weight returns how many permits in flight a request takes, for Guard.Handler only: of Concurrency or Adaptive, and of
	// PerClient. Less than 1 means 1; more than there are means all. nil means 1.
	Weight func(*http.Request) int
}

// Bounds and defaults of a Config.
const (
	DefaultMaxKeys  = 200_000
	DefaultReplicas = 2 // who shares has two at least
	MaxReplicas     = 1000

	// inFlightPolicy is what clients are told that PerClient is called.
	inFlightPolicy = "in_flight"
)

// Retries says what is remembered of rejected clients.
type Retries struct {
	// Lenient admits clients that come before the time that they were told, like any
	// other, if no limit rejects them.
	Lenient bool

	// MaxClients bounds how many rejected clients are remembered, at 16 bytes
	// each: pushback.MinMaxClients to pushback.MaxMaxClients. 0 means
	// pushback.DefaultMaxClients.
	MaxClients int

	// Tickets gives clients their appointments signed, so that other replicas
	// and a restarted one honour them. Clients bring them back in a cookie.
	Tickets bool

	// Secret signs tickets: at least 16 bytes, the same for all replicas. nil means a
	// random one of the Backend, with which nothing else honours the tickets.
	Secret []byte

	// Issuer names the shield, the same in all replicas and after a restart: see Save. One Secret
	// may serve several shields, none of which honours the tickets of another.
	Issuer string
}

// A Zone is a quota that each client has for itself.
type Zone struct {
	// Name identifies the zone in metrics and in what clients are told: 1 to 64
	// letters, digits and _ - . / : only, different from the other zones' names.
	Name string

	Limit limiter.Config // what each client may do, as limiter.New reads it
	// Unit is what the Limit counts: "" is requests. It is for people, but for two: "seconds" are of backend time, of which
	// parts count, and "bytes" are those of responses.
	Unit string

	// Cost is how much of that a request takes: up to the burst. 0 means 1. With AutoCost it is learned: the highest of the last
	// eight costs of the key, or of the zone for a new key; before any is known, what is earned in a minute, or the burst if that is
	// less. A Request may say its own.
	Cost      float64
	AutoCost  bool
	CostAsked bool // requests say their own

	// Settle says where a response tells what the request has cost. The difference to what was taken is then taken too, or given
	// back. A key may owe a burst, or what it earns in an hour if that is more. nil: requests cost what was taken.
	Settle *meter.Source

	// Headers says what admitted responses tell of what is left.
	Headers Headers

	// Calendar, if not nil, has the quota, which is Limit.Rate, whole again at midnight or on the first of a month. Limit.Per is
	// 24 hours or Month then.
	Calendar *Calendar

	// MinRate, if not 0, has requests carry the rate of their clients (Ask.Rate), from MinRate to Limit.Rate. The burst of a
	// client is the same part of the Limit's.
	MinRate float64

	// MaxKeys bounds how many clients are remembered: limiter.MinKeys to
	// limiter.MaxKeys. 0 means DefaultMaxKeys. See limiter.Table for which clients
	// are forgotten first.
	MaxKeys int

	// Shared shares the quotas with other replicas, if the ZoneState is linked to a
	// store. Limit and Cost must be the same in all of them.
	Shared bool

	// Key names the client of a request, for Guard.Handler only. All requests
	// with the same name, "" too, share one bucket. nil means Config.Client, which says
	// more of names.
	Key func(*http.Request) string

	// Ask returns what a request says of itself, for Guard.Handler only. nil: nothing.
	Ask func(*http.Request) Ask
}

// settings is a checked Config: what never changes in a Guard.
type settings struct {
	observe      bool
	costUnknown  func(zone string)
	tells        bool // some zone tells what is left
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
	keys   []func(*http.Request) string // of Config.Zones
	asks   []func(*http.Request) Ask    // the same
	client func(*http.Request) string
	class  func(*http.Request) string
	weight func(*http.Request) int
}

// New returns a Guard that works on s; nil means a new State. Zones that s lacks are
// added to it; nothing else in it changes before the Guard's first decision, so a Guard
// that is thrown away has done nothing. The error names everything that is wrong with c.
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
			bad("the name is that of another zone; use different names")
		}
		if perClient && z.Name == inFlightPolicy {
			bad("the name is reserved for the per-client in-flight limit; use another name")
		}
		seen[z.Name] = true
		is, err := z.check()
		if err != nil {
			bad("%w", err)
		}
		z.MaxKeys = cmp.Or(z.MaxKeys, DefaultMaxKeys)
		if z.MaxKeys < limiter.MinKeys || z.MaxKeys > limiter.MaxKeys {
			bad("max_keys is %d; use %d to %d", z.MaxKeys, limiter.MinKeys, limiter.MaxKeys)
		}
		is.index, is.maxKeys, is.shared = i, z.MaxKeys, z.Shared
		g.zones = append(g.zones, is)
		g.keys, g.asks = append(g.keys, z.Key), append(g.asks, z.Ask)
		g.tells = g.tells || z.Headers != "" && z.Headers != HeadersOff
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
	classes := g.plan.Classes()
	for i := range classes.Len() {
		g.classes = append(g.classes, g.backend.class(classes.At(i).Name))
	}
}

// CheckName returns an error unless name can stand unquoted in headers, labels
// and logs.
func CheckName(name string) error {
	if !pushback.IsPolicyName(name) {
		return fmt.Errorf("name is %q; use 1 to 64 letters, digits and _ - . / : only", name)
	}
	return nil
}

// Hasher returns what makes the Keys of Requests from names.
func (g *Guard) Hasher() limiter.Hasher { return g.hasher }

// Responses returns the writer of this Guard's rejections.
func (g *Guard) Responses() *pushback.Responses { return g.terms.Responses }

// Plan returns what the Config says of requests in flight: the limit, the queue and the classes.
// Request.Class is 1 + an index into its Classes.
func (g *Guard) Plan() *loadshed.Plan { return g.plan }

// Limit returns how many requests may be in flight now; 0 if that is not limited.
func (g *Guard) Limit() int { return g.backend.inFlight.Limit(g.plan) }

// Tickets reports whether appointments are signed, so that Request.ClientID matters.
func (g *Guard) Tickets() bool { return g.terms.Secret != nil }

// RatePerClient returns the Config of the commonest limit: rate requests per second, and
// burst at once, for each client address. For users that are told apart otherwise set
// its Client.
//
//	handler = shield.Must(shield.New(shield.RatePerClient(50, 100), nil)).Handler(handler)
func RatePerClient(rate float64, burst int) Config {
	return Config{Zones: []Zone{{Name: "per_client", Limit: limiter.Config{Rate: rate, Burst: burst}}}}
}

// Must returns g. It panics if err is not nil: for Configs that are part of a program.
func Must(g *Guard, err error) *Guard {
	if err != nil {
		panic(err)
	}
	return g
}
