package shield

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/meter"
)

// An Ask is the cost and rate that a request states for itself in one zone.
type Ask struct {
	Cost float64 // in the zone's unit; 0: the zone's own Cost. NaN is a value that was missing or wrong: the same, but counted
	Rate float64 // of its client, per the zone's Limit.Per: see Zone.MinRate; 0 or NaN: MinRate, and counted
}

// Seconds is the Unit of zones that count how long the backend takes. Parts of a second count, too.
const Seconds = "seconds"

// milli is how many tokens a unit is where parts of one matter: seconds of backend time, and rates that requests carry.
const milli = 1000

// check returns a zone with its limits.
func (z Zone) check() (is zone, err error) {
	z.Cost, z.MaxKeys = cmp.Or(z.Cost, 1), cmp.Or(z.MaxKeys, DefaultMaxKeys)
	is = zone{Zone: z, scale: 1, varies: z.AutoCost || z.Settle != nil || z.MinRate != 0 || z.CostAsked}
	if z.MinRate != 0 || z.Unit == Seconds || z.Cost != math.Trunc(z.Cost) {
		is.scale = milli
	}
	period, name := 24*time.Hour, "day" // of a Calendar
	if z.Calendar != nil && z.Calendar.Month {
		period, name = Month, "month"
	}
	switch {
	case z.MinRate != 0 && !(z.MinRate > 0 && z.MinRate <= z.Limit.Rate):
		return is, fmt.Errorf("min is %v; use more than 0 and at most the rate, %v", z.MinRate, z.Limit.Rate)
	case !slices.Contains([]Headers{"", HeadersOff, HeadersOn, HeadersOpenAI}, z.Headers):
		return is, fmt.Errorf("headers is %q; use %s, %s or %s", z.Headers, HeadersOff, HeadersOn, HeadersOpenAI)
	case len(z.Unit) > 32 || strings.Trim(z.Unit, "abcdefghijklmnopqrstuvwxyz-") != "" || strings.HasPrefix(z.Unit, "-"):
		return is, fmt.Errorf("unit is %q; use up to 32 small letters, like tokens", z.Unit)
	case !(z.Permit >= 0):
		return is, fmt.Errorf("a permit is %v units; use more than 0", z.Permit)
	case z.Permit > 0 && z.Settle != nil && z.Settle.String() == "time":
		return is, errors.New("weights are by a zone that settles time; use a cost that responses report: " +
			"slow requests hold their permits for longer already")
	case z.Calendar == nil:
	case z.Limit.Per != period:
		return is, fmt.Errorf("rate is per %v, but the calendar's period is a %s; use a rate per %[2]s", z.Limit.Per, name)
	case z.Limit.Rate > 1e12: // the shortest day earns that in less than a token per nanosecond
		return is, fmt.Errorf("rate is %v per %s; use at most 1e12 with a calendar", z.Limit.Rate, name)
	case z.Limit.Burst != 0:
		return is, fmt.Errorf("burst is %d with a calendar; leave it out, because clients can use the whole quota in one burst", z.Limit.Burst)
	case z.Shared:
		return is, fmt.Errorf("a calendar's quota cannot be shared by replicas; use shared off, or a rate per %s without calendar", name)
	}
	limit := z.Limit
	limit.Rate *= is.scale
	limit.Burst *= int(is.scale)
	if z.Calendar != nil {
		limit.Burst = max(1, int(limit.Rate))
	}
	if is.limit, err = limiter.New(limit); err != nil {
		return is, err
	}
	if most := float64(is.limit.Burst()) / is.scale; !(z.Cost > 0 && z.Cost <= most) {
		return is, fmt.Errorf("cost is %v; use more than 0 and at most the burst, %v", z.Cost, most)
	}
	if is.cost = is.tokens(z.Cost, 1); is.varies {
		is.cost = 1
	}
	if z.Settle != nil {
		is.limit = is.limit.WithDebt()
	}
	return is, nil
}

// quota is what clients are told that they may send at once: requests, or so much of the zone's unit.
func (z *zone) quota() int {
	if z.varies {
		return z.inUnits(z.limit.Burst())
	}
	return z.limit.Burst() / max(1, z.cost)
}

// price returns how many tokens a request takes of a zone that its key counts in.
func (z *zone) price(r *Request, key limiter.Key) int {
	if !z.varies {
		return z.cost
	}
	return max(1, min(z.tokens(z.units(r, key, z.reserve), z.part(r)), z.limit.Burst()))
}

// units returns how much a request takes in the zone's unit: what it says, what is learned, or what is set.
func (z *zone) units(r *Request, key limiter.Key, learned func(limiter.Key) float64) float64 {
	switch ask := z.ask(r); {
	case ask.Cost > 0:
		return ask.Cost
	case z.AutoCost:
		return learned(key)
	}
	return z.Cost
}

// weigh returns how many permits a request takes; 0 means one.
func (g *Guard) weigh(r *Request) (permits int) {
	for i := range g.zones {
		z := &g.zones[i]
		if key := z.key(r); r.Weight == 0 && z.Permit > 0 && key != NoKey {
			n := math.Ceil(z.units(r, key, z.learned.typical)/z.Permit - 1e-6)
			permits = max(permits, int(min(n, loadshed.MaxConcurrency)))
		}
	}
	return cmp.Or(r.Weight, permits)
}

// tokens returns what so many units cost a client with a part of the limit's rate: rounded up, or to the nearest thousandth of a
// unit if it is a part, as 45 of 60 requests would else not be 45.
func (z *zone) tokens(units, part float64) int {
	n := units * z.scale / part
	if part < 1 && n >= 1 {
		return int(min(math.Round(n), 1<<53))
	}
	return int(min(math.Ceil(n-1e-6), 1<<53)) // the noise of floating point must not make 2 of 1
}

// inUnits returns so many tokens in the zone's unit, rounded down.
func (z *zone) inUnits(tokens int) int { return int(math.Floor(float64(tokens) / z.scale)) }

// ask returns what a request says of itself to the zone.
func (z *zone) ask(r *Request) (a Ask) {
	if z.index < len(r.Asks) {
		a = r.Asks[z.index]
	}
	return a
}

// part returns which part of the limit's rate the client of a request has.
func (z *zone) part(r *Request) float64 {
	switch rate := z.ask(r).Rate; {
	case z.MinRate == 0:
		return 1
	case !(rate >= z.MinRate): // NaN too
		return z.MinRate / z.Limit.Rate
	default:
		return min(1, rate/z.Limit.Rate)
	}
}

// A charge is what an admitted request has taken of a zone whose costs are known when it ends.
type charge struct {
	zone  *zone
	hold  limiter.Hold // of the zone's table; zero: replicas share it
	key   limiter.Key
	at    time.Duration
	n     int     // tokens, which were taken then
	part  float64 // of the limit's rate that its client has
	meter *meter.Meter
}

// charges are those of one request.
type charges []*charge

// hold notes what a request has just taken of a zone.
func (t *try) hold(z *zone, claim *limiter.KeyClaim, key limiter.Key, n int) {
	if a := z.ask(t.Request); math.IsNaN(a.Cost) || z.MinRate > 0 && !(a.Rate > 0) { // it says nothing that can be used where it should
		z.unknown.Add(1)
	}
	if z.Settle == nil {
		return
	}
	c := &charge{zone: z, key: key, at: t.d.at, n: n, part: z.part(t.Request)}
	if z.share.Load() == nil {
		claim.Hold(&c.hold, n)
	}
	t.d.charges = slices.Concat(t.d.charges, charges{c}) // not append, or what t has would escape to the heap
}

// Charged reports whether the request's cost is only known at its end.
func (d *Decision) Charged() bool { return len(d.charges) > 0 }

// begin has the costs of a request looked for in its response.
func (all charges) begin(header http.Header) {
	for _, c := range all {
		if c.meter == nil {
			c.meter = c.zone.Settle.Begin(header)
		}
	}
}

// read reports whether any of them reads the body.
func (all charges) read() bool {
	return slices.ContainsFunc(all, func(c *charge) bool { return c.zone.Settle.Reads() })
}

// decodable returns the header of a request without the encodings in which costs are not found, so that a client cannot choose one.
func decodable(h http.Header) http.Header {
	var kept []string
	for item := range strings.SplitSeq(strings.Join(h["Accept-Encoding"], ","), ",") {
		item = strings.TrimSpace(item)
		if name, _, _ := strings.Cut(strings.ToLower(item), ";"); name == "gzip" || name == "zstd" {
			kept = append(kept, item)
		}
	}
	h = maps.Clone(h)
	h["Accept-Encoding"] = []string{cmp.Or(strings.Join(kept, ", "), "identity")}
	return h
}

// settle ends the charges of a request. A response that was cut off costs what was seen, but at least what was taken. Where the cost
// is not found, what was taken is the cost; but a backend that blames the request, or rejects it, has not spent anything.
func (g *Guard) settle(now time.Duration, all charges, o Outcome, end meter.End) {
	all.begin(end.Header) // if there was no response
	complete := o != Detached && o != Aborted && o != TimedOut
	for _, c := range all {
		z := c.zone
		units, found := c.meter.Cost(end)
		if end.Status == http.StatusSwitchingProtocols { // what goes on is not seen
			found, complete = false, false
		}
		real := z.tokens(units, c.part)
		switch {
		case found && strings.HasPrefix(z.Settle.String(), "status"):
			real = int(units) * c.n // 0 or 1 of what was taken
		case found && (complete || c.meter.Over()):
			z.learned.learn(c.key, units)
		case found:
			real = max(real, c.taken())
		case o == Overloaded, o == Limited, end.Status == http.StatusTooManyRequests, complete && end.Status >= 400:
			real = 0
		case !complete:
			real = c.taken()
			z.learned.doubt(c.key)
		default:
			real = c.taken()
			if z.unknown.Add(1); z.noted.CompareAndSwap(false, true) && g.costUnknown != nil {
				g.costUnknown(z.name)
			}
		}
		z.close(now, c, real)
	}
}

// reserve returns what a request of a key takes by what is known of costs: if that is nothing, what the key earns in a
// minute. If that was a quota of a month, another request at the same time would be told to come back tomorrow, and
// with a new store, whose buckets are empty, so would all of them.
func (z *zone) reserve(key limiter.Key) float64 {
	minute := min(float64(z.limit.Burst()), float64(time.Minute)/float64(z.limit.Interval())) / z.scale
	return z.learned.reserve(key, minute)
}

// taken returns what a request costs that does not tell: what was taken, or less if less would be taken by now.
func (c *charge) taken() int {
	if z := c.zone; z.AutoCost {
		return min(c.n, max(1, z.tokens(z.reserve(c.key), c.part)))
	}
	return c.n
}

// Cost reports what an admitted request has cost in a zone, given by its index in Config.Zones. Call it before
// Done if you serve requests without an Exchange, which reads the cost from the response. It does nothing for
// zones that don't settle costs, or if units is negative or NaN.
func (g *Guard) Cost(now time.Duration, d *Decision, zone int, units float64) {
	for i, c := range d.charges {
		if c.zone.index == zone && units >= 0 && !math.IsInf(units, 0) {
			c.zone.learned.learn(c.key, units)
			c.zone.close(now, c, c.zone.tokens(units, c.part))
			d.charges = slices.Delete(d.charges, i, i+1)
			return
		}
	}
}

// close ends a charge with what the request has really cost.
func (z *zone) close(now time.Duration, c *charge, real int) {
	if of := z.share.Load(); of != nil {
		z.table.Drop(&c.hold)
		of.Escrow.Settle(now, c.key, c.at, c.n, real)
		return
	}
	z = z.current.Load() // a reload may have changed the limit since
	z.table.Settle(z.limit, z.MaxKeys, z.instant(now), &c.hold, real)
}

// settle ends the charges of a request that does not tell its costs. What was taken is taken, unless the request is free because it was not
// admitted after all.
func (d *Decision) settle(now time.Duration, free bool) {
	for _, c := range d.charges {
		real := c.n
		if free {
			real = 0
		}
		c.zone.close(now, c, real)
	}
	d.charges = nil
}
