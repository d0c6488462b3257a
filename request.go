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
	Concurrency               // how much the backend may have in flight
	Early                     // it came before the time that its client was promised
	PerClient                 // how much one client may have in flight
	RetryBudget               // it is a retry, beyond those that the backend can serve
	Pause                     // the backend has asked to be left alone
	Blocked                   // an operator has blocked its client
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

// An Outcome says how an admitted request ended: see [loadshed.Outcome].
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

// A Request is what a decision needs to know of a request.
type Request struct {
	// Keys names the client in each zone, in the order of Config.Zones. Zones
	// beyond its length do not count the request; neither does one whose key
	// is NoKey.
	Keys []limiter.Key

	// Asks is what the request says of itself to each zone, in the same order. Zones beyond its length know nothing.
	Asks []Ask

	// Client names the client, whatever the zones count by. Its appointments are
	// remembered under that name; under NoKey nothing is.
	Client limiter.Key

	// Preflight: a browser asks whether a page may send a request. It is no request in the sense of any limit, and is not
	// counted: a page whose preflight fails can say nothing but "network error". As anyone can send some,
	// that holds for as many per second as the capacity, 100 without one, and 1,000 at once. Others are requests as any.
	Preflight bool

	Retry   bool   // the request says itself that it is a retry: see pushback.Retry
	Precise bool   // the client reads milliseconds (gRPC, Shield-Retry), so its response need not be held back
	Agent   string // the User-Agent: appointments are counted by its family

	// Ticket is the signed appointment that the client brings, "" for none, and
	// ClientID the bytes that name the client in it, the same in all replicas. They
	// matter only if Config.Retries.Tickets is set.
	Ticket   string
	ClientID []byte

	Class uint8 // 1 + its index in the classes of Guard.Plan; 0 means the default one

	Deadline    time.Duration // when the client will have given up: it does not wait for longer. 0: not known
	InFlightKey limiter.Key   // names the client that is counted for Config.PerClient; NoKey: none
	Weight      int           // how many permits in flight it takes, cut to the limit; 0 means 1
}

// caller returns the part of r that matters for appointments.
func (r *Request) caller() pushback.Caller {
	return pushback.Caller{
		Key: uint64(r.Client), Precise: r.Precise, Agent: r.Agent, Ticket: r.Ticket, ID: r.ClientID, Deadline: r.Deadline,
	}
}

// A Decision is the answer to one request.
type Decision struct {
	// Admit: the request may go on. The caller must call Done when it has
	// been served, once, on every path.
	Admit bool

	// Gone: the client left the queue before there was a decision. Nothing else counts.
	Gone bool

	// Reason is None, or what the request is rejected for. In observe mode it
	// is what the admitted request would have been rejected for.
	Reason Reason

	Class uint8 // that the request was treated as, an index into the classes of Guard.Plan
	Zone  int   // that rejects for Quota, as an index into Config.Zones; otherwise -1

	// Backlog is how far the appointments to others reach, for an early warning to
	// a client that is admitted. 0: no client waits.
	Backlog time.Duration

	pushback.Told // what a rejected client is told

	// Status is for whoever answers, and not set here: see [pushback.Rejection].
	Status int

	at     time.Duration   // of the decision
	permit loadshed.Permit // in flight or in the queue
	awaits <-chan struct{} // the store's response
	until  time.Duration   // it waits no longer, for that or for the token that it has taken; 0: it waits for neither
	came   time.Duration   // when the request did
	paid   bool            // it has taken a token before that was earned
	visit  pushback.Visit  // what its client was promised
	policy int             // for PerClient: which of the policies that clients are told of

	budgeted bool // it is a retry that the budget has let in

	charges *charge // of zones whose costs are known when the request has ended
}

// Queued reports whether the request waits: for its token, for a permit in flight, or for the store that
// replicas share. Then no other field counts until Settle has returned.
func (d *Decision) Queued() bool { return d.until != 0 || d.permit.Waits() }

// Until returns when Settle is to be called at the latest, with any verdict; 0 if there is no such time.
func (d *Decision) Until() time.Duration { return d.until }

// Awaits returns a channel that is closed when Settle may be called before, with any verdict, as the store has answered; nil
// if the request does not wait for that.
func (d *Decision) Awaits() <-chan struct{} { return d.awaits }

// await has the request wait for the store's response, if there is a store.
func (d *Decision) await(now time.Duration, response <-chan struct{}) {
	if d.awaits = response; response != nil {
		d.until = cmp.Or(now+share.MaxTrip, 1)
	}
}

// Verdict returns a channel that receives, once, the verdict to call Settle with; nil if it waits for no permit.
func (d *Decision) Verdict() <-chan loadshed.Verdict { return d.permit.Verdict() }

// At returns when the Decision was made.
func (d *Decision) At() time.Duration { return d.at }

// ClientLoad returns how many requests the client of an admitted one had in flight then, by weight, itself included,
// under the key that [Backend.Busiest] has for the client. It is nothing if they were not counted.
func (d *Decision) ClientLoad() loadshed.ClientLoad { return d.permit.ClientLoad() }

// Done gives back what an admitted request holds. It must be called exactly
// once for every Decision that admits, with a now from the same epoch.
//
// Where a zone settles what requests cost, [Guard.Cost] says that before, or what was taken is the cost.
func (d *Decision) Done(now time.Duration, o Outcome) {
	d.keep()
	d.permit.Leave(now, o)
}

// Left notes that the client of an admitted request has gone, and that its response is waited for.
func (d *Decision) Left(now time.Duration) { d.permit.Left(now) }

// Pause tells that the backend has answered the request with 503 and a Retry-After of
// wait, and so has asked to be left alone: see [loadshed.Permit.LeaveAlone]. It is
// to be called after Done.
func (d *Decision) Pause(now, wait time.Duration) { d.permit.LeaveAlone(now, wait) }
