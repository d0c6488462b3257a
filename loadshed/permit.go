package loadshed

import "time"

// A Permit is what one request holds of a Concurrency. The zero Permit holds nothing.
type Permit struct {
	c      *Concurrency // nil: it holds nothing
	plan   *Plan
	at     time.Duration // since when
	wait   *waiter       // while it is in the queue
	client uint64        // that it is counted for, 0 if it is not
	begun  time.Duration // when the response began to stream; 0: it does not
	mine   int32         // requests that the client has in flight with this one, of those that are counted
	probe  bool          // it finds out whether a pause is over
	dry    bool          // see DryPermit
}

// DryPermit returns the Permit of a request that is not made: a Concurrency says what it would
// decide, and changes nothing.
func DryPermit() Permit { return Permit{dry: true} }

// ClientLoad returns how many requests the client of this one had in flight when it was counted, itself
// included; nothing if it was not: see [Concurrency.Busiest].
func (pl *Permit) ClientLoad() ClientLoad {
	if pl.client == 0 {
		return ClientLoad{}
	}
	return ClientLoad{pl.client, int(pl.mine)}
}

// Held reports whether there is anything that Leave gives back, or has to hear.
func (pl *Permit) Held() bool { return pl.c != nil }

// Waits reports whether the request is in the queue.
func (pl *Permit) Waits() bool { return pl.wait != nil }

// Verdict returns a channel that receives one verdict on a request that Waits.
func (pl *Permit) Verdict() <-chan Verdict { return pl.wait.told }

// Watch has the Permit hear how its request ends, though it takes no permit in flight.
func (pl *Permit) Watch(c *Concurrency, p *Plan, now time.Duration) {
	pl.c, pl.plan, pl.at = c, p, now
}

// An Outcome says how an admitted request ended.
type Outcome uint8

const (
	Served     Outcome = iota // the response is complete; 4xx and 500, too, are no sign of overload
	Detached                  // it says nothing, or goes on without its permit in flight: an upgraded connection, a stream of events, a client that is slow itself
	Aborted                   // the client has gone before there was a response
	TimedOut                  // the backend took too long
	Overloaded                // the backend says that it cannot, or cannot be reached: 502, 503, 504
)

// Streams notes that the response has begun, and goes on for as long as the client likes:
// what comes after that is not the backend's time.
func (pl *Permit) Streams(now time.Duration) {
	pl.Serves(now)
	pl.begun = now
}

// Leave gives back what a request holds. It is to be called once for each Permit that
// is Held, when the request has ended.
func (pl *Permit) Leave(now time.Duration, o Outcome) {
	c, p := pl.c, pl.plan
	if c == nil {
		return
	}
	if o == Served {
		pl.Serves(now)
	}
	defer c.uncount(pl)
	if !p.Limits() {
		return
	}
	took, service, inFlight := now-pl.at, c.gate.Service(), c.gate.InFlight()
	switch o {
	case Served, TimedOut:
		c.gate.Leave(took)
	case Overloaded:
		c.failed.Add(1)
		fallthrough
	default:
		c.gate.Detach()
	}
	if p.adaptive {
		switch streamed := pl.begun > 0; {
		case streamed && (o == Served || o == Detached || o == Aborted):
			o, took = Served, pl.begun-pl.at
		case o == Aborted && took < service:
			o = Detached
		case o == Aborted:
			// How long it would have taken is not known. If nothing were made of that, a
			// backend that is too slow for its clients' patience would never be seen to be.
			// Eight times the mean do not outweigh the requests served beside long polls.
			took = min(took, 8*max(service, time.Millisecond))
		}
		c.adaptive.Done(now, took, o, inFlight, c.law(p))
	}
	c.queue.Wake(now, c)
}
