package pushback

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"
	"sync"
	"time"
)

// Errors of Redeem. The client counts as a stranger then, no worse.
var (
	ErrMalformed = errors.New("the ticket is malformed")
	ErrExpired   = errors.New("the ticket is over, or too far ahead")      // over, or further ahead than a promise can be
	ErrForged    = errors.New("the ticket is not signed with this secret") // forged, or of another secret or issuer
	ErrForeign   = errors.New("the ticket is another client's")            // genuine
	ErrEarly     = errors.New("the ticket is not due yet")                 // genuine, and good for later
	ErrUsed      = errors.New("the ticket was used before")                // or it may have been: the clock was set back
	ErrFull      = errors.New("too many tickets are used to mark more")    // genuine, but it could be used again
)

// A ticket is TicketLen characters of base64url: 39 bytes, so there are no
// padding bits, and each ticket can be written in one way only.
//
//	due     7  microseconds since 1970: tickets of one client differ by it
//	born    4  seconds since 1970
//	client 12  MAC of the client's ID
//	mac    16  MAC of the three above
//
// Both MACs are truncated HMAC-SHA256. RFC 2104, section 5, recommends at least half of
// the hash, 16 bytes; 8 would save 10 characters and need an argument. For the client 12
// are enough: finding another ID with the same MAC gains one slot of another client. The
// client has its own MAC so that a ticket that comes from another address can be told
// from a forged one.
const (
	bornAt   = 7
	clientAt = bornAt + 4
	macAt    = clientAt + 12
	rawLen   = macAt + 16

	// TicketLen is the length of every ticket's text.
	TicketLen = rawLen * 4 / 3
)

// The MACs never share an input: each begins with one of these, none of which begins with
// another. The rest of it has a fixed length or is the name of the client or issuer.
const (
	clientLabel = "shield ticket 1 client "
	ticketLabel = "shield ticket 1 promise "
	issuerLabel = "shield ticket 1 issuer "
)

// The validity of a ticket. Replicas whose clocks differ by up to clockSkew agree that
// it is due; ticketGrace after that it is over. Promises are at most 59 s ahead, and 15 s
// more as a penalty. A ticket that is due in more than maxTicketAhead is from before the
// clock was set back, and its client would wait for no reason.
const (
	clockSkew      = 2 * time.Second
	ticketGrace    = 60 * time.Second
	maxTicketAhead = 90 * time.Second
)

// Tickets makes and redeems signed promises that the client carries, so that several
// replicas, and one that was restarted, keep them without shared state. They need only
// the same secret, and clocks that agree within 2 s.
//
// A ticket is good once at each replica: each remembers the used ones alone, and forgets
// them in a restart. Tickets is safe for concurrent use.
type Tickets struct {
	macs sync.Pool // of *macer, all with the secret
	used usedTickets
}

// A Ticket is a promise made before.
type Ticket struct {
	Due  time.Time // in whole microseconds
	Born time.Time // when the client was refused first, in whole seconds
}

// NewTickets returns Tickets under secret: at least 16 bytes, which should be random and
// known to the replicas alone. maxUsed is how many tickets that are due within 64 s can
// be used: 64 times the rate at which promises fall due is enough.
func NewTickets(secret []byte, maxUsed int) (*Tickets, error) {
	if len(secret) < 16 {
		return nil, fmt.Errorf("secret has %d bytes; want at least 16, for tickets", len(secret))
	}
	key := append([]byte(nil), secret...)
	t := &Tickets{used: usedTickets{most: maxUsed}}
	t.macs.New = func() any { return &macer{hash: hmac.New(sha256.New, key)} }
	return t, nil
}

// IssuerSecret returns the secret under which one of several issuers makes its tickets, so
// that they are forged to the others. Replicas of a server are one issuer.
func IssuerSecret(secret []byte, issuer string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(issuerLabel + issuer))
	return mac.Sum(nil)
}

// Append appends the text of a ticket to dst: the promise that client, first refused at
// born, has a slot at due. client is the client's ID, the same bytes at every replica.
// due and born are wall-clock times, from 1970 to 2106.
func (t *Tickets) Append(dst, client []byte, due, born time.Time) []byte {
	m := t.macs.Get().(*macer)
	raw := &m.raw
	// Of the eight bytes the last is born's first.
	binary.BigEndian.PutUint64(raw[:], uint64(min(max(due.UnixMicro(), 0), math.MaxUint32*1_000_000))<<8)
	binary.BigEndian.PutUint32(raw[bornAt:], uint32(min(max(born.Unix(), 0), math.MaxUint32)))
	copy(raw[clientAt:macAt], m.sum(clientLabel, client))
	copy(raw[macAt:], m.sum(ticketLabel, raw[:macAt]))
	dst = base64.RawURLEncoding.AppendEncode(dst, raw[:])
	t.macs.Put(m)
	return dst
}

// Redeem uses up a ticket that client brought at now, by the wall clock. If the error is
// nil its promise is due: from 2 s before, as clocks differ, to 60 s after. With
// ErrEarly it returns the promise, to be told again, and the ticket stays valid. With
// any other error it returns no Ticket, and the client is a stranger.
//
// The cheap checks come first: a malformed or expired ticket costs no MAC, a forged one
// costs one.
func (t *Tickets) Redeem(now time.Time, client []byte, text string) (Ticket, error) {
	if len(text) != TicketLen {
		return Ticket{}, ErrMalformed
	}
	m := t.macs.Get().(*macer)
	k, mark, err := m.open(now, client, text)
	t.macs.Put(m)
	if err == nil {
		err = t.used.add(now, k.Due, mark)
	}
	if err != nil && err != ErrEarly {
		return Ticket{}, err
	}
	return k, err
}

// A macer makes MACs under one key. An HMAC that is reset starts from the stored states
// of its pads: two blocks to hash instead of the four of a new one.
type macer struct {
	hash hash.Hash
	buf  []byte // input of hash: a copy, so that no caller's bytes escape
	out  [sha256.Size]byte
	text [TicketLen]byte
	raw  [rawLen]byte
}

// sum returns HMAC(label, message), until the next call.
func (m *macer) sum(label string, message []byte) []byte {
	m.buf = append(append(m.buf[:0], label...), message...)
	m.hash.Reset()
	m.hash.Write(m.buf)
	return m.hash.Sum(m.out[:0])
}

// open checks everything except whether the ticket was used before. mark identifies it
// among genuine tickets, with a chance of error of 2^-64.
func (m *macer) open(now time.Time, client []byte, text string) (k Ticket, mark uint64, err error) {
	raw := &m.raw
	copy(m.text[:], text)
	// The decoder skips line breaks, and then there are fewer bytes.
	if n, err := base64.RawURLEncoding.Decode(raw[:], m.text[:]); err != nil || n != rawLen {
		return k, 0, ErrMalformed
	}
	k.Due = time.UnixMicro(int64(binary.BigEndian.Uint64(raw[:]) >> 8))
	k.Born = time.Unix(int64(binary.BigEndian.Uint32(raw[bornAt:])), 0)
	wait := k.Due.Sub(now)
	if wait < -ticketGrace || wait > maxTicketAhead {
		return k, 0, ErrExpired
	}
	if !hmac.Equal(m.sum(ticketLabel, raw[:macAt])[:rawLen-macAt], raw[macAt:]) {
		return k, 0, ErrForged
	}
	if !hmac.Equal(m.sum(clientLabel, client)[:macAt-clientAt], raw[clientAt:macAt]) {
		return k, 0, ErrForeign
	}
	if wait > clockSkew {
		return k, 0, ErrEarly
	}
	return k, binary.BigEndian.Uint64(raw[macAt:]), nil
}

// span is the period of due times that are remembered together: all tickets that are
// valid at any moment, 62 s of them, are in two spans.
const span = 64 * time.Second

// usedTickets remembers the used tickets, by the time at which they are due, not at
// which they were used. So no clock can make it forget one and accept it again: a span
// is dropped when a later one replaces it, and from then on none of its tickets is
// accepted.
type usedTickets struct {
	most  int // marks in a span
	mu    sync.Mutex
	spans [2]struct {
		number int64               // guarded by mu; due/span of its tickets
		marks  map[uint64]struct{} // guarded by mu
	}
}

// maxClockSetBack is how far a clock may be set back before the spans ahead of it are
// dropped: it had been wrong, and would take hours or years to be there again. Up to
// that, the tickets of a clock that is set back are refused for as long as it has to make
// up, because some of them may have been used.
const maxClockSetBack = time.Hour

// add marks a ticket as used, or returns ErrUsed or ErrFull.
func (u *usedTickets) add(now, due time.Time, mark uint64) error {
	number := due.Unix() / int64(span/time.Second)
	u.mu.Lock()
	defer u.mu.Unlock()
	s := &u.spans[number%2]
	if s.number != number {
		begins := time.Unix(s.number*int64(span/time.Second), 0)
		if s.number > number && begins.Sub(now) <= maxClockSetBack {
			return ErrUsed
		}
		clear(s.marks)
		s.number = number
	}
	if s.marks == nil {
		s.marks = map[uint64]struct{}{}
	}
	if _, used := s.marks[mark]; used {
		return ErrUsed
	}
	if len(s.marks) == u.most {
		return ErrFull
	}
	s.marks[mark] = struct{}{}
	return nil
}
