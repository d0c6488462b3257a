package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// Preflights are no requests: none of a thousand is rejected though others are, and they change neither quotas nor what was promised
// to their client. A flood of them is requests as any.
func TestPreflights(t *testing.T) {
	now := time.Hour
	s := new(State)
	g := mustNew(t, Config{Capacity: perSecond(10, 20), Zones: []Zone{{Name: "z", Limit: perSecond(10, 10)}}}, s)
	ask := func(client limiter.Key, preflight bool) Decision {
		return g.Admit(now, Request{Client: client, Keys: []limiter.Key{client}, Preflight: preflight})
	}
	admitted := 0
	for range 500 {
		for range 2 {
			if d := ask(7, true); !d.Admit || d.permit.Held() {
				t.Fatalf("a preflight: %+v", d)
			}
		}
		if ask(7, false).Admit {
			admitted++
		}
	}
	if n := s.Backend.Stats(now); admitted != 10 || n.Admitted != 10 {
		t.Errorf("%d requests admitted, and %d counted, want 10", admitted, n.Admitted)
	}
	if n := s.Backend.Stats(now).Preflights; n != 1000 {
		t.Errorf("%d preflights are counted as such, want 1,000", n)
	}
	rest := 0 // of the capacity: further preflights are requests as any
	for client := range limiter.Key(100) {
		if ask(100+client, true).Admit {
			rest++
		}
	}
	if rest != 10 {
		t.Errorf("%d more preflights at once pass, want 10", rest)
	}
	now += time.Second
	passed := 0
	for range 1000 {
		if ask(10, true).Admit {
			passed++
		}
	}
	if passed < 10 || passed > 20 { // beside those that are requests as any
		t.Errorf("after a second %d more pass, want as many as the capacity", passed)
	}
	now += time.Minute
	if err := g.Block(now, 11, now+time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := ask(11, true); d.Reason != Blocked {
		t.Errorf("a preflight of a blocked client: %+v", d)
	}
}

// A client whose page asks first, before its time, is admitted at its time, and before others who come then.
func TestPreflightBeforeAnAppointment(t *testing.T) {
	now := time.Hour
	g := mustNew(t, Config{Capacity: perSecond(10, 10)}, nil)
	var due time.Duration
	for client := limiter.Key(1); client <= 100; client++ {
		if d := g.Admit(now, Request{Client: client, Precise: true}); client == 50 {
			due = now + time.Duration(d.Hint.Ms)*time.Millisecond
		}
	}
	if d := g.Admit(due-300*time.Millisecond, Request{Client: 50, Precise: true, Preflight: true}); !d.Admit {
		t.Errorf("the preflight: %+v", d)
	}
	for g.Admit(due-time.Millisecond, Request{}).Admit { // others take all tokens that there are
	}
	if d := g.Admit(due, Request{Client: 50, Precise: true}); !d.Admit && !d.Queued() || d.Reason == Early {
		t.Errorf("at its time: %+v", d)
	}
}
