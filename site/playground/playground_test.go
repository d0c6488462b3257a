package playground

import (
	"math"
	"testing"
)

// What the playground is there to show: clients that are given appointments are all served, in the least time, with few requests.
func TestAppointmentsServeAll(t *testing.T) {
	play := func(retryAfter string, obey float64) Outcome {
		o, err := Play(Controls{Clients: 2500, Capacity: 100, Obey: obey, RetryAfter: retryAfter})
		if err != nil {
			t.Fatal(err)
		}
		arrived, done := 0, 0
		for i := range o.Arrived {
			arrived, done = arrived+int(o.Arrived[i]), done+int(o.Done[i])
		}
		if done != o.Served || o.Served+o.GaveUp != 2500 || arrived != int(math.Round(2500*o.PerClient)) {
			t.Errorf("%s: the curves have %d requests and %d served, the figures %v and %d, and %d gave up", retryAfter, arrived, done, 2500*o.PerClient, o.Served, o.GaveUp)
		}
		return o
	}
	fixed, random, shield := play(Fixed, 1), play(Random, 1), play(Appointments, 1)
	if shield.Served != 2500 || shield.Until < 24 || shield.Until > 30 || shield.PerClient > 2.1 {
		t.Errorf("shield has served %d of 2,500 in %v s, with %v requests each", shield.Served, shield.Until, shield.PerClient)
	}
	if fixed.Served >= random.Served || random.Served >= shield.Served || fixed.Until != 0 || random.Until != 0 {
		t.Errorf("served are %d, %d and %d", fixed.Served, random.Served, shield.Served)
	}
	if half := play(Appointments, 0.5); half.Served >= 2500 || half.Served <= play(Fixed, 0.5).Served {
		t.Errorf("shield has served %d of 2,500 if half obey", half.Served)
	}
	if fixed, shield := play(Fixed, 0), play(Appointments, 0); shield.Served > fixed.Served {
		t.Errorf("shield has served %d of 2,500 that do not listen, and a usual limiter %d", shield.Served, fixed.Served)
	}
}

// What the page says of its clients and its backend can be read off its figures: each client tries six times at most, those that don't honor
// Retry-After wait at least half of 1, 2, 4, 8 and 16 s instead, and a request takes a backend that is idle as long whatever its capacity.
func TestClientsAndBackend(t *testing.T) {
	play := func(c Controls) Outcome {
		o, err := Play(c)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	came := func(o Outcome, from, to float64) (n int32) {
		for i, some := range o.Arrived {
			if at := float64(i) * o.Step; at > from-o.Step/2 && at < to-o.Step/2 {
				n += some
			}
		}
		return n
	}
	for _, retryAfter := range []string{Fixed, Random, Appointments} {
		for _, obey := range []float64{0, 0.5} {
			// Nearly all of 5,000 give up in front of a backend that can serve ten per second.
			if o := play(Controls{Clients: 5000, Capacity: 10, Obey: obey, RetryAfter: retryAfter}); o.PerClient < 5.5 || o.PerClient > 6 {
				t.Errorf("%s, %v honor it: clients that nearly all give up send %v requests each; want more than 5.5, and at most 6", retryAfter, obey, o.PerClient)
			}
		}
	}
	o := play(Controls{Clients: 5000, Capacity: 10, RetryAfter: Fixed})
	if early, first, pause, second := came(o, 0.1, 0.5), came(o, 0.5, 1.2), came(o, 1.2, 1.5), came(o, 1.5, 3.2); early > 0 || first < 4900 || pause > 0 || second < 4800 {
		t.Errorf("clients that don't honor Retry-After retry %d times within 0.5 s, %d times until 1.2 s, %d until 1.5 s, %d until 3.2 s", early, first, pause, second)
	}
	if last := float64(len(o.Arrived)) * o.Step; last < 28 || last > 31.5 {
		t.Errorf("the last of them retries after %v s; want at most 1 + 2 + 4 + 8 + 16 s, and not much less", last)
	}
	// It arrives within 0.1 s, and has 0.01 s of network and 0.1 s of work.
	alone := func(capacity float64) float64 {
		return play(Controls{Clients: 1, Capacity: capacity, RetryAfter: Fixed}).Until
	}
	if took := alone(10); took < 0.11 || took > 0.21 || alone(100) != took || alone(500) != took {
		t.Errorf("a client alone is served after %v, %v and %v s, by backends of 10, 100 and 500 requests/s", took, alone(100), alone(500))
	}
}

func TestControlsAreChecked(t *testing.T) {
	good := Controls{Clients: 1, Capacity: 10, RetryAfter: Fixed}
	for want, set := range map[string]func(*Controls){
		"clients is 5001; use 1 to 5000":                             func(c *Controls) { c.Clients = 5001 },
		"capacity is 9; use 10 to 1000":                              func(c *Controls) { c.Capacity = 9 },
		"obey is 1.5; use 0 to 1":                                    func(c *Controls) { c.Obey = 1.5 },
		`unknown Retry-After "x"; use fixed, random or appointments`: func(c *Controls) { c.RetryAfter = "x" },
	} {
		c := good
		set(&c)
		if _, err := Play(c); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}
