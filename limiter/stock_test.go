package limiter

import (
	"testing"
	"time"
)

// claimed takes a token above a reserve; below 0: without overdrawing.
func claimed(b *Bucket, l Limit, now time.Duration, reserve int) bool {
	if reserve < 0 {
		return b.Take(l, now, 1) == 0
	}
	c, wait := b.ClaimAbove(l, now, 1, reserve)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	return wait == 0
}

func taken(b *Bucket, l Limit, now time.Duration, reserve int) (n int) {
	for n < 1000 && claimed(b, l, now, reserve) {
		n++
	}
	return n
}

func TestStock(t *testing.T) {
	l, err := New(Config{Rate: 100, Burst: 40})
	if err != nil {
		t.Fatal(err)
	}
	const ms = time.Millisecond
	var b Bucket
	now := time.Minute
	b.Draw(now, 4, func() {})

	// Alone it begins empty, and earns a fourth, up to a fourth of the burst.
	if n := taken(&b, l, now, -1); n != 0 {
		t.Errorf("it begins with %d tokens, want none", n)
	}
	if n := taken(&b, l, now+200*ms, -1); n != 5 {
		t.Errorf("it earns %d tokens in 200 ms, want 5", n)
	}
	if level := b.Level(l, now+400*ms); level != 20 {
		t.Errorf("there are %d tokens after 200 ms more, want 5 for each of four", level)
	}
	if now += 10 * time.Second; taken(&b, l, now, -1) != 10 {
		t.Error("it does not hold a fourth of the burst in the end")
	}

	// With the pool it has what it gets, and one more for a request that leaves no reserve.
	b.Follow(l, now, Term{Replicas: 4, Alone: Never, Paid: Never})
	b.Heard(l, now, 3, 30)
	if level := b.Level(l, now); level != 33 {
		t.Errorf("there are %d tokens, want 3 here and 30 in the pool", level)
	}
	if claimed(&b, l, now, 34) {
		t.Error("a request takes tokens that it is to leave to others")
	}
	if n := taken(&b, l, now, 5); n != 3 {
		t.Errorf("requests that leave 5 to others take %d of 3 here and 30 in the pool, want 3", n)
	}
	if n := taken(&b, l, now, 0); n != 1 {
		t.Errorf("it is overdrawn by %d, want 1", n)
	}

	// It asks if the pool may have a token: not for a while after it was empty.
	misses := func(now, patience time.Duration) bool {
		c, _ := b.ClaimAbove(l, now, 1, 0)
		defer c.Release()
		return c.Misses(l, now, 0, patience)
	}
	if !misses(now, 0) {
		t.Error("a request does not ask a pool of 30 tokens")
	}
	b.Lose() // what it holds, not what it owes
	if held, gave, want := b.Refill(l, now, false); held != -1 || want < 2 || gave != 0 {
		t.Errorf("it exchanges %v, %v and %d, want a debt of 1, and as much wanted and one more", held, gave, want)
	}
	b.Heard(l, now, 0, 0.2)
	one, each := now+20*ms, now+38*ms // a token is earned in 10 ms, an empty pool not asked before 20 ms, and four replicas ask
	if misses(one-2*ms, ms) || misses(each-ms, 0) || !misses(each, 0) {
		t.Error("an empty pool is asked too early, or too late")
	}
	b.Refill(l, now, false)
	b.Heard(l, now, 0, 0.2)
	if b.Level(l, now) >= 0 && b.AsksAt() != each {
		t.Errorf("the pool is asked at %v; want when it has a token for each", b.AsksAt()-now)
	}
	if !misses(one, ms) || b.AsksAt() != one {
		t.Errorf("for a client that is due the pool is asked at %v; want when it has a token", b.AsksAt()-now)
	}

	// Idle, it gives all back.
	b.Refill(l, now, false)
	b.Heard(l, now, 9, 10)
	if held, gave, want := b.Refill(l, now+time.Second, false); gave != 8 || held != 0 || want != 0 {
		t.Errorf("an idle stock exchanges %v, %v and %d, want all 8 back", held, gave, want)
	}

	// Where a backlog stands, a small burst stays in the pool, which new clients have to leave a part of.
	small, err := New(Config{Rate: 100, Burst: 8})
	if err != nil {
		t.Fatal(err)
	}
	var few Bucket
	few.Draw(now, 4, func() {})
	few.Follow(small, now, Term{Replicas: 4, Alone: Never, Paid: Never})
	few.Take(small, now, 1)
	for backlog, want := range map[bool]int{false: 1, true: 0} {
		if _, _, wants := few.Refill(small, now, backlog); wants != want {
			t.Errorf("it wants %d tokens, backlog %v; want %d", wants, backlog, want)
		}
	}

	// Without sharing it goes on with what it has.
	b.Heard(l, now, 7, 0)
	b.Undraw(l, now)
	if level := b.Level(l, now); level != 7 {
		t.Errorf("it goes on with %d tokens, want 7", level)
	}
}
