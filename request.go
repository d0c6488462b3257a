package shield

import (
	"cmp"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// A Reason says which limit a request is over.
type Reason uint8

// The reasons.
const (
	None        Reason = iota // the request is admitted
	Quota                     // a zone's quota for this client
	Capacity                  // the backend's rate
	Concurrency               // how much the backend can have in flight
	Early                     // it came before its client's appointment
	PerClient                 // how much one client can have in flight
	RetryBudget               // it is a retry, and the backend can't serve as many
	Pause                     // the backend asked for a pause
	Blocked                   // its client is blocked
)

// reasonNames are the names of Reasons in metrics, logs and placeholders.
var reasonNames = [...]string{
	None: "none", Quota: "quota", Capacity: "capacity", Concurrency: "concurrency", Early: "early",
	PerClient: "per_client", RetryBudget: "retry_budget", Pause: "pause", Blocked: "blocked",
}

const reasons = len(reasonNames)

// String returns the reason as a metric label.
func (r Reason) String() string { return reasonNames[r] }

// Reasons are all Reasons for a rejection.
var Reasons = [reasons - 1]Reason{Quota, Capacity, Concurrency, Early, PerClient, RetryBudget, Pause, Blocked}

// An Outcome says how an admitted request ended: see loadshed.Outcome.
type Outcome = loadshed.Outcome

// The outcomes.
const (
	Served     = loadshed.Served
	Detached   = loadshed.Detached
	Aborted    = loadshed.Aborted
	TimedOut   = loadshed.TimedOut
	Overloaded = loadshed.Overloaded
	Limited    = loadshed.Limited
)

// NoKey is the key of a request in a zone that it is not in.
const NoKey limiter.Key = 0

// A Request is everything a decision depends on.
type Request struct {
	// Keys identifies the client in each zone, in the order of Config.Zones. The request doesn't count in zones
	// beyond its length, or in those whose key is NoKey.
	Keys []limiter.Key

	// Asks is what the request states for itself in each zone, in the same order. In zones beyond its length, it
	// states nothing.
	Asks []Ask

	// Client identifies the client for appointments, independently of the zones. With NoKey, nothing is recorded.
	Client limiter.Key

	// Preflight is set if a browser asks whether a page may send a request. Limits don't count preflights, because
	// a page whose preflight fails can only report a "network error". Since anyone can send them, that only
	// applies to as many per second as the capacity, or 100 without one, in bursts of up to 1,000. Further ones
	// count like any request.
	Preflight bool

	Retry   bool   // the request itself says it is a retry: see pushback.Retry
	Precise bool   // the client reads milliseconds (gRPC, Shield-Retry), so its rejections needn't be delayed
	Agent   string // the User-Agent: appointments are counted by its family

	// Ticket is the signed appointment the client sends, "" for none. ClientID is what identifies the client in
	// it, the same on all replicas. They only matter if Config.Retries.Tickets is set.
	Ticket   string
	ClientID []byte

	Class uint8 // 1 + its index in the classes of Guard.Plan; 0 means the default one

	Deadline    time.Duration // when the client gives up, so waiting longer is useless; 0: unknown
	InFlightKey limiter.Key   // identifies the client for Config.PerClient; NoKey: no client
	Weight      int           // permits it takes, at most the limit; 0 means what Zone.Permit says, or 1
}

// caller returns the part of r that matters for appointments.
func (r *Request) caller() pushback.Caller {
	return pushback.Caller{
		Key: uint64(r.Client), Precise: r.Precise, Agent: r.Agent, Ticket: r.Ticket, ID: r.ClientID, Deadline: r.Deadline,
	}
}

// A Decision says whether a request is admitted, and if not, why and for how long.
type Decision struct {
	// Admit means that you can serve the request. Call Done when it has been served, once, on every path.
	Admit bool

	// Gone means that the client disconnected while queued. No other field counts.
	Gone bool

	// Reason is None, or why the request is rejected. In observe mode, it is why the admitted request would have
	// been rejected.
	Reason Reason

	Class uint8 // the request's class, an index into the classes of Guard.Plan
	Zone  int   // the zone that rejects for Quota, an index into Config.Zones; otherwise -1

	// Backlog is how far in the future the last appointment is, as an early warning to admitted clients. 0 means
	// that no client waits.
	Backlog time.Duration

	pushback.Told // the wait of a rejected client

	at     time.Duration   // of the decision
	permit loadshed.Permit // in flight or in the queue
	awaits <-chan struct{} // the store's response
	until  time.Duration   // it waits no longer, for that or for the token that it has taken; 0: it waits for neither
	came   time.Duration   // when the request did
	paid   bool            // it has taken a token before that was earned
	visit  pushback.Visit  // what its client was promised
	policy int             // for PerClient: which of the policies that clients are told of

	budgeted bool // it is a retry that the budget has let in

	charges charges // of zones whose costs are known when the request has ended
}

// Queued reports whether the request waits for a token, a permit, or the store that replicas share. Until
// Settle returns, no other field counts.
func (d *Decision) Queued() bool { return d.until != 0 || d.permit.Waits() }

// Until returns when to call Settle at the latest, with 0 if there was no verdict.
func (d *Decision) Until() time.Duration { return cmp.Or(d.until, d.permit.Until()) }

// Awaits returns a channel that is closed when the store has responded and you can call Settle early, with 0; nil
// if the request doesn't wait for the store.
func (d *Decision) Awaits() <-chan struct{} { return d.awaits }

// await has the request wait for the store's response, if there is a store.
func (d *Decision) await(now time.Duration, response <-chan struct{}) {
	if d.awaits = response; response != nil {
		d.until = cmp.Or(now+share.MaxTrip, 1)
	}
}

// Verdict returns a channel that receives the verdict for Settle, once; nil if the request doesn't wait for a
// permit.
func (d *Decision) Verdict() <-chan loadshed.Verdict { return d.permit.Verdict() }

// At returns when the Decision was made.
func (d *Decision) At() time.Duration { return d.at }

// ClientLoad returns how many requests the client of an admitted one had in flight then, by weight and
// including it, under the key that Backend.Busiest uses. It is zero if they weren't counted.
func (d *Decision) ClientLoad() loadshed.ClientLoad { return d.permit.ClientLoad() }

// Done returns what an admitted request holds. Call it exactly once for every Decision that admits, with a now
// from the same epoch.
//
// If a zone settles costs, call Guard.Cost first, or the request costs what it took.
func (d *Decision) Done(now time.Duration, o Outcome) {
	d.settle(now, false)
	d.permit.Leave(now, o)
}

// Left notes that the client of an admitted request disconnected, while its response is still awaited.
func (d *Decision) Left(now time.Duration) { d.permit.Left(now) }

// Pause notes that the backend responded with 503 and a Retry-After of wait, and so asked for a pause: see
// loadshed.Permit.LeaveAlone. Call it after Done.
func (d *Decision) Pause(now, wait time.Duration) { d.permit.LeaveAlone(now, wait) }
