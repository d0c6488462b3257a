package shield

import (
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

func TestForgive(t *testing.T) {
	c := Config{Zones: []Zone{{Name: "slow", Limit: limiter.Config{Rate: 1, Burst: 2}}}, Capacity: perSecond(4, 4)}
	g := mustNew(t, c, nil)
	const now = time.Hour
	of := func(client limiter.Key) Request {
		return Request{Keys: []limiter.Key{client}, Client: client}
	}
	for client := range limiter.Key(12) { // the backend has room for four of them
		g.Admit(now, of(client+1))
	}
	g.Admit(now, of(1))
	g.Admit(now, of(1)) // over its quota
	late, over := g.Explain(now, of(12)), g.Explain(now, of(1))
	if late.Client.Promises != 1 || late.Client.Due <= now || over.Zones[0].Tokens == 2 {
		t.Fatalf("before: %+v, %+v", late, over)
	}
	if f := g.Forgive(now, of(12)); f.Promises != 1 || len(f.Zones) != 0 {
		t.Errorf("a client with an appointment is forgiven %+v", f)
	}
	if f := g.Forgive(now, of(1)); !slices.Equal(f.Zones, []string{"slow"}) {
		t.Errorf("a client over its quota is forgiven %+v", f)
	}
	for _, client := range []limiter.Key{1, 12} {
		e := g.Explain(now, of(client))
		if e.Client.Promises != 0 || e.Zones[0].Tokens != 2 || e.Reason != Capacity {
			t.Errorf("client %d after it was forgiven: %+v", client, e)
		}
	}
	if e := g.Explain(now, of(6)); e.Client.Promises != 1 {
		t.Errorf("another client's appointment is gone: %+v", e)
	}
	if e := g.Explain(now, of(2)); e.Zones[0].Tokens != 1 {
		t.Errorf("another client's quota is full: %+v", e)
	}
	if f := g.Forgive(now, of(1)); len(f.Zones) != 0 {
		t.Errorf("a client is forgiven twice: %+v", f)
	}
	due, waiting := g.Explain(now, of(6)).Client.Due, func() int { return g.Backend().Stats(now).AppointmentStats.Waiting }
	if before := waiting(); g.Forgive(due-50*time.Millisecond, of(6)).Promises != 1 || waiting() != before-1 {
		t.Errorf("%d wait after one of %d was forgiven, just before its time", waiting(), before)
	}
	// The slot that client 12 had is the first one that is free.
	if d := g.Admit(now, of(13)); now+d.Wait > late.Client.Due+250*time.Millisecond {
		t.Errorf("the next client is told to come at %v, with a slot free at %v", now+d.Wait, late.Client.Due)
	}

	// Appointments for the end of a quota are explained and forgiven alike.
	g = mustNew(t, Config{Zones: c.Zones}, nil)
	for range 5 { // three over its quota
		g.Admit(now, of(1))
	}
	e := g.Explain(now, of(1))
	if z := e.Zones[0]; z.Client.Promises != 3 || z.Wait != time.Second || z.Client.Due < now+z.Wait || e.RetryAfter < 4*z.Wait {
		t.Errorf("explained as %+v; want 3 appointments, and a time after them", e)
	}
	if f := g.Forgive(now, of(1)); f.Promises != 3 {
		t.Errorf("forgiven %+v; want 3 appointments", f)
	}
	if e := g.Explain(now, of(1)); !e.Admit || e.Zones[0].Client.Promises != 0 {
		t.Errorf("after it was forgiven: %+v", e)
	}
}

// A client that comes early in a short line, and is rejected for its quota, keeps its appointment.
func TestEarlyOverQuotaKeepsTheAppointment(t *testing.T) {
	g := mustNew(t, Config{Zones: []Zone{{Name: "slow", Limit: limiter.Config{Rate: 1, Per: time.Minute, Burst: 2}}}, Capacity: perSecond(10, 1)}, nil)
	const now = time.Hour
	r := Request{Keys: []limiter.Key{1}, Client: 1}
	g.Admit(now, r)
	g.Admit(now, r) // no token of the capacity is left
	g.Admit(now+200*time.Millisecond, Request{Keys: r.Keys})
	if d := g.Admit(now+300*time.Millisecond, r); d.Reason != Quota {
		t.Fatalf("it is rejected for %v", d.Reason)
	}
	if c := g.Explain(now+400*time.Millisecond, r).Client; c.Promises != 1 {
		t.Errorf("after that it has %+v", c)
	}
}
