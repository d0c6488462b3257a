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
