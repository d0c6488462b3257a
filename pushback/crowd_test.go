package pushback

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Every promise of a crowd is used once, or dies: what is counted is what is in the ring.
func TestCrowdCounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	w, now := crowd{}, time.Hour
	w.from = int64(now / SlotWidth)
	told, used := 0, 0
	for range 20_000 {
		now += time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
		w.forget(now)
		switch rng.IntN(3) {
		case 0:
			w.put(now+time.Second+time.Duration(rng.Int64N(int64(40*time.Second))), promise(rng.IntN(int(promises))), w.freed+uint32(rng.IntN(100)))
			told++
		default:
			var v Visit
			if w.take(now, true, &v); v.Promises == 0 {
				continue
			}
			if v.At > now+crowdEarly || v.At < now-promiseLife-SlotWidth {
				t.Fatalf("at %v a promise for %v is due", now, v.At)
			}
			used++
		}
		slots, waiting := 0, 0
		for _, b := range w.ring {
			slots += int(b[slot].n) + int(b[excused].n)
			waiting += int(b[ask].n)
		}
		if slots != w.slots || waiting != w.waiting {
			t.Fatalf("%d slots and %d that wait are in the ring, %d and %d are counted", slots, waiting, w.slots, w.waiting)
		}
	}
	if used < told/2 || used > told {
		t.Errorf("%d promises were used of %d", used, told)
	}
	if w.forget(now + 2*time.Minute); w.slots != 0 || w.waiting != 0 {
		t.Errorf("%d slots and %d that wait are left when all are over", w.slots, w.waiting)
	}
}

// A flood of crowds takes no more than maxCrowds, and those with the most promises stay.
func TestCrowdsAreBounded(t *testing.T) {
	var c crowds
	v := Visit{At: time.Minute, Promises: 9}
	c.begin(time.Minute-time.Second, 1, &v)
	w, m := c.of(time.Minute-time.Second, 1)
	w.put(time.Minute, slot, 0)
	m.Unlock()
	for key := range uint64(100_000) {
		c.begin(time.Minute-time.Second, 2+key, &v)
	}
	if c.n.Load() != maxCrowds {
		t.Errorf("%d crowds are known; want %d", c.n.Load(), maxCrowds)
	}
	if w, m = c.of(time.Minute-time.Second, 1); w == nil {
		t.Error("the largest crowd is forgotten")
	} else {
		m.Unlock()
	}
	for key := range uint64(1_100_000) {
		if w, m := c.of(time.Minute+2*maxLate, key); w != nil {
			m.Unlock()
			t.Fatalf("the crowd of %d is known a minute after its last promise", key)
		}
	}
	if c.n.Load() != 0 {
		t.Errorf("%d crowds are left", c.n.Load())
	}
}

// A crowd that floods holds no more answers back than it may have clients waiting; the
// others are refused as early.
func TestCrowdThatFloods(t *testing.T) {
	terms, supply := termsOf(t, AnswerConfig{}), Supply{Rate: 100}
	var a Appointments
	now, held, early := time.Minute, 0, 0
	for range 200_000 {
		c, v, told := Caller{Key: 1, Fingerprint: 1}, Visit{}, Told{}
		if a.Arrive(now, &c, terms, &v); v.Rejected {
			a.Sometime(now, &c, terms, supply, &v)
			a.RefuseEarly(now, &v, terms, &told)
			early++
		} else {
			a.Refuse(now, &c, &v, terms, supply, &told)
		}
		if told.Sent(); told.Hold > 0 {
			held++
		}
		if w, m := a.crowds.of(now, 1); w != nil {
			if w.waiting > maxWaiting {
				t.Fatalf("%d of a crowd wait, want %d at most", w.waiting, maxWaiting)
			}
			m.Unlock()
		}
		now += 50 * time.Microsecond
	}
	if held > 2*maxWaiting || early < 150_000 {
		t.Errorf("of 200,000 answers %d are held back and %d refuse as early", held, early)
	}
}

// Requests of many crowds at once: the counts stay right. For the race detector.
func TestCrowdsConcurrently(t *testing.T) {
	terms, supply := termsOf(t, AnswerConfig{NoDither: true}), Supply{Rate: 1000}
	var a Appointments
	var all sync.WaitGroup
	for g := range uint64(8) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(g, 1))
			for i := range 5_000 {
				now := time.Minute + time.Duration(i)*time.Millisecond
				c, v, told := Caller{Key: 1 + rng.Uint64N(3), Fingerprint: 1}, Visit{}, Told{}
				a.Arrive(now, &c, terms, &v)
				if v.Due {
					a.Keep(now, c.Key, &v)
				} else if !v.Rejected {
					a.Refuse(now, &c, &v, terms, supply, &told)
				}
			}
		})
	}
	all.Wait()
	if n := a.crowds.n.Load(); n == 0 || n > 3 {
		t.Errorf("%d crowds of three keys", n)
	}
	for key := uint64(1); key <= 3; key++ {
		w, m := a.crowds.of(time.Minute+5*time.Second, key)
		if w == nil {
			continue
		}
		slots := 0
		for _, b := range w.ring {
			slots += int(b[slot].n) + int(b[excused].n)
		}
		if slots != w.slots {
			t.Errorf("%d slots in the ring, %d counted", slots, w.slots)
		}
		m.Unlock()
	}
}
