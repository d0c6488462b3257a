package limiter

import (
	"sync"
	"sync/atomic"
	"time"
)

// MaxReplicas is how many replicas a limit is divided by, at most.
const MaxReplicas = 1000

// An Escrow holds the buckets of keys whose Limit several replicas share. A key is either
//
//   - cold: it has a bucket in a Table, with this replica's part of the rate and of half
//     of the burst. Other replicas don't have to know about it.
//   - hot, once it has used most of that: it holds a few tokens fetched from a pool in the
//     store, which all replicas share. The pool earns the rate instead.
//
// Together, the tokens that replicas hold, the parts of replicas that don't know yet that a
// key is hot, and the pool never exceed one burst, and never earn more than the rate.
//
// Only some keys are hot at a time: at most a quarter of the Table's bound, and at most
// 65,536. If there is no room for another one, it stays cold, which is still a limit.
//
// An Escrow knows neither the store nor a clock. Its user sends what Collect returns, and
// passes the response to Grant. It is safe for concurrent use.
type Escrow struct {
	// Wake, if not nil, is called when there is something to Collect. It is called under a lock, so it must not
	// block or call the Escrow.
	Wake func()

	table *Table
	limit Limit
	cost  int // of a request, at least: fewer tokens are of no use

	maxKeys atomic.Int64
	part    atomic.Pointer[part]
	hot     [shards]hotShard
	hotKeys atomic.Int64

	mu    sync.Mutex
	queue []Key // to be told; guarded by mu
}

// part is what one replica has of a cold key.
type part struct {
	Term
	limit Limit
	fresh time.Duration // when a key that has not come before has all of its part
	whole bool          // the part is enough for a request; or all keys are hot
}

// NewEscrow returns an Escrow for keys in t, which nothing else may use. Requests cost at least n, from 1 to
// the burst. Its replica starts alone, as one of so many replicas.
func NewEscrow(t *Table, l Limit, n, maxKeys, replicas int) *Escrow {
	e := &Escrow{table: t, limit: l, cost: n}
	p := &part{Term: Term{Replicas: min(max(1, replicas), MaxReplicas)}}
	p.limit, p.whole = l.partOf(p.Replicas, n)
	e.part.Store(p)
	e.Bound(maxKeys)
	return e
}

// priceOf returns what the whole rate takes to earn n tokens.
func (e *Escrow) priceOf(n int) time.Duration { return e.limit.interval * time.Duration(n) }

// Limit returns the whole limit, and the minimum cost of a request.
func (e *Escrow) Limit() (l Limit, cost int) { return e.limit, e.cost }

// Bound sets the table's bound on keys.
func (e *Escrow) Bound(maxKeys int) { e.maxKeys.Store(int64(maxKeys)) }

func (e *Escrow) tableSets() int { return tableSets(int(e.maxKeys.Load())) }

// Hot returns how many keys are hot.
func (e *Escrow) Hot() int { return int(e.hotKeys.Load()) }

// Replicas returns how many replicas share the limit.
func (e *Escrow) Replicas() int { return e.part.Load().Replicas }

// Follow applies a Term. No key has more tokens afterwards. Calls of Follow and Begin must not overlap.
func (e *Escrow) Follow(now time.Duration, t Term) {
	t.Replicas = min(max(1, t.Replicas), MaxReplicas)
	old := e.part.Load()
	p := &part{t, old.limit, old.fresh, old.whole}
	if t.Replicas != old.Replicas {
		p.limit, p.whole = e.limit.partOf(t.Replicas, e.cost)
		p.fresh = p.limit.carryPart(old.limit, old.fresh, now)
		if p.whole && !old.whole {
			p.fresh = now + p.limit.depth
		}
	}
	e.part.Store(p)
}

// Begin empties the parts of cold keys, because the replica is new and the others haven't divided by its number
// yet.
func (e *Escrow) Begin(now time.Duration) {
	p := *e.part.Load()
	p.fresh = max(p.fresh, now+p.limit.depth)
	e.part.Store(&p)
}

// Claim decides on a request of cost n for key at now, as Table.Claim does. If ask is true, there is no token
// here, but the store may have one. Once it has responded, the wait is over or known.
func (e *Escrow) Claim(key Key, now time.Duration, n int) (c KeyClaim, wait time.Duration, ask bool) {
	i := key >> (64 - shardBits)
	s, p := &e.table.shards[i], e.part.Load()
	now, late := s.lock(p.limit, now)
	c = KeyClaim{shard: s, key: key}
	h := e.hot[i].of[key]
	if h == nil {
		if p.whole {
			if _, wait = c.ask(p.limit, e.tableSets(), now, late, p.fresh, n); wait == 0 && !p.low(c.paid-now, n) {
				return c, 0, false
			}
		}
		if h = e.heat(p, i, key, now); h == nil {
			c = KeyClaim{shard: s, key: key}
			_, wait = c.ask(p.limit, e.tableSets(), now, late, p.fresh, min(n, p.limit.burst))
			return c, wait, false
		}
	}
	wait, ask = e.take(p, h, now, n)
	c.slot, c.paid = slot{&h.key, &h.level}, h.level-e.priceOf(n)
	if wait > 0 {
		wait += late
	}
	return c, wait, ask
}

// low reports whether a bucket that owes that much, a request of cost n included, should
// fetch tokens before it is asked for the last ones. If the part is good for one request
// only, it fetches none before it has to: most keys come once.
func (p *part) low(owed time.Duration, n int) bool {
	return 2*owed > p.limit.depth && p.limit.burst >= 2*n
}

// Look is Table.Look without asking the store. For a cold key, it returns this replica's part.
func (e *Escrow) Look(key Key, now time.Duration, n int) (tokens int, wait time.Duration) {
	i, p := key>>(64-shardBits), e.part.Load()
	c := KeyClaim{shard: &e.table.shards[i], key: key}
	now, late := c.shard.lock(p.limit, now)
	defer c.Release()
	h := e.hot[i].of[key]
	if h == nil {
		fullAt, wait := c.ask(p.limit, e.tableSets(), now, late, p.fresh, min(n, p.limit.burst))
		return p.limit.tokens(fullAt - now), wait
	}
	if e.settle(p, h, now); h.level < e.priceOf(n) {
		wait = e.waitOf(p, h, now, n) + late
	}
	return int(h.level / e.limit.interval), wait
}

// A Term says how a replica stands with the store that holds the pools.
type Term struct {
	Replicas int           // that share the limit: at least 1
	Alone    time.Duration // from then on the store counts as gone: the replica works with its part of the limit
	Paid     time.Duration // pools earn for the replica until then, at the latest; after that it earns its part itself
	Life     int64         // when it changes, pools have ended to earn for what was told before
	Began    time.Duration // when it did
}

func (t *Term) alone(now time.Duration) bool { return now >= t.Alone }
