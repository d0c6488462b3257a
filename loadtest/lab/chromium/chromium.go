// Package chromium shows pages in a real Chromium to the tests of other packages.
package chromium

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Pictures is the folder for what Picture takes; "": it takes none.
var Pictures = flag.String("pictures", "", "write pictures of what is tested into this folder")

const (
	program = "/usr/bin/chromium"
	axe     = "../browser/npm/node_modules/axe-core/axe.min.js"
)

// Needs skips a test without a file, or fails it where CI must have it.
func Needs(t testing.TB, file, from string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		if os.Getenv("SHIELD_BROWSER_REQUIRED") != "" {
			t.Fatalf("SHIELD_BROWSER_REQUIRED is set, and there is no %s: %s", file, from)
		}
		t.Skipf("needs %s: %s", file, from)
	}
}

// A Tab shows a page, and remembers what went wrong in it.
type Tab struct {
	*testing.T
	ctx      context.Context
	address  string
	mu       sync.Mutex
	messages []string // on the console; guarded by mu
	urls     []string // that were asked for; guarded by mu
}

// Open shows an address in a Chromium of its own, which ends with the test.
func Open(t *testing.T, address string) *Tab {
	t.Helper()
	Needs(t, program, "apt-get install chromium")
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.Flag("no-proxy-server", true), chromedp.IgnoreCertErrors)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &Tab{T: t, ctx: ctx, address: address}
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
	p.View(1280, "light")
	p.Do(chromedp.Navigate(address))
	return p
}

// Do fails the test if an action takes more than a minute.
func (p *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.Fatalf("%v, with the page\n%s", err, Eval[string](p, `location.hash + "\n" + document.body.innerText`))
	}
}

// View sets the width of the page, and whether the system is light or dark.
func (p *Tab) View(width int64, scheme string) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}); err != nil {
		p.Fatal(err)
	}
	p.Do(chromedp.EmulateViewport(width, 900))
}

// Eval returns what a script is in the page, if that is a promise after it is kept.
func Eval[T any](p *Tab, script string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	for {
		v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
		switch {
		case err == nil:
			return v
		case !leaving.MatchString(err.Error()):
			p.Fatalf("%s: %v", script, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leaving is what Chromium says while a page makes room for the next one: the script is asked again, of that.
var leaving = regexp.MustCompile("navigated or closed|context was destroyed|Cannot find (default execution )?context")

// Told returns, as JSON, what a script with await gives the function tell.
func (p *Tab) Told(script string) string {
	p.Helper()
	return Eval[string](p, "new Promise((tell, fail) => (async () => {"+script+"\n})().catch(fail)).then(v => JSON.stringify(v))")
}

// Eventually fails the test if something is not so within a time. The time that looking takes doesn't count: it is milliseconds, and
// more where the browser has no processor, which delays what it shows, too.
func (p *Tab) Eventually(within time.Duration, what string, is func() bool) {
	p.Helper()
	const pause = 50 * time.Millisecond
	for left := within; !is(); left -= pause {
		time.Sleep(pause)
		if left < 0 {
			p.Fatalf("not within %v: %s", within, what)
		}
	}
}

// Behaved fails the test if the page has asked another host, or has written to the console, except lines with a text.
func (p *Tab) Behaved(except string) {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	own, err := url.Parse(p.address)
	if err != nil {
		p.Fatal(err)
	}
	for _, u := range p.urls {
		if to, err := url.Parse(u); err != nil || to.Scheme != "data" && to.Scheme != "blob" && u != "about:blank" && (to.Scheme != own.Scheme || to.Host != own.Host) {
			p.Errorf("the page asked for %s", u)
		}
	}
	for _, m := range p.messages {
		if except == "" || !strings.Contains(m, except) {
			p.Errorf("on the console: %s", m)
		}
	}
	if len(p.urls) < 3 {
		p.Errorf("requests: %q", p.urls)
	}
}

// Accessible fails the test if axe finds that an element, "html" for the page, breaks a rule of WCAG 2.2 AA, or what
// its authors hold to be good practice.
func (p *Tab) Accessible(element, what string) {
	p.Helper()
	script, err := os.ReadFile(axe)
	if err != nil {
		if os.Getenv("SHIELD_BROWSER_REQUIRED") != "" {
			p.Fatalf("SHIELD_BROWSER_REQUIRED is set: %v; npm ci in loadtest/lab/browser/npm installs it", err)
		}
		p.Logf("not checked by axe: %v", err)
		return
	}
	if !Eval[bool](p, `"axe" in window`) {
		Eval[bool](p, string(script)+"; true")
	}
	found := Eval[string](p, fmt.Sprintf(`axe.run(%q).then(r => JSON.stringify([r.passes.length, r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 100) + " " + n.any.map(a => a.message)).join("; "))]))`, element))
	if !strings.HasSuffix(found, ",[]]") || len(found) < len("[10,[]]") {
		p.Errorf("%s: passed rules, and faults that axe has found: %s", what, found)
	}
}

// Picture writes what the tab shows, if -pictures says where.
func (p *Tab) Picture(name string) {
	p.Helper()
	if *Pictures == "" {
		return
	}
	high := Eval[float64](p, `document.documentElement.scrollHeight`)
	wide := Eval[float64](p, `innerWidth`)
	r, err := chromedp.Call(p.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{
		CaptureBeyondViewport: new(true), FromSurface: new(true), Clip: &page.Viewport{Width: wide, Height: math.Min(high, 1900), Scale: 1},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(*Pictures, name+".png"), r.Data, 0o644)
	}
	if err != nil {
		p.Fatal(err)
	}
}
