package pushback

import (
	"slices"

	"github.com/axiomhq/hyperloglog"
)

const (
	// clientPrecision gives 2^11 registers of one byte, and a standard error of
	// 1.04/sqrt(2^11) = 2.3 %.
	clientPrecision = 11

	// clientTurn is after how many bins of 100 ms the older count starts anew: one
	// minute, which is longer than any promise.
	clientTurn = 600
)

// A clientCount counts how many different clients were refused lately, in two
// HyperLogLogs. Every client goes into both, the older one is read, and when it is two
// turns old it is emptied and becomes the newer.
type clientCount struct {
	sketch   [2]*hyperloglog.Sketch // nil until the first refusal
	first    [2][HerdClients]uint64 // the first different clients, to tell at little cost whether they are several
	few      [2]uint8               // how many these are
	requests [2]uint64
	older    uint8
	bins     int // of the turn that has begun
}

func (c *clientCount) saw(client uint64) {
	for i := range c.sketch {
		if c.sketch[i] == nil {
			// Dense from the start: it never grows, and nothing is allocated later.
			// The only error is a precision out of range.
			c.sketch[i], _ = hyperloglog.NewSketch(clientPrecision, false)
		}
		c.sketch[i].InsertHash(client)
		c.requests[i]++
		if n := c.few[i]; n < HerdClients && !slices.Contains(c.first[i][:n], client) {
			c.first[i][n] = client
			c.few[i]++
		}
	}
}

// pass lets bins of 100 ms pass. However many they are, that is at most one
// turn: the clients of the last bin are there already, and are kept.
func (c *clientCount) pass(bins int) {
	c.bins += bins
	if c.bins < clientTurn {
		return
	}
	c.bins %= clientTurn
	if c.requests[c.older] > 0 {
		c.sketch[c.older].Reset()
	}
	c.requests[c.older], c.few[c.older] = 0, 0
	c.older = 1 - c.older
}

// several reports whether as many clients were refused as a herd has at least.
func (c *clientCount) several() bool { return c.few[c.older] == HerdClients }

// count returns how many clients were refused, and how often.
func (c *clientCount) count() (distinct, requests uint64) {
	if c.requests[c.older] == 0 {
		return 0, 0
	}
	return c.sketch[c.older].Estimate(), c.requests[c.older]
}
