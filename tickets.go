package shield

import (
	"bytes"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/herdshield/shield/pushback"
)

// maxUsed is how many tickets of one minute are remembered as used: 2 MiB, and
// enough for a thousand appointments per second. Beyond it a ticket is worth
// nothing, and its client is as good as a new one.
const maxUsed = 1 << 16

// processSecret signs tickets where the operator has not set a secret.
var processSecret = sync.OnceValue(func() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails: it would crash the program
	return secret
})

// signers are the Tickets of a backend, which remember those that are used, by
// their secret: that of the config and that of the one before, whose last requests
// may still be on their way. A reload that keeps the secret keeps the memory.
type signers struct {
	mu   sync.Mutex
	last [2]signer
}

type signer struct {
	secret  []byte
	tickets *pushback.Tickets
}

// of returns the Tickets for a secret that has been checked.
func (s *signers) of(secret []byte) *pushback.Tickets {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.last {
		if bytes.Equal(known.secret, secret) {
			return known.tickets
		}
	}
	tickets, _ := pushback.NewTickets(secret, maxUsed)
	s.last = [2]signer{{secret, tickets}, s.last[0]}
	return tickets
}

// Tickets reports whether appointments are signed, so that Request.Name matters.
func (g *Guard) Tickets() bool { return g.secret != nil }

// redeem looks at the ticket of a client that comes at now. Where the ledger
// knows the client, the ticket is only used up. A stranger with a ticket is as
// good as one whose promise is in the ledger.
func (g *Guard) redeem(now time.Duration, r *Request, v *pushback.Visit) {
	if g.secret == nil || r.Ticket == "" || v.Promises > 0 && v.Standing != pushback.OnTime {
		return
	}
	ticket, err := g.backend.signers.of(g.secret).Redeem(At(now), r.ClientID, r.Ticket)
	if v.Promises > 0 {
		return
	}
	switch {
	case err == nil && v.Served:
		g.backend.worthless.Add(1) // used without being shown
	case err == nil:
		v.Standing, v.Due = pushback.OnTime, true
		g.backend.redeemed.Add(1)
	case errors.Is(err, pushback.ErrEarly):
		v.At = now + ticket.Due.Sub(At(now))
		if g.enforce && g.backend.calendar.Standing(now) && !g.backend.idle(now) {
			v.Standing, v.Rejected = pushback.TooEarly, true
		}
	default:
		g.backend.worthless.Add(1)
	}
}

// sign returns the ticket for an appointment, "" if there is none to be given:
// only a reserved slot is worth something elsewhere.
func (g *Guard) sign(now time.Duration, r *Request, a pushback.Appointment) string {
	if g.secret == nil || a.Deferred || len(r.ClientID) == 0 {
		return ""
	}
	var room [pushback.TicketLen]byte
	return string(g.backend.signers.of(g.secret).Append(room[:0], r.ClientID, At(a.At), At(now)))
}
