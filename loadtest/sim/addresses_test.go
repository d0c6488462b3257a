package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
)

// counting admits all, and counts requests by client.
type counting map[limiter.Key]int

func (c counting) Arrive(_ time.Duration, r Request) Answer {
	c[r.Client]++
	return Answer{Admit: true}
}

func (counting) Finish(time.Duration, int32, End) {}
func (counting) Change(shield.Config, bool) error { return nil }

// The herd and the strangers have as many addresses as the Scenario says, and none in common.
func TestAddresses(t *testing.T) {
	for _, c := range []struct{ herd, strangers, least, most int }{
		{1, 1, 2, 2}, {7, 3, 10, 10}, {0, 1, 201, 201}, {1, 0, 200, 400}, {1000, 1, 201, 201},
	} {
		seen := counting{}
		_, err := Run(Scenario{
			Clients: 200, Within: time.Second, Mix: clients.All(clients.Exact{}), Background: 30, Warmup: time.Second, Until: 10 * time.Second,
			Bin: time.Second, Addresses: c.herd, StrangersAddresses: c.strangers,
		}, func(shield.Config) (Server, error) { return seen, nil })
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) < c.least || len(seen) > c.most {
			t.Errorf("the herd shares %d, the strangers %d: %d addresses; want %d to %d", c.herd, c.strangers, len(seen), c.least, c.most)
		}
	}
}

// Strangers that never return do not, and the herd does.
func TestStrangersMix(t *testing.T) {
	s := Herd("", 500, 0)
	s.Background, s.Bin, s.Until = 300, time.Second, 30*time.Second
	s.StrangersMix = clients.All(clients.GiveUp{})
	r, err := Run(s, FixedHint(1))
	if err != nil {
		t.Fatal(err)
	}
	retries := 0
	for _, b := range r.Series {
		retries += int(b.Retries)
	}
	if retries == 0 || retries != r.Requests-500 {
		t.Errorf("%d retries of all clients, %d of the herd; want them to be the herd's", retries, r.Requests-500)
	}
	if len(r.Policies) != 1 || r.Strangers.Came != 0 {
		t.Errorf("%d policies, %d strangers that come back; want those of the herd alone", len(r.Policies), r.Strangers.Came)
	}
	s.StrangersMix = clients.Population{{}}
	if _, err := Run(s, nil); err == nil {
		t.Error("strangers without a policy are no error")
	}
}
