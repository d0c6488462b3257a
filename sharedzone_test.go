package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// sharedGuards returns Guards of some replicas that share a zone, and what carries their
// exchanges with a store: trips take no time.
func sharedGuards(t *testing.T, n int, z Zone) (guards []*Guard, carry func(now time.Duration)) {
	t.Helper()
	z.Name, z.Shared = "each", true
	for range n {
		g, err := New(Config{Zones: []Zone{z}, Secret: make([]byte, 16), Replica: string(rune('a' + len(guards)))}, nil)
		if err != nil {
			t.Fatal(err)
		}
		guards = append(guards, g)
	}
	var store share.ZoneModel
	return guards, func(now time.Duration) {
		for _, g := range guards {
			l := g.Zones(now)[0].Links()[0]
			for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
				l.Heard(now, now, store.Take(1_795_000_000_000+now.Milliseconds(), ask))
			}
		}
	}
}

// Replicas that share a zone admit what one would, and a request that finds no token here
// waits for the store, and for no more than its answer.
func TestReplicasShareAZone(t *testing.T) {
	guards, carry := sharedGuards(t, 4, Zone{Limit: limiter.Config{Rate: 10, Burst: 20}})
	r := Request{Keys: []limiter.Key{42 << 40}, Client: 42 << 40}
	now := time.Second
	for ; now < 3*time.Second; now += 10 * time.Millisecond {
		carry(now)
	}
	began, admitted, waited := now, 0, 0
	for ; now < began+10*time.Second; now += 10 * time.Millisecond {
		carry(now)
		g := guards[int(now/(10*time.Millisecond))%len(guards)]
		d := g.Admit(now, r)
		if d.Queued() {
			waited++
			carry(now)
			select {
			case <-d.Awaits():
			default:
				t.Fatalf("at %v the store has answered, and the request waits", now)
			}
			g.Settle(now, r, &d, 0)
		}
		if d.Queued() {
			t.Fatalf("at %v a request waits for the store twice", now)
		}
		if d.Admit {
			admitted++
		} else if d.Reason != Quota || d.Hint.Seconds < 1 {
			t.Errorf("at %v: refused for %v, told %d s; want the quota, and a second at least", now, d.Reason, d.Hint.Seconds)
		}
		if most := 20 + 10*(now-began).Seconds(); float64(admitted) > most+1e-9 {
			t.Fatalf("at %v: %d requests are admitted, want at most %v", now, admitted, most)
		}
	}
	t.Logf("4 replicas: %d of 120 admitted, %d of 1000 waited for the store", admitted, waited)
	if admitted < 116 || waited > 450 {
		t.Errorf("%d admitted, %d waited; want 116 of 120 at least, and 450 at most", admitted, waited)
	}
}

// A Guard of another limit is another zone to the store, and forgives no client; one that
// shares no zone has its own again.
func TestASharedZoneIsReloaded(t *testing.T) {
	state := new(State)
	guard := func(burst int, shared bool) *Guard {
		g, err := New(Config{Secret: make([]byte, 16), Zones: []Zone{{Name: "each", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: burst}, Shared: shared}}}, state)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	r := Request{Keys: []limiter.Key{42 << 40}}
	taken := func(g *Guard, now time.Duration) (n int) {
		for range 100 {
			if d := g.Admit(now, r); d.Admit {
				n++
			}
		}
		return n
	}
	if n := taken(guard(40, true), time.Second); n != 10 { // of 2 replicas, half of it without a store
		t.Errorf("%d are admitted alone, want 10", n)
	}
	same := guard(40, true)
	if n := taken(same, 2*time.Second); n != 0 {
		t.Errorf("%d are admitted after a reload, want 0", n)
	}
	if n := taken(guard(80, true), 3*time.Second); n != 0 {
		t.Errorf("%d are admitted after a reload with a larger burst, want 0", n)
	}
	z := same.Zones(4 * time.Second)[0]
	if g := guard(40, false); taken(g, 5*time.Second) > 40 || g.Zones(6 * time.Second)[0] != nil {
		t.Error("a zone that is not shared any more is linked, or admits more than its burst")
	}
	if z == nil {
		t.Error("a shared zone has no link")
	}
}
