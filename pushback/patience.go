package pushback

import (
	"hash/maphash"
	"sync/atomic"
)

// Rejections that are held back may be lost: a client that waits for less has gone. How long
// one waits is not known before, so each agent's losses are counted.
const (
	// refusalsPerLoss is of how many rejections to an agent one may be lost. People who leave
	// a page are fewer, and a client that asks again for one in 64 brings no load.
	refusalsPerLoss = 64

	// maxCredit is how many rejections are paid in advance: 16 losses in a row change nothing.
	maxCredit = 16 * refusalsPerLoss

	agents = 256
)

// patience knows by agent whose rejections can be held back, in 2 KiB. It is safe for
// concurrent use.
type patience struct {
	debts [agents]atomic.Int64 // rejections until the losses are paid for
	lost  atomic.Uint64
}

var agentSeed = maphash.MakeSeed()

func agentOf(name string) uint8 { return uint8(maphash.String(agentSeed, name) % agents) }

// holds reports whether a rejection may be held back.
func (p *patience) holds(agent uint8) bool {
	debt := p.debts[agent].Load()
	if debt > -maxCredit {
		p.debts[agent].Add(-1)
	}
	return debt <= 0
}

// leaves notes that a client has left while its rejection was held back.
func (p *patience) leaves(agent uint8) {
	p.lost.Add(1)
	p.debts[agent].Add(refusalsPerLoss)
}
