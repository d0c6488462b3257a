package pushback

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"
)

// Rejections that are held back may be lost: a client that waits for less has gone. How long
// one waits is not known before, so each agent's losses are counted. Only a burst is held back
// whatever that costs: clients that were rejected in one moment, and wait for whole seconds,
// come back in one moment. Others are spread already.
const (
	// refusalsPerLoss is of how many rejections to an agent one may be lost. People who leave
	// a page are fewer, and a client that asks again for one in 64 brings no load.
	refusalsPerLoss = 64

	// mostDebt is up to which debt rejections are held back: a few that leave at first say
	// little of the others.
	mostDebt = 5 * refusalsPerLoss

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
	if debt > 0 {
		p.debts[agent].Add(-1)
	}
	return debt <= mostDebt
}

// leaves notes that a client has left while its rejection was held back.
func (p *patience) leaves(agent uint8) {
	p.lost.Add(1)
	p.debts[agent].Add(refusalsPerLoss)
}

// A moment tells a burst of rejections from as many that come evenly.
type moment struct {
	n     atomic.Int64 // rejections since the last tick
	usual atomic.Int64 // mean of n

	at time.Duration // of the last tick
}

// A burst is burstFactor times what is usual in a tenth of a second, and burstLeast more:
// beyond what Poisson arrivals do by chance, and what a small burst of tokens serves.
const (
	burstFactor = 3
	burstLeast  = 16
)

// reject counts a rejection, and reports whether it is part of a burst.
func (m *moment) reject() bool { return m.n.Add(1) > burstFactor*m.usual.Load()+burstLeast }

// tick is to be called every 100 ms, by one goroutine at a time.
func (m *moment) tick(now time.Duration) {
	const memory = time.Second
	kept := math.Exp(-float64(now-m.at) / float64(memory))
	m.at = now
	usual := float64(m.usual.Load())
	m.usual.Store(int64(math.Round(kept*usual + (1-kept)*float64(m.n.Swap(0)))))
}
