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
		m.slots.expected = map[int64]*expected{}
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

// slots are the line that replicas share: how many clients are expected in each second.
type slots struct {
	expected map[int64]*expected
	swept    int64 // seconds before this one are over, and forgotten

	issued, served float64 // numbers of the tail
	servedAt       int64
}

// expected is what is expected in one second.
type expected struct {
	fresh float64 // new clients that were promised a slot: the kept share of them will come
	sure  float64 // all others, and what was left when it was too late to promise it
}

const (
	// shortestWait is the shortest wait that most clients are told, in milliseconds.
	shortestWait = 1000

	// keptSlots is how many seconds are kept at most: more than the longest wait has.
	keptSlots = 128

	// mostWant is how many slots one exchange gives at most.
	mostWant = 1000
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
	spare, kept := max(0.98*rate-a.Base-r.Base, 0.1*rate), min(max(0.005, a.Kept), 1)
	s.sweep(now / 1000)
	for _, list := range [][]Slot{a.Anew, a.Guessed} {
		for _, g := range list {
			if g.Second >= s.swept {
				s.of(g.Second).sure += g.Size
			}
		}
	}
	for _, g := range a.Back {
		if g.Second >= s.swept {
			s.of(g.Second).sure -= g.Size
		}
	}
	s.queue(now, a, spare/kept)
	for n := range min(a.Want, mostWant) {
		weight, fresh := 1.0, n >= a.Proven
		if fresh {
			weight = kept
		}
		at, ok := s.book(now+shortestWait, now+min(a.Max, keptSlots*1000), spare, kept, weight, fresh)
		if r.Full = !ok; r.Full {
			break
		}
		r.Times = append(r.Times, at)
	}
	r.Issued, r.Served = s.issued, s.served
	return r
}

func (s *slots) of(second int64) *expected {
	e := s.expected[second]
	if e == nil {
		e = &expected{}
		s.expected[second] = e
	}
	return e
}

// book takes the first room from an instant on. The part that does not fit into its second it
// takes from the next ones.
func (s *slots) book(from, stop int64, spare, kept, weight float64, fresh bool) (at int64, ok bool) {
	for n := from / 1000; n*1000 <= stop; n++ {
		e := s.of(n)
		load := e.fresh*kept + e.sure
		if load >= spare*(1-1e-5) {
			continue
		}
		at = max(from, n*1000+int64(math.Ceil(load/spare*1000)))
		if at > stop {
			return 0, false
		}
		if passed := float64(at-n*1000) / 1000 * spare; passed > load && at == from {
			e.sure += passed - load
		}
		for m := n; weight > 1e-6 && m < n+keptSlots/2; m++ {
			e := s.of(m)
			part := min(weight, max(0, spare-e.fresh*kept-e.sure))
			if fresh {
				e.fresh += part / kept
			} else {
				e.sure += part
			}
			weight -= part
		}
		return at, true
	}
	return 0, false
}

// sweep forgets the seconds before the one that is now.
func (s *slots) sweep(second int64) {
	if second-s.swept > keptSlots {
		clear(s.expected)
		s.swept = second
	}
	for ; s.swept < second; s.swept++ {
		delete(s.expected, s.swept)
	}
}

// queue moves the tail on: its numbers are served at a pace.
func (s *slots) queue(now int64, a *SlotsAsk, pace float64) {
	s.issued = max(s.served, s.issued+a.Numbers)
	if s.servedAt > 0 && s.issued > s.served {
		s.served += float64(now-s.servedAt) / 1000 * pace
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
