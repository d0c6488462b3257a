package pushback

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

// A ticket is a signed promise that its client carries, so that several replicas, and one that
// was restarted, keep it without shared state. They need only the same secret, and clocks that
// agree within 2 s. It is 32 characters of base64url: 24 bytes, so there are no padding bits,
// and each ticket can be written in one way only.
//
//	due  8  microseconds since 1970: tickets of one client differ by it
//	mac 16  of that and of the client's ID
//
// The MAC is a truncated HMAC-SHA256: RFC 2104, section 5, recommends at least half of the hash.
//
// A ticket is good once at each replica: each remembers the used ones, until they are too old, and forgets
// them in a restart.
const (
	dueLen    = 8
	rawLen    = dueLen + 16
	ticketLen = rawLen * 4 / 3
)

// All that is signed begins with one of these, so that none is taken for the other.
const (
	ticketLabel = "shield ticket 2 promise "
	issuerLabel = "shield ticket 1 issuer "
)

// The validity of a ticket. Replicas whose clocks differ by up to clockSkew agree that
// it is due; ticketGrace after that it is over. A ticket that is due in more than
// maxTicketAhead is from before the clock was set back, and its client would wait for no reason.
const (
	clockSkew      = 2 * time.Second
	ticketGrace    = 60 * time.Second
	maxTicketAhead = 90 * time.Second
)

var (
	errEarly     = errors.New("the ticket is not due yet") // genuine, and good for later
	errWorthless = errors.New("the ticket is malformed, forged, another client's, expired or used")
)

// IssuerSecret returns the secret under which one of several issuers makes its tickets, so
// that they are forged to the others. Replicas of a server are one issuer.
func IssuerSecret(secret []byte, issuer string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(issuerLabel + issuer))
	return mac.Sum(nil)
}

// ticketOf returns the text of a ticket: the promise that client has a slot at due. client is the client's ID, the same
// bytes at every replica.
func ticketOf(secret, client []byte, due time.Time) string {
	raw := binary.BigEndian.AppendUint64(make([]byte, 0, rawLen), uint64(due.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(raw, ticketMAC(secret, raw, client)...))
}

// ticketMAC returns the MAC of a due time, as it stands in a ticket, and the client's ID.
func ticketMAC(secret, due, client []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(slices.Concat([]byte(ticketLabel), due, client)) // a copy, so that no caller's bytes escape
	return h.Sum(nil)[:rawLen-dueLen]
}

// checkTicket looks at a ticket that client brought at now, by the wall clock. If the error is nil its promise is due: from
// 2 s before, as clocks differ, to 60 s after. mark tells tickets apart. With errEarly the ticket stays valid.
func checkTicket(secret []byte, now time.Time, client []byte, text string) (wait time.Duration, mark uint64, err error) {
	if len(text) != ticketLen {
		return 0, 0, errWorthless
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != rawLen { // the decoder skips line breaks, and then there are fewer bytes
		return 0, 0, errWorthless
	}
	mac := raw[dueLen:]
	wait = time.UnixMicro(int64(binary.BigEndian.Uint64(raw))).Sub(now)
	switch {
	case wait < -ticketGrace || wait > maxTicketAhead || !hmac.Equal(ticketMAC(secret, raw[:dueLen], client), mac):
		err = errWorthless
	case wait > clockSkew:
		err = errEarly
	}
	return wait, binary.BigEndian.Uint64(mac), err
}

// redeem looks at the ticket of a client that comes at now. Where a promise to the
// client is known, the ticket is only used up. A new client with a ticket is as good as one whose
// promise is; with one that is worthless it counts as new, no worse. strict: one that comes too early is rejected.
func (a *Appointments) redeem(now time.Duration, c *Caller, t *Terms, strict bool, v *Visit) {
	if t.Secret == nil || c.Ticket == "" || v.n > 0 && !v.OnTime() {
		return
	}
	wait, mark, err := checkTicket(t.Secret, t.Wall(now), c.ID, c.Ticket)
	if err == nil && !a.used.once(now, mark, now+wait+clockSkew) {
		err = errWorthless
	}
	switch {
	case v.n > 0:
	case err == nil && !v.served:
		v.Standing = Due
		a.redeemed.Add(1)
	case err == errEarly && strict:
		v.At, v.Standing, v.Rejected = now+wait, TooEarly, true
	case err == errEarly:
	default: // or used without being shown
		a.worthless.Add(1)
	}
}

// sign returns the ticket for an appointment, "" if there is none to be given: only a
// reserved slot is worth something elsewhere.
func (a *Appointments) sign(c *Caller, t *Terms, turn *Turn) string {
	if t.Secret == nil || !turn.Slot || len(c.ID) == 0 {
		return ""
	}
	return ticketOf(t.Secret, c.ID, t.Wall(turn.At))
}
