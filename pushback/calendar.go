package pushback

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// SlotWidth is the width of a bucket of the calendar. Ours: a quarter of a second
	// of the spare rate is less than any token bucket's burst should be.
	SlotWidth = 250 * time.Millisecond

	// buckets is how many buckets there are: 128 s hold the longest horizon and
	// penalty, and maturity after it.
	buckets = 512

	// maturity is how long after a bucket its promises are counted as kept or not.
	// Clients that obey whole seconds come within milliseconds; later ones are added
	// when they come. Ours: one second more would be one second longer at the wrong rate
	// when a herd does not come back.
	maturity = time.Second

	// utilisation is the share of the backend's rate that is planned for. Of 0.95 to
	// 0.99, it is the highest that broke no promise in the simulated herds that fit into
	// the horizon: other requests come at random, and clients that come on time may take
	// the last tokens.
	utilisation = 0.98
)

// A Calendar gives each refused client its own time to come back (an appointment), so
// that the clients return at the rate that a backend can spare.
//
// It is a ring of buckets, a quarter of a second each, that hold how many clients are
// expected. A refused client gets the first free slot. When the horizon is full it is
// deferred: it gets a number in the queue.
//
// It promises: in any time τ at most s·τ expected returns and one bucket, where s is
// the spare rate; first come, first served; no appointment beyond the horizon. It never
// refuses a request: any client can take a free token.
//
// The zero Calendar is empty. It is safe for concurrent use. All its memory is this
// struct: no number of clients makes it grow.
type Calendar struct {
	until   atomic.Int64 // the last promised slot
	last    atomic.Int64 // the last time that any client was told
	waiting atomic.Int64 // slots whose clients have not come yet

	mu   sync.Mutex       // guards the fields below
	ring *[buckets]bucket // nil before the first promise: most backends never refuse a request

	// full: all buckets before this one were full when a slot was last looked for, at
	// fullSize returns per bucket.
	full     int64
	fullSize float64

	queue // of deferred clients
	forecast
	slots // of this replica, if others share the calendar

	matured   int64 // all buckets before this one are counted in the forecast
	missed    float64
	overQuota float64 // clients that waited for a quota and have come since Arrived
	shared    float64 // promises to crowds
	counts    Promises
}

// A bucket holds the promises within SlotWidth: see load for how many returns they mean.
type bucket struct {
	number     int64           // of this bucket since the epoch
	booked     [trusts]float32 // promises that take room here
	worth      float32         // returns that they meant when they were made
	lost       float32         // returns for which there was room in the part that had passed
	pulse      float32         // returns left free for a known herd
	made, kept [trusts]float32 // promises for times in it
	waiting    float32         // promises whose clients may still come
	quota      float32         // slots of clients that wait for their quota
	shared     float32         // promises to crowds
	granted                    // to this replica, if others share the calendar
}

// Rates are what a Calendar must know of the backend and the configuration.
type Rates struct {
	Rate     float64       // requests per second that the backend can take: above 0
	Min, Max time.Duration // bounds of every wait
	Token    time.Duration // until there is a token for any client

	// Pulse returns how many requests of a known periodic herd are expected between two
	// instants, for which no slots are given away; nil for none.
	Pulse func(from, to time.Duration) float64
}

// An Appointment is when a refused client shall come back.
type Appointment struct {
	At       time.Duration
	Trust    Trust         // with which the slot is booked
	Window   time.Duration // how long after At would do as well, where the client can choose
	Wait     time.Duration // expected until the client is served
	Deferred bool          // no slot is reserved
	turn     Turn
	Number   float64 // if Deferred: the client's position in the queue, which Rebook needs
}

// Promises counts what has become of appointments.
type Promises struct {
	Made     uint64 // slots promised
	Deferred uint64 // times that a client was told to ask again later
	Kept     uint64 // came at the slot or within maturity after it
	Late     uint64 // came later
	NoShow   uint64 // had not come by then; late ones are counted in both
}

// Backlogged reports whether there is a backlog: a promise after now. It is one atomic
// load.
func (c *Calendar) Backlogged(now time.Duration) bool { return c.Ahead(now) > 0 }

// Ahead returns how far the promises reach. It is one atomic load.
func (c *Calendar) Ahead(now time.Duration) time.Duration {
	return max(0, time.Duration(c.until.Load())-now)
}

// Waiting returns how many promised slots' clients may still come, without the queue
// beyond the horizon. It is one atomic load.
func (c *Calendar) Waiting() int { return int(c.waiting.Load()) }

// Expecting reports whether a client that was told to come back may still do so. It is
// one atomic load.
func (c *Calendar) Expecting(now time.Duration) bool {
	last := time.Duration(c.last.Load())
	return last > 0 && now < last+maxLate
}

// CalendarStats is a snapshot of a Calendar.
type CalendarStats struct {
	Backlog   time.Duration // how far the promised slots reach
	Waiting   int           // promised slots whose clients may still come: at most a second or so late
	Deferred  int           // clients that wait in the queue behind them
	Promises  Promises
	KeptShare float64 // of the slots promised to Untried clients, how many they come for
}

// Stats returns the CalendarStats at now.
func (c *Calendar) Stats(now time.Duration) CalendarStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CalendarStats{c.Ahead(now), c.Waiting(), int(max(0, c.issued-c.served)), c.counts, c.share(Untried)}
}

// Arrived tells how many requests that kept no promise came within d before now, and how
// many more were over their clients' quotas. Call it about once per second.
func (c *Calendar) Arrived(now, d time.Duration, requests, overQuota uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mature(now)
	if !c.Backlogged(now) {
		c.forget(d)
	}
	// Clients that waited for their quota have slots, but the caller counts them, too.
	c.base.add(max(0, float64(requests)-c.overQuota), d, c.Backlogged(now-d), overQuota > requests, c.planned())
	c.overQuota = 0
	c.judge()
}

// Spare returns the rate at which refused clients can be served: the backend's rate
// less the base load, but at least a tenth of it, so that refused clients are served at
// all.
func (c *Calendar) Spare(service float64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spare(service)
}

func (c *Calendar) spare(service float64) float64 {
	return min(max(utilisation*service-c.anyway()-c.others.base, 0.1*service), service)
}

// Book gives a client that is refused at now its appointment: the first free slot, or a
// number in the queue if others wait in it or the horizon is full.
func (c *Calendar) Book(now time.Duration, r Rates, t Trust) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	return c.book(now, r, t)
}

func (c *Calendar) book(now time.Duration, r Rates, t Trust) Appointment {
	if t == Untried {
		c.newcomer(now)
	}
	if c.issued <= c.served {
		if a, ok := c.slot(now, r, 1, t); ok {
			return a
		}
	}
	c.issued++
	return c.hop(now, c.issued, r)
}

// BookShared is Book for one of a crowd behind one key. If crowds have as many promises as
// there are free slots, it books nothing and returns how many have to be done with before.
// So they leave half of the horizon to other clients, and more if those want it; but an
// eighth is theirs. Those are the dynamic thresholds of shared-memory switches (Choudhury
// and Hahne, 1998).
func (c *Calendar) BookShared(now time.Duration, r Rates) (p Appointment, over int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	free := max((r.Max-c.Ahead(now)).Seconds(), r.Max.Seconds()/8) * c.spare(r.Rate)
	if over = 1 + int(c.shared-max(CrowdThreshold, free)); over > 0 {
		return p, over
	}
	p = c.book(now, r, Untried)
	if b := c.bucket(c.number(p.At)); b != nil {
		b.shared++
		c.shared++
	}
	return p, 0
}

// BookFrom is for a client that must wait until from for its own quota. It overtakes no
// client in the queue, since it takes no slot before from. If there is no slot it is
// told from, or the horizon. Whether it comes does not count as kept or not: it may be
// refused for its quota again.
func (c *Calendar) BookFrom(now, from time.Duration, r Rates) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	from = max(from, now+r.Min)
	at, ok := c.slotFrom(now, from, now+r.Max, r)
	if !ok {
		at = min(from, now+r.Max)
	} else if b := c.bucket(c.number(at)); b != nil {
		b.quota++
	}
	return Appointment{At: at, Wait: at - now}
}

// Excuse gives another slot to a client that came in time and was refused. It may use
// what utilisation leaves free, and so comes before the clients that wait already. If
// that is used up, it is first in the queue.
func (c *Calendar) Excuse(now time.Duration, r Rates, t Trust) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	if a, ok := c.slot(now, r, 1/utilisation, t); ok {
		return a
	}
	c.counts.Deferred++
	c.issued++
	at := c.jitter(now, r)
	return Appointment{At: at, Deferred: true, Number: c.served, Wait: at - now}
}

// Forget takes back an appointment of a client that has been served before it, or is
// told never to come back. Of several of one client only the nearest is on record: if
// that is gone, it is the next.
func (c *Calendar) Forget(now, at time.Duration, t Trust) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at <= now {
		return
	}
	for n, last := c.number(at), c.number(time.Duration(c.until.Load())); n <= last; n++ {
		b := c.bucket(n)
		if b == nil || b.made[t] < 1 {
			continue
		}
		b.made[t]--
		if b.heard[t] >= 1 { // most likely it was another replica's
			b.heard[t]--
		} else {
			b.booked[t] = max(0, b.booked[t]-1)
			b.worth = max(0, b.worth-float32(c.share(t)))
		}
		c.came(at)
		c.frees(n)
		return
	}
}

// came counts one fewer waiting client: in the bucket of its slot, or in the next one with
// any, since of several of one client only the nearest is on record.
func (c *Calendar) came(at time.Duration) {
	for n, last := c.number(at), c.number(time.Duration(c.until.Load())); n <= last; n++ {
		if b := c.bucket(n); b != nil && b.waiting >= 1 {
			b.waiting--
			c.waiting.Add(-1)
			return
		}
	}
}

// Unwatched excludes an appointment from the kept share: its client is not remembered,
// so its return will not be recognised.
func (c *Calendar) Unwatched(a Appointment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.bucket(c.number(a.At)); b != nil && b.made[a.Trust] >= 1 {
		b.made[a.Trust]--
	}
}

// Kept tells that a client whose slot was at has come back at now.
func (c *Calendar) Kept(now, at time.Duration, t Trust) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.number(at)
	if b := c.bucket(n); b != nil && n >= c.matured && now < at+SlotWidth+maturity {
		b.kept[t]++
		c.came(at)
		c.counts.Kept++
		return
	}
	c.counts.Late++
	c.kept[t].addLate()
}

// promise makes an appointment for at, in a bucket that was filled.
func (c *Calendar) promise(now, at time.Duration, b *bucket, t Trust) Appointment {
	b.made[t]++
	b.waiting++
	c.waiting.Add(1)
	c.counts.Made++
	c.until.Store(max(c.until.Load(), int64(at)))
	c.last.Store(max(c.last.Load(), int64(at)))
	c.booked(now, b, c.share(t))
	return Appointment{At: at, Wait: at - now, Trust: t}
}

// mature counts the promises of the buckets that are old enough.
func (c *Calendar) mature(now time.Duration) {
	begin, end := c.matured, c.number(now-maturity)
	if c.ring == nil {
		c.matured = max(begin, end)
		return
	}
	for n := max(begin, end-buckets); n < end; n++ {
		// A bucket that was not opened since may be of an earlier turn of the ring.
		b := &c.ring[n&(buckets-1)]
		if b.number < begin || b.number > n {
			continue
		}
		for t := range b.made {
			c.kept[t].add(float64(b.made[t]), float64(b.kept[t]))
			c.missed += (float64(b.made[t]) - float64(b.kept[t])) * b.here(t)
		}
		c.waiting.Add(-int64(b.waiting))
		b.waiting = 0
		c.overQuota += float64(b.quota) * c.share(Proven)
		c.shared -= float64(b.shared)
		b.quota, b.shared = 0, 0
	}
	if end > begin {
		c.matured = end
		if c.planned() < 1 {
			c.full, c.spent = 0, spent{} // there may be room again where fewer are expected
		}
		c.judge()
	}
	c.counts.NoShow = uint64(max(0, c.missed))
}

// frees notes that there may be room in a bucket again, and reopen that there may be in any.
func (c *Calendar) frees(n int64) {
	c.full, c.spent.to = min(c.full, n), min(c.spent.to, n)
}

func (c *Calendar) reopen() { c.full, c.fullSize, c.spent = 0, 0, spent{} }

// bucket returns the bucket with a number, nil if it is empty.
func (c *Calendar) bucket(number int64) *bucket {
	if c.ring == nil {
		return nil
	}
	if b := &c.ring[number&(buckets-1)]; b.number == number {
		return b
	}
	return nil
}

// open returns the bucket with a number, cleared if it had another, and how many returns
// it holds if the average is perBucket.
func (c *Calendar) open(number int64, r Rates, perBucket float64) (b *bucket, size float64) {
	if c.ring == nil {
		c.ring = new([buckets]bucket)
	}
	b = &c.ring[number&(buckets-1)]
	if b.number != number {
		*b = bucket{number: number}
		if r.Pulse != nil {
			from := c.begin(number)
			b.pulse = float32(r.Pulse(from, from+SlotWidth))
		}
	}
	if b.pulse > 0 {
		perBucket = max(perBucket-float64(b.pulse), min(perBucket, 0.1*r.Rate*SlotWidth.Seconds()))
	}
	return b, c.part(b, perBucket)
}

// load returns how many returns are expected in a bucket: as many as were when its
// promises were made, unless newcomers are doubted. Then what is known now counts, and the
// calendar moves forward: slots that were promised to a flood of clients are free again
// when few of those come.
func (c *Calendar) load(b *bucket) float64 {
	planned := c.planned()
	now := float64(b.booked[Untried])*c.share(Untried) + float64(b.booked[Proven])*c.share(Proven)
	return float64(b.lost) + planned*float64(b.worth) + (1-planned)*now
}

// slot promises the first free slot within r's bounds, in buckets that hold stretch times
// the spare rate. The part of the first bucket that has passed by then is lost.
func (c *Calendar) slot(now time.Duration, r Rates, stretch float64, t Trust) (a Appointment, ok bool) {
	// The clock may have been read long ago. Buckets that have matured are done with.
	from, limit := max(now+max(r.Min, r.Token), c.begin(c.matured)), now+r.Max
	if from > limit { // it may be farther away than the ring reaches
		return a, false
	}
	c.divide(now)
	perBucket := c.spare(r.Rate) * SlotWidth.Seconds() * stretch
	first := c.number(from)
	if b, size := c.open(first, r, perBucket); stretch == 1 {
		passed := float64(from-c.begin(first)) / float64(SlotWidth)
		b.lost += float32(max(0, passed*size-c.load(b)))
	}
	// There are no free slots before the last one found, unless buckets hold more now.
	n := first
	if stretch == 1 {
		if perBucket <= 1.01*c.fullSize {
			n = max(n, c.full)
		} else {
			c.fullSize = perBucket
		}
	}
	begin, last := n, c.number(limit)
	for n = c.next(n, t); n <= last; n = c.next(n+1, t) {
		b, size := c.open(n, r, perBucket)
		load := c.load(b)
		if c.isFull(b, load, size, t) {
			continue
		}
		at := max(from, c.begin(n)+c.phase(load, size))
		if at > limit {
			break
		}
		c.fill(n, r, perBucket, t)
		if stretch == 1 {
			c.full = n
			c.fullSize = min(max(c.fullSize, perBucket), 1.01*perBucket)
		}
		return c.promise(now, at, b, t), true
	}
	c.spend(begin, n, t)
	return c.guess(now, from, limit, r, t)
}

// isFull reports whether there is no room for another promise in a bucket of a size.
func (c *Calendar) isFull(b *bucket, load, size float64, t Trust) bool {
	if b.own > 0 { // whole slots are granted
		return load+c.share(t)/2 > size
	}
	return size <= 0 || load > size*(1-1e-6)
}

// slotFrom reserves a slot from from until limit, for a client that must not come
// before. The slots of from's bucket are squeezed into the part after from.
func (c *Calendar) slotFrom(now, from, limit time.Duration, r Rates) (time.Duration, bool) {
	c.divide(now)
	perBucket := c.spare(r.Rate) * SlotWidth.Seconds()
	first := c.number(from)
	if perBucket <= 1.01*c.fullSize {
		first = max(first, c.full)
	}
	for n := c.next(first, Proven); n <= c.number(limit); n = c.next(n+1, Proven) {
		b, size := c.open(n, r, perBucket)
		load := c.load(b)
		if c.isFull(b, load, size, Proven) {
			continue
		}
		begin := c.begin(n)
		rest := begin + SlotWidth - max(begin, from)
		at := max(begin, from) + time.Duration(load/size*float64(rest))
		if at > limit {
			break
		}
		c.fill(n, r, perBucket, Proven)
		return at, true
	}
	return 0, false
}

// fill adds one promise to a bucket. The part that does not fit takes room in the next
// ones.
func (c *Calendar) fill(n int64, r Rates, perBucket float64, t Trust) {
	rest := 1.0
	for range buckets / 2 {
		b, size := c.open(n, r, perBucket)
		part := min(rest, max(0, size-c.load(b))/c.share(t))
		if c.ends(b) {
			part = rest
		}
		b.booked[t] += float32(part)
		b.worth += float32(part * c.share(t))
		if rest -= part; rest < 1e-6 {
			return
		}
		n++
	}
}
