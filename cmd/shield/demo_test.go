package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

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
			Mix: plainClients(100 * time.Millisecond), Attempts: 3, Patience: 5 * time.Second,
			FirstAddress: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
		},
		limit: limiter.Config{Rate: 30, Per: time.Second},
	}
}

// The test leaves out what a busy machine can spoil: that shield serves every
// client is checked by the demo, and without a machine in package live.
func TestDemoWithFewClients(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	runs, err := smallPlan().compare(t.Context(), screen{w: &out})
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 3 {
		t.Fatalf("%d runs, want 3", len(runs))
	}
	for _, r := range runs {
		h := r.Herd.All
		h.Waits = nil // too long to read
		t.Logf("%s: %+v %+v", r.Name, h, r.Backend)
		if h.Served+h.GaveUp != h.Clients || h.Clients != 40 {
			t.Errorf("%s: %d served + %d gave up, %d clients; want 40", r.Name, h.Served, h.GaveUp, h.Clients)
		}
		answers := h.TimedOut + h.Unreachable
		for _, n := range h.Answers {
			answers += n
		}
		if h.Requests != answers {
			t.Errorf("%s: %d attempts, %d outcomes; want the same", r.Name, h.Requests, answers)
		}
		if h.Unreachable > 0 {
			t.Errorf("%s: Caddy was unreachable %d times, want 0", r.Name, h.Unreachable)
		}
	}
	without, usual, with := runs[0], runs[1], runs[2]
	if without.Herd.All.TimedOut == 0 || without.Backend.Wasted == 0 {
		t.Errorf("without shield: %d time-outs, %d wasted; want some: Caddy must pass on that a client has gone", without.Herd.All.TimedOut, without.Backend.Wasted)
	}
	for _, r := range []demoRun{usual, with} {
		if r.Herd.All.Answers["503"] == 0 {
			t.Errorf("%s: answers are %v; want some refusals", r.Name, r.Herd.All.Answers)
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

func TestUsualLimiter(t *testing.T) {
	served := 0
	p := plan{limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: 2}}
	h := p.usual(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for i, want := range []string{"", "", "3600", "3600"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		// A second may pass on a slow machine.
		if got := w.Header().Get("Retry-After"); got != want && !(want != "" && got == "3599") {
			t.Errorf("request %d: Retry-After is %q, want %q", i+1, got, want)
		}
		if refused := w.Code == http.StatusServiceUnavailable; refused != (want != "") {
			t.Errorf("request %d: status is %d", i+1, w.Code)
		}
	}
	if served != 2 {
		t.Errorf("%d passed on, want 2", served)
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
	for _, want := range []string{"40 clients", "1. Without a limit", "still trying when stopped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "2. With a limiter") {
		t.Errorf("the second part began after the end:\n%s", out)
	}
}

func TestDemoSaysThatCaddyDidNotStart(t *testing.T) {
	p := smallPlan()
	_, err := p.part(t.Context(), screen{w: io.Discard}, part{directive: "nonesuch"})
	if err == nil || !strings.Contains(err.Error(), "starting Caddy: ") || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("error is %v; want it to say that Caddy did not start, and why", err)
	}
}

func TestDemoChecksItsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--clients 49":     "--clients is 49; want 50 to 1000",
		"--clients 1001":   "--clients is 1001; want 50 to 1000",
		"--clients -1":     "--clients is -1; want 50 to 1000",
		"--clients 50 now": `arguments are ["now"]; want none`,
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
		var err error
		if h.Target, err = live.NewTarget(t.Context(), "http://127.0.0.1", false); err != nil {
			t.Fatal(err)
		}
		if _, err := live.NewLoad(h); err != nil {
			t.Errorf("%d clients: %v", clients, err)
		}
		if got, want := p.backend.Capacity(), float64(clients)/3; math.Abs(got-want) > 0.001 {
			t.Errorf("%d clients: capacity is %v, want %v", clients, got, want)
		}
		if _, err := adapt(fmt.Sprintf(demoCaddyfile, p.parts()[2].directive, "127.0.0.1:1", idleConns)); clients%50 == 0 && err != nil {
			t.Errorf("%d clients: %v", clients, err)
		}
		if _, err := limiter.NewCapacity(p.limit); err != nil {
			t.Errorf("%d clients: %v", clients, err)
		}
		if longest := 3 * (h.Within + h.Patience + 2*h.Timeout); longest > maxDemo-3*time.Second {
			t.Errorf("%d clients: three herds may take %v; want 3 s less than %v", clients, longest, maxDemo)
		}
	}
}

func TestJudge(t *testing.T) {
	run := func(served, attempts, peak, busiest, wasted int) demoRun {
		return demoRun{
			Herd:    herdOf(live.Tally{Clients: 10, Served: served, Requests: attempts}),
			Backend: live.Stats{Peak: peak, Busiest: busiest, Wasted: wasted},
		}
	}
	collapse, usual := run(2, 60, 90, 30, 40), run(7, 40, 5, 12, 0)
	for _, s := range []struct {
		name          string
		without, with demoRun
		want          string // "" for no error
	}{
		{"a collapse, and none", collapse, run(10, 18, 4, 11, 0), ""},
		{"the backend held without a limit", run(10, 60, 9, 30, 0), run(10, 18, 4, 11, 0), "there is nothing to see"},
		{"better is not enough", collapse, run(9, 18, 4, 11, 0), "9 of 10 clients were served; want all"},
		{"as many requests as without computing", collapse, run(10, 40, 4, 11, 0), "sent 40 requests, with the usual limiter 40; want fewer"},
		{"more sent", run(2, 17, 90, 30, 40), run(10, 18, 4, 11, 0), "requests sent were 18, without a limit 17"},
		{"more inside", run(2, 60, 3, 30, 0), run(10, 18, 4, 11, 0), "inside the backend were 4, without a limit 3"},
		{"more in a second", run(2, 60, 90, 10, 40), run(10, 18, 4, 11, 0), "in one second were 11, without a limit 10"},
		{"more wasted", run(2, 60, 90, 30, 0), run(10, 18, 4, 11, 1), "in vain were 1, without a limit 0"},
	} {
		t.Run(s.name, func(t *testing.T) {
			err := judge(s.without, usual, s.with)
			if (err == nil) != (s.want == "") || err != nil && !strings.Contains(err.Error(), s.want) {
				t.Errorf("judge = %v, want %q in it", err, s.want)
			}
		})
	}
}
