package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
)

// smallPlan is a demo of a few seconds: 40 clients within a twentieth of a second
// before a backend that serves 40 per second.
func smallPlan() plan {
	return plan{
		backend: live.BackendConfig{Config: plant.Config{Workers: 4, Coherency: 1.0 / 5, Slowest: 5, Queue: 400}, Service: 100 * time.Millisecond},
		herd: live.LoadConfig{
			Herd: 40, Within: 50 * time.Millisecond, Even: true, Timeout: 1100 * time.Millisecond,
			Mix: plainClients(100 * time.Millisecond), Attempts: 2, Patience: 5 * time.Second,
			FirstAddress: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
		},
		limit: limiter.Config{Rate: 30},
	}
}

// The test leaves out what a busy machine can spoil: that shield serves every
// client is checked by the demo, and without a machine in package live.
func TestDemoWithFewClients(t *testing.T) {
	t.Parallel()
	p := smallPlan()
	runs, errs := make([]demoRun, 3), make([]error, 3)
	var all sync.WaitGroup
	for i, part := range p.parts() { // at once: they mostly wait
		all.Go(func() {
			runs[i], errs[i] = p.part(t.Context(), io.Discard, false, part)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		h := r.Herd.All
		t.Logf("%s: %+v %+v", r.Name, h, r.Backend)
		if h.Served+h.GaveUp != 40 || h.Clients != 40 || h.Unreachable > 0 {
			t.Errorf("%s: %d of %d clients served, %d gave up, %d times the proxy was unreachable; want 40 in all, and 0", r.Name, h.Served, h.Clients, h.GaveUp, h.Unreachable)
		}
		if r.Backend.Served < h.Served {
			t.Errorf("%s: the backend has served %d of %d that were served", r.Name, r.Backend.Served, h.Served)
		}
	}
	without, usual, with := runs[0], runs[1], runs[2]
	if without.Herd.All.TimedOut == 0 || without.Backend.Wasted == 0 {
		t.Errorf("without shield: %d timeouts, %d wasted; want some: the proxy must pass on that a client has gone", without.Herd.All.TimedOut, without.Backend.Wasted)
	}
	if told := usual.Herd.All.Told; told.Min != time.Second || told.Max != time.Second {
		t.Errorf("the usual limiter tells clients to wait %v to %v; want all 1 s", told.Min, told.Max)
	}
	for _, r := range []demoRun{usual, with} {
		if r.Herd.All.Responses["503"] == 0 {
			t.Errorf("%s: answers are %v; want some rejections", r.Name, r.Herd.All.Responses)
		}
		if r.Backend.Peak > without.Backend.Peak {
			t.Errorf("%s: peak %d, %s: %d; want no more", r.Name, r.Backend.Peak, without.Name, without.Backend.Peak)
		}
	}
	// On a busy machine few clients time out in one run and not in the other, so the two
	// limiters cannot be told apart here. If clients of shield's time out, the machine was too
	// slow to play them.
	if with.Herd.All.TimedOut == 0 && with.Herd.All.Served <= without.Herd.All.Served {
		t.Errorf("with shield: %d served; without: %d; want more", with.Herd.All.Served, without.Herd.All.Served)
	}
}

// A canceller ends a demo at its first sign of progress.
type canceller struct {
	strings.Builder
	cancel context.CancelCauseFunc
}

func (c *canceller) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("trying")) {
		c.cancel(errors.New("interrupt"))
	}
	return c.Builder.Write(p)
}

func TestDemoStopsWithWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	out := &canceller{cancel: cancel}
	err := smallPlan().run(ctx, out, true)
	if err == nil || err.Error() != "stopped before the end: interrupt" {
		t.Errorf("error is %v, want: stopped before the end: interrupt", err)
	}
	for _, want := range []string{"40 clients", "1. Without a limit", "still trying when stopped", "never"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "2. With a limiter") {
		t.Errorf("the second part began after the end:\n%s", out)
	}
}

func TestJudge(t *testing.T) {
	run := func(served, attempts int) demoRun {
		return demoRun{
			Herd: herdOf(live.Tally{Clients: 10, Served: served, Requests: attempts}),
		}
	}
	collapse, usual := run(2, 60), run(7, 40)
	for _, s := range []struct {
		name          string
		without, with demoRun
		want          string // "" for no error
	}{
		{"a collapse, and none", collapse, run(10, 18), ""},
		{"the backend held without a limit", run(10, 60), run(10, 18), "there is nothing to see"},
		{"better is not enough", collapse, run(9, 18), "9 of 10 clients were served; all should be"},
		{"as many requests as without computing", collapse, run(10, 40), "sent 40 requests, and with the usual limiter 40; it should be fewer"},
	} {
		t.Run(s.name, func(t *testing.T) {
			err := judge(s.without, usual, s.with)
			if (err == nil) != (s.want == "") || err != nil && !strings.Contains(err.Error(), s.want) {
				t.Errorf("judge = %v, want %q in it", err, s.want)
			}
		})
	}
}
