package site

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/herdshield/shield/site/playground"
)

var pictures = flag.String("pictures", "", "write pictures of what is tested into this folder")

const (
	chromium = "/usr/bin/chromium"
	dist     = "../../../site/dist"
	axe      = "../browser/npm/node_modules/axe-core/axe.min.js"

	// required is set where a test without Chromium, or without the site, is to fail.
	required = "SHIELD_BROWSER_REQUIRED"
)

// needs skips a test without a file, or fails it if that is required.
func needs(t *testing.T, file, from string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		if os.Getenv(required) != "" {
			t.Fatalf("%s is set, and there is no %s: %s", required, file, from)
		}
		t.Skipf("needs %s: %s", file, from)
	}
}

// A tab shows a page, and remembers what went wrong in it.
type tab struct {
	*testing.T
	ctx      context.Context
	mu       sync.Mutex
	messages []string // on the console; guarded by mu
	urls     []string // that were asked for; guarded by mu
}

func open(t *testing.T, address string) *tab {
	t.Helper()
	needs(t, chromium, "apt-get install chromium")
	needs(t, dist+"/index.html", "bash site/build")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.WindowSize(1280, 1200))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &tab{T: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // it has to run before it is listened to
		t.Fatal(err)
	}
	console := chromedp.Console(ctx)
	go func() {
		for m, err := range console {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.messages = append(p.messages, fmt.Sprintf("%s: %s", m.Type, m.Text))
			p.mu.Unlock()
		}
	}()
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, func(event any) {
		if sent, ok := event.(*network.EventRequestWillBeSent); ok {
			p.mu.Lock()
			p.urls = append(p.urls, sent.Request.URL)
			p.mu.Unlock()
		}
	}); err != nil {
		t.Fatal(err)
	}
	p.scheme("light")
	p.do(chromedp.EmulateViewport(1280, 1200), chromedp.Navigate(address))
	return p
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// scheme sets whether the system is dark.
func (p *tab) scheme(is string) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: is}},
	}); err != nil {
		p.Fatal(err)
	}
}

func eval[T any](p *tab, script string) T {
	p.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
	if err != nil {
		p.Fatalf("%s: %v", script, err)
	}
	return v
}

// picture writes what the tab shows, if it is asked to.
func (p *tab) picture(name string) {
	p.Helper()
	if *pictures == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o600); err != nil {
		p.Fatal(err)
	}
}

// accessible fails the test if axe finds a fault that keeps people out.
func (p *tab) accessible(what string) {
	p.Helper()
	script, err := os.ReadFile(axe)
	if err != nil {
		if os.Getenv(required) != "" {
			p.Fatalf("%s is set: %v; npm ci in loadtest/lab/browser/npm installs it", required, err)
		}
		p.Logf("not checked by axe: %v", err)
		return
	}
	if !eval[bool](p, `"axe" in window`) {
		eval[bool](p, string(script)+"; true")
	}
	const run = `axe.run("shield-playground").then(r => JSON.stringify([r.passes.length, r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 100) + " " + n.any.map(a => a.message)).join("; "))]))`
	found, err := chromedp.Run(p.ctx, chromedp.Evaluate[string](run, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatal(err)
	}
	if !strings.HasSuffix(found, ",[]]") || len(found) < len("[10,[]]") {
		p.Errorf("%s: passed rules, and faults that axe has found: %s", what, found)
	}
}

func eventually(t *testing.T, within time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// served returns the address of a plain server of static files.
func served(t *testing.T) string {
	server := httptest.NewServer(http.FileServer(http.Dir(dist)))
	t.Cleanup(server.Close)
	return server.URL
}

const (
	shadow = `document.querySelector("shield-playground").shadowRoot`
	table  = shadow + `.querySelector("table").innerText`
)

// get is the script of a control.
func get(id string) string { return fmt.Sprintf(`%s.getElementById(%q)`, shadow, id) }

// set moves a control to a value, as a visitor's input does.
func (p *tab) set(id, value string) {
	p.Helper()
	eval[bool](p, fmt.Sprintf(`(e => { e.value = %q; return e.dispatchEvent(new Event("input", { bubbles: true })); })(%s)`, value, get(id)))
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
	if err := json.Unmarshal([]byte(eval[string](p, read)), &c); err != nil {
		p.Fatal(err)
	}
	rows := make([]string, 4)
	for _, retryAfter := range []string{c.First, c.Second} {
		o, err := playground.Play(playground.Controls{Clients: c.Clients, Capacity: c.Capacity, Obey: c.Obey / 100, RetryAfter: retryAfter})
		if err != nil {
			p.Fatal(err)
		}
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
	eventually(p.T, 30*time.Second, "the figures are those of the simulator", func() bool {
		is = eval[string](p, table)
		for i, name := range []string{"Clients served", "Clients that gave up", "Time until all were served", "Requests per client"} {
			if !strings.Contains(is, name+rows[i]) {
				return false
			}
		}
		return true
	})
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
	file, err := filepath.Abs(dist + "/playground/playground.html")
	if err != nil {
		t.Fatal(err)
	}
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
	eventually(t, time.Minute, "the playground is there", func() bool {
		return eval[bool](p, fmt.Sprintf(`!!document.querySelector("shield-playground")?.shadowRoot && %s.querySelectorAll("svg").length === 2`, shadow))
	})
	p.shows()
	p.picture(name + "-light")

	// The pointer drags the slider of the clients, in steps, and the page keeps up.
	box := strings.Split(eval[string](p, fmt.Sprintf(`(e => { e.scrollIntoView({ block: "center" }); const b = e.getBoundingClientRect(); return [b.left, b.width, b.top + b.height / 2].join(); })(%s)`, get("clients"))), ",")
	var left, width, y float64
	if _, err := fmt.Sscan(strings.Join(box, " "), &left, &width, &y); err != nil {
		t.Fatal(err)
	}
	before := eval[string](p, table)
	thumb := left + 8 + (width-16)*(1000-50)/(5000-50)
	p.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, thumb, y, chromedp.ButtonLeft))
	for i := range 20 {
		p.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, thumb+float64(i)*width*0.3/20, y, chromedp.ButtonLeft))
	}
	p.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, thumb+width*0.3, y, chromedp.ButtonLeft))
	if n := eval[float64](p, get("clients")+`.valueAsNumber`); n < 2000 || n > 3500 {
		t.Errorf("the slider was dragged to %v clients", n)
	}
	p.shows()
	if eval[string](p, table) == before {
		t.Error("a slider that was dragged changed nothing")
	}

	// Keys move another one, and both limiters can be chosen.
	eval[bool](p, get("obey")+`.focus(), true`)
	p.do(chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight))
	if n := eval[float64](p, get("obey")+`.valueAsNumber`); n != 60 {
		t.Errorf("two keys made 50 %% to %v %%", n)
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
	if !strings.Contains(eval[string](p, table), "2,500\n") {
		t.Errorf("shield has not served all clients, which obey: %s", eval[string](p, table))
	}

	// The least of several runs: other programs can make a run late, never early.
	const took = `new Promise(done => {
		const e = document.querySelector("shield-playground"), all = [];
		e.addEventListener("played", ({ detail }) => { all.push(detail.took); all.length < 10 ? e.ask() : done(Math.min(...all)); });
		e.ask();
	})`
	least, err := chromedp.Run(p.ctx, chromedp.Evaluate[float64](took, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("herds of 2,500 in front of both limiters: %.0f ms", least)
	if !(least < 1000) {
		t.Errorf("herds of 2,500 took %v ms; want less than a second", least)
	}

	p.accessible("light")
	p.scheme("dark")
	if name == "site" { // it follows its own switch, which starts with the system's
		p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(address))
		eventually(t, time.Minute, "the playground is there, in the dark", func() bool {
			return eval[bool](p, fmt.Sprintf(`!!document.querySelector("shield-playground")?.shadowRoot && %s.querySelectorAll("svg").length === 2`, shadow))
		})
	}
	eventually(t, 10*time.Second, "the text of a chart is light, in the dark", func() bool {
		return eval[string](p, `getComputedStyle(`+shadow+`.querySelector(".chart text")).fill`) == "rgb(169, 179, 193)"
	})
	p.picture(name + "-dark")
	p.accessible("dark")

	p.do(chromedp.EmulateViewport(390, 844))
	eventually(t, 10*time.Second, "it fits a phone", func() bool { return eval[bool](p, `document.documentElement.scrollWidth <= innerWidth`) })
	p.picture(name + "-phone")

	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.messages {
		t.Errorf("on the console: %s", m)
	}
	from, _ := url.Parse(address)
	for _, u := range p.urls {
		if to, err := url.Parse(u); err != nil || to.Scheme != "blob" && to.Scheme != "data" && u != "about:blank" && (to.Scheme != from.Scheme || to.Host != from.Host) {
			t.Errorf("the page asked for %s", u)
		}
	}
}

// All that the playground loads is small.
func TestPlaygroundIsSmall(t *testing.T) {
	needs(t, dist+"/index.html", "bash site/build")
	files, err := filepath.Glob(dist + "/playground/*")
	if err != nil || len(files) != 2 {
		t.Fatalf("the playground is %q, %v", files, err)
	}
	var size counter
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		zip, err := gzip.NewWriterLevel(&size, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := zip.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := zip.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the playground is %.2f MB in gzip", math.Round(float64(size)/1e4)/100)
	if size > 2_000_000 {
		t.Errorf("the playground is %d bytes in gzip; want 2 MB at most", size)
	}
}

// A counter counts bytes.
type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
