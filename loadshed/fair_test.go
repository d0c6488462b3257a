package loadshed

import (
	"slices"
	"testing"
	"time"
)

func TestMostInFlight(t *testing.T) {
	var in clientCounts
	if list := in.Most(3); list != nil {
		t.Errorf("an empty one has %v", list)
	}
	for key := range uint64(200) { // the more, the higher
		for range 1 + key/10 {
			in.Add(1+key, 1)
		}
	}
	want := []ClientLoad{{191, 20}, {192, 20}, {193, 20}}
	if list := in.Most(3); !slices.Equal(list, want) {
		t.Errorf("got %v, want %v", list, want)
	}
	if list := in.Most(1000); len(list) != 200 || list[199] != (ClientLoad{10, 1}) {
		t.Errorf("got %d clients, the last is %v", len(list), list[len(list)-1])
	}
}

// A client with no requests in flight is not remembered.
func TestInFlightForgets(t *testing.T) {
	var in clientCounts
	for key := range uint64(1000) {
		in.Add(key, 1)
		in.Add(key, -1)
	}
	left := 0
	for i := range in.shards {
		left += len(in.shards[i].n)
	}
	if in.Clients() != 0 || left != 0 {
		t.Errorf("%d clients, %d entries left", in.Clients(), left)
	}
}

// A request tells how many its client has in flight with it, by the key that counts them; nothing if it
// is not counted.
func TestClientLoad(t *testing.T) {
	const now = time.Hour
	for name, c := range map[string]struct {
		config PlanConfig
		want   []ClientLoad // of three requests
	}{
		"with a limit for each client": {PlanConfig{PerClient: 3}, []ClientLoad{{7, 1}, {7, 2}, {7, 3}}},
		"with both limits":             {PlanConfig{PerClient: 3, Limit: 2, Queue: QueueConfig{Size: 1}}, []ClientLoad{{7, 1}, {7, 2}, {7, 3}}},
		"in the queue only":            {PlanConfig{Limit: 2, Queue: QueueConfig{Size: 1}}, []ClientLoad{{}, {}, {9, 1}}},
		"not counted":                  {PlanConfig{Limit: 9}, []ClientLoad{{}, {}, {}}},
	} {
		p, err := NewPlan(c.config)
		if err != nil {
			t.Fatal(err)
		}
		var conc Concurrency
		conc.Use(p, true)
		for i, want := range c.want {
			var pl Permit
			if is, _ := conc.Enter(now, p, &Entrant{Client: 9, InFlight: 7}, &pl); is == Full || is == ClientFull {
				t.Fatalf("%s: request %d is rejected", name, i)
			}
			if got := pl.ClientLoad(); got != want {
				t.Errorf("%s: request %d: %+v, want %+v", name, i, got, want)
			}
		}
	}
}

// While permits are short, a client that has a quarter of the limit in flight, or its even share if that is more, gets another
// permit only if less than half of the limit is in use. So others still find one. A client that is alone may have all.
func TestOneClientLeavesHalf(t *testing.T) {
	const now, limit = time.Hour, 24
	for _, c := range []struct{ others, permits, want int }{ // other clients, their permits, and how many one client gets beside them
		{0, 0, limit},
		{1, 1, 12}, // its even share
		{2, 2, 10}, // up to half of the limit
		{2, 12, 8},
		{3, 3, 9},
		{3, 12, 6}, // a quarter
		{9, 12, 6},
	} {
		p := mustPlan(t, PlanConfig{Limit: limit})
		var conc Concurrency
		conc.Use(p, true)
		enter := func(client int) bool {
			is, _ := conc.Enter(now, p, &Entrant{Client: uint64(client)}, new(Permit))
			return is == Entered
		}
		conc.NoteShortage(now)
		for i := range c.permits {
			enter(2 + i%c.others)
		}
		n := 0
		for enter(1) {
			n++
		}
		if n != c.want {
			t.Errorf("beside %d clients with %d permits, one gets %d of %d, want %d", c.others, c.permits, n, limit, c.want)
		}
		if c.others > 0 && !enter(99) {
			t.Errorf("beside %d clients with %d permits, one leaves nothing to the next", c.others, c.permits)
		}
	}
}
