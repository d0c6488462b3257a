package site

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/site/playground"
)

const dist = "../../../site/dist"

type tab struct{ *chromium.Tab }

func open(t *testing.T, address string) *tab {
	t.Helper()
	chromium.Needs(t, dist+"/index.html", "bash site/build")
	return &tab{chromium.Open(t, address)}
}

func served(t *testing.T) string {
	server := httptest.NewServer(http.FileServer(http.Dir(dist)))
	t.Cleanup(server.Close)
	return server.URL
}

const (
	shadow = `document.querySelector("shield-playground").shadowRoot`
	table  = shadow + `.querySelector("table").innerText`
)

func get(id string) string { return fmt.Sprintf(`%s.getElementById(%q)`, shadow, id) }

// set moves a control to a value, as a visitor's input does.
func (p *tab) set(id, value string) {
	p.Helper()
	chromium.Eval[bool](p.Tab, fmt.Sprintf(`(e => { e.value = %q; return e.dispatchEvent(new Event("input", { bubbles: true })); })(%s)`, value, get(id)))
}

// shows waits until the page has the figures of the two limiters for what the controls say.
func (p *tab) shows() {
	p.Helper()
	var c struct {
		Clients        int
		Capacity, Obey float64
		First, Second  string
	}
	read := fmt.Sprintf(`JSON.stringify(Object.fromEntries(["clients", "capacity", "obey", "first", "second"].map(id => [id, (v => isNaN(v) ? v : Number(v))(%s.getElementById(id).value)])))`, shadow)
	must.Do(p, json.Unmarshal([]byte(chromium.Eval[string](p.Tab, read)), &c))
	rows := make([]string, 4)
	for _, retryAfter := range []string{c.First, c.Second} {
		o := must.Get(playground.Play(playground.Controls{Clients: c.Clients, Capacity: c.Capacity, Obey: c.Obey / 100, RetryAfter: retryAfter}))(p)
		until := "never"
		if o.Until > 0 {
			until = fmt.Sprintf("%.1f s", o.Until)
		}
		for i, cell := range []string{thousands(o.Served), thousands(o.GaveUp), until, fmt.Sprintf("%.1f", o.PerClient)} {
			rows[i] += "\t" + cell
		}
	}
	is := ""
	defer func() {
		if p.Failed() {
			p.Logf("%+v: the page says\n%s\nwant%q", c, is, rows)
		}
	}()
	p.Eventually(30*time.Second, "the figures are those of the simulator", func() bool {
		is = chromium.Eval[string](p.Tab, table)
		for i, name := range []string{"Clients served", "Clients that gave up", "Time until all were served", "Requests per client"} {
			if !strings.Contains(is, name+rows[i]) {
				return false
			}
		}
		return true
	})
}

// plays waits until the playground is there, with the figures of what its controls say.
func (p *tab) plays() {
	p.Helper()
	p.Eventually(time.Minute, "the playground is there", func() bool {
		return chromium.Eval[bool](p.Tab, fmt.Sprintf(`!!document.querySelector("shield-playground")?.shadowRoot && %s.querySelectorAll("svg").length === 2`, shadow))
	})
	p.shows()
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// A visitor opens the playground as a file, or as the site's first page, and moves its controls.
func TestPlayground(t *testing.T) {
	t.Parallel()
	file := must.Get(filepath.Abs(dist + "/playground/playground.html"))(t)
	server := served(t)
	for name, address := range map[string]string{"file": "file://" + file, "alone": server + "/playground/playground.html", "site": server + "/"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, name, address)
		})
	}
}

func play(t *testing.T, name, address string) {
	p := open(t, address)
	p.plays()
	p.Picture(name + "-light")

	// The pointer drags the slider of the clients, in steps, and the page keeps up.
	box := strings.Split(chromium.Eval[string](p.Tab, fmt.Sprintf(`(e => { e.scrollIntoView({ block: "center" }); const b = e.getBoundingClientRect(); return [b.left, b.width, b.top + b.height / 2].join(); })(%s)`, get("clients"))), ",")
	var left, width, y float64
	must.Get(fmt.Sscan(strings.Join(box, " "), &left, &width, &y))(t)
	before := chromium.Eval[string](p.Tab, table)
	thumb := left + 8 + (width-16)*(1000-50)/(5000-50)
	p.Do(chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, thumb, y, chromedp.ButtonLeft))
	for i := range 20 {
		p.Do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, thumb+float64(i)*width*0.3/20, y, chromedp.ButtonLeft))
	}
	p.Do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, thumb+width*0.3, y, chromedp.ButtonLeft))
	if n := chromium.Eval[float64](p.Tab, get("clients")+`.valueAsNumber`); n < 2000 || n > 3500 {
		t.Errorf("the slider was dragged to %v clients", n)
	}
	p.shows()
	if chromium.Eval[string](p.Tab, table) == before {
		t.Error("a slider that was dragged changed nothing")
	}

	// Keys move another one, and both limiters can be chosen.
	chromium.Eval[bool](p.Tab, get("obey")+`.focus(), true`)
	p.Do(chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight))
	if n := chromium.Eval[float64](p.Tab, get("obey")+`.valueAsNumber`); n != 60 {
		t.Errorf("two keys made 50%% to %v%%", n)
	}
	p.shows()
	p.set("first", "random")
	p.set("second", "random")
	p.shows()
	p.set("first", "fixed")
	p.set("second", "appointments")
	p.set("obey", "100")
	p.set("clients", "2500")
	p.shows()
	if !strings.Contains(chromium.Eval[string](p.Tab, table), "2,500\n") {
		t.Errorf("shield has not served all clients, which obey: %s", chromium.Eval[string](p.Tab, table))
	}

	// The least of several runs: other programs can make a run late, never early.
	const took = `new Promise(done => {
		const e = document.querySelector("shield-playground"), all = [];
		e.addEventListener("played", ({ detail }) => { all.push(detail.took); all.length < 10 ? e.ask() : done(Math.min(...all)); });
		e.ask();
	})`
	least := chromium.Eval[float64](p.Tab, took)
	t.Logf("herds of 2,500 in front of both limiters: %.0f ms", least)
	if !(least < 1000) {
		t.Errorf("herds of 2,500 took %v ms; want less than a second", least)
	}

	p.Accessible("shield-playground", "light")
	p.View(1280, "dark")
	if name == "site" { // it follows its own switch, which starts with the system's
		p.Do(chromedp.Navigate("about:blank"), chromedp.Navigate(address))
		p.plays()
	}
	p.Eventually(10*time.Second, "the text of a chart is light, in the dark", func() bool {
		return chromium.Eval[string](p.Tab, `getComputedStyle(`+shadow+`.querySelector(".chart text")).fill`) == "rgb(169, 179, 193)"
	})
	p.Picture(name + "-dark")
	p.Accessible("shield-playground", "dark")

	p.View(390, "dark")
	p.Eventually(10*time.Second, "it fits a phone", func() bool { return chromium.Eval[bool](p.Tab, `document.documentElement.scrollWidth <= innerWidth`) })
	p.Picture(name + "-phone")

	p.Behaved("")
}

// embedded serves the playground in a page with nothing else, under a policy.
func embedded(t *testing.T, policy string) string {
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(dist)))
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		fmt.Fprint(w, `<!doctype html><link rel="icon" href="data:,"><script src="/playground/shield-playground.js"></script><shield-playground></shield-playground>`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// A page whose policy refuses what the playground needs says what to add, and with that it works.
func TestPlaygroundSaysWhatAPolicyRefuses(t *testing.T) {
	t.Parallel()
	const self = "default-src 'self'"
	for policy, want := range map[string]string{
		self:                        "This page doesn't allow workers; its Content-Security-Policy needs worker-src blob:",
		self + "; worker-src blob:": "This page doesn't allow WebAssembly; its Content-Security-Policy needs script-src 'wasm-unsafe-eval'",
		self + "; worker-src blob:; script-src 'self' 'wasm-unsafe-eval'": "",
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			p := open(t, embedded(t, policy))
			if want == "" {
				p.plays()
				if display := chromium.Eval[string](p.Tab, `getComputedStyle(`+shadow+`.querySelector("form")).display`); display != "grid" {
					t.Errorf("the controls are shown as %s; want a grid", display)
				}
				return
			}
			says := ""
			p.Eventually(30*time.Second, "the page no longer loads the simulator", func() bool {
				says = chromium.Eval[string](p.Tab, shadow+`.querySelector(".status").textContent`)
				return says != "Loading the simulator …"
			})
			if says != want {
				t.Errorf("the page says %q; want %q", says, want)
			}
		})
	}
}

// A page may move the playground while it plays, or remove it.
func TestPlaygroundIsMoved(t *testing.T) {
	t.Parallel()
	p := open(t, embedded(t, ""))
	p.plays()
	p.set("clients", "500")
	chromium.Eval[bool](p.Tab, `document.body.prepend(document.querySelector("shield-playground")), true`)
	p.plays()
	p.set("capacity", "50")
	p.shows()
	chromium.Eval[bool](p.Tab, `document.querySelector("shield-playground").remove(), true`)
	p.Behaved("")
}

// No page is wider than a phone: what is, such as a table, scrolls by itself.
func TestPagesFitAPhone(t *testing.T) {
	t.Parallel()
	address := served(t)
	p := open(t, address)
	p.View(390, "light")
	pages := 0
	must.Do(t, filepath.WalkDir(dist, func(path string, _ fs.DirEntry, err error) error {
		page := strings.TrimPrefix(path, dist)
		if err != nil || filepath.Ext(page) != ".html" {
			return err
		}
		pages++
		p.Do(chromedp.Navigate(address + page))
		if wide := chromium.Eval[int](p.Tab, `document.documentElement.scrollWidth`); wide > 390 {
			t.Errorf("%s is %d wide in a window of 390", page, wide)
		}
		return nil
	}))
	if pages < 30 {
		t.Errorf("there are %d pages", pages)
	}
}

// All that the playground loads is small.
func TestPlaygroundIsSmall(t *testing.T) {
	chromium.Needs(t, dist+"/index.html", "bash site/build")
	files := must.Get(filepath.Glob(dist + "/playground/*"))(t)
	var all bytes.Buffer
	zip := must.Get(gzip.NewWriterLevel(&all, gzip.BestCompression))(t)
	for _, file := range files {
		must.Get(zip.Write([]byte(must.Read(t, file))))(t)
	}
	must.Do(t, zip.Close())
	if size := all.Len(); len(files) != 2 || size > 2_000_000 {
		t.Errorf("the playground is %q, %d bytes in gzip; want two files of 2 MB at most", files, size)
	}
}

// words are what people search for, and the pages that help them.
var words = map[string][]string{
	"rate limiting":        {"guides/choose-a-limit", "guides/migrate", "readme", "start/tutorial"},
	"throttle":             {"guides/choose-a-limit", "on-call/incident", "explain/comparison-and-faq", "reference/glossary"},
	"backpressure":         {"explain/adaptive-limits", "reference/glossary"},
	"DDoS":                 {"guides/scrapers"},
	"JWT":                  {"reference/identify-clients"},
	"FAQ":                  {"explain/comparison-and-faq"},
	"checklist":            {"guides/roll-out"},
	"health check":         {"guides/behind-a-load-balancer"},
	"per path":             {"explain/comparison-and-faq", "guides/choose-a-limit", "reference/configuration"},
	"rollback":             {"guides/roll-out"},
	"circuit breaker":      {"explain/adaptive-limits", "explain/comparison-and-faq", "reference/glossary"},
	"environment variable": {"guides/install", "reference/configuration", "guides/replicas"},
	"API key":              {"reference/identify-clients", "guides/choose-a-limit", "guides/llm"},
	"sizing":               {"guides/sizing"},
	"JSON config":          {"reference/configuration"},
	"Docker":               {"guides/install"},
	"Retry-After":          {"explain/appointments", "reference/responses", "guides/write-a-client"},
	"thundering herd":      {"explain/appointments", "readme", "reference/glossary"},
	"load shedding":        {"explain/adaptive-limits"},
	"adaptive concurrency": {"explain/adaptive-limits"},
	"priority":             {"explain/adaptive-limits", "reference/configuration", "kubernetes/install-and-limit"},
	"Redis":                {"guides/replicas"},
	"replicas":             {"guides/replicas", "kubernetes/operate"},
	"ingress-nginx":        {"kubernetes/migrate-from-ingress-nginx"},
	"Prometheus metrics":   {"reference/metrics-logs-events"},
	"Grafana":              {"on-call/alerts", "reference/metrics-logs-events", "start/tutorial", "guides/install"},
	"WebSocket":            {"guides/write-a-client", "reference/responses"},
	"gRPC":                 {"guides/go", "reference/responses"},
	"LLM tokens":           {"guides/llm"},
	"CDN":                  {"guides/behind-a-load-balancer"},
}

// A reader who searches for a word has a page that helps among the first three results.
func TestSearch(t *testing.T) {
	t.Parallel()
	if len(words) < 30 {
		t.Fatalf("there are %d words", len(words))
	}
	p := open(t, served(t)+"/readme.html")
	p.Eventually(30*time.Second, "the search opens", func() bool {
		return chromium.Eval[bool](p.Tab, `document.querySelector("#local-search button, .VPNavBarSearch button")?.click(), !!document.getElementById("localsearch-input")`)
	})
	ask := func(word string) {
		chromium.Eval[bool](p.Tab, fmt.Sprintf(`(e => { e.value = %q; return e.dispatchEvent(new Event("input", { bubbles: true })); })(document.getElementById("localsearch-input"))`, word))
	}
	results := func() (pages []string) {
		for _, href := range chromium.Eval[[]string](p.Tab, `[...document.querySelectorAll("#localsearch-list a.result")].slice(0, 3).map(a => a.href)`) {
			u := must.Get(url.Parse(href))(t)
			pages = append(pages, strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), ".html"))
		}
		return pages
	}
	for word, want := range words {
		ask("")
		p.Eventually(30*time.Second, "the results before are gone", func() bool { return len(results()) == 0 })
		ask(word)
		var got []string
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if got = results(); len(got) > 0 || chromium.Eval[bool](p.Tab, `!!document.querySelector("#localsearch-list .no-results")`) {
				break
			}
		}
		if !slices.ContainsFunc(got, func(page string) bool { return slices.Contains(want, page) }) {
			t.Errorf("%q leads to %q; want one of %q", word, got, want)
		}
	}
}
