package browser

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/share/redis/testserver"
)

// press clicks the first element of a selector that has this text, or any if it is "".
func (p *tab) press(selector, text string) {
	p.Helper()
	p.Eventually(10*time.Second, fmt.Sprintf("%s %q can be pressed", selector, text), func() bool {
		return chromium.Eval[bool](p.Tab, fmt.Sprintf(`(() => {
			const e = [...document.querySelectorAll(%q)].find(e => e.checkVisibility() && (%q === "" || e.textContent === %[2]q));
			e?.click();
			return !!e;
		})()`, selector, text))
	})
}

// fill sets what the open dialog has for a label.
func (p *tab) fill(label, value string) {
	p.Helper()
	if !chromium.Eval[bool](p.Tab, fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll("#dialog label")].find(l => l.firstChild.textContent.startsWith(%q))?.lastChild;
		if (!e) return false;
		e.value = %q;
		e.dispatchEvent(new Event("change"));
		return e.value === %[2]q;
	})()`, label, value)) {
		p.Fatalf("the dialog has no %s that can be %q: %s", label, value, p.text("dialog"))
	}
}

func (p *tab) confirm() {
	p.Helper()
	p.press("#dialog[open] button.main", "")
}

func (p *tab) closed() {
	p.Helper()
	p.Eventually(10*time.Second, "the dialog is closed", func() bool { return !chromium.Eval[bool](p.Tab, `document.getElementById("dialog").open`) })
}

// shows waits until the text of an element has another in it, or if that is "" has none.
func (p *tab) shows(id, text string) {
	p.Helper()
	is, shown := "", false
	defer func() {
		if !shown {
			p.Logf("%s is %q", id, is)
		}
	}()
	p.Eventually(10*time.Second, fmt.Sprintf("%s shows %q", id, text), func() bool {
		is = p.text(id)
		shown = text != "" && strings.Contains(is, text) || is == text
		return shown
	})
}

// blocked returns which of some clients get answers as blocked ones.
func (s *site) blocked(clients ...string) (list []string) {
	s.Helper()
	for _, from := range clients {
		r := must.Get(http.NewRequestWithContext(s.ctx, http.MethodGet, "http://"+s.shop, nil))(s)
		r.Header.Set("X-Forwarded-For", from)
		resp := must.Get(http.DefaultClient.Do(r))(s)
		resp.Body.Close()
		if strings.Contains(resp.Header.Get("Proxy-Status"), `"blocked"`) {
			list = append(list, from)
		}
	}
	return list
}

// Whatever the commands do, the page does, each after a question: to clients whose address is
// masked, and to those whose name a person types in.
func TestActions(t *testing.T) {
	t.Parallel()
	s := start(t, "shield {\nmask_addresses on\n}")
	clients := []string{"192.0.2.66", "192.0.2.99"}
	for _, from := range clients {
		for range 100 {
			s.clients.Go(func() { s.get(s.shop, from, "/") })
		}
	}
	s.clients.Wait()
	p := open(t, "http://"+s.admin+"/shield/#shop")
	const list = `[...document.querySelectorAll("#who td.client")].map(e => e.textContent).join()`
	p.Eventually(10*time.Second, "two clients are listed, masked", func() bool { return chromium.Eval[string](p.Tab, list) == "192.0.2.0/24,192.0.2.0/24" })

	p.press("td.acts button", "Block")
	p.fill("for", "5m")
	p.confirm()
	p.shows("overrides", "shop: 192.0.2.0/24 is blocked, ")
	who := s.blocked(clients...)
	if len(who) != 1 {
		t.Fatalf("blocked are %s; want one of %s", who, clients)
	}
	p.press("td.acts button", "Forgive")
	p.confirm()
	p.shows("dialog-text", "Reset: ")
	if said := p.text("dialog-text"); !strings.Contains(said, "its block.") || strings.Contains(said, who[0]) {
		t.Errorf("forgiven: %s", said)
	}
	p.press("#dialog-form button", "Close")
	p.shows("overrides", "")
	if who := s.blocked(clients...); len(who) > 0 {
		t.Errorf("after one was forgiven, blocked are %s", who)
	}

	// A client that is typed in.
	p.Do(chromedp.Focus("#client"), chromedp.KeyEvent("192.0.2.99"+kb.Enter))
	p.shows("dialog-text", "A request now would be ")
	p.Do(chromedp.KeyEvent(kb.Escape))
	p.closed()
	p.press("#other button", "Block")
	p.fill("shield", "")
	p.confirm()
	p.shows("overrides", "192.0.2.0/24 is blocked, ") // of both shields, and masked, as those of the list are
	if who := s.blocked(clients...); len(who) != 1 || who[0] != "192.0.2.99" {
		t.Errorf("blocked are %s", who)
	}
	p.press("#other button", "Forgive") // in this shield
	p.confirm()
	p.shows("dialog-text", "its block.")
	p.press("#dialog-form button", "Close")
	p.shows("overrides", "api: 192.0.2.0/24 is blocked, ")
	if who := s.blocked(clients...); len(who) > 0 {
		t.Errorf("after it was forgiven in this shield, blocked are %s", who)
	}
	p.press("#overrides button", "End")
	p.confirm()
	p.shows("overrides", "")
	limits(t, s, p)
	p.Behaved("responded with a status of 4") // Chromium tells of what is rejected
}

func limits(t *testing.T, s *site, p *tab) {
	t.Helper()
	p.press("#set", "")
	const settings = `[...document.querySelectorAll("#dialog option")].map(o => o.value).join()`
	if got := chromium.Eval[string](p.Tab, settings); got != "capacity,concurrency,per_client rate" {
		t.Errorf("the page can set %s", got)
	}
	p.fill("setting", "per_client rate")
	if got := chromium.Eval[string](p.Tab, `document.querySelectorAll("#dialog input")[0].value`); got != "20/s" {
		t.Errorf("the rate is %q", got)
	}
	p.Accessible("html", "a dialog")
	p.View(1280, "dark")
	p.Accessible("html", "a dialog in the dark")
	p.fill("value", "12 a second")
	p.confirm()
	p.shows("dialog-text", "use a rate like 50/s")
	p.fill("value", "12/s burst 3")
	p.confirm()
	p.shows("overrides", "shop: per_client rate 12/s burst 3, ")
	zones := s.status().Zones
	if !slices.ContainsFunc(zones, func(z adminapi.ZoneStatus) bool { return z.Name == "per_client" && z.Rate == 12 && z.Burst == 3 }) {
		t.Errorf("the zones are %+v", zones)
	}
	p.press("#mode", "")
	p.fill("mode", "observe")
	p.confirm()
	p.shows("overrides", "shop: mode observe")
	if mode := s.shield("shop").Mode; mode != "observe" {
		t.Errorf("the mode is %s", mode)
	}
	p.Eventually(10*time.Second, "the page knows the mode", func() bool { return chromium.Eval[string](p.Tab, `On.current().mode`) == "observe" })
	p.press("#mode", "") // it offers the other one
	p.fill("shield", "")
	p.confirm()
	p.shows("overrides", "mode enforce")
	if mode := s.shield("shop").Mode; mode != "enforce" {
		t.Errorf("the mode is %s", mode)
	}
}

// Replicas see each other, and the page says when they have lost the store.
func TestReplicas(t *testing.T) {
	t.Parallel()
	store := testserver.Start(t, testserver.Programs(t)[0])
	option := "shield {\nstore redis " + store.Addr + " {\nsecret 0123456789abcdef\n}\n}"
	s, _ := start(t, option), start(t, option)
	p := open(t, "http://"+s.admin+"/shield/#shop")
	banner := func() string {
		return chromium.Eval[string](p.Tab, `(e => e.hidden ? "" : e.textContent)(document.getElementById("store"))`)
	}
	shared := func() bool {
		return p.tile("Replicas") == "2" && strings.Contains(p.text("tiles"), "sharing the limits") && banner() == ""
	}
	p.Eventually(20*time.Second, "the page shows two replicas", shared)
	store.Kill()
	p.Eventually(10*time.Second, "the page says that the store is lost", func() bool {
		return regexp.MustCompile(`^The store at ` + regexp.QuoteMeta(store.Addr) + ` hasn't responded for [3-9] s, so this replica enforces only its own part of all limits\.$`).MatchString(banner())
	})
	p.Eventually(10*time.Second, "this replica is alone", func() bool { return strings.Contains(p.text("tiles"), "alone: the store is down") })
	store.Restart()
	p.Eventually(20*time.Second, "the store is back", shared)
	p.Behaved("")
}
