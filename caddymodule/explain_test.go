package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/operate"
)

// administer sends a request to the admin endpoint's handler of a path, and returns the status
// and the response, or the error.
func administer(t *testing.T, r *http.Request) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	if err := serve(w, r); err != nil {
		rejected, ok := errors.AsType[caddy.APIError](err)
		if !ok {
			t.Fatal(err)
		}
		return rejected.HTTPStatus, rejected.Err.Error()
	}
	return w.Code, w.Body.String()
}

// runningApp returns the app of the running config.
func runningApp() (*App, error) {
	app, err := caddy.ActiveContext().AppIfConfigured("shield")
	return app.(*App), err
}

// serve answers as the admin endpoint does.
func serve(w http.ResponseWriter, r *http.Request) error {
	best := ""
	var handler caddy.AdminHandler
	for _, route := range new(operate.Admin).Routes() {
		fits := r.URL.Path == route.Pattern || strings.HasSuffix(route.Pattern, "/") && strings.HasPrefix(r.URL.Path, route.Pattern)
		if fits && len(route.Pattern) > len(best) {
			best, handler = route.Pattern, route.Handler
		}
	}
	if handler == nil {
		return fmt.Errorf("no route for %s", r.URL.Path)
	}
	return handler.ServeHTTP(w, r)
}

func explained(t *testing.T, query string) (e adminapi.ExplainStatus) {
	t.Helper()
	status, body := administer(t, locally(http.MethodGet, "/shield/explain?"+query, ""))
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", query, status, body)
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

const explainedSite = "{" + globalOptions + `}
http://example.com:0 {
	bind 127.0.0.1
	shield {
		name api
		zone by_address {
			rate 1/h
			burst 2
			ipv6_prefix 48
		}
		zone by_key {
			key {header.X-Api-Key}
			rate 1/h
			burst 3
		}
		zone by_both {
			key {client_ip}-{header.X-Api-Key}
			rate 1/h
			burst 4
		}
		zone text {
			key api-{client_ip}
			rate 1/h
			burst 5
			match path /api
		}
		concurrency 9 {
			per {client_ip} 3
		}
	}
	respond ok
}
http://other.example.com:0 {
	bind 127.0.0.1
	shield {
		name other
		retries {
			key {header.X-Api-Key}
		}
		capacity 1/h burst 1
	}
	respond ok
}
`

func TestExplainEndpoint(t *testing.T) {
	s := serveSite(t, explainedSite)
	for range 3 {
		s.get("/", "X-Api-Key", "Tom")
	}
	of := func(shield, client string) adminapi.ExplanationStatus {
		return explained(t, url.Values{"client": {client}, "shield": {shield}}.Encode()).Shields[0]
	}
	if e := explained(t, "client=192.0.2.1"); len(e.Shields) != 2 || e.Client != "192.0.2.1" {
		t.Fatalf("%+v", e)
	}
	first, second := of("api", "192.0.2.1"), of("other", "192.0.2.1")
	if first.Would != "reject" || first.Reason != "quota" || first.Zone != "by_address" || first.Status != 429 || first.RetryAfter < 3000 {
		t.Errorf("the first shield: %+v", first)
	}
	if got := first.Unknown; !maps.Equal(got, map[string]string{"by_key": "{http.request.header.X-Api-Key}", "by_both": "{http.vars.client_ip}-{http.request.header.X-Api-Key}"}) {
		t.Errorf("unknown are %v", got)
	}
	if c := first.Concurrency; c == nil || c.Limit != 9 || c.InFlight != 0 {
		t.Errorf("in flight: %+v", c)
	}
	if second.Would != "admit" || second.Capacity == nil || second.Capacity.Tokens != 1 {
		t.Errorf("the second shield: %+v", second)
	}
	if e := of("api", "192.0.2.9"); e.Would != "admit" || e.Standing != "new" {
		t.Errorf("another client: %+v", e)
	}
	s.get("/", "Host", "x")                      // of the same client, which changes nothing
	for client, want := range map[string]string{ // the tokens it has left
		"192.0.2.1":           "by_address 0, text 5",
		"::ffff:192.0.2.1":    "by_address 0, text 5",
		"192.0.2.2":           "by_address 2, text 5",
		"2001:db8::1":         "by_address 2, text 5",
		"[2001:db8::1]":       "by_address 2, text 5",
		"tom":                 "by_key 1",
		" Tom ":               "by_key 1",
		"alice":               "by_key 3",
		"192.0.2.1-some-text": "by_key 3",
	} {
		var has []string
		for _, z := range of("api", client).Zones {
			has = append(has, fmt.Sprint(z.Name, " ", z.Tokens))
		}
		if got := strings.Join(has, ", "); got != want {
			t.Errorf("%q has %s, want %s", client, got, want)
		}
	}
}

// A client that is over its quota reads the same from explain and from forgive, and why it is told
// another wait than its tokens take.
func TestExplainNamesAppointmentsOfQuotas(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "pushback": {"dither": false}, "zones": [{"name": "z", "rate": 6, "per": "1m", "burst": 2}]},` + respondOK})
	r.inVirtualTime(t, func(r *rig, _ func(func())) {
		for range 5 {
			r.get("/")
		}
		e, f := explained(t, "client=192.0.2.1").Shields[0], forgive(t, "192.0.2.1", "").Shields[0]
		z := e.Zones[0]
		if z.Promises < 2 || z.Promises != f.Promises || z.Promise == nil || *z.Promise <= 0 {
			t.Errorf("explained as %+v, forgiven as %+v", z, f)
		}
		if float64(e.RetryAfter) < z.Wait+10 || *z.Promise > z.Wait+1 {
			t.Errorf("it is told %d s, for tokens in %.1f s and a first appointment in %.1f s", e.RetryAfter, z.Wait, *z.Promise)
		}
		if again := explained(t, "client=192.0.2.1").Shields[0]; again.Would != "admit" || again.Zones[0].Promises != 0 {
			t.Errorf("after it was forgiven: %+v", again)
		}
	})
}

// What is wrong with a request to the admin endpoint is said, with what to use. A body is one object, and nothing is done by halves.
func TestAdminErrors(t *testing.T) {
	serveSite(t, explainedSite)
	const block, set = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`, `{"kind": "set", "shield": "other", "for": "1h", "setting": `
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/shield/", "", 405, "method is POST; use GET"},
		{"GET", "/shield/nothing", "", 404, ""},
		{"GET", "/shield/explain", "", 400, "client is missing; use an address"},
		{"GET", "/shield/explain?client=" + strings.Repeat("x", 2000), "", 400, "client has 2000 bytes; use an address, or the key by which the shield identifies clients, of at most 1024"},
		{"GET", "/shield/explain?client=1.2.3.4&shield=no", "", 404, `shield is "no"; use one of ["api" "other"]`},
		{"GET", "/shield/explain?client=hash:77", "", 404, `handle is "hash:77"; use one that GET /shield/who lists now`},
		{"PUT", "/shield/explain?client=1.2.3.4", "", 405, "method is PUT; use GET or POST"},
		{"GET", "/shield/who?n=0", "", 400, "n is 0; use 1 to 100"},
		{"GET", "/shield/who?n=101", "", 400, "n is 101; use 1 to 100"},
		{"GET", "/shield/who?n=%1b", "", 400, `n is "\x1b"; use 1 to 100`},
		{"GET", "/shield/who?shield=none", "", 404, `shield is "none"; use one of ["api" "other"]`},
		{"POST", "/shield/who", "", 405, "method is POST; use GET"},
		{"GET", "/shield/live?since=x", "", 400, `since is "x"; use the seq of an earlier response`},
		{"GET", "/shield/live?shield=no%3Cb%3E", "", 404, `shield is "no<b>"; use one of ["api" "other"]`},
		{"POST", "/shield/live", "", 405, "method is POST; use GET"},

		{"POST", "/shield/overrides", `{"kind": "block", "client": "192.0.2.1", "for": "720h"}`, 400, `for is "720h"; use 1s to 24h, like 10m`},
		{"POST", "/shield/overrides", `{"kind": "block", "for": "1h"}`, 400, `client is missing; use an address`},
		{"POST", "/shield/overrides", `{"kind": "block", "shield": "api", "client": "192.0.2.0/24", "for": "1h"}`, 400, `; use a key by which the shield identifies clients`},
		{"POST", "/shield/overrides", `{"kind": "block", "client": "192.0.2.1", "value": "x", "for": "1h"}`, 400, `kind is block, with the fields of another kind; use a client for block`},
		{"POST", "/shield/overrides", `{"kind": "ban", "for": "1h"}`, 400, `kind is "ban"; use block, set or mode`},
		{"POST", "/shield/overrides", `{"kind": "mode", "value": "off", "for": "1h"}`, 400, `mode is "off"; use enforce or observe`},
		{"POST", "/shield/overrides", `{"kind": "set", "setting": "capacity", "value": "3/s", "for": "1h"}`, 400, `shield is missing; use the name of the shield`},
		{"POST", "/shield/overrides", `{"kind": "set", "shield": "no", "setting": "capacity", "value": "3/s", "for": "1h"}`, 404, `shield is "no"; use one of ["api" "other"]`},
		{"POST", "/shield/overrides", set + `"capacity", "value": "3"}`, 400, `rate is "3"; use a number per s, m, h, day or month, like 50/s or 1M/day`},
		{"POST", "/shield/overrides", set + `"capacity", "value": "1e30/s"}`, 400, `capacity: rate is 1e+30 per 1s; use more than 0 and at most 1e9 per second`},
		{"POST", "/shield/overrides", set + `"concurrency", "value": "0"}`, 400, `concurrency is "0"; use 1 to 1000000`},
		{"POST", "/shield/overrides", set + `"x rate", "value": "1/s"}`, 400, `shield is "other"; use one with a zone "x"`},
		{"POST", "/shield/overrides", set + `"colour", "value": "1/s"}`, 400, `setting is "colour"; use capacity`},
		{"POST", "/shield/overrides", `{"kind": "set", "color": 1}`, 400, `unknown field "color"`},
		{"POST", "/shield/overrides", block + `{"kind": "mode"}`, 400, ""},
		{"POST", "/shield/overrides", block + `x`, 400, ""},
		{"POST", "/shield/overrides", block + strings.Repeat(" ", 16<<10), 400, ""},
		{"POST", "/shield/overrides", block + "\n}", 400, ""},
	} {
		if status, text := administer(t, locally(c.method, c.path, c.body)); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %.60s %.80s: %d %s, want %d %s", c.method, c.path, c.body, status, text, c.status, c.want)
		}
	}
	if list := overridesNow(t); len(list) != 0 {
		t.Errorf("in force are %+v", list)
	}
	if status, text := administer(t, httptest.NewRequest("POST", "/shield/explain", nil)); status != http.StatusUnsupportedMediaType || !strings.Contains(text, "use application/json") {
		t.Errorf("without a type: %d %s", status, text)
	}
	demand(t, block+"\n")
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/shield/", "/shield/who", "/shield/explain?client=1.2.3.4"} {
		if status, text := administer(t, locally("GET", path, "")); status != http.StatusNotFound || text != "the running config has no shield" {
			t.Errorf("%s without a config: %d %s", path, status, text)
		}
	}
}
