package share_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
	"github.com/herdshield/shield/share/virtual"
)

// newAsk returns what all asks have alike.
func newAsk(name string) share.LeaseAsk {
	return share.LeaseAsk{Me: name, Life: 1, N: 4, Known: 4}
}

// Servers run the script as the process does: at the same instants, they answer the same.
func TestServersAnswerAlike(t *testing.T) {
	testserver.Each(t, func(t *testing.T, program string) {
		s := newServer(t, program)
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 3))
			s.Flush()
			here, now := virtual.New(), int64(simStart)
			var state [4]share.LeaseAsk
			for i := range state {
				state[i] = newAsk(fmt.Sprint("replica", i))
			}
			for range 400 {
				now += []int64{0, 1, 3, 20, 100, 100, 400, 2_000, 16_000}[min(r.IntN(9), r.IntN(9), r.IntN(40))] // no key of a server expires
				mine := &state[r.IntN(len(state))]
				mine.Seq++
				a := *mine
				a.Alone, a.Leaves, a.N, a.Known = r.IntN(12) == 0 || a.Till == 0, r.IntN(60) == 0, 1+r.IntN(4), r.IntN(5)
				a.Slots = &pushback.SlotsAsk{
					Rate: 20 * r.Float64(), Limit: 100, Base: 2, Max: 30_000, Want: r.IntN(5), Proven: r.IntN(3), Numbers: float64(r.IntN(3)), Served: r.Float64(),
					Guessed: 3 * r.Float64(), Kept: r.Float64(), Dry: r.IntN(20) == 0,
				}
				a.Of = []share.PoolKind{{Rate: 0.1, Cap: 40, Parts: 1, Cost: 1, Stay: 10_000}, {Cap: 21, Stay: 600_000}, {Rate: 0.01, Cap: 20, Parts: 2, Cost: 2, Stay: 9_000}}
				for key := range 5 {
					if of := min(key, 2); r.IntN(3) > 0 {
						a.Keys = append(a.Keys, fmt.Sprint("pool", key))
						a.Pools = append(a.Pools, [5]float64{float64(1 + of), float64(r.IntN(6)), float64(r.IntN(3)), float64(r.IntN(9))})
					}
				}
				if r.IntN(3) == 0 {
					a.Notes = "note"
				}
				want, got := here.Do(now, a), s.Do(now, a)
				if got, want := text(got), text(want); got != want {
					t.Fatalf("seed %d, at %d: %+v\nis answered %s by %s,\nand        %s here", seed, now, a, got, program, want)
				}
				if want.Stale || r.IntN(10) == 0 {
					mine.Life++
					continue
				}
				if mine.Last, mine.Till, mine.After = a.Seq, want.Now+350, want.After; a.Alone {
					mine.Life++
				}
			}
		}
	})
}

// text returns an answer to six digits, with its slots.
func text(a share.LeaseAnswer) string {
	slots := a.Slots
	a.Slots = nil
	return fmt.Sprintf("%.6v %.6v", a, slots)
}

// A store forgets replicas, definitions and notes that are over, and all of it once nobody comes.
func TestAStoreForgets(t *testing.T) {
	s, now, others, most := newServer(t, testserver.Programs(t)[0]), int64(simStart), 0, 0
	read := func(command string, args ...any) int64 { n, _ := redigo.Int64(s.conn.Do(command, args...)); return n }
	for i := range 4200 {
		a := newAsk(fmt.Sprint("replica", i/200))
		a.Seq, a.Alone, a.What, a.Notes = int64(1+i), true, "limit 4", "note"
		a.Of, a.Keys, a.Pools = []share.PoolKind{{Cap: 4, Stay: 10_000}}, []string{"pool"}, [][5]float64{{1, 0, 0, 1}}
		others = len(s.Do(now, a).Others)
		most = max(most, others)
		if now += 1000; i == 0 { // as a replica with another limit does
			is, _ := s.conn.Do("HGET", "{unit}units", "{unit}roster")
			read("HSET", "{unit}units", "{unit}other", is)
		}
	}
	if replicas, held, notes := read("HLEN", "{unit}roster"), read("HLEN", "{unit}pool"), read("LLEN", "{unit}notes"); replicas > 6 || held > 7 || notes > 4096 || others != 0 || most != 1 {
		t.Errorf("of 21 replicas, one after the other, %d are known, and %d of a pool; %d of 4200 notes; %d other definitions, and %d before", replicas, held, notes, others, most)
	}
	for _, key := range []string{"roster", "notes", "units", "pool"} {
		if ms := read("PTTL", "{unit}"+key); ms <= 0 || ms > 600_000 {
			t.Errorf("%s expires after %d ms", key, ms)
		}
	}
}
