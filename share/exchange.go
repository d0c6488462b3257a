package share

import (
	"math"
	"time"

	"github.com/herdshield/shield/pushback"
)

// Due returns what is to be told to the store at now, if anything is. It is in flight then,
// until Heard or Missed, or until it is given up.
func (k *Link) Due(now time.Duration) (a Ask, ok bool) {
	k.urged.Store(false) // what changes from now on is urgent anew
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return a, false
	}
	if k.flying && now-k.sent < GiveUp {
		k.see(now)
		return a, false
	}
	if k.flying {
		k.untell(false)
	}
	k.flying = false
	k.see(now)
	v := k.view.Load()
	urgent := k.again || !v.alone && k.Clients.Line().WantsSlots()
	if !urgent && now < k.next() {
		return a, false
	}
	k.told.Store(false)
	k.flying, k.sent, k.again = true, now, false
	k.asked = Lease
	if k.idles(now) {
		k.asked = IdleLease
	}
	k.answers.send()
	k.seq++
	a = Ask{Name: k.name, Seq: k.seq, Lease: k.asked.Milliseconds(), Alone: v.alone, After: k.after, Replicas: k.heardOf}
	slots := k.Clients.Line().AskSlots(now, k.rate(v), k.limits.Max)
	slots.Limit = k.limits.Capacity.Rate()
	if slots.Rate = k.measured; math.IsInf(slots.Rate, 1) {
		slots.Rate = 0
	}
	a.Slots, k.slots = &slots, slots
	if k.telling = !v.parted; k.telling {
		a.News = k.tell(maxNotes)
	}
	k.said = a
	k.look.Store(int64(min(time.Duration(k.look.Load()), k.sent+flightTime)))
	return a, true
}

// tell returns the news to be told: those that may not have arrived, or the next.
func (k *Link) tell(most int) string {
	if len(k.news.notes) == 0 {
		k.news.number++
		k.news.notes = k.Clients.News(k.news.notes, most)
	}
	return k.news.encode(k.zero)
}

// untell notes that what is in flight was told in vain.
func (k *Link) untell(heard bool) {
	k.Clients.Line().Untell(&k.slots, heard)
	k.slots = pushback.SlotsAsk{}
}

// Bye returns the last ask of a replica that ends: the others need not wait until it is not
// heard of any more. It works alone from now on, unless it is served again.
func (k *Link) Bye(now time.Duration) (a Ask, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.view.Load()
	if v.alone && !k.ended {
		return a, false
	}
	k.seq++
	a = Ask{Name: k.name, Seq: k.seq, Leaves: true, After: k.after}
	if k.ended {
		return a, true
	}
	k.news.notes = k.Clients.News(k.news.notes, math.MaxInt)
	k.news.number++
	a.News = k.tell(0)
	slots := k.Clients.Line().ReturnSlots()
	a.Slots = &slots
	k.part(now)
	k.calm = now
	k.see(now)
	return a, true
}

// rate returns what is known of the backend's.
func (k *Link) rate(v *view) float64 {
	most := k.limits.Capacity.Rate()
	if most == 0 {
		most = math.Inf(1)
	}
	return min(k.measured+v.rate, most)
}

func (k *Link) idles(now time.Duration) bool {
	return now-time.Duration(k.used.Load()) > IdleTime && !k.Clients.Expects(now)
}

// next returns when something is to be told that is not urgent.
func (k *Link) next() time.Duration {
	beat := Beat
	if k.asked == IdleLease {
		beat = IdleBeat
	}
	if (len(k.news.notes) > 0 || k.Clients.HasNews()) && !k.view.Load().parted {
		beat = newsTime
	}
	return k.sent + beat
}

// Next returns when Due is to be called again if the shell is not woken.
func (k *Link) Next(now time.Duration) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
		return never
	case k.flying:
		return max(now, k.sent+GiveUp)
	case k.again:
		return now
	}
	return max(now, k.next())
}

// Heard takes the answer to what was sent at an instant. One that was given up does not
// count. Due, Heard and Missed are for one goroutine at a time.
func (k *Link) Heard(now, sent time.Duration, a Answer) {
	for _, text := range k.answer(now, sent, &a) { // they may be many, so no lock is held
		t := decode(text, k.zero)
		if last, ok := k.batches[t.sender]; ok && t.number == last {
			continue // it was told twice
		}
		if k.batches == nil || len(k.batches) >= maxBatches {
			k.batches = map[uint32]uint32{}
		}
		k.batches[t.sender] = t.number
		for i := range t.notes {
			k.Clients.Hear(now, &t.notes[i])
		}
	}
}

// answer takes an answer but for its news, which it returns.
func (k *Link) answer(now, sent time.Duration, a *Answer) (news []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.flying || sent != k.sent || k.ended {
		return nil
	}
	k.flying = false
	a.Bound(&k.said)
	defer k.answers.end(false)
	if a.Stale {
		return nil
	}
	k.trip = now - sent
	moved := k.set(now, sent, a.Now)
	if a.Over {
		k.untell(true)
		k.part(now)
		k.again = true
		return nil
	}
	if k.telling {
		k.news.notes = k.news.notes[:0]
	}
	if now-k.heard > IdleLease || a.Born != k.born {
		k.since = now // it has not heard of all of them lately
	}
	k.heard, k.lease = now, k.asked
	k.count(now, a)
	if k.born != 0 && (a.Born != k.born || moved) {
		k.Clients.Line().Forgot()
	}
	if k.born != 0 && a.Born != k.born {
		a.After = 0 // all that it has is read
	}
	k.born = a.Born
	if k.trip > MaxTrip {
		k.part(now)
		k.again = !k.said.Alone // it may be slow for once
	} else {
		k.view.Store(&view{replicas: k.most})
		k.again = k.said.Alone // the store was told so, and it is not any more
	}
	k.take(now, a)
	k.see(now)
	return a.News
}

// take takes what the store has said of the calendar.
func (k *Link) take(now time.Duration, a *Answer) {
	v := *k.view.Load()
	if a.Slots != nil && !v.parted {
		v.rate = a.Slots.Rate
		k.view.Store(&v)
		k.Clients.Join(k.zero, k.most, k.rank)
		k.Clients.Line().HearSlots(now, a.Slots)
	}
	k.after = a.After
	k.again = k.again || !v.alone && len(a.News) >= maxNews/2 // there is more to be read
}

// Missed tells that what was sent last is not answered. It may have arrived.
func (k *Link) Missed(now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return
	}
	if k.flying {
		k.untell(false)
		k.part(now)
	}
	k.flying = false
}

// count takes note of how many replicas there are.
func (r *roster) count(now time.Duration, a *Answer) {
	n := a.Replicas
	if n == 0 { // it does not say
		return
	}
	r.rank = a.Rank
	if r.heardOf == 0 || n >= r.most || now-r.since > RosterTime { // at first the operator has guessed
		r.most, r.since = n, now
	}
	r.heardOf = r.most
}
