package limiter

import (
	"testing"
	"time"
)

// Where a request leaves tokens to others, those in the pool count, too: of 3 here and 30 there it may leave 32.
func TestStockLeavesAReserve(t *testing.T) {
	l, now := mustLimit(t, 100, time.Second, 40), time.Minute
	var b Bucket
	b.Draw(now, 4, func() {})
	b.Follow(l, now, Term{Replicas: 4, Alone: Never, Paid: Never})
	b.Heard(l, now, 3, 30)
	for reserve, admits := range map[int]bool{32: true, 33: false} {
		c, wait := b.ClaimAbove(l, now, 1, reserve)
		if c.Release(); (wait == 0) != admits {
			t.Errorf("leaving %d it is to wait for %v, want to be admitted: %v", reserve, wait, admits)
		}
	}
	if b.Undraw(l, now); b.Level(l, now) != 3 {
		t.Errorf("without a pool it goes on with %d tokens, want its 3", b.Level(l, now))
	}
}

// Where clients wait, what a small burst has stays in the pool, for those who are due.
func TestStockLeavesASmallBurst(t *testing.T) {
	l, now := mustLimit(t, 100, time.Second, 8), time.Minute
	var b Bucket
	b.Draw(now, 4, func() {})
	b.Follow(l, now, Term{Replicas: 4, Alone: Never, Paid: Never})
	b.Take(l, now, 1)
	for backlog, want := range map[bool]int{false: 1, true: 0} {
		if _, _, wants := b.Refill(l, now, backlog); wants != want {
			t.Errorf("backlog %v: it wants %d tokens, want %d", backlog, wants, want)
		}
	}
}
