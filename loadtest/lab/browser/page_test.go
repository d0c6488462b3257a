package browser

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/oncall"
)

var shield string

func TestMain(m *testing.M) { os.Exit(process.Main(m, &shield)) }

// A site is a running shield with two backends, and clients of them.
type site struct {
	*testing.T
	admin, shop, api string
	file             string
	stop             func()
	latency          atomic.Int64 // of the backends
	clients          sync.WaitGroup
	herds            int // so far
	ctx              context.Context
}

const config = `{
	admin %s {
		origins %[1]s ""
	}
	persist_config off
	auto_https off
	servers {
		trusted_proxies static 127.0.0.0/8
	}
	%[6]s
}
http://%[2]s {
	shield {
		name shop
		zone per_client {
			rate 20/s
		}
		capacity %[3]d/s burst 10
		class critical {
			match path /pay
		}
		class sheddable {
			match path /feed
		}
		concurrency adaptive
	}
	reverse_proxy %[4]s
}
http://%[5]s {
	shield {
		name api
		zone per_account {
			key {http.request.header.Account}
			rate 2/s
		}
		concurrency 8
		queue 16 timeout 200ms
		retries {
			key {http.request.header.Account}
		}
	}
	reverse_proxy %[4]s
}
`

// start runs a site with these global options of shield, or "".
func start(t *testing.T, options string) *site {
	t.Helper()
	s := &site{T: t, admin: process.Free(t), shop: process.Free(t), api: process.Free(t), file: filepath.Join(t.TempDir(), "Caddyfile")}
	s.latency.Store(int64(15 * time.Millisecond))
	places := make(chan struct{}, 24)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		places <- struct{}{}
		defer func() { <-places }()
		select {
		case <-r.Context().Done():
		case <-time.After(time.Duration(s.latency.Load())):
		}
	}))
	t.Cleanup(upstream.Close)
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx = ctx
	t.Cleanup(func() { cancel(); s.clients.Wait() })
	text := fmt.Sprintf(config, s.admin, s.shop, 60, upstream.Listener.Addr(), s.api, options)
	must.Do(t, os.WriteFile(s.file, []byte(text), 0o600))
	s.run()
	return s
}

func (s *site) run() {
	s.Helper()
	cmd := exec.Command(shield, "run", "--adapter", "caddyfile", "--config", s.file)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(s.file))
	stop := must.Get(process.Start(s.Context(), cmd, s.file+".log", "tcp", s.shop))(s)
	s.stop = sync.OnceFunc(stop)
	s.Cleanup(s.stop)
}

// get sends one request from an address, and returns what it is told to wait.
func (s *site) get(to, from, path string, headers ...string) (status int, wait time.Duration) {
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://"+to+path, nil)
	if err != nil {
		s.Error(err)
		return 0, 0
	}
	r.Header.Set("X-Forwarded-For", from)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return resp.StatusCode, time.Duration(seconds) * time.Second
}

// base keeps requests coming, each of another client, until the test ends.
func (s *site) base(to string, perSecond int, paths ...string) {
	s.clients.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
			}
			path := paths[n%len(paths)]
			s.clients.Go(func() {
				s.get(to, fmt.Sprintf("198.18.%d.%d", n/250%250, n%250), path, "Account", fmt.Sprint("account-", n%300))
			})
		}
	})
}

// herd sends n clients within a second, which come back when they are told to, until they are served.
func (s *site) herd(to string, n int) {
	s.herds++
	for i := range n {
		from := fmt.Sprintf("203.0.%d.%d", 10*s.herds+i/250, i%250) // others in each herd
		s.clients.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / time.Duration(n))
			for s.ctx.Err() == nil {
				status, wait := s.get(to, from, "/feed", "User-Agent", "okhttp/4.12")
				if status == http.StatusOK {
					return
				}
				select {
				case <-s.ctx.Done():
				case <-time.After(max(wait, time.Second)):
				}
			}
		})
	}
}

// user keeps a client coming that waits as long as it is told to, until ctx is done.
func (s *site) user(ctx context.Context, to, from, path string) {
	s.clients.Go(func() {
		for ctx.Err() == nil {
			_, wait := s.get(to, from, path, "User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")
			select {
			case <-ctx.Done():
			case <-time.After(max(wait, time.Second)):
			}
		}
	})
}

func (s *site) status() (status adminapi.Status) {
	s.Helper()
	must.JSON(s, "http://"+s.admin+"/shield/", &status)
	return status
}

func (s *site) shield(name string) oncall.Situation {
	s.Helper()
	for _, one := range s.status().Shields {
		if one.Name == name {
			return one
		}
	}
	s.Fatalf("there is no shield %s", name)
	return oncall.Situation{}
}

type tab struct{ *chromium.Tab }

func open(t *testing.T, address string) *tab {
	t.Helper()
	return &tab{chromium.Open(t, address)}
}

func (p *tab) text(id string) string {
	p.Helper()
	return chromium.Eval[string](p.Tab, fmt.Sprintf(`document.getElementById(%q).textContent`, id))
}

// tile returns the value of a tile; "" if there is none of that name.
func (p *tab) tile(name string) string {
	p.Helper()
	return chromium.Eval[string](p.Tab, fmt.Sprintf(`[...document.querySelectorAll("#tiles > div")].filter(e => e.firstChild.textContent === %q).map(e => e.querySelector(".value").textContent).join()`, name))
}

func (p *tab) number(name string) float64 {
	p.Helper()
	text := p.tile(name)
	first, _, _ := strings.Cut(strings.ReplaceAll(text, ",", ""), " ")
	v, err := strconv.ParseFloat(strings.TrimSuffix(first, "/s"), 64)
	if err != nil {
		p.Errorf("the tile %s is %q", name, text)
	}
	return v
}

// sum adds the seconds that the page shows of a column.
func (p *tab) sum(column string) uint64 {
	p.Helper()
	return uint64(chromium.Eval[float64](p.Tab, fmt.Sprintf(`On.column(%q).reduce((a, b) => a + b, 0)`, column)))
}

// hostile is a whole name: longer ones are cut, and nothing can be done about them.
const hostile = `<img src=x onerror="window.hacked=1"><script>hacked=1</script>`

// sentence is what the page says under the herd.
var sentence = regexp.MustCompile(`^shop is rejecting [\d,.]+ requests/s \(.+\) because the backend('s capacity of 60/s is used up| is at its in-flight limit of \d+.*); the backlog of about [\d,]+ clients will clear in .+ s\.$`)

// The page under a live herd says what /shield/ says, with what was before it was opened. It
// survives a reload and a restart, shows two shields, and harms no reader.
func TestPage(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.base(s.shop, 30, "/", "/cart", "/pay", "/feed")
	s.base(s.api, 12, "/v1/stock")
	time.Sleep(5 * time.Second) // of history before the page is opened
	s.herd(s.shop, 900)
	p := open(t, "http://"+s.admin+"/shield/#shop")
	p.Eventually(10*time.Second, "the page says that shop rejects", func() bool { return strings.HasPrefix(p.text("says"), "shop is rejecting ") })
	if says := p.text("says"); !sentence.MatchString(says) {
		t.Errorf("the page says %q; want %v", says, sentence)
	}
	agrees(t, s, p)
	s.harm()
	p.Eventually(10*time.Second, "the page names clients that are rejected", func() bool {
		return strings.Contains(chromium.Eval[string](p.Tab, `document.querySelector("#who tbody").textContent`), "203.0.")
	})
	looks(t, p)
	keys(t, s, p)
	t.Run("reload", func(*testing.T) { reload(t, s, p) })
	t.Run("restart", func(*testing.T) { restart(t, s, p) })
	p.Behaved("net::ERR_") // while the process was down
}

// agrees compares the page with /shield/: it is up to date within 2 s, at least once of three times, as a busy machine may show a second late.
func agrees(t *testing.T, s *site, p *tab) {
	t.Helper()
	fastest := time.Hour
	for range 3 {
		began := time.Now()
		is := s.shield("shop")
		rejected := is.Rejected["capacity"] + is.Rejected["early"]
		p.Eventually(10*time.Second, "the page has all requests that /shield/ has", func() bool {
			return p.sum("admitted") >= is.Admitted && p.sum("rejected.capacity")+p.sum("rejected.early") >= rejected
		})
		fastest = min(fastest, time.Since(began))
		is = s.shield("shop")
		if got := p.sum("admitted"); got > is.Admitted {
			t.Errorf("the page has %d admitted requests, of %d", got, is.Admitted)
		}
		p.Eventually(10*time.Second, "the page's backlog is that of /shield/", func() bool {
			seconds := chromium.Eval[float64](p.Tab, `On.column("backlog_ms").at(-1) / 1000`)
			return math.Abs(seconds-s.shield("shop").Line.BacklogSeconds) < 4
		})
		time.Sleep(time.Second)
	}
	if fastest > 2*time.Second {
		t.Errorf("the page shows what /shield/ has after %v at best, want 2 s", fastest)
	}
	if n := chromium.Eval[int](p.Tab, `On.column("admitted").filter(v => v > 0).length`); n < 5 {
		t.Errorf("the page has %d seconds with requests; want those from before it was opened, too", n)
	}
	if mean := p.number("Arrivals"); mean < 20 {
		t.Errorf("%v requests arrive per second", mean)
	}
}

// harm sends what would do something in a page that shows it as HTML.
func (s *site) harm() {
	for range 40 {
		s.get(s.api, "203.0.113.66", "/%3Cscript%3Ewindow.hacked=1%3C/script%3E?"+url.QueryEscape(hostile), "User-Agent", hostile, "Account", hostile)
	}
}

// looks checks colours, width and access, with both shields.
func looks(t *testing.T, p *tab) {
	t.Helper()
	grounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			p.View(width, scheme)
			p.drawn()
			if wide := chromium.Eval[int64](p.Tab, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("the page is %d wide in a window of %d", wide, width)
			}
			if width == 1280 || scheme == "light" {
				p.Accessible("html", fmt.Sprintf("%s, %d wide", scheme, width))
			}
			grounds[scheme] = chromium.Eval[string](p.Tab, `getComputedStyle(document.body).backgroundColor`)
		}
	}
	if grounds["light"] == grounds["dark"] {
		t.Errorf("light and dark are both %s", grounds["light"])
	}
	p.View(1280, "light")
}

func (p *tab) drawn() {
	p.Helper()
	chromium.Eval[bool](p.Tab, `window.drawn = false, On.onDraw(() => drawn = true), true`)
	p.Eventually(10*time.Second, "the page draws", func() bool { return chromium.Eval[bool](p.Tab, `drawn`) })
}

func keys(t *testing.T, s *site, p *tab) {
	t.Helper()
	p.Do(chromedp.KeyEvent("1"))
	defer func() {
		if t.Failed() {
			t.Logf("the page is\n%s", chromium.Eval[string](p.Tab, `location.hash + "\n" + document.body.innerText`))
		}
	}()
	p.Eventually(10*time.Second, "key 1 shows the other shield", func() bool { return strings.HasPrefix(p.text("says"), "api ") && p.tile("Queue") != "" })
	if hash := chromium.Eval[string](p.Tab, `location.hash`); hash != "#api" {
		t.Errorf("the address ends in %q; want #api", hash)
	}
	p.Eventually(10*time.Second, "the second shield has its history", func() bool { return p.sum("admitted") > 30 })
	s.harm()
	p.Eventually(15*time.Second, "the page shows the name of a hostile client as text", func() bool {
		return strings.Contains(chromium.Eval[string](p.Tab, `document.querySelector("#who tbody").textContent`), hostile[:40])
	})
	p.Do(chromedp.Evaluate[chromedp.Void](`window.old = true; location.reload()`))
	p.Eventually(10*time.Second, "after a reload of the page it is the same shield", func() bool {
		return chromium.Eval[bool](p.Tab, `!window.old && document.readyState === "complete" && document.getElementById("says").textContent.startsWith("api ")`)
	})
	if hacked := chromium.Eval[bool](p.Tab, `"hacked" in window || !!document.querySelector("img, main script")`); hacked {
		t.Error("a client's request has put an element into the page")
	}
	p.Do(chromedp.Click(`a[href="#shop"]`))
	p.Eventually(10*time.Second, "a click shows the first shield", func() bool { return strings.HasPrefix(p.text("says"), "shop ") })
}

// reload changes the capacity while the page is open.
func reload(t *testing.T, s *site, p *tab) {
	t.Helper()
	before := p.sum("admitted")
	text := must.Get(os.ReadFile(s.file))(t)
	must.Do(t, os.WriteFile(s.file, bytes.Replace(text, []byte("capacity 60/s"), []byte("capacity 75/s"), 1), 0o600))
	if out, err := exec.Command(shield, "reload", "--adapter", "caddyfile", "--config", s.file, "--address", s.admin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.Eventually(10*time.Second, "the page has the new capacity", func() bool {
		return strings.Contains(chromium.Eval[string](p.Tab, `document.getElementById("tiles").textContent`), "capacity 75/s")
	})
	if after := p.sum("admitted"); after < before {
		t.Errorf("the page had %d admitted requests before the reload, and has %d after it", before, after)
	}
	if n := strings.Count(p.text("event-list"), "config loaded"); n != 2 {
		t.Errorf("%d configs were loaded; want 2", n)
	}
	if chromium.Eval[bool](p.Tab, `!document.getElementById("lost").hidden`) {
		t.Error("the page is disconnected after a reload")
	}
}

func restart(t *testing.T, s *site, p *tab) {
	t.Helper()
	before := p.sum("admitted")
	s.stop()
	p.Eventually(10*time.Second, "the page says that it is disconnected", func() bool {
		return p.text("live") == "disconnected" && strings.HasPrefix(p.text("lost"), "Disconnected since ")
	})
	s.run()
	p.Eventually(10*time.Second, "the page is live again", func() bool {
		return p.text("live") == "live" && chromium.Eval[bool](p.Tab, `document.getElementById("lost").hidden`)
	})
	p.Eventually(10*time.Second, "the page says that the process is new", func() bool {
		return strings.Contains(p.text("event-list"), "the process restarted")
	})
	p.Eventually(10*time.Second, "requests are shown after the restart, in addition to those before", func() bool { return p.sum("admitted") > before+20 })
	if n := s.shield("shop").Admitted; n > before {
		t.Errorf("%d requests since the restart: it was none", n)
	}
}
