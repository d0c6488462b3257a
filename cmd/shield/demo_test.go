package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/loadtest/live"
)

// smallPlan is a demo of a few seconds: 40 clients within half a second before
// a backend that serves 40 per second.
func smallPlan() plan {
	return plan{
		backend: live.BackendConfig{Workers: 4, Service: 100 * time.Millisecond, Crowd: 10, MaxSlowdown: 3, Queue: 400},
		herd: live.HerdConfig{
			Clients: 40, Window: 500 * time.Millisecond, Timeout: 300 * time.Millisecond,
			RetryDelay: 100 * time.Millisecond, Attempts: 5, Patience: 5 * time.Second,
		},
		shield: shieldJSON(30, 4, 6),
	}
}

// The test leaves out what a busy machine can spoil: that shield serves every
// client is checked by the demo itself, and without a machine in package live.
func TestDemoWithFewClients(t *testing.T) {
	var out bytes.Buffer
	runs, err := smallPlan().compare(t.Context(), screen{w: &out})
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 2 {
		t.Fatalf("%d runs, want 2", len(runs))
	}
	for _, r := range runs {
		t.Logf("%s: %+v %+v", r.Name, r.Herd, r.Backend)
		h := r.Herd
		if h.Served+h.GaveUp != h.Clients || h.Clients != 40 {
			t.Errorf("%s: %d served + %d gave up, %d clients; want 40", r.Name, h.Served, h.GaveUp, h.Clients)
		}
		answers := h.TimedOut + h.Unreachable
		for _, n := range h.Answers {
			answers += n
		}
		if h.Attempts != answers {
			t.Errorf("%s: %d attempts, %d outcomes; want the same", r.Name, h.Attempts, answers)
		}
		if h.Unreachable > 0 {
			t.Errorf("%s: Caddy was unreachable %d times, want 0", r.Name, h.Unreachable)
		}
	}
	without, with := runs[0], runs[1]
	if without.Herd.TimedOut == 0 || without.Backend.Wasted == 0 {
		t.Errorf("without shield: %d time-outs, %d wasted; want some: Caddy must pass on that a client has gone", without.Herd.TimedOut, without.Backend.Wasted)
	}
	if with.Herd.Answers[429]+with.Herd.Answers[503] == 0 {
		t.Errorf("with shield: answers are %v; want some refusals", with.Herd.Answers)
	}
	if with.Herd.Served < without.Herd.Served || with.Backend.Peak > without.Backend.Peak {
		t.Errorf("with shield: %d served, peak %d; without it %d, %d; want no worse", with.Herd.Served, with.Backend.Peak, without.Herd.Served, without.Backend.Peak)
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
	err := smallPlan().run(ctx, screen{w: out, terminal: true})
	if err == nil || err.Error() != "stopped before the end: interrupt" {
		t.Errorf("error is %v, want: stopped before the end: interrupt", err)
	}
	for _, want := range []string{"40 clients", "1. Without shield", "clients still trying when stopped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "2. With shield") {
		t.Errorf("the second part began after the end:\n%s", out)
	}
}

func TestDemoSaysThatCaddyDidNotStart(t *testing.T) {
	p := smallPlan()
	_, err := p.part(t.Context(), screen{w: io.Discard}, []json.RawMessage{[]byte(`{"handler": "nonesuch"}`)})
	if err == nil || !strings.Contains(err.Error(), "starting Caddy: ") || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("error is %v; want it to say that Caddy did not start, and why", err)
	}
}

func TestDemoChecksItsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--clients 49":     "--clients is 49; want 50 to 1000",
		"--clients 1001":   "--clients is 1001; want 50 to 1000",
		"--clients -1":     "--clients is -1; want 50 to 1000",
		"--clients many":   `invalid argument "many" for "--clients"`,
		"--client 50":      "unknown flag: --client",
		"--clients 50 now": "unknown command",
	} {
		cmd := &cobra.Command{Use: "demo", SilenceUsage: true, SilenceErrors: true}
		demoCommand(cmd)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("demo %s: error is %v; want %q in it", args, err, want)
		}
	}
}

func TestPlanFitsItsTime(t *testing.T) {
	for clients := 50; clients <= 1000; clients++ {
		p := newPlan(clients)
		if b, err := live.NewBackend(p.backend); err != nil {
			t.Errorf("%d clients: %v", clients, err)
		} else {
			b.Close()
		}
		h := p.herd
		h.URL = "http://127.0.0.1"
		if _, err := live.NewHerd(h); err != nil {
			t.Errorf("%d clients: %v", clients, err)
		}
		if got, want := p.backend.Capacity(), float64(clients)/3; math.Abs(got-want) > 0.001 {
			t.Errorf("%d clients: capacity is %v, want %v", clients, got, want)
		}
		if !json.Valid(p.shield) {
			t.Errorf("%d clients: shield's config is not JSON: %s", clients, p.shield)
		}
		if longest := 2 * (h.Window + h.Patience + h.Timeout); longest > maxDemo-5*time.Second {
			t.Errorf("%d clients: two herds may take %v; want 5 s less than %v", clients, longest, maxDemo)
		}
	}
}

func TestJudge(t *testing.T) {
	run := func(served, peak, wasted int) live.Run {
		return live.Run{Herd: live.Result{Clients: 10, Served: served}, Backend: live.Stats{Peak: peak, Wasted: wasted}}
	}
	for _, s := range []struct {
		name          string
		without, with live.Run
		want          string // "" for no error
	}{
		{"a collapse, and none", run(2, 90, 40), run(10, 4, 0), ""},
		{"the backend held both times", run(10, 9, 0), run(10, 9, 0), "there is nothing to see"},
		{"better is not enough", run(2, 90, 40), run(9, 4, 0), "9 of 10 clients were served; want all"},
		{"fewer served", run(10, 90, 0), run(9, 4, 0), "9 clients were served, without it 10"},
		{"more inside", run(2, 4, 0), run(10, 5, 0), "5 requests were inside the backend, without it 4"},
		{"more wasted", run(2, 9, 0), run(10, 5, 1), "wasted 1 requests, without it 0"},
	} {
		t.Run(s.name, func(t *testing.T) {
			err := judge(s.without, s.with)
			if (err == nil) != (s.want == "") || err != nil && !strings.Contains(err.Error(), s.want) {
				t.Errorf("judge = %v, want %q in it", err, s.want)
			}
		})
	}
}
