package endpoint

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// await takes a permit as soon as there is one, in its turn.
func await(s *Set, now time.Duration) *Endpoint {
	w := s.Wait()
	defer w.Leave()
	for may := w.First; ; may = true {
		if may {
			if e, err := s.Pick(now, rand.Uint64(), nil); err == nil {
				return e
			}
		}
		<-w.Turn
	}
}

func has(w *Waiter) bool { return len(w.Turn) > 0 }

// Free permits go to the requests that have waited longest, and to none that has not joined the line.
func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet("1 2", upTo(1))
		taken := []*Endpoint{mustPick(t, s, t0), mustPick(t, s, t0)}
		if s.Waiting() {
			t.Error("the line is not empty, though no request has joined")
		}
		served := make(chan int, 10)
		permits := make(chan *Endpoint, 10)
		for n := range 5 {
			go func() {
				e := await(s, t0)
				served <- n
				permits <- e
			}()
			synctest.Wait()
		}
		if !s.Waiting() || len(served) > 0 {
			t.Fatalf("%d were served, with no permit free", len(served))
		}
		for _, e := range taken {
			permits <- e
		}
		for n := range 5 {
			(<-permits).Release(Served)
			synctest.Wait()
			if len(served) != 1 {
				t.Fatalf("%d were served for one permit", len(served))
			}
			if got := <-served; got != n {
				t.Fatalf("the one who came as number %d was served as number %d", got, n)
			}
		}
		if s.Waiting() {
			t.Error("the line is not empty, though all were served")
		}
	})
}

// No permit stays free while a request waits: not if a waiter leaves with its turn, nor if
// more permits become free than there are waiters, before others join.
func TestTurnsAreNotLost(t *testing.T) {
	s := newSet("1", upTo(2))
	x, y := mustPick(t, s, t0), mustPick(t, s, t0)
	a, b := s.Wait(), s.Wait()
	x.Release(Served)
	if !has(a) || has(b) {
		t.Fatalf("turns: %v, %v; want the first one's", has(a), has(b))
	}
	a.Leave() // its client has gone
	if !has(b) {
		t.Fatal("the turn of the one who has gone is lost")
	}
	<-b.Turn
	x = mustPick(t, s, t0)
	b.Leave()

	a = s.Wait()
	x.Release(Served)
	y.Release(Served) // a has a turn already
	b = s.Wait()
	<-a.Turn
	mustPick(t, s, t0)
	a.Leave()
	if !has(b) {
		t.Error("a permit is free, and the one who waits for it is not told")
	}
}

// With waiters that come, are served and give up in any order, while endpoints come, go and
// fail, the cap holds, and no waiter waits for ever: synctest reports the deadlock.
func TestNoWaiterIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet("1 2 3", upTo(2))
		var wg sync.WaitGroup
		var mu sync.Mutex
		busy := map[string]int{}
		for g := range 40 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(g), 6))
				for n := range 60 {
					if random.IntN(4) == 0 { // one whose client leaves before its turn, or just then
						w := s.Wait()
						time.Sleep(time.Duration(random.IntN(3)) * ms)
						w.Leave()
						continue
					}
					e, err := s.Pick(t0, random.Uint64(), nil)
					if err != nil {
						e = await(s, t0)
					}
					mu.Lock()
					busy[e.Addr()]++
					if busy[e.Addr()] > 2 {
						t.Errorf("%s has %d in flight", e.Addr(), busy[e.Addr()])
					}
					mu.Unlock()
					if n%2 == 0 {
						time.Sleep(time.Duration(random.IntN(3)) * ms)
					}
					mu.Lock()
					busy[e.Addr()]--
					mu.Unlock()
					if random.IntN(3) == 0 {
						e.Failed(t0)
					}
					e.Release(Outcome(random.IntN(2)))
				}
			})
		}
		for n := range 30 {
			time.Sleep(ms)
			s.Update(t0, points([]string{"1 2 3", "2", "3 d1", "1 2"}[n%4]), upTo(2))
		}
		wg.Wait()
		if s.Waiting() {
			t.Error("the line is not empty")
		}
		if slices.ContainsFunc(s.Stats(t0), func(st Stat) bool { return st.InFlight > 0 }) {
			t.Errorf("%+v: permits were not given back", s.Stats(t0))
		}
	})
}
