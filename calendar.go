package shield

import (
	"cmp"
	"time"

	"github.com/herdshield/shield/limiter"
)

// A Calendar is the period of a contract: the whole quota renews at its start, and nothing is earned in
// between. Use it only for quotas that someone else counts that way, because with any other quota clients don't
// all wait for midnight.
type Calendar struct {
	Month bool           // from the first of a month to the next; else from midnight to midnight
	In    *time.Location // nil: UTC
}

// resetSpread is the part of a period within which clients that have used up their quota are told to come after the next reset: of
// 100,000 clients of a day's quota 116 per second. One that comes before is admitted: its quota is whole.
const resetSpread = 1. / 100

// around returns the window that has an instant.
func (c *Calendar) around(t time.Time) (begins, ends time.Time) {
	in := cmp.Or(c.In, time.UTC)
	y, m, d := t.In(in).Date()
	if c.Month {
		return midnight(y, m, 1, in), midnight(y, m+1, 1, in)
	}
	return midnight(y, m, d, in), midnight(y, m, d+1, in)
}

// midnight returns the first instant of a day. In Santiago, Havana and the Azores summer time begins at midnight, so there is a day that
// begins at one, for which [time.Date] returns an instant of the day before.
func midnight(y int, m time.Month, d int, in *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, in)
	if t.Hour() > 12 {
		t = t.Add(time.Hour)
	}
	return t
}

// instant returns for which instant buckets are asked throughout the window that has t. From one window to the next it advances by what
// the whole quota takes to be earned, however long they are, so a bucket earns nothing within a window, and is whole in the next.
func (c *Calendar) instant(t time.Time) time.Duration {
	y, m, d := t.In(cmp.Or(c.In, time.UTC)).Date()
	if c.Month {
		return time.Duration(12*(y-2020)+int(m)) * Month
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Sub(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
}

// instant returns for which instant the buckets of a zone are to be asked at now: by the calendar of the newest Guard in use, as one of
// before a reload may decide after it.
func (z *zone) instant(now time.Duration) time.Duration {
	if is := z.current.Load(); is != nil {
		z = is
	}
	return z.own(now)
}

// own is instant by the zone's own calendar.
func (z *zone) own(now time.Duration) time.Duration {
	if z.Calendar == nil {
		return now
	}
	return z.Calendar.instant(At(now))
}

// reset returns how long a key has to wait that would earn its tokens in so long: with a Calendar, if it has to wait at all, for the next
// window, and a little longer: see resetSpread.
func (z *zone) reset(key limiter.Key, now, wait time.Duration) time.Duration {
	if z.Calendar == nil || wait == 0 || wait == limiter.Never {
		return wait
	}
	begins, ends := z.Calendar.around(At(now))
	return max(1, ends.Sub(At(now))) + time.Duration(float64(ends.Sub(begins))*resetSpread*float64(uint32(key))/(1<<32))
}

// Month is that of a rate: 30 days.
const Month = 30 * 24 * time.Hour
