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
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
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

// overrides asks for what is in force.
func overridesNow(t *testing.T) (s adminapi.OverridesStatus) {
	t.Helper()
	status, body := administer(t, locally("GET", "/shield/overrides", ""))
	if status != http.StatusOK || json.Unmarshal([]byte(body), &s) != nil {
		t.Fatalf("%d %s", status, body)
	}
	return s
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
	if len(now.Overrides) != 1 || now.ReadOnly || now.Overrides[0].ID != is.ID || now.Overrides[0].By != "127.0.0.1:4321" || now.Overrides[0].Left > 600 || now.Overrides[0].Left < 590 {
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
	if status != http.StatusOK || !strings.Contains(body, `{"name":"api","zones":["z"],"promises":0,"blocked":true}`) {
		t.Errorf("forgiven: %d %s", status, body)
	}
	for range 2 {
		if resp := s.get("/"); resp.StatusCode != http.StatusOK {
			t.Errorf("after it was forgiven: %d", resp.StatusCode)
		}
	}
	if n := len(overridesNow(t).Overrides); n != 0 {
		t.Errorf("%d overrides are left", n)
	}
}

// A shield that forgives a client ends a block of all shields for itself only.
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
	statusOf := func(path string) int { return activeSite(t).get(path).StatusCode }
	want := func(when string, a, b int, except ...string) {
		t.Helper()
		if gotA, gotB := statusOf("/a"), statusOf("/b"); gotA != a || gotB != b {
			t.Errorf("%s: a answers %d and b %d; want %d and %d", when, gotA, gotB, a, b)
		}
		for name, status := range map[string]int{"a": a, "b": b} {
			if n := changes.of(name)[overrideBlock]; (n > 0) != (status == http.StatusTooManyRequests) {
				t.Errorf("%s: %d blocks are counted of %s", when, n, name)
			}
		}
		if list := overridesNow(t).Overrides; len(list) > 0 && !slices.Equal(list[0].Except, except) {
			t.Errorf("%s: the block is %+v; want it except %q", when, list[0], except)
		}
	}
	forgive := func(body string) (is adminapi.ForgivenStatus) {
		t.Helper()
		status, answer := administer(t, locally("POST", "/shield/forgive", body))
		if status != http.StatusOK || json.Unmarshal([]byte(answer), &is) != nil {
			t.Fatalf("%s: %d %s", body, status, answer)
		}
		return is
	}
	const toAll = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	block := demand(t, toAll)
	_, before := changes.read(shield.Now())
	want("blocked in all shields", 429, 429)
	is := forgive(`{"client": "192.0.2.1", "shield": "a"}`)
	if len(is.Shields) != 1 || !is.Shields[0].Blocked || len(is.Ended) != 0 || len(is.Continued) != 1 || is.Continued[0].ID != block.ID || !slices.Equal(is.Continued[0].Except, []string{"a"}) {
		t.Errorf("a forgives it: %+v", is)
	}
	want("forgiven by a", 200, 429, "a")
	if status, text := administer(t, locally("POST", "/shield/overrides", toAll, "If-Match", before)); status != http.StatusPreconditionFailed || !strings.Contains(text, "ended in one shield (block of a: ") {
		t.Errorf("with an ETag of before: %d %s", status, text)
	}
	if is := forgive(`{"client": "192.0.2.1", "shield": "a"}`); is.Shields[0].Blocked || len(is.Continued) != 0 {
		t.Errorf("a forgives it again: %+v", is)
	}
	// A change of another block and a reload leave it so.
	other := demand(t, `{"kind": "block", "client": "192.0.2.9", "for": "1h"}`)
	administer(t, locally("DELETE", "/shield/overrides/"+other.ID, ""))
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(strings.Replace(site, "respond ok", "respond reloaded", 1)), nil)
	if err == nil {
		err = caddy.Load(config, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	want("after a reload", 200, 429, "a")
	// It may be blocked again, by a alone or by all.
	mine := demand(t, `{"kind": "block", "client": "192.0.2.1", "shield": "a", "for": "1h"}`)
	want("blocked by a again", 429, 429, "a")
	administer(t, locally("DELETE", "/shield/overrides/"+mine.ID, ""))
	want("no longer blocked by a", 200, 429, "a")
	demand(t, toAll)
	want("blocked in all shields again", 429, 429)
	forgive(`{"client": "192.0.2.1", "shield": "a"}`)
	// The last shield that forgives it ends the block.
	if is := forgive(`{"client": "192.0.2.1", "shield": "b"}`); len(is.Ended) != 1 || len(is.Continued) != 0 || len(overridesNow(t).Overrides) != 0 {
		t.Errorf("b forgives it, too: %+v", is)
	}
	want("forgiven by both", 200, 200)
	// The rest of a block ends at its time.
	demand(t, strings.Replace(toAll, "1h", "1s", 1))
	forgive(`{"client": "192.0.2.1", "shield": "a"}`)
	eventually(t, "the block has ended", func() bool { return changes.of("b")[overrideBlock] == 0 })
	want("at its end", 200, 200)
}

func TestSetOverride(t *testing.T) {
	serveSite(t, overriddenSite)
	app, _ := runningApp()
	h := app.configured.handlers[0]
	before := h.guard()
	demand(t, `{"kind": "set", "shield": "api", "setting": "capacity", "value": "300/s", "for": "30m"}`)
	demand(t, `{"kind": "set", "shield": "api", "setting": "concurrency", "value": "20", "for": "30m"}`)
	demand(t, `{"kind": "set", "shield": "api", "setting": "queue", "value": "8", "for": "30m"}`)
	zone := demand(t, `{"kind": "set", "shield": "api", "setting": "z rate", "value": "10/m burst 4", "for": "30m"}`)
	if h.guard() == before {
		t.Fatal("the Guard is the same")
	}
	var status adminapi.Status
	app.fill(&status)
	is := status.Shields[0]
	if is.Capacity.Rate != 300 || is.Capacity.Burst != 70 || is.Concurrency != 20 || is.Queue.Size != 8 || status.Zones[0].Rate != 10 || status.Zones[0].Burst != 4 {
		t.Errorf("the status is %+v, %+v", is, status.Zones[0])
	}
	// The same again replaces the first.
	demand(t, `{"kind": "set", "shield": "api", "setting": "capacity", "value": "200/s burst 5", "for": "10m"}`)
	if n := len(overridesNow(t).Overrides); n != 4 {
		t.Errorf("%d overrides are in force, want 4", n)
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
	settings := func() (list []adminapi.Setting) {
		status, body := administer(t, locally("GET", "/shield/overrides?shield=api", ""))
		var is adminapi.OverridesStatus
		if status != http.StatusOK || json.Unmarshal([]byte(body), &is) != nil {
			t.Fatalf("%d %s", status, body)
		}
		return is.Settings
	}
	list := settings()
	if want := "[{capacity 1000/s burst 70} {concurrency 9} {queue 5} {other rate 90/m} {z rate 1/h burst 2}]"; fmt.Sprint(list) != want {
		t.Errorf("the settings are %v, want %s", list, want)
	}
	for _, one := range list {
		demand(t, fmt.Sprintf(`{"kind": "set", "shield": "api", "setting": %q, "value": %q, "for": "1h"}`, one.Setting, one.Value))
	}
	demand(t, `{"kind": "set", "shield": "api", "setting": "capacity", "value": "300/s", "for": "1h"}`)
	if got := settings()[0].Value; got != "300/s burst 70" {
		t.Errorf("capacity is %s", got)
	}
	if n := len(overridesNow(t).Settings); n != 0 {
		t.Errorf("%d settings of no shield", n)
	}
	if status, text := administer(t, locally("GET", "/shield/overrides?shield=no", "")); status != http.StatusNotFound {
		t.Errorf("an unknown shield: %d %s", status, text)
	}
	if got := rateText(limiter.Config{Rate: 5, Per: 2 * time.Second}); got != "2.5/s" {
		t.Errorf("5 per 2 s are %s", got)
	}
}

func TestModeOverride(t *testing.T) {
	s := serveSite(t, overriddenSite)
	for range 3 {
		s.get("/")
	}
	is := demand(t, `{"kind": "mode", "value": "observe", "for": "1h"}`)
	if resp := s.get("/"); resp.StatusCode != http.StatusOK {
		t.Errorf("while it observes: %d", resp.StatusCode)
	}
	administer(t, locally("DELETE", "/shield/overrides/"+is.ID, ""))
	if resp := s.get("/"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

// An override ends when its time is over, with no request to notice it.
func TestOverridesEnd(t *testing.T) {
	s := serveSite(t, overriddenSite)
	demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "1s"}`)
	demand(t, `{"kind": "set", "shield": "api", "setting": "concurrency", "value": "3", "for": "1s"}`)
	app, _ := runningApp()
	h := app.configured.handlers[0]
	eventually(t, "no override is left", func() bool { return len(overridesNow(t).Overrides) == 0 })
	eventually(t, "the limit is the config's", func() bool { return h.guard().Limit() == 9 })
	if resp := s.get("/"); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

// A reload keeps those whose shield and setting the config still has, and ends others; without a
// shield all end.
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
	if c := app.configured.handlers[0].force.Load().config; c.Concurrency != 3 || c.Zones[0].Limit.Rate != 9 || !c.Observe {
		t.Errorf("after a reload: %+v", c)
	}
	if err := load(strings.ReplaceAll(overriddenSite, "zone z", "zone other")); err != nil {
		t.Fatal(err)
	}
	if list := overridesNow(t).Overrides; len(list) != 2 {
		t.Errorf("after a reload without the zone: %+v", list)
	}
	if resp := activeSite(t).get("/"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the block is gone: %d", resp.StatusCode)
	}
	if err := load(strings.Replace(overriddenSite, "queue 5", "queue 5\nclass critical {\nmatch client_ip {env.SHIELD_TEST_NONE}\n}", 1)); err == nil {
		t.Fatal("a wrong config was loaded")
	}
	if list := overridesNow(t).Overrides; len(list) != 2 {
		t.Errorf("after a reload that failed: %+v", list)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	before := overridesNow(t).Overrides
	for range 4 { // Caddy starts apps in any order
		if err := load(strings.NewReplacer("name api", "name new", ":0", ":"+strings.TrimPrefix(taken.Addr().String(), "127.0.0.1:")).Replace(overriddenSite)); err == nil {
			t.Fatal("a config was loaded whose port is taken")
		}
	}
	if list := overridesNow(t).Overrides; len(list) != len(before) || list[1].ID != before[1].ID {
		t.Errorf("after configs that could not be started: %+v, want %+v", list, before)
	}
	app, _ = runningApp()
	if c := app.configured.handlers[0].force.Load().config; c.Concurrency != 3 {
		t.Errorf("after configs that could not be started: %+v", c)
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := load(overriddenSite); err != nil {
		t.Fatal(err)
	}
	if list := overridesNow(t).Overrides; len(list) != 0 {
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
		{`{"kind": "block", "client": "192.0.2.1", "for": "720h"}`, 400, `for is "720h"; want 1s to 24h`},
		{`{"kind": "block", "client": "192.0.2.1", "for": "0.5s"}`, 400, `for is "0.5s"; want 1s to 24h`},
		{`{"kind": "block", "client": "192.0.2.1"}`, 400, `for is ""; want 1s to 24h`},
		{`{"kind": "block", "for": "1h"}`, 400, `client is missing; want an address`},
		{`{"kind": "block", "client": "bob", "for": "1h"}`, 400, `client is "bob"; want a name by which any shield tells clients apart`},
		{`{"kind": "block", "client": "192.0.2.0/24", "for": "1h"}`, 400, `client is "192.0.2.0/24"; want a name by which any shield tells clients apart`},
		{`{"kind": "block", "shield": "api", "client": "bob", "for": "1h"}`, 400, `client is "bob"; want a name by which shield "api" tells clients apart`},
		{`{"kind": "block", "client": "0.0.0.0/0", "for": "1h"}`, 400, `client is "0.0.0.0/0"; want a name by which any shield tells clients apart`},
		{`{"kind": "block", "client": "2001:db8::/48", "for": "1h"}`, 400, `client is "2001:db8::/48"; want a name by which any shield tells clients apart`},
		{`{"kind": "block", "client": "192.0.2.1", "value": "x", "for": "1h"}`, 400, `value is "x"; want none for kind block`},
		{`{"kind": "ban", "for": "1h"}`, 400, `kind is "ban"; want block, set or mode`},
		{`{"kind": "mode", "value": "off", "for": "1h"}`, 400, `mode is "off"; want enforce or observe`},
		{`{"kind": "set", "setting": "capacity", "value": "3/s", "for": "1h"}`, 400, `shield is missing; want the name of one`},
		{`{"kind": "set", "shield": "no", "setting": "capacity", "value": "3/s", "for": "1h"}`, 404, `shield is "no"; want one of ["api"]`},
		{`{"kind": "set", "shield": "api", "setting": "capacity", "value": "3", "for": "1h"}`, 400, `rate is "3"; want a number per s, m or h, like 50/s`},
		{`{"kind": "set", "shield": "api", "setting": "capacity", "value": "0/s", "for": "1h"}`, 400, `rate is missing or 0; want more than 0`},
		{`{"kind": "set", "shield": "api", "setting": "capacity", "value": "1e30/s", "for": "1h"}`, 400, `capacity: rate is 1e+30 per 1s; want more than 0, at most 1e9 per second`},
		{`{"kind": "set", "shield": "api", "setting": "concurrency", "value": "0", "for": "1h"}`, 400, `concurrency is "0"; want 1 to 1000000`},
		{`{"kind": "set", "shield": "api", "setting": "queue", "value": "99999", "for": "1h"}`, 400, `queue is "99999"; want 1 to 10000`},
		{`{"kind": "set", "shield": "api", "setting": "x rate", "value": "1/s", "for": "1h"}`, 400, `shield "api" has no zone "x"`},
		{`{"kind": "set", "shield": "api", "setting": "colour", "value": "1/s", "for": "1h"}`, 400, `setting is "colour"; want capacity`},
		{`{"kind": "set", "color": 1}`, 400, `unknown field "color"`},
	} {
		if status, text := administer(t, locally("POST", "/shield/overrides", c.body)); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %s", c.body, status, text, c.want)
		}
	}
	if list := overridesNow(t).Overrides; len(list) != 0 {
		t.Errorf("in force are %+v", list)
	}
	demand(t, `{"kind": "block", "client": "2001:db8::/64", "for": "1h"}`) // one client
	demand(t, `{"kind": "block", "client": "192.0.2.9/32", "for": "1h"}`)
}

// A body is one object, and nothing is done by halves.
func TestChangeIsOneObject(t *testing.T) {
	serveSite(t, overriddenSite)
	const body = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	for _, more := range []string{`{"kind": "mode"}`, `x`, strings.Repeat(" ", maxChange), "\n}"} {
		if status, text := administer(t, locally("POST", "/shield/overrides", body+more)); status != http.StatusBadRequest {
			t.Errorf("with %.20q behind it: %d %s", more, status, text)
		}
	}
	if list, _ := changes.read(shield.Now()); len(list) != 0 {
		t.Errorf("in force: %+v", list)
	}
	if status, text := administer(t, locally("POST", "/shield/overrides", body+"\n")); status != http.StatusCreated {
		t.Errorf("with a newline behind it: %d %s", status, text)
	}
}

// Two people do not undo each other.
func TestOverrideETags(t *testing.T) {
	serveSite(t, overriddenSite)
	etag := func() string { _, tag := changes.read(shield.Now()); return tag }
	before := etag()
	const body = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	is := demand(t, body)
	if etag() == before {
		t.Fatal("the ETag is the same")
	}
	for _, r := range []*http.Request{
		locally("POST", "/shield/overrides", body, "If-Match", before), locally("DELETE", "/shield/overrides/"+is.ID, "", "If-Match", before),
		locally("POST", "/shield/forgive", `{"client": "192.0.2.1"}`, "If-Match", before),
	} {
		if status, text := administer(t, r); status != http.StatusPreconditionFailed || !strings.Contains(text, "an override begins (block of all shields: 192.0.2.1, by 127.0.0.1:4321)") {
			t.Errorf("%s with an old ETag: %d %s", r.Method, status, text)
		}
	}
	demand(t, `{"kind": "mode", "shield": "", "value": "observe", "for": "1h"}`)
	if _, text := administer(t, locally("POST", "/shield/overrides", body, "If-Match", before)); !strings.Contains(text, "(mode of all shields: observe, by 127.0.0.1:4321)") {
		t.Errorf("after a change of the mode: %s", text)
	}
	hostile := override{Override: adminapi.Override{Kind: "block", Shield: "api", Client: "\x1b[31m"}} // terminals show the text
	if got, want := hostile.String(), `block of api: "\x1b[31m"`; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if status, text := administer(t, locally("DELETE", "/shield/overrides/"+is.ID, "", "If-Match", etag())); status != http.StatusNoContent {
		t.Errorf("with the present ETag: %d %s", status, text)
	}
	if status, text := administer(t, locally("POST", "/shield/overrides", body, "If-Match", before)); status != http.StatusPreconditionFailed || !strings.Contains(text, "ended by 127.0.0.1:4321") {
		t.Errorf("with an old ETag: %d %s", status, text)
	}
	if status, text := administer(t, locally("POST", "/shield/overrides", body, "If-Match", "*")); status >= http.StatusBadRequest {
		t.Errorf("any list: %d %s", status, text)
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
	if by := overridesNow(t).Overrides[0].By; by != `127.0.0.1:4321, certificate "CN=anna"` {
		t.Errorf("asked by %s", by)
	}
}

// A flood of blocks is refused at the thousandth, and of others at the hundredth.
func TestOverridesAreBounded(t *testing.T) {
	serveSite(t, overriddenSite)
	app, _ := runningApp()
	now := shield.Now()
	changes.mu.Lock()
	for i := range shield.MaxBlocks {
		is := &override{until: now + time.Hour, Override: adminapi.Override{ID: fmt.Sprint("b", i), Kind: overrideBlock, Client: fmt.Sprintf("10.0.%d.%d", i/256, i%256)}}
		is.timer = time.AfterFunc(time.Hour, func() {})
		changes.list = append(changes.list, is)
	}
	changes.changed(now)
	changes.mu.Unlock()
	status, text := administer(t, locally("POST", "/shield/overrides", `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`))
	if status != http.StatusConflict || text != "1000 clients are blocked; want at most 1000" {
		t.Errorf("%d %s", status, text)
	}
	changes.mu.Lock()
	for i := range maxOverrides {
		is := &override{until: now + time.Hour, Override: adminapi.Override{ID: fmt.Sprint("m", i), Kind: overrideMode, Value: modeObserve, Shield: fmt.Sprint(i)}}
		is.timer = time.AfterFunc(time.Hour, func() {})
		changes.list = append(changes.list, is)
	}
	changes.mu.Unlock()
	status, text = administer(t, locally("POST", "/shield/overrides", `{"kind": "mode", "value": "observe", "for": "1h"}`))
	if status != http.StatusConflict || text != "100 other overrides are in force; want at most 100" {
		t.Errorf("%d %s", status, text)
	}
	_ = app
}

// Overrides come and go while requests and reloads do.
func TestOverridesUnderTraffic(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "api", "capacity": {"rate": 100000}, "concurrency": {"limit": 50}, "queue": {"size": 9}, "zones": [{"name": "z", "rate": 100000}]},` + respondOK})
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch a := r.get("/"); a.StatusCode {
				case 200, 429, 503:
				default:
					t.Errorf("status %d", a.StatusCode)
				}
			}
		})
	}
	for i := range 60 {
		bodies := []string{
			`{"kind": "block", "client": "127.0.0.1", "for": "1h"}`,
			fmt.Sprintf(`{"kind": "set", "shield": "api", "setting": "capacity", "value": "%d/s", "for": "1h"}`, 1000+i),
			fmt.Sprintf(`{"kind": "set", "shield": "api", "setting": "concurrency", "value": "%d", "for": "1h"}`, 10+i),
			`{"kind": "mode", "value": "observe", "for": "1h"}`,
		}
		is := demand(t, bodies[i%len(bodies)])
		explained(t, "client=127.0.0.1")
		if i%2 == 0 {
			administer(t, locally("DELETE", "/shield/overrides/"+is.ID, ""))
		}
		if i%3 == 0 {
			administer(t, locally("POST", "/shield/forgive", `{"client": "127.0.0.1"}`))
		}
	}
	close(stop)
	all.Wait()
	r.drains()
}

// A burst that was not set follows the rate.
func TestBurstOfOverride(t *testing.T) {
	for _, c := range []struct{ asked, old, want limiter.Config }{
		{limiter.Config{Rate: 3}, limiter.Config{Rate: 500}, limiter.Config{Rate: 3}},
		{limiter.Config{Rate: 3}, limiter.Config{Rate: 500, Burst: 70}, limiter.Config{Rate: 3, Burst: 70}},
		{limiter.Config{Rate: 3, Burst: 2}, limiter.Config{Rate: 500, Burst: 70}, limiter.Config{Rate: 3, Burst: 2}},
	} {
		if got := keepBurst(c.asked, c.old); got != c.want {
			t.Errorf("%+v in place of %+v is %+v, want %+v", c.asked, c.old, got, c.want)
		}
	}
}

// The door refuses as an override says from the next request on, although it remembers another
// answer, and so it does when the override has ended.
func TestOverridesAtTheDoor(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: overQuota("") + "," + respondOK})
	w := r.dial()
	retryAfter := func(when string, low, high int) {
		t.Helper()
		for range 8 {
			_, after, _ := strings.Cut(w.exchange(get), "Retry-After: ")
			text, _, _ := strings.Cut(after, "\r\n")
			if n, err := strconv.Atoi(text); err != nil || n < low || n > high {
				t.Fatalf("%s: Retry-After is %q, want %d to %d", when, text, low, high)
			}
		}
	}
	w.exchange(get)
	retryAfter("over the quota of an hour", 3500, 3600)
	before := r.atDoor()
	if before == 0 {
		t.Fatal("nothing was refused at the door")
	}
	block := demand(t, `{"kind": "block", "client": "127.0.0.1", "for": "10m"}`)
	retryAfter("blocked", 590, 600)
	blocked := r.atDoor()
	if blocked == before {
		t.Error("no request of the blocked client was refused at the door")
	}
	if status, body := administer(t, locally("DELETE", "/shield/overrides/"+block.ID, "")); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	retryAfter("no longer blocked", 3500, 3600)
	demand(t, `{"kind": "set", "shield": "s", "setting": "z rate", "value": "1/m burst 1", "for": "30m"}`)
	retryAfter("with a quota of a minute", 1, 60)
	if r.atDoor() == blocked {
		t.Error("after the overrides nothing was refused at the door")
	}
}

// To read what is in force does not disturb those who change it: for the race detector.
func TestOverridesAreReadWhileTheyChange(t *testing.T) {
	serveSite(t, overriddenSite)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for i := range 50 {
				administer(t, locally("POST", "/shield/overrides", fmt.Sprintf(`{"kind": "block", "client": "192.0.2.%d", "for": "10m"}`, i%9)))
			}
		})
		all.Go(func() {
			for range 50 {
				administer(t, locally("GET", "/shield/overrides", ""))
			}
		})
	}
	all.Wait()
}

// A reading is of one moment, though an override takes the adaptive limit away in it.
func TestReadingDuringOverride(t *testing.T) {
	serveSite(t, strings.Replace(overriddenSite, "concurrency 9", "concurrency adaptive", 1))
	app, _ := runningApp()
	before := app.roster().shields[0].reading(shield.Now())
	demand(t, `{"kind": "set", "shield": "api", "setting": "concurrency", "value": "20", "for": "30m"}`)
	if before.config().Adaptive == nil || before.watch(question{}).Limit != "adaptive" {
		t.Errorf("a reading from before says %+v", before.config())
	}
	if after := app.roster().shields[0].reading(shield.Now()); after.config().Adaptive != nil || after.watch(question{}).Limit != "fixed" {
		t.Errorf("a reading from after says %+v", after.config())
	}
}

// A block that a config ends, as it tells clients apart otherwise, does not come back unseen.
func TestBlockOfAnotherKey(t *testing.T) {
	serveSite(t, overriddenSite)
	demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`)
	load := func(site string) {
		t.Helper()
		config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(site), nil)
		if err == nil {
			err = caddy.Load(config, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	load(strings.Replace(overriddenSite, "name api", "name api\n\t\tretries {\n\t\t\tkey {header.X-Api-Key}\n\t\t}\n", 1))
	if list := overridesNow(t).Overrides; len(list) != 0 {
		t.Fatalf("in force are %+v", list)
	}
	load(overriddenSite)
	if resp := activeSite(t).get("/"); resp.StatusCode != http.StatusOK {
		t.Errorf("with the key of before: %d", resp.StatusCode)
	}
}

// A block in all shields says where it does nothing.
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
	for body, want := range map[string][]string{
		`{"kind": "block", "client": "192.0.2.1", "for": "1h"}`:                   nil,
		`{"kind": "block", "client": "192.0.2.0/24", "for": "1h"}`:                {"by_address"},
		`{"kind": "block", "client": "bob", "for": "1h"}`:                         {"by_address"},
		`{"kind": "block", "client": "bob", "shield": "by_account", "for": "1h"}`: nil,
		`{"kind": "mode", "value": "observe", "for": "1h"}`:                       nil,
	} {
		status, answer := administer(t, locally("POST", "/shield/overrides", body))
		var is adminapi.OverrideBegun
		if err := json.Unmarshal([]byte(answer), &is); err != nil || status != http.StatusCreated || !slices.Equal(is.Without, want) {
			t.Errorf("%s: %d %s; want without %v", body, status, answer, want)
		}
	}
}
