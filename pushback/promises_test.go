package pushback

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A promise is read as it was written, at any instant, until it is a minute too late.
func TestPromisesAreRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var p promises
		p.resize(MinMaxClients)
		now := time.Duration(rng.Int64N(int64(10_000 * time.Hour)))
		key, served := rng.Uint64(), rng.Float64()*1e12
		want := Turn{At: now + time.Duration(rng.Int64N(int64(59*time.Second))), Slot: rng.IntN(2) == 0, Trust: Trust(rng.IntN(2))}
		if !want.Slot {
			want.Number = float64(int64(served) + rng.Int64N(1e6) - 1e5)
		}
		p.put(now, key, &want, now, 0, unknown)
		at := want.At + time.Duration(rng.Int64N(int64(59*time.Second)))
		f := p.take(at, key, served)
		if d := f.At - want.At; f.n != 1 || f.early || d < -time.Millisecond || d > time.Millisecond || f.Slot != want.Slot || f.Trust != want.Trust || f.Number != want.Number {
			t.Fatalf("%+v at %v, promised %+v", f, at, want)
		}
		if p.put(now, key, &want, now, 0, unknown); p.take(want.At+61*time.Second, key, served).n != 0 {
			t.Fatal("a promise counts a minute after its time")
		}
	}
}

// A flood of new clients costs no client its promise, and no memory beyond the table. Clients
// that have not come for long make room, and new ones for those that have come back before.
func TestFloodForgetsNoProvenClient(t *testing.T) {
	for _, trust := range []Trust{Proven, untried} {
		var p promises
		p.resize(1 << 14)
		now := time.Minute
		turn := Turn{At: now + 20*time.Second, Slot: true, Trust: trust}
		put := func(from, n uint64) (kept int) {
			for key := range n {
				if p.put(now, from+key, &turn, now, 0, honors) {
					kept++
				}
			}
			return kept
		}
		const n = 4000
		kept := put(1, n)
		turn.Trust = untried
		put(1e6, 200_000)
		found := 0
		for key := range uint64(n) {
			found += p.take(now+20*time.Second, key+1, 0).n
		}
		if kept < n-20 || found != kept {
			t.Errorf("%d of %d promises to clients with trust %d are left, %d found room", found, n, trust, kept)
		}
		turn.Trust = Proven
		if kept := put(2e6, n); kept < n-20 {
			t.Errorf("%d of %d proven clients find room in a flood", kept, n)
		}
		now += 26 * time.Second
		turn.At, turn.Trust = now+20*time.Second, untried
		if kept := put(3e6, n); kept < n-400 {
			t.Errorf("%d of %d new clients find room, when the flood has not come", kept, n)
		}
	}
}

// Growing and shrinking forgets no promise that there is room for.
func TestResizeKeepsPromises(t *testing.T) {
	var p promises
	p.resize(1 << 12)
	now := time.Minute
	turn := Turn{At: now + time.Second, Slot: true}
	for key := range uint64(500) {
		p.put(now, key+1, &turn, now, 0, unknown)
	}
	p.resize(1 << 15)
	p.resize(1 << 12)
	for key := range uint64(500) {
		if p.take(turn.At, key+1, 0).n != 1 {
			t.Fatalf("client %d is forgotten", key)
		}
	}
}

// How a client behaves is told by when it comes.
func TestKindsOfClients(t *testing.T) {
	for _, c := range []struct {
		gap, wait time.Duration
		want      Class
	}{
		{10 * time.Second, 10 * time.Second, honors}, {11 * time.Second, 10 * time.Second, honors},
		{15 * time.Second, 10 * time.Second, late}, {20 * time.Millisecond, 10 * time.Second, hammer},
		{time.Second, 10 * time.Second, early}, {5 * time.Second, 10 * time.Second, own},
	} {
		if got := classOf(c.gap, c.wait); got != c.want {
			t.Errorf("after %v, told %v: %v, want %v", c.gap, c.wait, got, c.want)
		}
	}
}

// A client that has come back is told of as such, also if it was admitted before without an appointment.
func TestProvenThoughAdmittedBefore(t *testing.T) {
	var a Appointments
	a.promises.put(time.Minute, 1, &Turn{At: time.Minute + time.Second, Slot: true, Trust: Proven}, time.Minute, 0, honors)
	a.promises.put(time.Minute, 1, &Turn{At: time.Minute + restAfter}, time.Minute, isPast, honors)
	if c := a.Client(time.Minute, 1); !c.Proven || c.Promises != 1 {
		t.Errorf("it is %+v", c)
	}
}
