package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
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

// The places of clients that have hung up are kept until the backend is done, if the Scenario
// says so, and given back once: in work and in the backend's queue, in its restart, at the end.
func TestShelters(t *testing.T) {
	for _, c := range []struct {
		name     string
		shelters bool
		orphans  shield.Orphans
		plant    plant.Config
		most     int
	}{
		{"kept", true, "", plant.Config{Workers: 4}, 8},
		{"kept, and the backend restarts", true, "", plant.Config{Workers: 4, Restart: [2]time.Duration{3 * time.Second, 5 * time.Second}}, 8},
		{"free", true, shield.OrphansFree, plant.Config{Workers: 4}, 0},
		{"not asked for", false, "", plant.Config{Workers: 4}, 0},
		{"a backend that would notice", true, "", plant.Config{Workers: 4, Notices: true}, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			var guarded *Guarded
			r, err := Run(Scenario{
				Mix: clients.All(clients.GiveUp{}), Background: 100, Warmup: time.Second, Until: 20 * time.Second, Bin: 100 * time.Millisecond,
				Timeout: 30 * time.Millisecond, Service: Service{Mean: 200 * time.Millisecond}, Plant: &c.plant, Shelters: c.shelters,
				Config: shield.Config{Concurrency: 8, Orphans: c.orphans},
			}, func(config shield.Config) (Server, error) {
				s, err := Guard(config)
				guarded = s.(*Guarded)
				return s, err
			})
			if err != nil {
				t.Fatal(err)
			}
			most := 0
			for _, b := range r.Series {
				most = max(most, int(b.InFlight))
			}
			if c.most > 0 && most != c.most || c.most == 0 && most <= 8 {
				t.Errorf("%d in the backend at once; want %d (0: more than the limit)", most, c.most)
			}
			if n := guarded.State.Backend.Stats(time.Minute).InFlight; n != 0 {
				t.Errorf("%d places are held after the end", n)
			}
		})
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
