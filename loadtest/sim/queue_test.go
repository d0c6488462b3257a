package sim

import (
	"math/rand/v2"
	"testing"
)

// Events come out in the order of their instants.
func TestQueueIsInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for n := range 2000 {
		var q queue
		for range n {
			q.push(event{at: random.Int64N(1e9)})
		}
		for last := int64(0); len(q) > 0; {
			e := q.pop()
			if e.at < last {
				t.Fatalf("of %d, an event at %d comes after one at %d", n, e.at, last)
			}
			last = e.at
		}
	}
}
