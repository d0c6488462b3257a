package pushback

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"
)

// Refusals that are held back may be lost: a client that waits for less has gone. How long
// one waits is not known before. So it is counted what that costs.
const (
	// refusalsPerLoss is of how many refusals to an agent one may be lost. Ours: people who
	// leave a page are fewer, and a client that asks again for one in 64 brings no load.
	refusalsPerLoss = 64

	// maxCredit is how many refusals are paid in advance: 16 losses in a row change nothing.
	maxCredit = 1024

	// halvingDebt is the debt that halves how many refusals are held back, and maxDebt the
	// highest: one in 128 is still held, to see whether clients listen by now.
	halvingDebt = 5 * refusalsPerLoss
	maxDebt     = 8*halvingDebt - 1

	// longListening is how long a client has to have listened to be held back whatever
	// others of its agent do. Ours: few time-outs are between that and a second.
	longListening = time.Second / 2

	agentCells   = 256
	patientBits  = 14
	patientCells = 1 << patientBits
)

// patience knows whose refusals can be held back: by agent, those of all clients until too
// many are lost; and those of clients that have listened for long. Both are told apart by
// a hash: 2 KiB, and 64 KiB once a client has listened. The zero patience is ready. It is
// safe for concurrent use.
type patience struct {
	debts   [agentCells]atomic.Int64 // refusals until the losses are paid for
	patient atomic.Pointer[[patientCells]atomic.Uint32]
	lost    atomic.Uint64
}

// listener is a client of an agent, as patience knows it.
type listener struct {
	client uint64 // 0: not known
	agent  uint8
}

var agentSeed = maphash.MakeSeed()

// listenerOf returns the listener that a client is. Behind one address each family is one.
func listenerOf(client uint64, agent string, f Family) listener {
	who := listener{agent: uint8(maphash.String(agentSeed, agent) % agentCells)}
	if client != 0 {
		who.client = max(1, (client^uint64(f)<<56)*0x9e3779b97f4a7c15)
	}
	return who
}

// holds reports whether a refusal may be held back for so long.
func (p *patience) holds(who listener, hold time.Duration) bool {
	debt := p.debts[who.agent].Load()
	if debt > -maxCredit {
		p.debts[who.agent].Add(-1)
	}
	if debt <= 0 {
		return true
	}
	if rest := int64(1)<<(debt/halvingDebt) - 1; rest == 0 || debt&rest == 0 && hold >= longListening {
		return true
	}
	return p.listens(who)
}

// heard notes that a client has listened for so long.
func (p *patience) heard(who listener, hold time.Duration) {
	if who.client == 0 || hold < longListening {
		return
	}
	if p.patient.Load() == nil {
		p.patient.CompareAndSwap(nil, new([patientCells]atomic.Uint32))
	}
	p.patient.Load()[who.cell()].Store(who.tag())
}

// leaves notes that a client has left while its refusal was held back.
func (p *patience) leaves(who listener) {
	p.lost.Add(1)
	if debt := &p.debts[who.agent]; debt.Add(refusalsPerLoss) > maxDebt {
		debt.Store(maxDebt)
	}
	if p.listens(who) {
		p.patient.Load()[who.cell()].Store(0)
	}
}

// listens reports whether a client is known to listen for long.
func (p *patience) listens(who listener) bool {
	t := p.patient.Load()
	return t != nil && who.client != 0 && t[who.cell()].Load() == who.tag()
}

// cell and tag are two parts of the client's hash.
func (l listener) cell() uint64 { return l.client >> (64 - patientBits) }
func (l listener) tag() uint32  { return uint32(l.client>>16) | 1 }

// A moment tells a burst of refusals from as many that come evenly. A burst has to be held
// back, whatever that costs: clients that were refused in one moment, and wait for whole
// seconds, come back in one moment. Others are spread already.
type moment struct {
	n     atomic.Int64 // refusals since the last tick
	usual atomic.Int64 // mean of n

	at time.Duration // of the last tick
}

// A burst is burstFactor times what is usual in a tenth of a second, and burstLeast more. Ours:
// beyond what Poisson arrivals do by chance, and what a small burst of tokens serves.
const (
	burstFactor = 3
	burstLeast  = 16
)

// refuse counts a refusal, and reports whether it is part of a burst.
func (m *moment) refuse() bool { return m.n.Add(1) > burstFactor*m.usual.Load()+burstLeast }

// tick is to be called every 100 ms, by one goroutine at a time.
func (m *moment) tick(now time.Duration) {
	const memory = time.Second
	kept := math.Exp(-float64(now-m.at) / float64(memory))
	m.at = now
	usual := float64(m.usual.Load())
	m.usual.Store(int64(math.Round(kept*usual + (1-kept)*float64(m.n.Swap(0)))))
}
