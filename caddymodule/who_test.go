package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
)

// askWho asks the admin endpoint.
func askWho(t *testing.T, query string) adminapi.WhoStatus {
	t.Helper()
	var who adminapi.WhoStatus
	if status, body := administer(t, locally(http.MethodGet, "/shield/who"+query, "")); json.Unmarshal([]byte(body), &who) != nil {
		t.Fatalf("%s: %d %s", query, status, body)
	}
	return who
}

// TestWho has clients of several kinds rejected, and asks who they are.
func TestWho(t *testing.T) {
	site := func(mask string) string {
		return "{" + globalOptions + "shield {\nmask_addresses " + mask + "\n}\n}\n" + bound + `
	shield {
		name quiet
		mode observe
		zone all {
			key {http.request.host}
			rate 3/h
			burst 3
		}
	}
	shield {
		name shop
		zone per_address {
			rate 1/h
		}
		zone per_token {
			match header X-Token *
			key {header.X-Token} {client_ip}
			rate 2/h
			burst 2
		}
		concurrency 100
		class critical {
			match path /pay
		}
	}
	respond ok
}`
	}
	s := serveSite(t, site("off"))
	s.get("/", "User-Agent", "curl/8.1")
	for range 3 {
		s.get("/pay", "User-Agent", "python-requests/2")
	}
	s.get("/", "X-Token", "\x1b]0;evil", "User-Agent", "curl/8.1")
	got := askWho(t, "")
	rejected := got.Shields[1].Rejected
	if len(got.Shields) != 2 || len(rejected) != 1 || rejected[0].Client != "192.0.2.1" || rejected[0].LastMinute != 4 || rejected[0].Agent != "python" || rejected[0].Path != "GET /pay" || rejected[0].Class != "default" {
		t.Errorf("got %+v", got)
	}
	if rate := rejected[0].PerSecond; rate <= 0 || rate > 4 {
		t.Errorf("%v per second; want 4 in the time since, of at least a second", rate)
	}
	// In observe mode the clients are shown that would have been rejected.
	if quiet := got.Shields[0]; quiet.Name != "quiet" || quiet.Mode != "observe" || len(quiet.Rejected) != 1 || quiet.Rejected[0].LastMinute != 2 || quiet.Rejected[0].Reason != "quota" || quiet.Rejected[0].Class != "" {
		t.Errorf("got %+v", quiet)
	}
	if zones := fmt.Sprint(got.Zones); !strings.HasPrefix(zones, "[{all  [{example.com ") || !strings.Contains(zones, "{per_address  [{192.0.2.1 ") || !strings.Contains(zones, "{per_token  [] []}") {
		t.Errorf("zones are %s", zones)
	}

	// A hostile name, and the zone with the text and the address in its key.
	for i := range 4 {
		s.getFrom(fmt.Sprintf("2001:db8:1:2::%d", i), "/", "X-Token", "\x1b]0;evil")
	}
	shop := askWho(t, "?shield=shop")
	if len(shop.Shields) != 1 || len(shop.Zones) != 2 || len(shop.Shields[0].Rejected) != 2 || shop.Shields[0].Rejected[1].Client != "2001:db8:1:2::" {
		t.Errorf("the shop alone: %+v", shop)
	}
	if one := askWho(t, "?n=1").Shields[1].Rejected; len(one) != 1 {
		t.Errorf("there are %d clients; want 1", len(one))
	}

	serveSite(t, site("on")) // a reload forgets no client
	masked := askWho(t, "")
	if !masked.Masked || masked.Shields[1].Rejected[0].Client != "192.0.2.0/24" || masked.Shields[1].Rejected[1].Client != "2001:db8:1::/48" {
		t.Errorf("masked: %+v", masked)
	}
}

// The clients with the most requests in flight are known by name, whether or not they were rejected, if
// they have more than one.
func TestWhoIsInFlight(t *testing.T) {
	release := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer backend.Close()
	defer close(release)
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name s
		concurrency 10 {
			per {client_ip} 3
		}
	}
	reverse_proxy `+strings.TrimPrefix(backend.URL, "http://")+"\n}")
	for ip, n := range map[string]int{"192.0.2.1": 3, "192.0.2.2": 2, "192.0.2.3": 1} {
		for range n {
			go s.getFrom(ip, "/")
		}
	}
	eventually(t, "all requests are in flight", func() bool { return s.app.configured[0].record.Stats(shield.Now()).InFlight == 6 })
	if got := s.get("/").StatusCode; got != http.StatusTooManyRequests {
		t.Errorf("the fourth of one client is answered %d", got)
	}
	got := askWho(t, "").Shields[0]
	if len(got.Rejected) != 1 || got.Rejected[0].Reason != "per_client" || len(got.InFlight) != 2 {
		t.Fatalf("got %+v", got)
	}
	if want := []adminapi.BusyClient{{Client: "192.0.2.1", Handle: got.Rejected[0].Handle, InFlight: 3}, {Client: "192.0.2.2", Handle: got.InFlight[1].Handle, InFlight: 2}}; !slices.Equal(got.InFlight, want) {
		t.Errorf("in flight are %+v; want %+v", got.InFlight, want)
	}
	if e := explained(t, "client="+got.InFlight[1].Handle); e.Client != "192.0.2.2" || e.Shields[0].InFlight != 2 {
		t.Errorf("the second is explained as %+v", e)
	}
}

// Rejections at the door are counted as all others.
func TestWhoIsAtTheDoor(t *testing.T) {
	for name, handler := range map[string]string{
		"quota": overQuota(""), "capacity": `{"handler": "shield", "name": "s", "capacity": {"rate": 1, "burst": 3}, "pushback": {"dither": false}}`,
	} {
		r := start(t, setup{server: withDoor + `"protocols": ["h1", "h2c"],`, handlers: handler + "," + respondOK})
		w, other := r.dial(), r.from("192.0.2.2") // a client is early if others wait
		for range 4 {
			other.get("/")
		}
		awaitTransit()
		for range 200 {
			w.exchange(get)
		}
		r.h2c()
		for range 200 {
			r.get("/b")
		}
		if r.atDoor() < 100 || r.atDoorH2() < 100 {
			t.Fatalf("%s: only %d and %d rejections were at the door", name, r.atDoor(), r.atDoorH2())
		}
		who, stats := askWho(t, ""), r.stats()
		counts, want := map[string]int{"early": 0}, map[string]int{"early": int(stats.Rejected[shield.Early])}
		for _, n := range stats.Rejected {
			want["rejected"] += int(n)
		}
		for _, c := range who.Shields[0].Rejected {
			counts["rejected"] += c.LastMinute
			counts["early"] += c.Early
		}
		if name == "quota" {
			want["by z"] = int(stats.Rejected[shield.Quota])
			for _, c := range who.Zones[0].Rejected {
				counts["by z"] += c.LastMinute
			}
		}
		if !maps.Equal(counts, want) || len(who.Shields[0].Rejected) != 2 || who.Shields[0].Rejected[0].Client != "127.0.0.1" {
			t.Errorf("%s: got %v, want %v: %+v", name, counts, want, who)
		}
		_ = caddy.Stop()
	}
}

// The names that keyers make are told as text, whatever is in them.
func TestReadableNames(t *testing.T) {
	network := func(ip string) string {
		k, err := newKeyer("", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(k.name(nil, request("/", ip, nil)))
	}
	v4, v6 := network("192.0.2.77"), network("2001:db8:1:2:3::1")
	for name, want := range map[string][2]string{ // as it is, and masked
		v4:                    {"192.0.2.77", "192.0.2.0/24"},
		v6:                    {"2001:db8:1:2::", "2001:db8:1::/48"},
		"tenant-1 " + v4:      {"tenant-1 192.0.2.77", "tenant-1 192.0.2.0/24"},
		v4 + "/" + v6:         {"192.0.2.77/2001:db8:1:2::", "192.0.2.0/24/2001:db8:1::/48"},
		"198.51.100.9":        {"198.51.100.9", "198.51.100.0/24"}, // a header's value
		"::ffff:198.51.100.9": {"::ffff:198.51.100.9", "198.51.100.0/24"},
		"\x04short":           {"\x04short", "\x04short"},
		"größer":              {"größer", "größer"},
	} {
		if got := [2]string{readable(name, false), readable(name, true)}; got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	for text, want := range map[string]string{
		"größer 1": "größer 1", "\x1b[31m": `"\x1b[31m"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`, "\u202egnp": `"\u202egnp"`, "\u009b1m": `"\u009b1m"`, "": "",
	} {
		if got := adminapi.Shown(text); got != want {
			t.Errorf("%q is shown as %s, want %s", text, got, want)
		}
	}
}

// A client is blocked by the name that who has for it, or by the value in its key.
func TestNamesOfWhoAreNamesOfClients(t *testing.T) {
	for _, c := range []struct{ key, client, value string }{
		{"user:{header.X-User}", "user:bob", "bob"},
		{"{header.X-User}@v1", "bob@v1", "bob"},
		{"ip-{client_ip}", "ip-192.0.2.1", "192.0.2.1"},
	} {
		s := serveSite(t, strings.Replace(overriddenSite, "name api", "name api\n\t\tretries {\n\t\t\tkey "+c.key+"\n\t\t}\n", 1))
		for range 3 {
			s.get("/", "X-User", "Bob")
		}
		app, _ := runningApp()
		who, _ := app.Who("api", 9, true)
		if !slices.ContainsFunc(who.Shields[0].Rejected, func(is adminapi.RejectedClient) bool { return is.Client == c.client }) {
			t.Fatalf("%s: who has %+v, want %s", c.key, who.Shields[0].Rejected, c.client)
		}
		for _, name := range []string{c.client, c.value} {
			is := demand(t, `{"kind": "block", "client": "`+name+`", "for": "1h"}`)
			if resp := s.get("/", "X-User", "Bob"); resp.Header.Get("Proxy-Status") != `shield; error=http_request_denied; details="blocked"` {
				t.Errorf("%s: %q was blocked: %v", c.key, name, resp.Header)
			}
			end(t, is)
		}
	}
}

// Handles stand for clients whose addresses are masked, and for names that cannot be typed. They tell
// no address, and stand for no other client.
func TestHandles(t *testing.T) {
	s := serveSite(t, strings.NewReplacer(globalOptions, globalOptions+"shield {\nmask_addresses on\n}\n", "capacity", `zone visits {
			key {header.X-Visit}
			rate 1/h
		}
		capacity`).Replace(overriddenSite))
	ask := func(ip, visit string) (blocked bool) {
		return strings.HasSuffix(s.getFrom(ip, "/", "X-Visit", visit).Header.Get("Proxy-Status"), `details="blocked"`)
	}
	for range 4 {
		ask("192.0.2.1", "1")
		ask("192.0.2.77", "77")
	}
	list := askWho(t, "?shield=api").Shields[0].Rejected
	if len(list) != 2 || list[0].Client != "192.0.2.0/24" || list[0].Client != list[1].Client || list[0].Handle == list[1].Handle {
		t.Fatalf("the clients are %+v", list)
	}
	blocked := map[string]bool{}
	for _, is := range list {
		if status, body := administer(t, locally("GET", "/shield/explain?client="+is.Handle, "")); status != http.StatusOK || !strings.HasPrefix(body, `{"client":"192.0.2.0/24",`) || strings.Contains(body, "192.0.2.1") || strings.Contains(body, "77") {
			t.Errorf("explained: %d %s", status, body)
		}
		r := locally("GET", "/shield/explain?client="+is.Handle, "")
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 4), Port: 2021}))
		if _, body := administer(t, r); !strings.HasPrefix(body, `{"client":"hash:`) || strings.Contains(body, "192.0.2.") {
			t.Errorf("on a network, explained: %s", body)
		}
		block := demand(t, `{"kind": "block", "client": "`+is.Handle+`", "for": "1h"}`)
		first, second := ask("192.0.2.1", "1"), ask("192.0.2.77", "77")
		if blocked[map[bool]string{true: "192.0.2.1", false: "192.0.2.77"}[first]] = true; first == second || block.Client != "192.0.2.0/24" || overridesNow(t)[0].Client != "192.0.2.0/24" {
			t.Errorf("%+v is in force; the clients are blocked: %v, %v", block, first, second)
		}
		status, body := administer(t, locally("POST", "/shield/forgive", `{"client": "`+is.Handle+`"}`))
		if status != http.StatusOK || !strings.HasPrefix(body, `{"client":"192.0.2.0/24",`) || len(overridesNow(t)) != 0 {
			t.Errorf("forgiven: %d %s", status, body)
		}
	}
	if len(blocked) != 2 {
		t.Errorf("two handles have blocked %v", blocked)
	}

	// An address that is typed is masked in the list, too.
	demand(t, `{"kind": "block", "client": "192.0.2.99", "for": "1h"}`)
	if now := overridesNow(t); !ask("192.0.2.99", "99") || len(now) != 1 || now[0].Client != "192.0.2.0/24" {
		t.Errorf("in force are %+v", now)
	}

	// A name with bytes that no one can type, and one that is made to look like an address.
	for i := range 3 {
		ask(fmt.Sprintf("198.51.100.%d", i), "\x1b[2Jvisit")
		ask(fmt.Sprintf("198.51.100.%d", 3+i), "\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xcb\x00\x71\x63")
	}
	listed := map[string]bool{}
	for _, is := range askWho(t, "?shield=api").Zones[1].Rejected {
		listed[is.Client] = true
		status, body := administer(t, locally("GET", "/shield/explain?client="+is.Handle, ""))
		if status != http.StatusOK || !strings.Contains(body, `"name":"visits","tokens":0`) || strings.Contains(body, `"name":"z"`) && is.Client == "203.0.113.0/24" {
			t.Errorf("%s: %d %s", is.Client, status, body)
		}
	}
	if !listed["203.0.113.0/24"] || !listed[`"\x1b[2jvisit"`] {
		t.Errorf("listed are %v", listed)
	}
}
