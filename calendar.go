package shield

import (
	"fmt"
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

// calendarEpoch is when instants of buckets begin that follow a calendar.
var calendarEpoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// A window is one period of a Calendar.
type window struct {
	begins, ends time.Duration
	until        time.Duration // then the clock is read again, as it may have been set
	at           time.Duration // its beginning by the clock, for buckets
	limit        limiter.Limit
}

// around returns the window that has an instant.
func (c *Calendar) around(t time.Time) (begins, ends time.Time) {
	in := c.In
	if in == nil {
		in = time.UTC
	}
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

// newWindow returns the window around now of a quota of so many tokens: a bucket that holds all of it, and takes the whole window to
// earn it. As long as the window lasts it is asked for its state at the beginning of that, where it has earned nothing.
func (c *Calendar) newWindow(now time.Duration, quota int) *window {
	t := At(now)
	begins, ends := c.around(t)
	w := &window{begins: now + begins.Sub(t), ends: now + ends.Sub(t), at: begins.Sub(calendarEpoch)}
	w.until = min(w.ends, now+time.Minute)
	w.limit, _ = limiter.New(limiter.Config{Rate: float64(quota), Per: w.ends - w.begins, Burst: quota}) // see check
	return w
}

// period returns the limit of a zone at now, and the instant for which its buckets are to be asked.
func (z *zone) period(now time.Duration) (limiter.Limit, time.Duration) {
	if z.calendar == nil {
		return z.limit, now
	}
	w := z.window.Load()
	if w == nil || now >= w.until || now < w.begins || w.limit.Burst() != z.limit.Burst() {
		if w = z.calendar.newWindow(now, z.limit.Burst()); z.settle != nil {
			w.limit = w.limit.WithDebt()
		}
		z.window.Store(w)
	}
	return w.limit, w.at
}

// reset returns how long a key without tokens has to wait for the next window, and a little longer: see resetSpread.
func (z *zone) reset(key limiter.Key, now time.Duration) time.Duration {
	w := z.window.Load()
	return max(1, w.ends-now) + time.Duration(float64(w.ends-w.begins)*resetSpread*float64(uint32(key))/(1<<32))
}

// check returns an error if a zone's limit does not fit its Calendar.
func (c *Calendar) check(z *Zone) error {
	per, name := 24*time.Hour, "day"
	if c.Month {
		per, name = Month, "month"
	}
	switch {
	case z.Limit.Per != per:
		return fmt.Errorf("rate is per %v, but the calendar's period is a %s; use a rate per %[2]s", z.Limit.Per, name)
	case z.Limit.Rate > 1e12: // the shortest day earns that in less than a token per nanosecond
		return fmt.Errorf("rate is %v per %s; use at most 1e12 with a calendar", z.Limit.Rate, name)
	case z.Limit.Burst != 0:
		return fmt.Errorf("burst is %d with a calendar; leave it out, because clients can use the whole quota in one burst", z.Limit.Burst)
	case z.Shared:
		return fmt.Errorf("a calendar's quota cannot be shared by replicas; use shared off, or a rate per %s without calendar", name)
	}
	return nil
}

// Month is that of a rate: 30 days.
const Month = 30 * 24 * time.Hour
