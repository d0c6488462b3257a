package caddymodule

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
)

// locally is a request to the admin endpoint over a loopback address.
func locally(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = "127.0.0.1:4321"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2019}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
}

// overridesNow asks for what is in force.
func overridesNow(t *testing.T) []adminapi.Override {
	t.Helper()
	var s adminapi.Status
	status, body := administer(t, locally("GET", "/shield/", ""))
	if status != http.StatusOK || json.Unmarshal([]byte(body), &s) != nil {
		t.Fatalf("%d %s", status, body)
	}
	return s.Overrides
}

// demand puts an override in force, and end ends it.
func demand(t *testing.T, body string) (is adminapi.Override) {
	t.Helper()
	status, answer := administer(t, locally("POST", "/shield/overrides", body))
	if status != http.StatusCreated || json.Unmarshal([]byte(answer), &is) != nil {
		t.Fatalf("%s: %d %s", body, status, answer)
	}
	return is
}

func end(t *testing.T, is adminapi.Override) {
	t.Helper()
	if status, answer := administer(t, locally("DELETE", "/shield/overrides/"+is.ID, "")); status != http.StatusNoContent {
		t.Errorf("%+v does not end: %d %s", is, status, answer)
	}
}

// forgive has shields, or with "" all, forgive a client.
func forgive(t *testing.T, client, shield string) (is adminapi.ForgivenStatus) {
	t.Helper()
	status, answer := administer(t, locally("POST", "/shield/forgive", fmt.Sprintf(`{"client": %q, "shield": %q}`, client, shield)))
	if status != http.StatusOK || json.Unmarshal([]byte(answer), &is) != nil || len(is.Shields) == 0 {
		t.Fatalf("%s forgives %s: %d %s", shield, client, status, answer)
	}
	return is
}

const overriddenSite = "{" + globalOptions + `}
http://:0 {
	bind 127.0.0.1
	shield {
		name api
		zone z {
			rate 1/h
			burst 2
		}
		capacity 1000/s burst 70
		concurrency 9
		queue 5
	}
	respond ok
}
`

func TestBlockOverride(t *testing.T) {
	s := serveSite(t, overriddenSite)
	is := demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "10m"}`)
	if resp := s.get("/"); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "600" {
		t.Errorf("a blocked client gets %d, Retry-After %s", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if e := explained(t, "client=192.0.2.1").Shields[0]; e.Reason != "blocked" || e.Blocked < 599 || e.Blocked > 600 {
		t.Errorf("explained as %+v", e)
	}
	if now := overridesNow(t); len(now) != 1 || now[0].ID != is.ID || now[0].By != "127.0.0.1:4321" || now[0].Left > 600 || now[0].Left < 590 {
		t.Errorf("in force are %+v", now)
	}
	end(t, is)
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+is.ID, "")); status != http.StatusNotFound {
		t.Errorf("a second time: %d %s", status, body)
	}

	// To forgive lifts the block, and fills the buckets.
	s.get("/")
	demand(t, `{"kind": "block", "shield": "api", "client": "192.0.2.1", "for": "1h"}`)
	if f := forgive(t, "192.0.2.1", "").Shields[0]; f.Name != "api" || !f.Blocked || !slices.Equal(f.Zones, []string{"z"}) {
		t.Errorf("forgiven: %+v", f)
	}
	for range 2 {
		if resp := s.get("/"); resp.StatusCode != http.StatusOK || len(overridesNow(t)) != 0 {
			t.Errorf("after it was forgiven: %d, in force are %+v", resp.StatusCode, overridesNow(t))
		}
	}
}

// A block of all shields is one in each of them: one shield forgives the client for itself only.
func TestForgiveInOneShield(t *testing.T) {
	site := "{" + globalOptions + "}\n" + bound + "shield /a* {\nname a\ncapacity 1000/s\n}\nshield /b* {\nname b\ncapacity 1000/s\n}\nrespond ok\n}\n"
	serveSite(t, site)
	want := func(when string, blocked ...string) {
		t.Helper()
		for _, name := range []string{"a", "b"} {
			if got := activeSite(t).get("/" + name).StatusCode; (got == http.StatusTooManyRequests) != slices.Contains(blocked, name) {
				t.Errorf("%s: %s answers %d", when, name, got)
			}
		}
		if list := overridesNow(t); len(blocked) == 0 && len(list) != 0 || len(blocked) > 0 && (len(list) != 1 || !slices.Equal(list[0].Shields, blocked)) {
			t.Errorf("%s: in force are %+v", when, list)
		}
	}
	const block = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	demand(t, block)
	want("blocked in all shields", "a", "b")
	for _, blocked := range []bool{true, false} {
		if is := forgive(t, "192.0.2.1", "a"); len(is.Shields) != 1 || is.Shields[0].Blocked != blocked {
			t.Errorf("%+v is forgiven; want a block: %v", is, blocked)
		}
		want("forgiven by a", "b")
	}
	// A change of another block and a reload leave it so.
	end(t, demand(t, `{"kind": "block", "client": "192.0.2.9", "for": "1h"}`))
	reload(t, strings.Replace(site, "respond ok", "respond reloaded", 1))
	want("after a reload", "b")
	again := demand(t, block)
	want("blocked in all shields again", "a", "b")
	end(t, again)
	want("ended in all")

	// A change of one shield is none of the other, which goes on with its Guard.
	app, _ := runningApp()
	before := app.configured[0].guard()
	demand(t, `{"kind": "set", "shield": "b", "setting": "capacity", "value": "9/s", "for": "1h"}`)
	if app.configured[0].guard() != before {
		t.Error("a change of b has made the Guard of a anew")
	}
}

// reload loads a site in place of the one that is served.
func reload(t *testing.T, site string) {
	t.Helper()
	if err := tryReload(site); err != nil {
		t.Fatal(err)
	}
}

func tryReload(site string) error {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(site), nil)
	if err != nil {
		return err
	}
	return caddy.Load(config, true)
}

// All settings that can be set are listed, with values that can be set again. What is set holds until it is set again, or ends.
func TestSetOverride(t *testing.T) {
	serveSite(t, strings.Replace(overriddenSite, "name api", "name api\n\t\tzone other {\n\t\t\trate 90/m\n\t\t}", 1))
	app, _ := runningApp()
	want := func(settings string) (list []oncall.Setting) {
		t.Helper()
		if list = app.Status(true).Shields[0].Settings; fmt.Sprint(list) != settings {
			t.Errorf("the settings are %v, want %s", list, settings)
		}
		return list
	}
	set := func(setting, value string) adminapi.Override {
		return demand(t, fmt.Sprintf(`{"kind": "set", "shield": "api", "setting": %q, "value": %q, "for": "30m"}`, setting, value))
	}
	for _, one := range want("[{capacity 1000/s burst 70} {concurrency 9} {other rate 90/m} {z rate 1/h burst 2}]") {
		end(t, set(one.Setting, one.Value))
	}
	set("capacity", "300/s")
	set("concurrency", "20")
	zone := set("z rate", "10/m burst 4")
	want("[{capacity 300/s burst 70} {concurrency 20} {other rate 90/m} {z rate 10/m burst 4}]")
	set("capacity", "200/s burst 5") // replaces the first
	if n := len(overridesNow(t)); n != 3 {
		t.Errorf("%d overrides are in force, want 3", n)
	}
	end(t, zone)
	want("[{capacity 200/s burst 5} {concurrency 20} {other rate 90/m} {z rate 1/h burst 2}]")
	if is := app.configured[0].force.Load().config; is.Capacity.Rate != 200 || is.Capacity.Burst != 5 || is.Concurrency != 20 {
		t.Errorf("in force is %+v", is)
	}
	if got := rateText(limiter.Config{Rate: 5, Per: 2 * time.Second}); got != "2.5/s" {
		t.Errorf("5 per 2 s are %s", got)
	}
}

// A reload keeps overrides, and they wait for a config that has their shield and setting; without a shield all end.
func TestOverridesAndReloads(t *testing.T) {
	serveSite(t, overriddenSite)
	demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`)
	demand(t, `{"kind": "set", "shield": "api", "setting": "concurrency", "value": "3", "for": "1h"}`)
	demand(t, `{"kind": "set", "shield": "api", "setting": "z rate", "value": "9/s", "for": "1h"}`)
	config := func() shield.Config { return activeSite(t).app.configured[0].force.Load().config }
	reload(t, strings.Replace(overriddenSite, "shield {", "shield {\n\t\tmode observe", 1))
	if c := config(); c.Concurrency != 3 || c.Zones[0].Limit.Rate != 9 || !c.Observe {
		t.Errorf("after a reload: %+v", c)
	}
	reload(t, strings.ReplaceAll(overriddenSite, "zone z", "zone other"))
	before := overridesNow(t)
	if len(before) != 3 || before[2].Shields == nil || len(before[2].Shields) != 0 || len(before[1].Shields) != 1 {
		t.Errorf("what the config has no place for is in force: %+v", before)
	}
	if resp := activeSite(t).get("/"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the block is gone: %d", resp.StatusCode)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	wrong := strings.Replace(overriddenSite, "queue 5", "queue 5\nclass critical {\nmatch client_ip {env.SHIELD_TEST_NONE}\n}", 1)
	noPort := strings.NewReplacer("name api", "name new", ":0", ":"+strings.TrimPrefix(taken.Addr().String(), "127.0.0.1:")).Replace(overriddenSite)
	for i, site := range []string{wrong, noPort, noPort, noPort, noPort} { // Caddy starts apps in any order
		if tryReload(site) == nil {
			t.Fatalf("config %d was loaded", i)
		}
	}
	if list := overridesNow(t); len(list) != 3 || list[1].ID != before[1].ID || config().Concurrency != 3 {
		t.Errorf("after configs that could not be started: %+v, want %+v", list, before)
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	reload(t, overriddenSite)
	if resp, list := activeSite(t).get("/"), overridesNow(t); len(list) != 0 || resp.StatusCode != http.StatusOK {
		t.Errorf("after a stop: %d, %+v", resp.StatusCode, list)
	}
}

func TestChangesAreForLocalRequests(t *testing.T) {
	serveSite(t, overriddenSite)
	at := func(a net.Addr) *http.Request {
		r := locally("POST", "/shield/overrides", `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`)
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, a))
	}
	remote := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 4), Port: 2021}
	for _, r := range []*http.Request{at(remote), at(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}), httptest.NewRequest("POST", "/shield/overrides", nil)} {
		if status, text := administer(t, r); status != http.StatusForbidden || !strings.Contains(text, "read-only at this address") {
			t.Errorf("%d %s", status, text)
		}
	}
	r := at(remote)
	r.Method, r.URL.Path = "DELETE", "/shield/overrides/1"
	if status, _ := administer(t, r); status != http.StatusForbidden {
		t.Errorf("DELETE: %d", status)
	}
	verified := at(remote)
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: "anna"}}
	verified.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	for _, r := range []*http.Request{at(&net.UnixAddr{Name: "/run/admin"}), at(&net.TCPAddr{IP: net.IPv6loopback}), verified} {
		if status, text := administer(t, r); status != http.StatusCreated {
			t.Errorf("%d %s", status, text)
		}
	}
	if by := overridesNow(t)[0].By; by != `127.0.0.1:4321, certificate "CN=anna"` {
		t.Errorf("asked by %s", by)
	}
}

// A flood of blocks is rejected at the thousandth, and nothing is done by halves: a shield that has room
// does not take it either.
func TestOverridesAreBounded(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+"shield /a* {\nname a\ncapacity 9/s\n}\nshield /b* {\nname b\ncapacity 9/s\n}\nrespond ok\n}\n")
	changes.mu.Lock()
	for i := range shield.MaxBlocks { // to demand each would take seconds
		client := readClient(fmt.Sprintf("198.51.%d.%d", i/250, i%250))
		changes.list = append(changes.list, &override{until: shield.Now() + time.Hour, client: client, Override: adminapi.Override{ID: fmt.Sprint("b", i), Kind: overrideBlock, Shields: []string{"b"}}})
	}
	changes.mu.Unlock()
	status, text := administer(t, locally("POST", "/shield/overrides", `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`))
	if status != http.StatusConflict || text != `1000 clients are blocked in shield "b", which is the limit; end one first` {
		t.Errorf("%d %s", status, text)
	}
	if resp := s.get("/a"); resp.StatusCode != http.StatusOK {
		t.Errorf("a answers %d", resp.StatusCode)
	}
}

// The door rejects as an override says from the next request on, although it remembers another
// answer, and so it does when the override has ended.
func TestOverridesAtTheDoor(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: overQuota("") + "," + respondOK})
	w := r.dial()
	retryAfter := func(when string, low, high int, policy string) {
		t.Helper()
		before := r.atDoor()
		for range 8 {
			answer := w.exchange(get)
			_, after, _ := strings.Cut(answer, "Retry-After: ")
			text, _, _ := strings.Cut(after, "\r\n")
			if n, err := strconv.Atoi(text); err != nil || n < low || n > high || !strings.Contains(answer, policy) {
				t.Fatalf("%s: want %d to %d, and %s in %s", when, low, high, policy, answer)
			}
		}
		if r.atDoor() == before {
			t.Errorf("%s: nothing was rejected at the door", when)
		}
	}
	w.exchange(get)
	retryAfter("over the quota of an hour", 3500, 3600, "w=3600\r\n")
	block := demand(t, `{"kind": "block", "client": "127.0.0.1", "for": "10m"}`)
	retryAfter("blocked", 590, 600, "")
	end(t, block)
	retryAfter("no longer blocked", 3500, 3600, "w=3600\r\n")
	demand(t, `{"kind": "set", "shield": "s", "setting": "z rate", "value": "1/m burst 1", "for": "30m"}`)
	retryAfter("with a quota of a minute", 1, 60, "w=60\r\n")
}

// A block of all shields says where it is one.
func TestBlockWhereClientsHaveOtherNames(t *testing.T) {
	serveSite(t, "{"+globalOptions+"}\n"+bound+"shield /a* {\nname by_address\ncapacity 10/s\n}\nshield /b* {\nname by_account\ncapacity 10/s\nretries {\nkey {header.X-Account}\n}\n}\nrespond ok\n}\n")
	for body, want := range map[string]string{
		`{"kind": "block", "client": "192.0.2.0/24", "for": "1h"}`:                "[by_account]",
		`{"kind": "block", "client": "bob", "for": "1h"}`:                         "[by_account]",
		`{"kind": "block", "client": "bob", "shield": "by_account", "for": "1h"}`: "[by_account]",
		`{"kind": "mode", "value": "observe", "for": "1h"}`:                       "[by_address by_account]",
	} {
		if is := demand(t, body); fmt.Sprint(is.Shields) != want {
			t.Errorf("%s: in %v; want %s", body, is.Shields, want)
		}
	}
}

// An override ends when its time is over, with no request to notice it.
func TestOverridesEnd(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "api", "concurrency": {"limit": 9}, "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 1}]},` + respondOK})
	r.inVirtualTime(t, func(r *rig, _ func(func())) {
		r.wantStatus(http.StatusOK, "/")
		demand(t, `{"kind": "mode", "shield": "api", "value": "observe", "for": "10m"}`)
		demand(t, `{"kind": "block", "client": "192.0.2.2", "for": "10m"}`)
		demand(t, `{"kind": "set", "shield": "api", "setting": "concurrency", "value": "3", "for": "10m"}`)
		pass(10*time.Minute - 1)
		r.wantStatus(http.StatusOK, "/")
		pass(1)
		synctest.Wait()
		r.wantStatus(http.StatusTooManyRequests, "/")
		r.from("192.0.2.2").wantStatus(http.StatusOK, "/")
		if n := r.handler().guard().Limit(); n != 9 || len(overridesNow(t)) != 0 {
			t.Errorf("the limit is %d, and in force are %+v", n, overridesNow(t))
		}
	})
}

// What is set of a zone counts for a shield that a reload adds to it, too: they share its buckets. A later change replaces it.
func TestOverridesOfZonesReachNewShields(t *testing.T) {
	site := func(names ...string) string {
		all := "{" + globalOptions + "}\n" + bound
		for _, name := range names {
			all += "shield /" + name + " {\nname " + name + "\nzone z {\nrate 1/h\nburst 100\n}\n}\n"
		}
		return all + "respond ok\n}"
	}
	serveSite(t, site("a"))
	set := func(shield string, burst int) adminapi.Override {
		return demand(t, fmt.Sprintf(`{"kind": "set", "shield": %q, "setting": "z rate", "value": "1/h burst %d", "for": "1h"}`, shield, burst))
	}
	set("a", 2)
	reload(t, site("a", "b"))
	bursts := func(want int) {
		t.Helper()
		all := activeSite(t).app.configured
		for _, h := range all {
			if n := h.force.Load().config.Zones[0].Limit.Burst; n != want || len(all) != 2 {
				t.Errorf("%s of %d has a burst of %d, want %d", h.Name, len(all), n, want)
			}
		}
	}
	bursts(2)

	// The last rate counts, whichever of them it was set through, and with it all is ended.
	set("b", 3)
	last := set("a", 4)
	bursts(4)
	if list := overridesNow(t); len(list) != 1 || len(list[0].Shields) != 2 {
		t.Errorf("in force are %+v", list)
	}
	end(t, last)
	bursts(100)

	// So does the last block of a client, whatever it is called.
	demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`)
	last = demand(t, `{"kind": "block", "client": "::ffff:192.0.2.1", "for": "1h"}`)
	if list := overridesNow(t); len(list) != 1 || list[0].ID != last.ID {
		t.Errorf("in force are %+v", list)
	}
}
