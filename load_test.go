package shield

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// The load is the part of the permits in use, with those who wait in the queue, and the seconds of the appointments.
func TestLoadOfPermits(t *testing.T) {
	g := mustNew(t, Config{Concurrency: 20, Queue: loadshed.QueueConfig{Size: 10, Timeout: time.Second}}, nil)
	now := time.Minute
	want := func(what string, load float64) {
		t.Helper()
		if got := g.Load(now); math.Abs(got-load) > 1e-9 {
			t.Errorf("%s: load is %v, want %v", what, got, load)
		}
	}
	want("idle", 0)
	var held []Decision
	admit := func(n int) (last Decision) {
		for range n {
			last = g.Admit(now, one(len(held)+1))
			held = append(held, last)
		}
		return last
	}
	admit(10)
	want("10 in flight", .5)
	admit(10)
	want("20 in flight", 1)
	admit(10)
	want("10 in the queue besides", 1.5)
	d := admit(1)
	want("and one rejected", 1.5+d.Wait.Seconds())
	if d.Admit || d.Wait < time.Second {
		t.Errorf("%+v; want a client with an appointment", d)
	}
	for i := range held {
		if held[i].Queued() {
			g.Abandon(now, &held[i])
		} else if held[i].Admit {
			held[i].Done(now, Served)
		}
	}
	now += d.Wait
	want("all have gone, and the appointment is over", 0)
}

// The load of a capacity is the part that was admitted of late; that of several limits is the highest.
func TestLoadOfCapacity(t *testing.T) {
	for _, c := range []struct {
		config    Config
		perSecond int
		want      float64
	}{
		{Config{Capacity: perSecond(100, 10)}, 80, .8},
		{Config{Capacity: perSecond(100, 10)}, 10, .1},
		{Config{Capacity: limiter.Config{Rate: 6000, Per: time.Minute, Burst: 10}, Concurrency: 1000}, 50, .5},
		{Config{Capacity: perSecond(1000, 10), Concurrency: 2, Queue: noQueue}, 50, .5}, // one in flight
		{Config{Zones: []Zone{{Name: "z", Limit: perSecond(100, 10)}}}, 50, 0},
		{Config{Capacity: perSecond(100, 10), Observe: true}, 300, 1},
		{Config{Capacity: perSecond(100, 10), Shared: true, Secret: make([]byte, 16), Replicas: 4}, 20, .8},
	} {
		t.Run(fmt.Sprint(c.perSecond, c.config.Capacity), func(t *testing.T) {
			g := mustNew(t, c.config, nil)
			now, most, least := time.Hour, 0., 9.
			for i := range 5 * c.perSecond {
				now += time.Second / time.Duration(c.perSecond)
				d := g.Admit(now, one(i+1))
				if load := g.Load(now); i > 4*c.perSecond {
					most, least = max(most, load), min(least, load)
				}
				if d.Admit {
					d.Done(now, Served)
				}
			}
			if least < .9*c.want || most > 1.1*c.want {
				t.Errorf("load is %.3f to %.3f, want %v", least, most, c.want)
			}
			if load := g.Load(now + 10*time.Second); load > .01 {
				t.Errorf("load is %.3f ten seconds later, want none", load)
			}
		})
	}
}

// A burst is no more than all that the backend can take, if all are admitted. Above 1 the load says for how many seconds clients wait.
func TestLoadOfHerd(t *testing.T) {
	for _, c := range []struct{ burst, clients, perSecond int }{{100, 220, 180}, {10, 1000, 1e9}} {
		g, now := mustNew(t, Config{Capacity: perSecond(100, c.burst)}, nil), time.Hour
		var most float64
		var last time.Duration
		for i := range c.clients {
			d := g.Admit(now, one(i+1))
			d.Sent()
			most, last = max(most, g.Load(now)), max(last, d.Wait)
			now += time.Second / time.Duration(c.perSecond)
		}
		if herd := c.clients == 1000; herd != (last > 9*time.Second) || most < max(1, last.Seconds()) || most > max(1, last.Seconds()+1) {
			t.Errorf("%+v: load is up to %.2f, and the last comes in %v", c, most, last)
		}
	}
}
