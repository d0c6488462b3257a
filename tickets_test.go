package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// signing is a Guard whose bucket is empty at now and who gives tickets.
func signing(t *testing.T, secret string, now time.Duration) *Guard {
	t.Helper()
	g := mustNew(t, Config{
		Capacity: perSecond(10, 5),
		Retries:  Retries{Tickets: true, Secret: []byte(secret)},
	}, nil)
	empty(g, now)
	return g
}

// empty takes what there is, and lets a few strangers wait, so that a backlog
// stands.
func empty(g *Guard, now time.Duration) {
	for i := range 60 {
		g.Admit(now, Request{Client: limiter.Key(int(now) + i)}) // other strangers each time
	}
}

func bearer(client limiter.Key, ticket string) Request {
	return Request{Client: client, ClientID: []byte{byte(client)}, Ticket: ticket}
}

// A ticket is worth at another replica what the promise is worth at the one that
// gave it: it lets its client in when no other is, once. Another client's, or one
// signed with another secret, is worth nothing.
func TestTicketIsHonouredElsewhere(t *testing.T) {
	const now = time.Hour
	one, other, foreign := signing(t, "the secret of both", now), signing(t, "the secret of both", now), signing(t, "another secret of 16", now)
	d := one.Admit(now, bearer(7, ""))
	if d.Admit || d.Ticket == "" {
		t.Fatalf("%+v, want a refusal with a ticket", d)
	}
	due := now + d.Wait
	empty(other, due-3*time.Second)
	if early := other.Admit(due-3*time.Second, bearer(7, d.Ticket)); early.Reason != Early || (early.Wait-3*time.Second).Abs() > time.Second {
		t.Errorf("3 s before its time: %+v, want told the rest", early)
	}
	for _, g := range []*Guard{other, foreign} {
		empty(g, due-500*ms)
		empty(g, due)
	}
	// Some tokens are left, which strangers must leave to those who are on time.
	if d := foreign.Admit(due, bearer(7, d.Ticket)); d.Admit {
		t.Error("a ticket of another secret let its bearer in")
	}
	if d := other.Admit(due, bearer(8, d.Ticket)); d.Admit {
		t.Error("a ticket let another client in")
	}
	if got := other.Admit(due, bearer(7, d.Ticket)); !got.Admit {
		t.Errorf("at its time: %+v, want admitted", got)
	}
	due += 101 * ms
	empty(other, due)
	if got := other.Admit(due, bearer(7, d.Ticket)); got.Admit {
		t.Error("a ticket was good for two")
	}
	if s := other.backend.Stats(due); s.Redeemed != 1 || s.Worthless < 2 {
		t.Errorf("%d redeemed, %d worthless", s.Redeemed, s.Worthless)
	}
}

// Shields of one process, and those of one secret, are different issuers: a ticket of one is
// worth nothing to another, and a reload of the same one honours it.
func TestTicketIsOfOneShield(t *testing.T) {
	const now = time.Hour
	config := func(secret []byte, issuer string) Config {
		return Config{Capacity: perSecond(10, 5), Retries: Retries{Tickets: true, Secret: secret, Issuer: issuer}}
	}
	shared := []byte("the secret of all shields")
	for _, c := range []struct {
		name         string
		giver, taker Config
		reload       bool // the taker works on the giver's State
		honoured     bool
	}{
		{"a replica", config(shared, "shop"), config(shared, "shop"), false, true},
		{"another shield", config(shared, "shop"), config(shared, "blog"), false, false},
		{"one without a name", config(shared, "shop"), config(shared, ""), false, false},
		{"another in the process", config(nil, "shop"), config(nil, "blog"), false, false},
		{"another without a name", config(nil, ""), config(nil, ""), false, false},
		{"a reload", config(nil, "shop"), config(nil, "shop"), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s State
			giver := mustNew(t, c.giver, &s)
			empty(giver, now)
			d := giver.Admit(now, bearer(7, ""))
			if d.Admit || d.Ticket == "" {
				t.Fatalf("%+v, want a refusal with a ticket", d)
			}
			taker := mustNew(t, c.taker, nil)
			if c.reload {
				taker = mustNew(t, c.taker, &s)
			}
			due := now + d.Wait
			empty(taker, due) // so that a backlog stands
			back := bearer(7, d.Ticket)
			back.Client = 1 // nothing but the ticket is to speak for it
			taker.Admit(due, back)
			if got := taker.backend.Stats(due); (got.Redeemed == 1) != c.honoured || (got.Worthless == 1) == c.honoured {
				t.Errorf("%d honoured, %d worthless; want it honoured: %v", got.Redeemed, got.Worthless, c.honoured)
			}
		})
	}
}

// A reload with the same secret keeps what is used; one with another does not
// honour the old one's.
func TestTicketsOverReloads(t *testing.T) {
	now := time.Hour
	var s State
	config := func(secret string) Config {
		return Config{Capacity: perSecond(10, 5), Retries: Retries{Tickets: true, Secret: []byte(secret)}}
	}
	elsewhere := signing(t, "a secret of the house", now)
	d := elsewhere.Admit(now, bearer(7, ""))
	now += d.Wait
	use := func(secret string) bool {
		g := mustNew(t, config(secret), &s)
		empty(g, now) // so that a backlog stands
		now += 101 * ms
		empty(g, now)
		defer s.Backend.clients.Forgive(0, 7) // nothing but the ticket is to speak for it
		return g.Admit(now, bearer(7, d.Ticket)).Admit
	}
	if !use("a secret of the house") {
		t.Error("the ticket is not honoured")
	}
	if use("a newer secret here") || use("a secret of the house") {
		t.Error("reloads made a ticket good again")
	}
}
