package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
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
		return explained(t, "client="+client+"&shield="+shield).Shields[0]
	}
	e := explained(t, "client=192.0.2.1")
	if len(e.Shields) != 2 || e.Client != "192.0.2.1" {
		t.Fatalf("%+v", e)
	}
	first, second := of("api", "192.0.2.1"), of("other", "192.0.2.1")
	tokens := func(e adminapi.ExplanationStatus) map[string]int {
		of := map[string]int{}
		for _, z := range e.Zones {
			of[z.Name] = z.Tokens
		}
		return of
	}
	if first.Would != "reject" || first.Reason != "quota" || first.Zone != "by_address" || first.Status != 429 || first.RetryAfter < 3000 {
		t.Errorf("the first shield: %+v", first)
	}
	if got := tokens(first); !maps.Equal(got, map[string]int{"by_address": 0, "text": 5}) {
		t.Errorf("the zones have %v", got)
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

	if got := tokens(of("api", "tom")); !maps.Equal(got, map[string]int{"by_key": 1}) {
		t.Errorf("the zones by key have %v; two requests were admitted", got)
	}
	if e := of("api", "192.0.2.9"); e.Would != "admit" || e.Standing != "new" {
		t.Errorf("another client: %+v", e)
	}
	s.get("/", "Host", "x") // of the same client, which changes nothing
	if again := of("api", "192.0.2.1"); again.Would != "reject" || again.Zones[0].Tokens != 0 {
		t.Errorf("asked again: %+v", again)
	}
}

// A client that is over its quota reads the same from explain and from forgive, and why it is told
// another wait than its tokens take.
func TestExplainNamesAppointmentsOfQuotas(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+"shield {\nzone z {\nrate 6/m\nburst 2\n}\npushback {\ndither off\n}\n}\nrespond ok\n}\n")
	for range 5 {
		s.get("/")
	}
	e := explained(t, "client=192.0.2.1").Shields[0]
	var f adminapi.ForgivenStatus
	_, body := administer(t, locally("POST", "/shield/forgive", `{"client": "192.0.2.1"}`))
	if err := json.Unmarshal([]byte(body), &f); err != nil || len(f.Shields) != 1 {
		t.Fatalf("%v: %s", err, body)
	}
	z := e.Zones[0]
	if z.Promises < 2 || z.Promises != f.Shields[0].Promises || z.Promise == nil || *z.Promise <= 0 {
		t.Errorf("explained as %+v, forgiven as %+v", z, f)
	}
	if float64(e.RetryAfter) < z.Wait+10 || *z.Promise > z.Wait+1 {
		t.Errorf("it is told %d s, for tokens in %.1f s and a first appointment in %.1f s", e.RetryAfter, z.Wait, *z.Promise)
	}
	if again := explained(t, "client=192.0.2.1").Shields[0]; again.Would != "admit" || again.Zones[0].Promises != 0 {
		t.Errorf("after it was forgiven: %+v", again)
	}
}

func TestClientNames(t *testing.T) {
	serveSite(t, explainedSite)
	app, _ := runningApp()
	handlers, err := app.named("api")
	if err != nil {
		t.Fatal(err)
	}
	h := handlers[0]
	names := func(client string) []string {
		q, _ := h.asks(readClient(client))
		var known []string
		for i, key := range q.Keys {
			if key != 0 {
				known = append(known, h.zones[i].name)
			}
		}
		return known
	}
	for client, want := range map[string][]string{
		"192.0.2.1":           {"by_address", "text"},
		"::ffff:192.0.2.1":    {"by_address", "text"},
		"2001:db8::1":         {"by_address", "text"},
		"[2001:db8::1]":       {"by_address", "text"},
		" Alice ":             {"by_key"},
		"192.0.2.1-some-text": {"by_key"},
	} {
		if got := names(client); !slices.Equal(got, want) {
			t.Errorf("%q is known to %q, want %q", client, got, want)
		}
	}
	same := func(a, b string) bool {
		x, _ := h.asks(readClient(a))
		y, _ := h.asks(readClient(b))
		return slices.Equal(x.Keys, y.Keys) && x.Client == y.Client
	}
	if !same("2001:db8::1", "2001:db8::2") || same("2001:db8::1", "2001:db9::1") || !same("ALICE", "alice") || same("alice", "bob") || !same("192.0.2.1", "::ffff:192.0.2.1") {
		t.Error("names of one client differ, or names of two do not")
	}
}

func TestExplainEndpointErrors(t *testing.T) {
	serveSite(t, explainedSite)
	for _, c := range []struct {
		method, query string
		status        int
		want          string
	}{
		{"GET", "", 400, "client is missing; use an address"},
		{"GET", "client=" + strings.Repeat("x", 2000), 400, "client has 2000 bytes; use an address, or the key by which the shield identifies clients, of at most 1024"},
		{"GET", "client=1.2.3.4&shield=no", 404, `shield is "no"; use one of ["api" "other"]`},
		{"PUT", "client=1.2.3.4", 405, "method is PUT; use GET or POST"},
		{"POST", "", 415, "use application/json"},
	} {
		if status, text := administer(t, httptest.NewRequest(c.method, "/shield/explain?"+c.query, nil)); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.query, status, text)
		}
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	if status, text := administer(t, httptest.NewRequest("GET", "/shield/explain?client=1.2.3.4", nil)); status != 404 || text != "the running config has no shield" {
		t.Errorf("without a config: %d %s", status, text)
	}
}
