package pushback

import (
	"bytes"
	"errors"
	"sync"
	"time"
)

// maxUsed is how many tickets of one minute are remembered as used: some 2 MiB, and
// enough for a thousand appointments per second. Beyond it a ticket is worth
// nothing, and its client is as good as a new one.
const maxUsed = 1 << 16

// signers are the Tickets of a backend, which remember those that are used, by
// their secret: that of the config and that of the one before, whose last requests
// may still be on their way. A reload that keeps the secret keeps the memory.
type signers struct {
	mu   sync.Mutex
	last [2]struct {
		secret  []byte
		tickets *Tickets
	}
}

// of returns the Tickets for a secret that has been checked.
func (s *signers) of(secret []byte) *Tickets {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.last {
		if bytes.Equal(known.secret, secret) {
			return known.tickets
		}
	}
	newest := &s.last[0]
	s.last[1] = *newest
	newest.secret = secret
	newest.tickets, _ = NewTickets(secret, maxUsed)
	return newest.tickets
}

// redeem looks at the ticket of a client that comes at now. Where a promise to the
// client is known, the ticket is only used up. A stranger with a ticket is as good as one whose
// promise is. strict: one that comes too early is rejected.
func (a *Appointments) redeem(now time.Duration, c *Caller, t *Terms, strict bool, v *Visit) {
	if t.Secret == nil || c.Ticket == "" || v.Promises > 0 && !v.OnTime() {
		return
	}
	ticket, err := a.signers.of(t.Secret).Redeem(t.Wall(now), c.ID, c.Ticket)
	if v.Promises > 0 {
		return
	}
	switch {
	case err == nil && !v.served:
		v.Standing = Due
		a.redeemed.Add(1)
	case errors.Is(err, ErrEarly):
		v.At = now + ticket.Due.Sub(t.Wall(now))
		if strict {
			v.Standing, v.Rejected = TooEarly, true
		}
	default: // or used without being shown
		a.worthless.Add(1)
	}
}

// sign returns the ticket for an appointment, "" if there is none to be given: only a
// reserved slot is worth something elsewhere.
func (a *Appointments) sign(now time.Duration, c *Caller, t *Terms, p Appointment) string {
	if t.Secret == nil || p.Deferred || len(c.ID) == 0 {
		return ""
	}
	var buf [TicketLen]byte
	return string(a.signers.of(t.Secret).Append(buf[:0], c.ID, t.Wall(p.At), t.Wall(now)))
}
