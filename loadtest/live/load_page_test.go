package live

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

func TestWriteHTML(t *testing.T) {
	c, r := shown()
	r.Herd.Waits, r.Others.Waits = sim.WaitsOf(make([]int64, 90), 100), sim.WaitsOf(make([]int64, 60), 60)
	r.Broken = "</script><script>alert(1)</script>"
	var page, again, svg strings.Builder
	if err := errors.Join(c.Page(r).WriteHTML(&page), c.Page(r).WriteHTML(&again), c.Page(r).WriteSVG(&svg)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<h1>shield loadtest: http://127.0.0.1:1/</h1>", "150 of 160 clients were served (93.8 %); 10 were not.", "75 % exact, 25 % never returns",
		"2.35 s; seed 7", "<td>90 (90.0 %)</td>", "<td>1.00 ms</td>", "too many open files", "stopped", "Retry-After told to 109 of 110 refused",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if n := strings.Count(page.String(), "<script"); n != 3 || page.String() != again.String() {
		t.Errorf("the page has %d scripts; want 3, and the same page each time", n)
	}
	for _, want := range []string{"90 % of 100 served: 50 % within 0.00 s, 90 % within 0.00 s, 10 % not", "the herd", "others", "not served", "Grey: the herd comes from 1s to 1.1s."} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	r.Seconds = nil
	for _, write := range []func(io.Writer) error{c.Page(r).WriteHTML, c.Page(r).WriteSVG} {
		if err := write(io.Discard); !errors.Is(err, report.ErrNothing) {
			t.Errorf("error is %v; want %v", err, report.ErrNothing)
		}
	}
}

// Clients that were not served are in the Waits of a run.
func TestWaitsOfARun(t *testing.T) {
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) > 3 {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	target, err := NewTarget(t.Context(), srv.URL, false)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoad(LoadConfig{Target: target, Proto: H1, Herd: 10, Mix: clients.All(clients.GiveUp{}), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := l.Run(t.Context())
	w := r.All.Waits
	if r.All.Clients != 10 || len(w) != 1001 || w[300] == sim.Never || w[300] > r.All.Wait.Max || w[301] != sim.Never {
		t.Errorf("of %d clients %d were served, 30 %% within %v and the next within %v; want the next never", r.All.Clients, r.All.Served, w[300], w[301])
	}
}
