package policy

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// nginx returns annotations of ingress-nginx's: pairs of a name without prefix and a value.
func nginx(pairs ...string) map[string]string {
	m := map[string]string{NginxPrefix + "rewrite-target": "/$1"}
	for i := 0; i < len(pairs); i += 2 {
		m[NginxPrefix+pairs[i]] = pairs[i+1]
	}
	return m
}

func perKilosecond(n float64, burst int) limiter.Config {
	return limiter.Config{Rate: n, Per: 1000 * time.Second, Burst: burst}
}

func TestParseNginx(t *testing.T) {
	class := Ingress{Zones: []Zone{{"rate", perSecond(10, 40)}}, PerClient: 4, Key: "{http.request.host}", IPv6Prefix: 48, Allow: prefixes("10.0.0.0/8"), RetryAfterMax: time.Second, Class: "critical", Observe: true}
	limited := func(change func(p *Ingress)) Ingress {
		p := Ingress{IPv6Prefix: 128, Status: http.StatusServiceUnavailable, Local: true}
		change(&p)
		return p
	}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		defaults    Ingress
		want        Ingress
		found       bool
	}{
		{"nothing", nginx(), class, class, false},
		{"rps", nginx("limit-rps", "5"), Ingress{}, limited(func(p *Ingress) { p.Zones = []Zone{{"rps", perKilosecond(5000, 26)}} }), true},
		{"rpm, rounded down to thousandths per second", nginx("limit-rpm", "100"), Ingress{},
			limited(func(p *Ingress) { p.Zones = []Zone{{"rpm", perKilosecond(1666, 501)}} }), true},
		{"all", nginx("limit-rps", "10", "limit-rpm", "120", "limit-connections", "3", "limit-burst-multiplier", "2", "limit-allowlist", "192.0.2.0/24, 2001:db8::1"), Ingress{},
			limited(func(p *Ingress) {
				p.Zones = []Zone{{"rps", perKilosecond(10_000, 21)}, {"rpm", perKilosecond(2000, 241)}}
				p.PerClient, p.Allow = 3, prefixes("192.0.2.0/24", "2001:db8::1/128")
			}), true},
		{"the old name of the allowlist", nginx("limit-connections", "1", "limit-whitelist", "192.0.2.1"), Ingress{},
			limited(func(p *Ingress) { p.PerClient, p.Allow = 1, prefixes("192.0.2.1/32") }), true},
		{"the old name where the new one is empty", nginx("limit-connections", "1", "limit-whitelist", "192.0.2.1", "limit-allowlist", ""), Ingress{},
			limited(func(p *Ingress) { p.PerClient, p.Allow = 1, prefixes("192.0.2.1/32") }), true},
		{"a multiplier that is no number", nginx("limit-rps", "1", "limit-burst-multiplier", "2.5"), Ingress{},
			limited(func(p *Ingress) { p.Zones = []Zone{{"rps", perKilosecond(1000, 6)}} }), true},
		{"no limits", nginx("limit-rps", "0", "limit-rpm", "-1", "limit-connections", ""), class, class, false},
		{"the class's limits are replaced, the rest is not", nginx("limit-rps", "1"), class, limited(func(p *Ingress) {
			p.Zones, p.Allow, p.RetryAfterMax, p.Class, p.Observe = []Zone{{"rps", perKilosecond(1000, 6)}}, class.Allow, time.Second, "critical", true
		}), true},
		{"a limit of shield's own that is wrong", map[string]string{NginxPrefix + "limit-rps": "1", Prefix + "rate": "ten", Prefix + "burst": "20"}, class, limited(func(p *Ingress) {
			p.Zones, p.Allow, p.RetryAfterMax, p.Class, p.Observe = []Zone{{"rps", perKilosecond(1000, 6)}}, class.Allow, time.Second, "critical", true
		}), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, found, err := ParseNginx(test.annotations, test.defaults)
			if err != nil || found != test.found || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v, %v; want %+v, %v", got, found, err, test.want, test.found)
			}
		})
	}

	const n = NginxPrefix
	for _, test := range []struct {
		annotations map[string]string
		want        string
	}{
		{nginx("limit-rps", "5/s"), n + `limit-rps is "5/s"; use a whole number`},
		{nginx("limit-connections", "many", "limit-rps", "1"), n + `limit-connections is "many"; use a whole number`},
		{nginx("limit-rps", "5", "limit-burst-multiplier", "0"), n + `limit-burst-multiplier is 0 with ` + n + `limit-rps of 5; use 1 to 429496729`},
		{nginx("limit-rps", "2000000000", "limit-burst-multiplier", "1"), n + `limit-rps is "2000000000": rate is 2e+12 per 16m40s; use more than 0 and at most 1e9 per second`},
		{nginx("limit-rps", "a", "limit-rpm", "b", "limit-whitelist", "c"), strings.Join([]string{n + `limit-rps is "a"; use a whole number`, n + `limit-rpm is "b"; use a whole number`,
			n + `limit-whitelist is "c": "c" is not an address; use addresses or networks like 10.0.0.0/8, separated by commas`}, "\n")},
	} {
		got, found, err := ParseNginx(test.annotations, class)
		if err == nil || err.Error() != test.want || !found || got.Zones == nil && got.PerClient == 0 {
			t.Errorf("%v:\ngot  %v\nwant %s", test.annotations, err, test.want)
		}
	}
}

// The table names each annotation once, and shield's words in it exist.
func TestInventory(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range NginxAnnotations() {
		if seen[a.Name] {
			t.Errorf("%s is there twice", a.Name)
		}
		seen[a.Name] = true
		if a.Word != "" && !slices.Contains(names(OnIngress()), a.Word) {
			t.Errorf("%s: shield has no annotation %s", a.Name, a.Word)
		}
		if a.Fate != Read && a.Advice == "" {
			t.Errorf("%s: no advice", a.Name)
		}
	}
	for _, row := range filterRows {
		if row.nginx != "" && !seen[row.nginx] {
			t.Errorf("%s is read, and not in the table", row.nginx)
		}
	}
}

func TestFateOf(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        Fate
	}{
		{"limit-rps", "5", Read}, {"rewrite-target", "/$1", Read}, {"auth-url", "https://auth/", Read}, {"satisfy", "any", Guards},
		{"satisfy", "", Tunes}, {"auth-added-later", "x", Guards}, {"future-source-range", "10.0.0.0/8", Guards},
		{"modsecurity-added-later", "x", Guards}, {"added-later", "x", Changes}, {"enable-modsecurity", "true", Guards},
		{"enable-modsecurity", "false", Tunes}, {"auth-tls-verify-client", "off", Tunes}, {"auth-tls-verify-client", "optional_no_ca", Guards},
		{"proxy-buffering", "on", Tunes}, {"configuration-snippet", "more_set_headers \"X-A: b\";", Changes},
		{"configuration-snippet", "allow 10.0.0.0/8;\ndeny all;", Guards}, {"server-snippet", "location /admin { return 403; }", Guards},
		{"server-snippet", "location /old { return 301 /new; }", Changes}, {"configuration-snippet", "auth_basic off;", Guards},
		{"configuration-snippet", "if ($http_x_key != \"s3cret\") {return 403;}", Guards}, {"configuration-snippet", "if ($http_x_key != s3cret) { return 503 busy; }", Guards},
		{"configuration-snippet", "if ($cookie_session = \"\") {\n  return 302 https://login.example.com/;\n}", Guards},
		{"configuration-snippet", "if ($cookie_session = \"\") { set $x 1; return https://login.example.com/; }", Guards},
		{"configuration-snippet", "if ($cookie_session = \"\") { rewrite ^ /login redirect; }", Guards},
		{"configuration-snippet", "if ($http_x_token !~ \"^[a-f0-9]{32}$\") { return 302 /login; }", Guards},
		{"configuration-snippet", "if ($x) { rewrite ^/a{2}$ /login redirect; }", Guards},
		{"configuration-snippet", "if ($x) { rewrite ^ https://login.example.com/; }", Guards}, {"configuration-snippet", "if ($x) { return \"403\"; }", Guards},
		{"configuration-snippet", "if ($x) { rewrite ^ https://new.example.com$uri permanent; }", Changes},
		{"configuration-snippet", "if ($host = old.example.com) { return 301 https://new.example.com$request_uri; }", Changes},
		{"server-snippet", "location /old { return 302 /new; }", Changes}, {"configuration-snippet", "if ($x) { set $y 1; } rewrite ^/a /b redirect;", Changes},
	} {
		if got := FateOf(test.name, test.value).Fate; got != test.want {
			t.Errorf("%s: %q: fate %d, want %d", test.name, test.value, got, test.want)
		}
	}
}
