package shield

import (
	"net/http"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

func TestBlock(t *testing.T) {
	const now = time.Hour
	s := new(State)
	g := mustNew(t, Config{Capacity: perSecond(100, 100), Zones: []Zone{{Name: "z", Limit: perSecond(1, 9)}}}, s)
	ask := func(g *Guard, now time.Duration, client limiter.Key) Decision {
		return g.Admit(now, Request{Client: client, Keys: []limiter.Key{client}})
	}
	if err := g.Block(now, 7, now+10*time.Minute); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() { _ = g.Block(now, 7, now+10*time.Minute) }); n != 0 {
		t.Errorf("the same block again makes %v allocations", n) // all may be set again after a change of one
	}
	d := ask(g, now+time.Second, 7)
	if d.Admit || d.Reason != Blocked || d.Hint.Seconds != 599 || g.Responses().Status(d.Rejection()) != http.StatusTooManyRequests {
		t.Errorf("a blocked client: %+v", d)
	}
	if e := g.Explain(now+time.Second, Request{Client: 7, Keys: []limiter.Key{7}}); e.Reason != Blocked || e.Blocked != 599*time.Second || e.Zones[0].Tokens != 9 {
		t.Errorf("explained as %+v", e)
	}
	if d := ask(g, now, 8); !d.Admit {
		t.Errorf("another client: %+v", d)
	}
	if d := g.Admit(now, Request{}); !d.Admit {
		t.Errorf("a client that is not known: %+v", d)
	}
	observing := mustNew(t, Config{Observe: true}, s)
	if d := ask(observing, now, 7); !d.Admit || d.Reason != Blocked || d.permit.Held() {
		t.Errorf("in observe mode: %+v", d)
	}
	if n := s.Backend.Stats(now); n.Rejected[Blocked] != 1 || n.Observed[Blocked] != 1 {
		t.Errorf("the counts are %+v", n)
	}
	if d := ask(g, now+10*time.Minute, 7); !d.Admit {
		t.Errorf("after its time: %+v", d)
	}
	if !g.Unblock(now, 7) || g.Unblock(now, 7) || ask(g, now, 7).Reason == Blocked {
		t.Error("the block does not end, or twice")
	}
	if g.backend.blocks.until.Load() != nil {
		t.Error("without blocks there is a map to look into")
	}
	if err := g.Block(now, 9, now+time.Minute); err != nil || !g.Forgive(now, Request{Client: 9}).Blocked || ask(g, now, 9).Reason == Blocked {
		t.Error("a client that is forgiven is still blocked")
	}
}

// A flood of blocks is rejected, and those that are over make room.
func TestBlocksAreBounded(t *testing.T) {
	const now = time.Hour
	g := mustNew(t, Config{}, nil)
	for i := range limiter.Key(MaxBlocks) {
		if err := g.Block(now, i+1, now+time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Block(now, 1, now+2*time.Minute); err != nil {
		t.Errorf("a block again: %v", err)
	}
	if err := g.Block(now, 5000, now+time.Minute); err == nil || err.Error() != "1000 clients are blocked, which is the limit; end one first" {
		t.Errorf("one more: %v", err)
	}
	if err := g.Block(now+time.Minute, 5000, now+time.Hour); err != nil {
		t.Errorf("one more when others are over: %v", err)
	}
	if n := len(*g.backend.blocks.until.Load()); n != 2 {
		t.Errorf("%d blocks are remembered, want 2", n)
	}
}
