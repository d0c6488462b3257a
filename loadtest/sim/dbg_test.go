package sim

import (
	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
	"testing"
	"time"
)

type dbg struct {
	leveled
	t            *testing.T
	next         time.Duration
	adm, fr, str int
}

func (d *dbg) Arrive(now time.Duration, r Request) Answer {
	a := d.leveled.Arrive(now, r)
	if a.Admit {
		d.adm++
		if r.Attempt == 1 {
			d.fr++
		}
	} else if r.Attempt == 1 {
		d.str++
	}
	if now > d.next {
		dump := ""
		if pushback.Simple {
			dump = d.Server.(*Guarded).State.Backend.Dump()
		}
		d.t.Logf("%v adm %d first %d firstref %d over %.0f %s", now.Round(time.Second), d.adm, d.fr, d.str, d.overflowed, dump)
		d.next = now + 4*time.Second
		d.adm, d.fr, d.str = 0, 0, 0
	}
	return a
}
func TestDbgSim(t *testing.T) {
	s := Herd("", 5000, 0)
	s.Seed = 1
	if testing.Short() {
		s = Herd("", 20000, 0)
		s.Seed = 1
	}
	_, err := Run(s, func(c shield.Config) (Server, error) {
		sv, err := Guard(c)
		d := &dbg{t: t}
		d.Server = sv
		d.follow(c.Capacity, true)
		d.herdAt = int64(defaultWarmup)
		return d, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
