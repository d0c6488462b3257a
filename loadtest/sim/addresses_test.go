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

// The herd and the new clients have as many addresses as the Scenario says, and none in common.
func TestAddresses(t *testing.T) {
	for _, c := range []struct{ herd, newClients, least, most int }{
		{1, 1, 2, 2}, {7, 3, 10, 10}, {0, 1, 201, 201}, {1, 0, 200, 400}, {1000, 1, 201, 201},
	} {
		seen := counting{}
		_, err := Run(Scenario{
			Clients: 200, Within: time.Second, Mix: clients.All(clients.Exact{}), Background: 30, Warmup: time.Second, Until: 10 * time.Second,
			Bin: time.Second, Addresses: c.herd, NewClientsAddresses: c.newClients,
		}, func(shield.Config) (Server, error) { return seen, nil })
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) < c.least || len(seen) > c.most {
			t.Errorf("the herd shares %d, the new clients %d: %d addresses; want %d to %d", c.herd, c.newClients, len(seen), c.least, c.most)
		}
	}
}

// The permits of clients that have hung up are kept until the backend is done, if the config
// says so, and given back once: in work and in the backend's queue, in its restart, at the end.
func TestKeepsDisconnected(t *testing.T) {
	for _, c := range []struct {
		name         string
		disconnected shield.Disconnected
		plant        plant.Config
		most         int
	}{
		{"kept", "", plant.Config{Workers: 4}, 8},
		{"kept, and the backend restarts", "", plant.Config{Workers: 4, Restart: [2]time.Duration{3 * time.Second, 5 * time.Second}}, 8},
		{"free", shield.DisconnectedFree, plant.Config{Workers: 4}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var guarded *Guarded
			r, err := Run(Scenario{
				Mix: clients.All(clients.GiveUp{}), Background: 100, Warmup: time.Second, Until: 20 * time.Second, Bin: 100 * time.Millisecond,
				Timeout: 30 * time.Millisecond, Service: Service{Mean: 200 * time.Millisecond}, Plant: &c.plant,
				Config: shield.Config{Concurrency: 8, Disconnected: c.disconnected},
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
				t.Errorf("%d permits are held after the end", n)
			}
		})
	}
}
