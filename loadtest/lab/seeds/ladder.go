package seeds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
	"github.com/herdshield/shield/pushback"
)

// Slot is how long a slot is: the time in which one client can be served.
const Slot = 10 * time.Millisecond

// A Rung is what it takes until all of a crowd are served that wants one slot each
// and comes at once: means of the runs.
type Rung struct {
	Clients  int
	Slots    float64 // until the last is served
	Requests float64 // per client, with its first
}

// A Channel is what becomes of those who come in one slot.
type Channel uint8

const (
	// OneOf the clients who come in a slot is served, and the others are rejected,
	// as by a server with a limit.
	OneOf Channel = iota

	// Alone is how a client must come to be served, as on a shared wire, where
	// several destroy each other's requests.
	Alone
)

// Climb plays crowds of about n clients, and returns what such crowds take on average.
// The policy, which may depend on their number, is one of windows that follow each
// other, the same for all clients, each of which retries once in each: ModifiedBinary or
// Windows.
//
// Of each of eight sizes within a factor of two there are so many runs: windows that
// double do better for some sizes than for others between them.
func Climb(p func(n int) clients.Policy, channel Channel, n, runs int, seed uint64) Rung {
	const sizes = 8
	var slots, requests float64 // per client
	for i := range sizes {
		size := max(1, int(math.Round(float64(n)*math.Exp2((float64(i)-(sizes-1)/2.0)/sizes))))
		policy := p(size)
		for k := range runs {
			s, r := climb(policy, channel, size, rand.New(rand.NewPCG(seed, uint64(k))))
			slots, requests = slots+float64(s)/float64(size), requests+float64(r)/float64(size)
		}
	}
	all := float64(sizes * runs)
	return Rung{n, slots / all * float64(n), requests / all}
}

// Doubling are clients whose windows are of 2, 4, 8 … slots, however many they are;
// Fitting clients whose windows are as many slots as they are.
func Doubling(int) clients.Policy  { return ModifiedBinary{Slot: Slot} }
func Fitting(n int) clients.Policy { return Windows{Size: n, Slot: Slot} }

// climb plays attempt by attempt, as those who come in one slot are in one window.
func climb(p clients.Policy, channel Channel, n int, draw *rand.Rand) (slots, requests int) {
	waiting := make([]time.Duration, n) // when they came last
	came := make([]int32, 2*n)          // how many, by slot
	for attempt := 1; ; attempt++ {
		requests += len(waiting)
		for _, at := range waiting {
			slot := int(at / Slot)
			for slot >= len(came) {
				came = append(came, make([]int32, len(came))...)
			}
			came[slot]++
		}
		left := waiting[:0]
		for _, at := range waiting {
			slot := int(at / Slot)
			if came[slot] == 1 || channel == OneOf && came[slot] > 1 {
				came[slot] = -1 // any other client in it is not served
				slots = max(slots, slot+1)
				continue
			}
			left = append(left, at)
		}
		if len(left) == 0 {
			return slots, requests
		}
		for i, at := range left {
			wait, _ := p.Next(clients.Rejected{Attempt: attempt, Elapsed: at, U: draw.Float64()})
			left[i] = at + wait
		}
		waiting = left
	}
}

// Windows come back once in each of the windows of Size slots that follow each other
// from the first request on.
type Windows struct {
	Size int
	Slot time.Duration
}

func (p Windows) Next(r clients.Rejected) (time.Duration, bool) {
	window := float64(p.Size) * float64(p.Slot)
	start := max(float64(r.Attempt-1)*window, 0)
	return time.Duration(start + r.U*window - float64(r.Elapsed)), true
}

func (p Windows) String() string { return fmt.Sprintf("windows of %d slots", p.Size) }

// Punctual clients come back when they are told, to the millisecond. Clients that are
// told nothing do not.
type Punctual struct{}

func (Punctual) Next(r clients.Rejected) (time.Duration, bool) {
	return time.Duration(r.Hint.Ms) * time.Millisecond, r.Hint.Ms > 0 && !r.Hint.Never
}

func (Punctual) String() string { return "to the millisecond" }

// ByAppointment plays clients of a share who come when the real shield.Guard tells
// them, with that burst and appointments within a minute. A burst of 1 is a slot that
// cannot be used any more once it is over.
func ByAppointment(of clients.Share, burst, n int, seed uint64) (Rung, error) {
	r, err := sim.Run(sim.Scenario{
		Seed: seed, Clients: n, Mix: clients.Population{of},
		Config: shield.Config{
			Capacity: limiter.Config{Rate: float64(time.Second / Slot), Burst: burst},
			Pushback: pushback.ResponseConfig{Max: 59 * time.Second},
		},
	}, nil)
	if err != nil {
		return Rung{}, err
	}
	if r.Waiting > 0 {
		return Rung{}, fmt.Errorf("%d of %d clients are not served after %v", r.Waiting, n, r.Drained)
	}
	return Rung{n, r.Drained.Seconds()/Slot.Seconds() + 1, float64(r.Requests) / float64(n)}, nil
}
