package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/oncall"
)

// A ring serves the page of a shield that has run for ten minutes, which take no time.
type ring struct {
	history  oncall.History
	reading  oncall.Facts
	seq      atomic.Uint64
	readOnly atomic.Bool
	began    time.Time
	more     chan struct{} // a second passes
}

// second adds a second in which the number n of requests is admitted.
func (r *ring) second(n uint64) {
	seq := r.seq.Load() + 1
	r.reading.Admitted += n
	r.history.Observe(seq, &r.reading)
	r.seq.Store(seq)
}

func (r *ring) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	out := json.NewEncoder(w)
	switch q.URL.Path {
	case "/shield/":
		html, policy := oncall.Page()
		w.Header().Set("Content-Security-Policy", policy)
		w.Write(html)
	case "/shield/live":
		since := uint64(0)
		fmt.Sscan(q.FormValue("since"), &since)
		for {
			seq := r.seq.Load()
			out.Encode(adminapi.Watch{
				Boot: "ring", Host: "web-1", Seq: seq, Now: r.began.Add(time.Duration(seq) * time.Second).UnixMilli(), MeanSeconds: 10,
				Status: adminapi.Status{
					ReadOnly: r.readOnly.Load(),
					Shields: []oncall.Situation{{Name: "shop", Mode: "enforce", Level: oncall.Good, Says: "shop admits all requests.", Facts: &oncall.Facts{
						Lately: new(oncall.Lately), Settings: []oncall.Setting{{Setting: "concurrency", Value: "9"}},
					}}},
				},
				Samples: map[string]oncall.Samples{"shop": r.history.Since(since)},
				Who: &adminapi.WhoStatus{WindowSeconds: 60, Shields: []adminapi.WhoList{{
					Name: "shop", Rejected: []adminapi.RejectedClient{{Client: "192.0.2.7", Handle: "7", LastMinute: 9}},
				}}},
			})
			if q.FormValue("follow") == "" || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-q.Context().Done():
				return
			case <-r.more:
				r.second(7)
			case <-time.After(time.Second): // it is alive
			}
			since = seq
		}
	default:
		http.NotFound(w, q)
	}
}

// The page has ten minutes from before it was opened, second by second, and drops them one by one. All
// of it is reached by the keyboard, in the order in which it is read.
func TestTenMinutes(t *testing.T) {
	t.Parallel()
	r := &ring{began: time.Now().Add(-oncall.Seconds * time.Second), more: make(chan struct{})}
	for n := range uint64(oncall.Seconds) {
		if n >= 300 && n < 310 { // the machine stood still
			r.seq.Add(1)
			continue
		}
		r.second(1000 + n)
	}
	r.history.Note(1, oncall.Plain, "the first second")
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	p := open(t, server.URL+"/shield/")
	p.shows("says", "shop admits all requests.")
	const column = `On.column("admitted")`
	if n := chromium.Eval[int](p.Tab, column+`.length`); n != oncall.Seconds {
		t.Errorf("the page shows %d seconds", n)
	}
	if wrong := chromium.Eval[string](p.Tab, column+`.map((v, n) => [v, n]).filter(([v, n]) => v !== (n >= 300 && n < 310 ? null : n === 310 ? Math.round((1000 + n) / 11) : 1000 + n)).join("; ")`); wrong != "" {
		t.Errorf("these seconds are wrong: %s", wrong)
	}
	at := chromium.Eval[string](p.Tab, `[...document.querySelectorAll("#event-list li")].find(e => e.textContent.includes("the first second")).querySelector("time").dateTime`)
	if when, err := time.Parse(time.RFC3339, at); err != nil || when.Sub(r.began.Add(time.Second)).Abs() > time.Second {
		t.Errorf("the first second was at %s, error %v; want %v", at, err, r.began.Add(time.Second))
	}
	// The area is as wide as the chart, with a stripe for the time without samples.
	const drawn = `(() => {
		const wide = e => e.getBBox().width, svg = document.querySelector("#flow svg");
		const axis = Math.max(...[...svg.querySelectorAll(".axis")].map(wide)), area = Math.max(...[...svg.querySelectorAll("path:not(.axis, .grid)")].map(wide));
		return [area / axis, svg.querySelectorAll("rect.span").length];
	})()`
	if got := chromium.Eval[[]float64](p.Tab, drawn); got[0] < 0.99 || got[0] > 1.01 || got[1] != 1 {
		t.Errorf("the part of the axis with an area, and stripes: %v", got)
	}
	p.Do(chromedp.Focus("#flow svg"), chromedp.KeyEvent(kb.Home))
	if said := chromium.Eval[string](p.Tab, `document.querySelector("#flow output").textContent`); !strings.HasSuffix(said, ": admitted 1,000/s") {
		t.Errorf("in the first second the chart says %q", said)
	}
	p.Do(chromedp.KeyEvent(kb.Escape))
	const changing = `[...document.querySelectorAll("main button")].filter(b => b.checkVisibility()).map(b => b.textContent).join()`
	p.Eventually(10*time.Second, "the page offers what there is to do", func() bool { // the clients come with a response of their own
		return chromium.Eval[string](p.Tab, changing) == "Why?,Forgive,Block,Why?,Forgive,Block,Set a limit…,Set the mode…"
	})
	walk(t, p)
	for range 60 {
		r.more <- struct{}{}
	}
	p.Eventually(10*time.Second, "a minute later the first minute is gone", func() bool {
		return chromium.Eval[string](p.Tab, column+`.at(0) + " " + `+column+`.at(-1) + " " + `+column+`.length`) == fmt.Sprintf("1060 7 %d", oncall.Seconds)
	})
	p.Behaved("")

	// Where nothing may be changed, the page offers nothing that does.
	r.readOnly.Store(true)
	p.Do(chromedp.Navigate(server.URL+"/shield/#shop"), chromedp.Reload())
	p.shows("do-note", "read only")
	p.Eventually(10*time.Second, "where it is read only, the page offers only explanations", func() bool {
		return chromium.Eval[string](p.Tab, changing) == "Why?,Why?"
	})
}

// walk presses Tab until all that can be reached has been.
func walk(t *testing.T, p *tab) {
	t.Helper()
	const all = `[...document.querySelectorAll("a[href], button, input, [tabindex='0']")].filter(e => e.checkVisibility())`
	n := chromium.Eval[int](p.Tab, `(document.activeElement.blur(), window.stops = `+all+`, stops.length)`)
	p.Do(chromedp.Evaluate[chromedp.Void](`document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute("tabindex")`))
	for i := range n {
		p.Do(chromedp.KeyEvent(kb.Tab))
		const is = `(() => { const e = document.activeElement, s = getComputedStyle(e); return stops.indexOf(e) + " " + (s.outlineStyle !== "none") + " " + e.outerHTML.slice(0, 80) })()`
		if got := chromium.Eval[string](p.Tab, is); !strings.HasPrefix(got, fmt.Sprint(i, " true ")) {
			t.Errorf("Tab number %d of %d goes to %s; want the next in the page, which is seen to have the focus", i+1, n, got)
		}
	}
	if n < 15 {
		t.Errorf("%d stops", n)
	}
}
