package share

import (
	"math"
	"slices"
)

// Model is the store's part in one backend that replicas share: what the scripts of
// share/redis do, in Go. The zero Model has just been born.
type Model struct {
	born    int64
	members map[string]*member
	least   int // replicas that there were before it was born, as long as it may not know all
	slots   slots
	news    []news
	told    int64 // of the last news
}

// A member is one replica, as the store knows it.
type member struct {
	seq   int64
	seen  int64
	until int64 // when its lease ends
	paid  int64 // until when the pool earns for it: after that it may earn on its own
	rate  float64
	base  float64
}

// news is what a replica has told the others.
type news struct {
	number int64
	by     string
	text   string
}

const (
	// sweepTime is after how many milliseconds a replica is forgotten that was not heard of.
	sweepTime = 600_000

	// keptNews is how many news are kept, and maxNews how many one answer has.
	keptNews = 4096
	maxNews  = 200
)

// Plan answers one replica at now, in milliseconds of the store's clock.
func (m *Model) Plan(now int64, a Ask) (r Answer) {
	if m.born == 0 {
		m.born, m.members = now, map[string]*member{}
		m.slots.load = map[int64]float64{}
	}
	r.Now, r.Born = now, m.born
	for _, o := range m.members { // the clock may have been set back
		o.seen = min(o.seen, now)
		o.until = min(o.until, now+IdleLease.Milliseconds())
		o.paid = min(o.paid, o.until)
	}
	me := m.members[a.Name]
	if me != nil {
		r.Stale = a.Seq <= me.seq
		r.Over = !r.Stale && !a.Alone && now > me.until
		if r.Stale || r.Over {
			return r
		}
	} else {
		me = &member{until: now, paid: now}
		m.members[a.Name] = me
	}
	if now-m.born < RosterTime.Milliseconds() {
		m.least = max(m.least, a.Replicas)
	} else {
		m.least = 0
	}
	me.seq, me.seen, me.until = a.Seq, now, now+a.Lease
	if !a.Alone {
		me.paid = me.until
	}
	r.Replicas, r.Rank = m.roster(now, a.Name)
	if a.Slots != nil {
		r.Slots = m.slots.grant(now, a.Slots, me, m.members)
	}
	m.tell(&a, &r)
	if a.Leaves {
		delete(m.members, a.Name)
	}
	return r
}

// roster returns how many replicas there are, and the rank of one of them.
func (m *Model) roster(now int64, name string) (n, rank int) {
	for other, o := range m.members {
		switch {
		case now-o.seen > sweepTime:
			delete(m.members, other)
		case now-o.seen <= RosterTime.Milliseconds():
			n++
			if other < name {
				rank++
			}
		}
	}
	return max(n, m.least), rank
}

// slots are the calendar that replicas share: how many returns are expected in each bucket
// that is granted. Buckets before the first one are divided evenly, without asking.
type slots struct {
	first, cursor, last int64
	load                map[int64]float64
	swept               int64 // buckets before this one are over, and forgotten

	issued, served float64 // numbers of the queue
	servedAt       int64
}

const (
	// slotWidth is SlotWidth in milliseconds.
	slotWidth = 250

	// shortestWait is the shortest wait that most clients are told, dividedTime how much more of
	// the calendar is divided without asking, and staleTime how old the knowledge of that may
	// be that replicas have.
	shortestWait = 1000
	dividedTime  = 250
	staleTime    = 200

	// keptSlots is how many buckets are kept at most: more than the longest wait has.
	keptSlots = 1000
)

// grant gives a replica the first slots that are free.
func (s *slots) grant(now int64, a *SlotsAsk, me *member, members map[string]*member) *SlotsAnswer {
	me.rate, me.base = a.Rate, a.Base
	r := &SlotsAnswer{}
	for _, o := range members {
		if o != me && now < o.paid {
			r.Rate += o.rate
			r.Base += o.base
		}
	}
	rate := a.Rate + r.Rate
	if a.Limit > 0 && (rate == 0 || rate > a.Limit) {
		rate = a.Limit
	}
	spare := max(0.98*rate-a.Base-r.Base, 0.1*rate)
	s.sweep(now / slotWidth)
	s.declare(a)
	s.queue(now, a, spare)
	per := func(n int64) float64 { // whole slots, as many as the spare rate allows on average
		size := spare * slotWidth / 1000
		return math.Floor(size*float64(n%4096+1)) - math.Floor(size*float64(n%4096))
	}
	if want := a.Want; want > 0 {
		if s.first == 0 {
			s.first = (now+shortestWait+dividedTime+staleTime)/slotWidth + 1
			s.cursor = s.first
		}
		n, stop := max(s.cursor, (now+shortestWait)/slotWidth+1), (now+a.Max)/slotWidth
		for ; want > 0 && n <= stop; n++ {
			free := per(n) - s.load[n]
			if g := min(free, want); free >= 0.5 {
				want -= g
				free -= g
				s.load[n] += g
				s.last = max(s.last, n)
				r.Grants = append(r.Grants, Slot{Bucket: n, Size: g})
			}
			if free < 0.5 && n == s.cursor {
				s.cursor = n + 1
			}
		}
	}
	r.First, r.Cursor, r.Issued, r.Served = s.first, s.cursor, s.issued, s.served
	return r
}

// sweep forgets the buckets before the one that is now.
func (s *slots) sweep(bucket int64) {
	if s.first > 0 && bucket > s.last || bucket-s.swept > keptSlots { // all that was granted is over
		clear(s.load)
		s.first, s.cursor, s.last = 0, 0, 0
		s.swept = bucket
	}
	for ; s.swept < bucket; s.swept++ {
		delete(s.load, s.swept)
	}
}

// declare takes what a replica has promised without a grant, and what it gives back.
func (s *slots) declare(a *SlotsAsk) {
	if s.first == 0 && a.First > 0 {
		s.first, s.cursor = a.First, a.First
	}
	for _, list := range [][]Slot{a.Anew, a.Guessed} {
		for _, g := range list {
			if g.Bucket >= s.swept {
				s.load[g.Bucket] += g.Size
				s.last = max(s.last, g.Bucket)
			}
		}
	}
	for _, g := range a.Back {
		if g.Bucket < s.swept {
			continue
		}
		s.load[g.Bucket] -= g.Size
		if g.Bucket >= s.first && s.first > 0 {
			s.cursor = min(s.cursor, g.Bucket)
		}
	}
}

// queue moves the queue of deferred clients on: numbers are served at the spare rate.
func (s *slots) queue(now int64, a *SlotsAsk, spare float64) {
	s.issued = max(s.served, s.issued+a.Numbers)
	if s.servedAt > 0 && s.issued > s.served {
		s.served += float64(now-s.servedAt) / 1000 * spare / max(0.005, a.Kept)
	}
	s.servedAt = now
	if s.served = min(s.issued, s.served+a.Served); a.Dry {
		s.served = s.issued
	}
}

// tell passes news on.
func (m *Model) tell(a *Ask, r *Answer) {
	after := a.After
	if after > m.told { // of a store that was before this one
		after = 0
	}
	r.After = after
	i, _ := slices.BinarySearchFunc(m.news, after+1, func(n news, number int64) int { return int(n.number - number) })
	for _, n := range m.news[i:min(len(m.news), i+maxNews)] {
		if r.After = n.number; n.by != a.Name {
			r.News = append(r.News, n.text)
		}
	}
	if a.News != "" {
		m.told++
		m.news = append(m.news, news{m.told, a.Name, a.News})
		if len(m.news) > keptNews {
			m.news = slices.Delete(m.news, 0, len(m.news)-keptNews)
		}
	}
}
