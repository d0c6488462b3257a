package share

import (
	"math"
	"slices"
)

// A ZoneModel is the store's part of one slot of a shared zone, as functions of the time.
// The zero ZoneModel is a store that has just begun. It is not safe for concurrent use.
//
// Of each hot key it knows the pool, and what each replica holds that has told so, which
// the pool earns for: its part of the rate. A replica that has not has its part of the
// key itself. Together they have a burst at most:
//
//	pool + Σ held + part × (replicas that have not told) <= burst
type ZoneModel struct {
	opened  int64 // when it was asked first; 0: not yet
	born    int64
	members map[string]zoneMember
	buckets map[string]*hotBucket
	news    []hotUntil
	told    int64 // how much news there has been
}

// zoneMember is what is known of a replica.
type zoneMember struct {
	life, seq int64
	seen      int64 // when it was last heard of
	paid      int64 // pools earn for it until then
}

// hotBucket is what is known of a hot key.
type hotBucket struct {
	pool  int64 // in millionths
	at    int64 // pool is up to date then
	until int64 // it is hot until then
	held  map[string]holding
}

type holding struct {
	tokens int64 // in millionths
	until  int64 // the replica was told so: the pool earns for it no longer
	life   int64
}

type hotUntil struct {
	key   string
	until int64
}

// Take answers an ask that arrives at now.
func (z *ZoneModel) Take(now int64, a TakeAsk) TakeAnswer {
	a, decides := a.sane(now)
	m, known := z.members[a.Name]
	if known && (a.Life < m.life || a.Seq <= m.seq) {
		return TakeAnswer{Now: now, Born: z.born, Stale: true}
	}
	over := !a.Alone && !a.Leaves && a.Heard > 0 && now > a.Heard+a.Lease
	z.remember(now, &a, known, m)
	if m.life != a.Life {
		m.paid = 0
	}
	if !a.Alone && !over && a.Heard > 0 {
		m.paid = max(m.paid, a.Heard+a.Lease)
	}
	m.life, m.seq, m.seen = a.Life, a.Seq, now
	if z.members == nil {
		z.members, z.buckets = map[string]zoneMember{}, map[string]*hotBucket{}
	}
	z.members[a.Name] = m
	if a.Leaves {
		delete(z.members, a.Name)
		return TakeAnswer{Now: now, Born: z.born}
	}
	if over {
		return TakeAnswer{Now: now, Born: z.born, Over: true}
	}
	t := TakeAnswer{Now: now, Born: z.born, After: a.After}
	t.Replicas, t.Rank = z.roster(now, &a)
	t.New = z.born == 0 && now-z.opened < newTime
	if a.Alone {
		return t
	}
	for _, k := range a.Keys {
		if !decides {
			break
		}
		k = k.sane()
		t.Keys = append(t.Keys, z.take(now, &a, &k, max(t.Replicas, a.Replicas)))
	}
	z.tell(now, &t)
	return t
}

// remember notices that the store has lost what it knew: what is told of was answered
// after what it knows. Buckets it has no record of were empty then, not full. It is the
// same after a long time in which pools have earned for no replica: those that live on
// have earned themselves.
func (z *ZoneModel) remember(now int64, a *TakeAsk, known bool, m zoneMember) {
	lost := a.Last > 0 && (!known || m.seq < a.Last) || !a.Alone && m.paid > 0 && z.paid() < now-grace
	if z.opened == 0 {
		z.opened, z.born = now, 0
	}
	if lost {
		z.born = now
	}
}

// paid returns until when pools earn for any replica.
func (z *ZoneModel) paid() (last int64) {
	for _, m := range z.members {
		last = max(last, m.paid)
	}
	return last
}

// roster returns how many replicas there are, and the rank of the one that asks.
func (z *ZoneModel) roster(now int64, a *TakeAsk) (n, rank int) {
	for name, m := range z.members {
		switch {
		case m.seen < now-sweepTime:
			delete(z.members, name)
		case m.seen >= now-RosterTime.Milliseconds():
			n++
			if name < a.Name {
				rank++
			}
		}
	}
	return n, rank
}

// take answers about one key.
func (z *ZoneModel) take(now int64, a *TakeAsk, k *KeyTake, replicas int) KeyGrant {
	part := int64(a.Burst / (2 * replicas))
	if part < int64(a.Cost) {
		part = 0
	}
	b := z.buckets[k.Key]
	if b != nil && (b.at < z.born || b.until <= now && (z.full(b) || b.until+grace <= now)) {
		b = nil
	}
	fresh := b == nil
	if fresh {
		b = &hotBucket{held: map[string]holding{}}
		z.buckets[k.Key] = b
	}
	paid, joined, held, had := z.settle(now, a.Name, b, million*part)
	room := max(0, million*int64(a.Burst)-held-million*part*max(0, int64(replicas)-joined))
	earned := int64(math.Min(math.Floor(float64(paid)*a.Rate*1000/float64(replicas)), 9e15))
	if fresh {
		parts := million * part * int64(replicas)
		earned = int64(math.Min(math.Floor(float64(now-z.born)*a.Rate*1000), 9e15))
		earned = max(0, min(million*int64(a.Burst), earned)-parts)
	}
	// The replica may have used tokens just now: until then they left no room.
	b.pool = min(max(0, room-had), b.pool+earned)
	free := max(0, room-k.Held)
	b.pool = min(free, b.pool+k.Gave)
	b.at = now

	got := grant(b.pool, a, k, replicas)
	b.pool -= million * got
	b.held[a.Name] = holding{k.Held + million*got, 0, a.Life}
	flow := float64(joined) * a.Rate * 1000 / float64(replicas) // per millisecond
	need := math.Ceil(float64(free-million*got-b.pool) / flow)
	if z.stay(now, a, b, need) {
		z.announce(k.Key, b.until)
	}
	b.held[a.Name] = holding{k.Held + million*got, b.until, a.Life}
	wait := int64(0)
	if short := million*int64(a.Cost) - b.pool; short > 0 {
		wait = int64(math.Ceil(float64(short) / (a.Rate * 1000))) // all will know of the key soon
	}
	return KeyGrant{Got: int(got), Wait: wait, Stay: b.until - now}
}

// full reports whether the pool of a key that is not hot any more is full: all replicas
// have let it earn for as long as it took.
func (z *ZoneModel) full(b *hotBucket) bool {
	for name, h := range b.held {
		if m := z.members[name]; m.life != h.life || m.paid < b.until || h.until < b.until {
			return false
		}
	}
	return true
}

// settle returns for how long the replicas have let the pool earn for them, how many do
// now, the one that asks included, what the others hold, and what that one had. It forgets
// those that do not.
func (z *ZoneModel) settle(now int64, name string, b *hotBucket, part int64) (paid, joined, held, had int64) {
	joined, had = 1, part
	for other, h := range b.held {
		until := int64(0)
		if m := z.members[other]; m.life == h.life {
			until = min(m.paid, h.until)
		}
		paid += max(0, min(now, until)-b.at)
		switch {
		case until < now:
			delete(b.held, other)
		case other == name:
			had = h.tokens
		default:
			joined++
			held += h.tokens
		}
	}
	return paid, joined, held, had
}

// grant returns how many tokens a replica gets from the pool. The last ones are for all,
// and what is not enough for a request is of no use.
func grant(pool int64, a *TakeAsk, k *KeyTake, replicas int) int64 {
	cost := int64(a.Cost)
	got := min(int64(k.Want), pool/million)
	if got > cost && pool < million*cost*int64(replicas) {
		got = max(cost, got/2)
	}
	if k.Held+million*got < million*cost {
		got = 0
	}
	return got
}

// stay keeps a key hot for as long as its pool needs to be full, and reports whether that
// is for longer than it was.
func (z *ZoneModel) stay(now int64, a *TakeAsk, b *hotBucket, need float64) bool {
	full := math.Ceil(float64(a.Burst) / a.Rate * 1000)
	stay := math.Max(2*full, minStay)
	need = math.Min(need, 2*full+minStay/2)
	if float64(b.until-now) >= math.Max(need, stay/2) {
		return false
	}
	b.until = now + int64(math.Max(stay, 2*need))
	return true
}

// announce tells all replicas of a hot key.
func (z *ZoneModel) announce(key string, until int64) {
	z.told++
	z.news = append(z.news, hotUntil{key, until})
	if len(z.news) > keptHot {
		z.news = slices.Delete(z.news, 0, len(z.news)-keptHot)
	}
}

// tell adds the news to an answer.
func (z *ZoneModel) tell(now int64, t *TakeAnswer) {
	first := z.told - int64(len(z.news))
	after := t.After
	if after > z.told {
		after = first // it is from before the store forgot all
	}
	after = max(after, first)
	for _, n := range z.news[after-first : min(int64(len(z.news)), after-first+MaxTake)] {
		if n.until > now {
			t.News = append(t.News, HotKey{n.key, n.until - now})
		}
		after++
	}
	t.After = after
}

// Forget makes the store empty, as if it were another.
func (z *ZoneModel) Forget() { *z = ZoneModel{} }
