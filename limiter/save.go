package limiter

import "time"

// A Part is what the keys in one shard of a Table owed at an instant, for keeping across a restart.
type Part struct {
	Shard    int
	Interval time.Duration // of the Limit that they were under
	Burst    int
	Kind     uint8 // likewise
	Shared   int64 // what the bucket owed that keys without room share, in ns
	Keys     []uint64
	Owed     []int64 // by each of Keys
}

// Save calls emit with everything the keys owe at now. It copies each Part under the lock of its shard and
// emits it without. The Part is only valid during the call.
func (t *Table) Save(now time.Duration, emit func(*Part)) {
	var p Part
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		p = Part{i, s.unit.interval, s.unit.burst, uint8(s.unit.kind), 0, p.Keys[:0], p.Owed[:0]}
		for j := range s.sets {
			set := &s.sets[j]
			p.Shared = max(p.Shared, int64(set.shared-now))
			for k, fullAt := range set.fullAt {
				if fullAt > now {
					p.Keys, p.Owed = append(p.Keys, uint64(set.owner[k])), append(p.Owed, int64(fullAt-now))
				}
			}
		}
		s.mu.Unlock()
		if len(p.Keys) > 0 || p.Shared > 0 {
			emit(&p)
		}
	}
}

// Load makes the keys owe what a Part from Save says, less what they have earned since, and as the same number
// of tokens under the Limit the table is used with: see Limit.carry. It leaves existing keys alone, and a
// table that is in use under another Limit. If there are more keys than the next call allows, those that owe
// least are forgotten.
func (t *Table) Load(p *Part, since, now time.Duration) {
	unit := Limit{interval: p.Interval, depth: p.Interval * time.Duration(p.Burst), burst: p.Burst, kind: kind(p.Kind)}
	if p.Shard < 0 || p.Shard >= shards || len(p.Keys) != len(p.Owed) {
		return // it is none of Save
	}
	s := &t.shards[p.Shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if now = max(now, s.latest); s.unit == (Limit{}) {
		s.unit = unit
	}
	if s.unit != unit {
		return // it is in use under another limit
	}
	instant := func(owed int64) time.Duration { return now + max(0, time.Duration(owed)-since) }
	sets := 1 + len(p.Keys)*5/(4*ways) // so that a few moves find a slot for each: see maxMoves
	s.resize(max(len(s.sets), min(sets, tableSets(MaxKeys))), now)
	for i := range p.Keys {
		key, fullAt := Key(p.Keys[i]), instant(p.Owed[i])
		if key>>(64-shardBits) != Key(p.Shard) || fullAt <= now {
			continue
		}
		a, b := s.setsOf(key)
		if _, known := find(key, a, b); !known && !s.move(key, fullAt, now) {
			s.stats.Evicted++
		}
	}
	for i := range s.sets {
		s.sets[i].shared = max(s.sets[i].shared, instant(p.Shared))
	}
}
