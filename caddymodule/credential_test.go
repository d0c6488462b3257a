package caddymodule

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/herdshield/shield/caddymodule/clientkey"
)

// TestCredentialsAreNotShown has clients with credentials rejected. The admin endpoint and the log show a
// hash of each, by which an operator can act. Where the endpoint is on a network, they show no name at all.
func TestCredentialsAreNotShown(t *testing.T) {
	jwt := strings.Repeat("eyJhbGciOiJIUzI1NiJ9.", 20)
	for i, c := range []struct{ key, header, secret, other string }{
		{"{header.Authorization}", "Authorization", "Bearer sk-live-SECRET12345", "Bearer sk-live-other"},
		{"{header.Authorization}", "Authorization", jwt + "SECRET12345", jwt + "other"},
		{"{client_ip} {header.X-Api-Key}", "X-Api-Key", "SECRET12345", "other"},
		{"id:{cookie.visit}", "Cookie", "visit=SECRET12345", "visit=other"},
	} {
		shield := fmt.Sprint("api", i)
		s := serveSite(t, strings.NewReplacer("zone z {", "zone "+shield+" {\n\t\t\tkey "+`"`+c.key+`"`, "name api", "name "+shield+"\n\t\tretries {\n\t\t\tkey "+`"`+c.key+`"`+"\n\t\t}").Replace(overriddenSite))
		log, noted := observer.New(zap.DebugLevel)
		s.app.logger = zap.New(log)
		blocked := func(credential string) bool {
			return strings.HasSuffix(s.get("/", c.header, credential).Header.Get("Proxy-Status"), `details="blocked"`)
		}
		for range 3 {
			blocked(c.secret)
		}
		blocked(c.other)
		said := ""
		say := func(r *http.Request) string {
			status, body := administer(t, r)
			if status >= 400 {
				t.Errorf("%s: %s %s: %d %s", c.key, r.Method, r.URL, status, body)
			}
			said += body
			return body
		}
		list := askWho(t, "?shield="+shield).Shields[0].Rejected
		if len(list) != 1 || !strings.Contains(list[0].Client, "hash:") {
			t.Fatalf("%s: who has %+v, want one client with a hash", c.key, list)
		}
		name, handle := list[0].Client, list[0].Handle
		say(locally("GET", "/shield/who", ""))
		say(locally("POST", "/shield/explain", `{"client": "`+name+`"}`))
		say(locally("POST", "/shield/overrides", `{"kind": "block", "client": "`+name+`", "for": "1h"}`))
		if !blocked(c.secret) || blocked(c.other) {
			t.Errorf("%s: %s is not blocked, or another client is", c.key, name)
		}
		say(locally("GET", "/shield/", ""))
		say(locally("POST", "/shield/forgive", `{"client": "`+name+`"}`))
		if blocked(c.secret) {
			t.Errorf("%s: %s is not forgiven", c.key, name)
		}
		typed := strings.TrimPrefix(c.secret, "visit=")
		say(locally("GET", "/shield/explain?client="+url.QueryEscape(typed), ""))
		if !strings.Contains(c.key, " ") { // two values are no name
			say(locally("POST", "/shield/overrides", `{"kind": "block", "client": "`+typed+`", "for": "1h"}`))
		}
		for _, entry := range noted.All() {
			said += fmt.Sprint(entry.Message, entry.ContextMap())
		}
		if text := strings.ToLower(said); strings.Contains(text, "secret12345") || strings.Contains(text, "eyjhb") {
			t.Errorf("%s: the credential is in %s", c.key, text)
		}
		blocked(c.secret)
		for _, path := range []string{"/shield/who", "/shield/", "/shield/live?all=1", "/shield/explain?client=" + handle, "/shield/explain?client=" + handle[:13],
			"/shield/explain?client=%20" + handle} {
			r := httptest.NewRequest("GET", path, nil)
			remote := context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 4), Port: 2021})
			if body := say(r.WithContext(remote)); strings.Contains(body, "192.0.2.1") || strings.Contains(body, "id:hash") {
				t.Errorf("%s: on a network, %s shows a name: %s", c.key, path, body)
			}
		}
	}
}

// TestCredentialsCanBeShown lets an operator who needs the names see them.
func TestCredentialsCanBeShown(t *testing.T) {
	s := serveSite(t, strings.NewReplacer(globalOptions, globalOptions+"shield {\nmask_credentials off\n}\n", "zone z {", "zone shown {", "name api", "name shown\n\t\tretries {\n\t\t\tkey {header.X-Api-Key}\n\t\t}").Replace(overriddenSite))
	for range 3 {
		s.get("/", "X-Api-Key", "alice")
	}
	if list := askWho(t, "?shield=shown").Shields[0].Rejected; len(list) != 1 || list[0].Client != "alice" {
		t.Errorf("who has %+v, want alice", list)
	}
}

func TestIsCredential(t *testing.T) {
	for placeholder, want := range map[string]bool{
		"http.request.header.Authorization": true, "http.request.header.Proxy-Authorization": true, "http.request.header.Cookie": true,
		"http.request.header.X-Api-Key": true, "http.request.header.Apikey": true, "http.request.header.X-Csrf-Token": true,
		"http.request.cookie.session": true, "http.auth.user.id": true, "http.auth.user.sub": true,
		"http.request.uri.query.access_token": true, "http.request.uri.query.api-key": true, "http.request.uri.query": true,
		"http.request.uri": true, "http.request.orig_uri": true, "http.request.uri.prefixed_query": true, "http.request.uri_escaped": true,
		"http.request.uri.path": false, "http.request.uri.query.page": false, "http.request.header.X-User": false, "http.request.header.Keyboard": false,
		clientkey.ClientIP: false, "http.request.host": false, "http.vars.plan": false,
	} {
		if got := clientkey.IsCredential(placeholder); got != want {
			t.Errorf("%s: %v, want %v", placeholder, got, want)
		}
	}
}
