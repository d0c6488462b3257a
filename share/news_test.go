package share

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

func TestNotesAsText(t *testing.T) {
	const zero = 1_795_000_000_000 * ms
	notes := []pushback.Note{
		{Key: 1<<63 + 5, Turn: pushback.Turn{At: 5 * time.Second, Trust: pushback.Proven, Slot: true}, Told: 4 * time.Second},
		{Key: 7, Turn: pushback.Turn{At: 70 * time.Second, Number: 12345}, Told: 71 * time.Second},
		{Key: 9, Turn: pushback.Turn{At: 5 * time.Second, Slot: true}, Told: ms, Shared: true},
		{Key: 8, Turn: pushback.Turn{At: ms}, Kept: true, OnTime: true, Told: ms},
	}
	b := encode(7, notes, zero)
	if sender, got := decode(b, zero); sender != 7 || !reflect.DeepEqual(got, notes) {
		t.Errorf("notes are\n%+v, want\n%+v", got, notes)
	}
	for _, text := range []string{"", "x", "AAAA", b[1:], "====", string([]byte{0, 255})} {
		if _, got := decode(text, zero); len(got) > 0 {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	bad := []pushback.Note{{Turn: pushback.Turn{At: math.MaxInt64 - zero, Number: math.NaN(), Trust: 200}, Told: math.MinInt64 + zero}}
	want := pushback.Note{Turn: pushback.Turn{At: mostTime*ms - zero, Trust: pushback.Proven}, Told: -zero}
	if _, got := decode(encode(7, bad, zero), zero); got[0] != want {
		t.Errorf("a note of a damaged store is read as %+v, want %+v", got[0], want)
	}
}

func TestClockOfTheStore(t *testing.T) {
	var c clock
	at := func(sent, now time.Duration, ms int64) bool {
		was := c.zero
		c.set(now, sent, ms)
		return c.zero != was
	}
	if !at(10*ms, 14*ms, 1012) || c.zero != time.Second {
		t.Fatalf("the store's time at 0 is %v, want 1s", c.zero)
	}
	if at(100*ms, 160*ms, 1155) || c.zero != time.Second {
		t.Errorf("a slow trip has changed it to %v", c.zero)
	}
	if !at(200*ms, 202*ms, 5201) || c.zero != 5*time.Second {
		t.Errorf("a failover has not changed it: %v", c.zero)
	}
	if !at(62*time.Second, 62*time.Second+30*ms, 67_035) || c.zero != 5*time.Second+20*ms {
		t.Errorf("after a minute it is %v, want it read anew", c.zero)
	}
}
