package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// empty takes what there is, and lets a few new clients wait, so that a backlog
// stands.
func empty(g *Guard, now time.Duration) {
	for i := range 60 {
		g.Admit(now, Request{Client: limiter.Key(int(now) + i)}) // other new clients each time
	}
}

func bearer(client limiter.Key, ticket string) Request {
	return Request{Client: client, ClientID: []byte{byte(client)}, Ticket: ticket}
}

// Shields of one process, and those of one secret, are different issuers: a ticket of one is
// worth nothing to another. A reload honors it, but not again. Before its time its client is told the rest.
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
		honored      bool
	}{
		{"a replica", config(shared, "shop"), config(shared, "shop"), false, true},
		{"another secret", config([]byte("another secret of 16"), "shop"), config(shared, "shop"), false, false},
		{"another shield", config(shared, "shop"), config(shared, "blog"), false, false},
		{"one without a name", config(shared, "shop"), config(shared, ""), false, false},
		{"another in the process", config(nil, "shop"), config(nil, "blog"), false, false},
		{"another without a name", config(nil, ""), config(nil, ""), false, false},
		{"a reload", config(nil, "shop"), config(nil, "shop"), true, true},
	} {
		giving, taking := new(State), new(State)
		giver := mustNew(t, c.giver, giving)
		empty(giver, now)
		d := giver.Admit(now, bearer(7, ""))
		if d.Admit || d.Ticket == "" {
			t.Fatalf("%s: %+v, want a rejection with a ticket", c.name, d)
		}
		if c.reload {
			taking = giving
		}
		due := now + d.Wait
		if c.honored && !c.reload {
			other := mustNew(t, c.taker, nil)
			empty(other, due-3*time.Second)
			if early := other.Admit(due-3*time.Second, bearer(7, d.Ticket)); early.Reason != Early || (early.Wait-3*time.Second).Abs() > time.Second {
				t.Errorf("%s, 3 s before its time: %+v, want told the rest", c.name, early)
			}
		}
		for i, taker := range []Config{c.taker, config([]byte("a newer secret here"), "shop"), c.taker} {
			g := mustNew(t, taker, taking)
			empty(g, due) // so that a backlog stands
			back := bearer(7, d.Ticket)
			back.Client = limiter.Key(1 + i) // nothing but the ticket is to speak for it
			g.Admit(due, back)
			redeemed := 0
			if c.honored {
				redeemed = 1
			}
			if got := taking.Backend.Stats(due); int(got.Redeemed) != redeemed || int(got.Worthless) != i+1-redeemed {
				t.Errorf("%s, reload %d: %d honored, %d worthless; want it honored once: %v", c.name, i, got.Redeemed, got.Worthless, c.honored)
			}
		}
	}
}
