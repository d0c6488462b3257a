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

// demand puts an override in force.
func demand(t *testing.T, body string) (is adminapi.Override) {
	t.Helper()
	status, answer := administer(t, locally("POST", "/shield/overrides", body))
	if status != http.StatusCreated {
		t.Fatalf("%s: %d %s", body, status, answer)
	}
	if err := json.Unmarshal([]byte(answer), &is); err != nil {
		t.Fatal(err)
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
	resp := s.get("/")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "600" {
		t.Errorf("a blocked client gets %d, Retry-After %s", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if e := explained(t, "client=192.0.2.1").Shields[0]; e.Reason != "blocked" || e.Blocked < 599 || e.Blocked > 600 {
		t.Errorf("explained as %+v", e)
	}
	now := overridesNow(t)
	if len(now) != 1 || now[0].ID != is.ID || now[0].By != "127.0.0.1:4321" || now[0].Left > 600 || now[0].Left < 590 {
		t.Errorf("in force are %+v", now)
	}
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+is.ID, "")); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
	if resp := s.get("/"); resp.StatusCode != http.StatusOK {
		t.Errorf("after the end: %d", resp.StatusCode)
	}
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+is.ID, "")); status != http.StatusNotFound {
		t.Errorf("a second time: %d %s", status, body)
	}

	// To forgive lifts the block, and fills the buckets.
	s.get("/")
	demand(t, `{"kind": "block", "shield": "api", "client": "192.0.2.1", "for": "1h"}`)
	status, body := administer(t, locally("POST", "/shield/forgive", `{"client": "192.0.2.1"}`))
	if status != http.StatusOK || !strings.Contains(body, `{"name":"api","zones":["z"],"appointments":0,"blocked":true}`) {
		t.Errorf("forgiven: %d %s", status, body)
	}
	for range 2 {
		if resp := s.get("/"); resp.StatusCode != http.StatusOK {
			t.Errorf("after it was forgiven: %d", resp.StatusCode)
		}
	}
	if n := len(overridesNow(t)); n != 0 {
		t.Errorf("%d overrides are left", n)
	}
}

// A block of all shields is one in each of them: one shield forgives the client for itself only.
func TestForgiveInOneShield(t *testing.T) {
	site := "{" + globalOptions + `}
http://:0 {
	bind 127.0.0.1
	shield /a* {
		name a
		capacity 1000/s
	}
	shield /b* {
		name b
		capacity 1000/s
	}
	respond ok
}
`
	serveSite(t, site)
	want := func(when string, blocked ...string) {
		t.Helper()
		for _, name := range []string{"a", "b"} {
			status := http.StatusOK
			if slices.Contains(blocked, name) {
				status = http.StatusTooManyRequests
			}
			if got := activeSite(t).get("/" + name).StatusCode; got != status {
				t.Errorf("%s: %s answers %d; want %d", when, name, got, status)
			}
		}
		if list := overridesNow(t); len(blocked) == 0 && len(list) != 0 || len(blocked) > 0 && (len(list) != 1 || !slices.Equal(list[0].Shields, blocked)) {
			t.Errorf("%s: in force are %+v", when, list)
		}
	}
	forgive := func(name string, blocked bool) {
		t.Helper()
		var is adminapi.ForgivenStatus
		status, answer := administer(t, locally("POST", "/shield/forgive", fmt.Sprintf(`{"client": "192.0.2.1", "shield": %q}`, name)))
		if status != http.StatusOK || json.Unmarshal([]byte(answer), &is) != nil || len(is.Shields) != 1 || is.Shields[0].Blocked != blocked {
			t.Errorf("%s forgives: %d %s", name, status, answer)
		}
	}
	const block = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	demand(t, block)
	want("blocked in all shields", "a", "b")
	forgive("a", true)
	want("forgiven by a", "b")
	forgive("a", false)
	// A change of another block and a reload leave it so.
	other := demand(t, `{"kind": "block", "client": "192.0.2.9", "for": "1h"}`)
	administer(t, locally("DELETE", "/shield/overrides/"+other.ID, ""))
	reload(t, strings.Replace(site, "respond ok", "respond reloaded", 1))
	want("after a reload", "b")
	demand(t, block)
	want("blocked in all shields again", "a", "b")
	is := demand(t, block)
	administer(t, locally("DELETE", "/shield/overrides/"+is.ID, ""))
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
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(site), nil)
	if err == nil {
		err = caddy.Load(config, true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestSetOverride(t *testing.T) {
	serveSite(t, overriddenSite)
	app, _ := runningApp()
	h := app.configured[0]
	before := h.guard()
	demand(t, `{"kind": "set", "shield": "api", "setting": "capacity", "value": "300/s", "for": "30m"}`)
	demand(t, `{"kind": "set", "shield": "api", "setting": "concurrency", "value": "20", "for": "30m"}`)
	zone := demand(t, `{"kind": "set", "shield": "api", "setting": "z rate", "value": "10/m burst 4", "for": "30m"}`)
	if h.guard() == before {
		t.Fatal("the Guard is the same")
	}
	status := app.Status(true)
	is := status.Shields[0]
	if is.Capacity.Rate != 300 || is.Capacity.Burst != 70 || is.Concurrency != 20 || status.Zones[0].Rate != 10 || status.Zones[0].Burst != 4 {
		t.Errorf("the status is %+v, %+v", is, status.Zones[0])
	}
	// The same again replaces the first.
	demand(t, `{"kind": "set", "shield": "api", "setting": "capacity", "value": "200/s burst 5", "for": "10m"}`)
	if n := len(overridesNow(t)); n != 3 {
		t.Errorf("%d overrides are in force, want 3", n)
	}
	if c := h.force.Load().config.Capacity; c.Rate != 200 || c.Burst != 5 {
		t.Errorf("capacity is %+v", c)
	}
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+zone.ID, "")); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	if c := h.force.Load().config; c.Zones[0].Limit.Rate != 1 || c.Concurrency != 20 {
		t.Errorf("after one has ended: %+v", c)
	}
}

// All settings that can be set are listed, with values that can be set again.
func TestSettings(t *testing.T) {
	serveSite(t, strings.Replace(overriddenSite, "name api", "name api\n\t\tzone other {\n\t\t\trate 90/m\n\t\t}", 1))
	app, _ := runningApp()
	settings := func() []oncall.Setting { return app.Status(true).Shields[0].Settings }
	list := settings()
	if want := "[{capacity 1000/s burst 70} {concurrency 9} {other rate 90/m} {z rate 1/h burst 2}]"; fmt.Sprint(list) != want {
		t.Errorf("the settings are %v, want %s", list, want)
	}
	for _, one := range list {
		demand(t, fmt.Sprintf(`{"kind": "set", "shield": "api", "setting": %q, "value": %q, "for": "1h"}`, one.Setting, one.Value))
	}
	demand(t, `{"kind": "set", "shield": "api", "setting": "capacity", "value": "300/s", "for": "1h"}`)
	if got := settings()[0].Value; got != "300/s burst 70" {
		t.Errorf("capacity is %s", got)
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
	load := func(site string) error {
		t.Helper()
		config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(site), nil)
		if err != nil {
			t.Fatal(err)
		}
		return caddy.Load(config, true)
	}
	if err := load(strings.Replace(overriddenSite, "shield {", "shield {\n\t\tmode observe", 1)); err != nil {
		t.Fatal(err)
	}
	app, _ := runningApp()
	if c := app.configured[0].force.Load().config; c.Concurrency != 3 || c.Zones[0].Limit.Rate != 9 || !c.Observe {
		t.Errorf("after a reload: %+v", c)
	}
	if err := load(strings.ReplaceAll(overriddenSite, "zone z", "zone other")); err != nil {
		t.Fatal(err)
	}
	if list := overridesNow(t); len(list) != 3 || list[2].Shields == nil || len(list[2].Shields) != 0 || len(list[1].Shields) != 1 {
		t.Errorf("what the config has no place for is in force: %+v", list)
	}
	if resp := activeSite(t).get("/"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the block is gone: %d", resp.StatusCode)
	}
	if err := load(strings.Replace(overriddenSite, "queue 5", "queue 5\nclass critical {\nmatch client_ip {env.SHIELD_TEST_NONE}\n}", 1)); err == nil {
		t.Fatal("a wrong config was loaded")
	}
	if list := overridesNow(t); len(list) != 3 {
		t.Errorf("after a reload that failed: %+v", list)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	before := overridesNow(t)
	for range 4 { // Caddy starts apps in any order
		if err := load(strings.NewReplacer("name api", "name new", ":0", ":"+strings.TrimPrefix(taken.Addr().String(), "127.0.0.1:")).Replace(overriddenSite)); err == nil {
			t.Fatal("a config was loaded whose port is taken")
		}
	}
	if list := overridesNow(t); len(list) != len(before) || list[1].ID != before[1].ID {
		t.Errorf("after configs that could not be started: %+v, want %+v", list, before)
	}
	app, _ = runningApp()
	if c := app.configured[0].force.Load().config; c.Concurrency != 3 {
		t.Errorf("after configs that could not be started: %+v", c)
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := load(overriddenSite); err != nil {
		t.Fatal(err)
	}
	if list := overridesNow(t); len(list) != 0 {
		t.Errorf("after a stop: %+v", list)
	}
	if resp := activeSite(t).get("/"); resp.StatusCode != http.StatusOK {
		t.Errorf("after a stop: %d", resp.StatusCode)
	}
}

func TestOverrideErrors(t *testing.T) {
	serveSite(t, overriddenSite)
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"kind": "block", "client": "192.0.2.1", "for": "720h"}`, 400, `for is "720h"; use 1s to 24h, like 10m`},
		{`{"kind": "block", "for": "1h"}`, 400, `client is missing; use an address`},
		{`{"kind": "block", "client": "bob", "for": "1h"}`, 400, `client is "bob"; use a key by which the shield identifies clients`},
		{`{"kind": "block", "client": "192.0.2.0/24", "for": "1h"}`, 400, `client is "192.0.2.0/24"; use a key by which the shield identifies clients`},
		{`{"kind": "block", "client": "192.0.2.1", "value": "x", "for": "1h"}`, 400, `kind is block, with the fields of another kind; use a client for block`},
		{`{"kind": "ban", "for": "1h"}`, 400, `kind is "ban"; use block, set or mode`},
		{`{"kind": "mode", "value": "off", "for": "1h"}`, 400, `mode is "off"; use enforce or observe`},
		{`{"kind": "set", "setting": "capacity", "value": "3/s", "for": "1h"}`, 400, `shield is missing; use the name of the shield`},
		{`{"kind": "set", "shield": "no", "setting": "capacity", "value": "3/s", "for": "1h"}`, 404, `shield is "no"; use one of ["api"]`},
		{`{"kind": "set", "shield": "api", "setting": "capacity", "value": "3", "for": "1h"}`, 400, `rate is "3"; use a number per s, m, h, day or month, like 50/s or 1M/day`},
		{`{"kind": "set", "shield": "api", "setting": "capacity", "value": "1e30/s", "for": "1h"}`, 400, `capacity: rate is 1e+30 per 1s; use more than 0 and at most 1e9 per second`},
		{`{"kind": "set", "shield": "api", "setting": "concurrency", "value": "0", "for": "1h"}`, 400, `concurrency is "0"; use 1 to 1000000`},
		{`{"kind": "set", "shield": "api", "setting": "x rate", "value": "1/s", "for": "1h"}`, 400, `shield is "api"; use one with a zone "x"`},
		{`{"kind": "set", "shield": "api", "setting": "colour", "value": "1/s", "for": "1h"}`, 400, `setting is "colour"; use capacity`},
		{`{"kind": "set", "color": 1}`, 400, `unknown field "color"`},
	} {
		if status, text := administer(t, locally("POST", "/shield/overrides", c.body)); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %s", c.body, status, text, c.want)
		}
	}
	if list := overridesNow(t); len(list) != 0 {
		t.Errorf("in force are %+v", list)
	}
}

// A body is one object, and nothing is done by halves.
func TestChangeIsOneObject(t *testing.T) {
	serveSite(t, overriddenSite)
	const body = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	for _, more := range []string{`{"kind": "mode"}`, `x`, strings.Repeat(" ", 16<<10), "\n}"} {
		if status, text := administer(t, locally("POST", "/shield/overrides", body+more)); status != http.StatusBadRequest {
			t.Errorf("with %.20q behind it: %d %s", more, status, text)
		}
	}
	if list := overridesNow(t); len(list) != 0 {
		t.Errorf("in force: %+v", list)
	}
	if status, text := administer(t, locally("POST", "/shield/overrides", body+"\n")); status != http.StatusCreated {
		t.Errorf("with a newline behind it: %d %s", status, text)
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
	serveSite(t, "{"+globalOptions+"}\nhttp://:0 {\nbind 127.0.0.1\nshield /a* {\nname a\ncapacity 9/s\n}\nshield /b* {\nname b\ncapacity 9/s\n}\nrespond ok\n}\n")
	app, _ := runningApp()
	now := shield.Now()
	changes.mu.Lock()
	for i := range shield.MaxBlocks {
		client := readClient(fmt.Sprintf("198.51.%d.%d", i/250, i%250))
		changes.list = append(changes.list, &override{until: now + time.Hour, client: client, Override: adminapi.Override{ID: fmt.Sprint("b", i), Kind: overrideBlock, Shields: []string{"b"}}})
	}
	changes.mu.Unlock()
	status, text := administer(t, locally("POST", "/shield/overrides", `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`))
	if status != http.StatusConflict || text != `1000 clients are blocked in shield "b", which is the limit; end one first` {
		t.Errorf("%d %s", status, text)
	}
	if n := app.configured[0].overrides()[overrideBlock]; n != 0 {
		t.Errorf("%d blocks of a", n)
	}
}

// The door rejects as an override says from the next request on, although it remembers another
// answer, and so it does when the override has ended.
func TestOverridesAtTheDoor(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: overQuota("") + "," + respondOK})
	w := r.dial()
	retryAfter := func(when string, low, high int, policy string) {
		t.Helper()
		for range 8 {
			answer := w.exchange(get)
			if !strings.Contains(answer, policy) {
				t.Fatalf("%s: want %s in %s", when, policy, answer)
			}
			_, after, _ := strings.Cut(answer, "Retry-After: ")
			text, _, _ := strings.Cut(after, "\r\n")
			if n, err := strconv.Atoi(text); err != nil || n < low || n > high {
				t.Fatalf("%s: Retry-After is %q, want %d to %d", when, text, low, high)
			}
		}
	}
	w.exchange(get)
	retryAfter("over the quota of an hour", 3500, 3600, "w=3600\r\n")
	before := r.atDoor()
	if before == 0 {
		t.Fatal("nothing was rejected at the door")
	}
	block := demand(t, `{"kind": "block", "client": "127.0.0.1", "for": "10m"}`)
	retryAfter("blocked", 590, 600, "")
	blocked := r.atDoor()
	if blocked == before {
		t.Error("no request of the blocked client was rejected at the door")
	}
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+block.ID, "")); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	retryAfter("no longer blocked", 3500, 3600, "w=3600\r\n")
	demand(t, `{"kind": "set", "shield": "s", "setting": "z rate", "value": "1/m burst 1", "for": "30m"}`)
	retryAfter("with a quota of a minute", 1, 60, "w=60\r\n")
	if r.atDoor() == blocked {
		t.Error("after the overrides nothing was rejected at the door")
	}
}

// A block of all shields says where it is one.
func TestBlockWhereClientsHaveOtherNames(t *testing.T) {
	serveSite(t, "{"+globalOptions+`}
http://:0 {
	bind 127.0.0.1
	shield /a* {
		name by_address
		capacity 10/s
	}
	shield /b* {
		name by_account
		capacity 10/s
		retries {
			key {header.X-Account}
		}
	}
	respond ok
}
`)
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
	one := "{" + globalOptions + `}
` + bound + `
	shield /a* {
		name a
		zone z {
			rate 1/h
			burst 100
		}
	}
	respond ok
}`
	serveSite(t, one)
	demand(t, `{"kind": "set", "shield": "a", "setting": "z rate", "value": "1/h burst 2", "for": "1h"}`)
	block := one[strings.Index(one, "	shield"):strings.Index(one, "	respond")]
	reload(t, strings.Replace(one, "	respond", strings.NewReplacer("/a*", "/b*", "name a", "name b").Replace(block)+"	respond", 1))
	app := activeSite(t).app
	if n := len(app.configured); n != 2 {
		t.Errorf("%d handlers, want 2", n)
	}
	bursts := func(want int) {
		t.Helper()
		for _, h := range app.configured {
			if n := h.force.Load().config.Zones[0].Limit.Burst; n != want {
				t.Errorf("%s has a burst of %d, want %d", h.Name, n, want)
			}
		}
	}
	bursts(2)

	// The last rate counts, whichever of them it was set through, and with it all is ended.
	demand(t, `{"kind": "set", "shield": "b", "setting": "z rate", "value": "1/h burst 3", "for": "1h"}`)
	last := demand(t, `{"kind": "set", "shield": "a", "setting": "z rate", "value": "1/h burst 4", "for": "1h"}`)
	bursts(4)
	if list := overridesNow(t); len(list) != 1 || len(list[0].Shields) != 2 {
		t.Errorf("in force are %+v", list)
	}
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+last.ID, "")); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	bursts(100)

	// So does the last block of a client, whatever it is called.
	demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`)
	last = demand(t, `{"kind": "block", "client": "::ffff:192.0.2.1", "for": "1h"}`)
	if list := overridesNow(t); len(list) != 1 || list[0].ID != last.ID {
		t.Errorf("in force are %+v", list)
	}
}
