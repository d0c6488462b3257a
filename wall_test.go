package shield

import (
	"testing"
	"time"
)

// setClock has the time of day differ by a step from the computer's, until the test ends.
func setClock(t *testing.T) (step func(by time.Duration)) {
	t.Helper()
	before := clock
	t.Cleanup(func() { clock = before })
	return func(by time.Duration) { clock = func() time.Time { return before().Round(0).Add(by) } }
}

// The time of day of any instant is by the clock as it shows now, and not by what it showed
// when the process began.
func TestTimeOfDayFollowsTheClock(t *testing.T) {
	step := setClock(t)
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		step(by)
		for _, ahead := range []time.Duration{0, time.Minute, -time.Minute} {
			if off := At(Now() + ahead).Sub(time.Now().Round(0).Add(by + ahead)).Abs(); off > time.Second {
				t.Errorf("after a step by %v, %v from now is off by %v", by, ahead, off)
			}
		}
	}
}

// Replicas whose clocks agree honour each other's tickets, however wrong the clock of one was
// before it was set; while it is wrong it honours none. Its own promises hold meanwhile.
func TestTicketsWhenTheClockIsSet(t *testing.T) {
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(wrong.String(), func(t *testing.T) {
			step := setClock(t)
			const secret = "the secret of both"
			now := time.Hour
			one, other := signing(t, secret, now), signing(t, secret, now)
			right := At(0) // the clock of the other one is never set
			other.terms.Wall = func(now time.Duration) time.Time { return right.Add(now) }

			// A client of each, to come when the clock of one is wrong.
			mine, theirs := one.Admit(now, bearer(7, "")), other.Admit(now, bearer(8, ""))
			if mine.Ticket == "" || theirs.Ticket == "" {
				t.Fatalf("%+v, %+v; want refusals with tickets", mine, theirs)
			}
			step(wrong)
			now += max(mine.Wait, theirs.Wait)
			if d := one.Admit(now, bearer(7, mine.Ticket)); !d.Admit || one.backend.Stats(now).Promises.Kept != 1 {
				t.Errorf("a promise from before the clock was set is not kept: %+v", d)
			}
			empty(one, now)
			now += 101 * ms
			empty(one, now)
			if d := one.Admit(now, bearer(8, theirs.Ticket)); d.Admit {
				t.Error("a ticket was honoured an hour from its time")
			}
			atWrong := one.Admit(now, bearer(9, ""))

			// The clock is set right: those of the other replica are worth something again.
			step(0)
			now += 10 * time.Second
			empty(other, now)
			theirs = other.Admit(now, bearer(10, ""))
			due := now + theirs.Wait
			empty(one, due-3*time.Second)
			if d := one.Admit(due-3*time.Second, bearer(10, theirs.Ticket)); d.Reason != Early {
				t.Errorf("3 s before its time: %+v, want told the rest", d)
			}
			empty(one, due)
			if d := one.Admit(due, bearer(10, theirs.Ticket)); !d.Admit {
				t.Errorf("at its time: %+v, want admitted", d)
			}
			due += 101 * ms
			empty(one, due)
			for name, ticket := range map[string]string{"used": theirs.Ticket, "of the wrong time": atWrong.Ticket} {
				one.backend.clients.Forgive(0, 10)
				r := bearer(10, ticket)
				if ticket == atWrong.Ticket {
					r = bearer(9, ticket)
					one.backend.clients.Forgive(0, 9)
				}
				if d := one.Admit(due, r); d.Admit {
					t.Errorf("a ticket that was %s is honoured", name)
				}
			}
		})
	}
}
