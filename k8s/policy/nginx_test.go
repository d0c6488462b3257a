package policy

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"

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

// Values of ingress-nginx are read with its idiosyncrasies; shield's own count before them.
func TestParseFilters(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string // those of ingress-nginx with "nginx/" before them
		get         func(f *Filters) any
		want        any
	}{
		{map[string]string{"nginx/use-regex": "True"}, func(f *Filters) any { return f.Regex }, true},
		{map[string]string{"nginx/use-regex": "true", "use-regex": "false"}, func(f *Filters) any { return f.Regex }, false},
		{map[string]string{"nginx/proxy-body-size": "8m"}, func(f *Filters) any { return f.BodySize }, int64(8 << 20)},
		{map[string]string{"nginx/proxy-body-size": "1G"}, func(f *Filters) any { return f.BodySize }, int64(1 << 30)},
		{map[string]string{"nginx/proxy-body-size": "0"}, func(f *Filters) any { return f.BodySize }, int64(NoBodySize)},
		{map[string]string{"nginx/proxy-body-size": "9", "body-size": "off"}, func(f *Filters) any { return f.BodySize }, int64(NoBodySize)},
		{map[string]string{"nginx/rewrite-target": "/a", "rewrite-prefix": "/b"}, func(f *Filters) any { return f.RewriteTarget + " " + f.RewritePrefix }, " /b"},
		{map[string]string{"nginx/permanent-redirect": "https://a/", "nginx/permanent-redirect-code": "308"}, func(f *Filters) any { return fmt.Sprint(f.RedirectCode, f.Redirect) }, "308https://a/"},
		{map[string]string{"nginx/permanent-redirect": "https://a/", "nginx/temporal-redirect": "https://b/"}, func(f *Filters) any { return fmt.Sprint(f.RedirectCode, f.Redirect) }, "302https://b/"},
		{map[string]string{"permanent-redirect": "https://a$request_uri"}, func(f *Filters) any { return f.RedirectTo("/x?y") }, "https://a/x?y"},
		{map[string]string{"nginx/enable-cors": "true"}, func(f *Filters) any { a, _ := f.CORS.Allow("https://x"); return a }, "*"},
		{map[string]string{"nginx/enable-cors": "true", "nginx/cors-allow-origin": "https://x, *,"}, func(f *Filters) any { a, _ := f.CORS.Allow("https://y"); return a }, "*"},
		{map[string]string{"nginx/enable-cors": "true", "nginx/cors-allow-origin": "https://x,"}, func(f *Filters) any { a, _ := f.CORS.Allow("https://y"); return a }, ""},
		{map[string]string{"nginx/enable-cors": "false", "nginx/cors-allow-origin": "https://x"}, func(f *Filters) any { a, _ := f.CORS.Allow("https://x"); return a }, ""},
		{map[string]string{"auth-url": "https://$host/a", "auth-signin": "https://b/s?x=y"}, func(f *Filters) any { return f.Auth.SigninFor("https", "h", "/p?q") }, "https://b/s?x=y&rd=https%3A%2F%2Fh%2Fp%3Fq"},
		{map[string]string{"auth-url": "https://$host/a"}, func(f *Filters) any { return f.Auth.OfClientsChoice() }, true},
		{map[string]string{"auth-url": "https://a/$host"}, func(f *Filters) any { return f.Auth.OfClientsChoice() }, false},
		{map[string]string{"nginx/auth-signin": "https://b/"}, func(f *Filters) any { return f.Auth == nil }, true},
	} {
		annotations := map[string]string{}
		for name, v := range c.annotations {
			if nginx, is := strings.CutPrefix(name, "nginx/"); is {
				annotations[NginxPrefix+nginx] = v
			} else {
				annotations[Prefix+name] = v
			}
		}
		f, err := ParseFilters(annotations, true, nil)
		if err != nil {
			t.Errorf("%v: %v", c.annotations, err)
		} else if got := c.get(f); got != c.want {
			t.Errorf("%v: got %v, want %v", c.annotations, got, c.want)
		}
	}
	if f, err := ParseFilters(map[string]string{NginxPrefix + "use-regex": "true"}, false, nil); f != nil || err != nil {
		t.Errorf("without the flag: %+v, %v", f, err)
	}
	class := &Filters{BodySize: 5, HSTS: "max-age=1"}
	f, err := ParseFilters(map[string]string{Prefix + "hsts": "off"}, false, class)
	if err != nil || f.BodySize != 5 || f.HSTS != "off" || class.HSTS != "max-age=1" {
		t.Errorf("beyond the class's: %+v, %v; the class has %+v", f, err, class)
	}
}

// FuzzFilters checks that no value gets a line of its own into a request or a response, that
// redirects and questions are URLs with a host, and that one mistake leaves other values alone.
func FuzzFilters(f *testing.F) {
	for i := range filterRows {
		for _, v := range []string{"true", "/a", "8m", "https://a.test/$request_uri", "https://$host/", "X-A: b\nC: d", "x\r\ny", "*", "off", "max-age=1", "a.test", "30s"} {
			f.Add(uint8(i), v)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, value string) {
		row := filterRows[int(i)%len(filterRows)]
		annotations := map[string]string{Prefix + row.Name: value, Prefix + "app-root": "/fine", Prefix + "enable-cors": "true", Prefix + "auth-url": "http://a/"}
		annotations[Prefix+row.Name] = value
		got, err := ParseFilters(annotations, true, nil)
		again, _ := ParseFilters(annotations, true, nil)
		if !reflect.DeepEqual(got, again) {
			t.Fatalf("%s: %q is read as %+v, and then as %+v", row.Name, value, got, again)
		}
		if row.Name != "app-root" && got.AppRoot != "/fine" {
			t.Errorf("%s: %q takes another value away: %v", row.Name, value, err)
		}
		if got.Auth == nil || row.Name == "auth-url" && err != nil && got.Auth.URL != "" {
			t.Errorf("%s: %q opens the Ingress", row.Name, value)
		}
		lines := []string{got.HSTS, got.RedirectTo("/x"), got.AppRoot, got.Host, got.ForwardedPrefix, got.RewritePrefix, got.RewriteTarget, got.Auth.SigninFor("http", "h", "/x")}
		got.CORS.Fields(func(_, v string) { lines = append(lines, v) })
		for _, h := range got.Headers {
			if lines = append(lines, h.Value); !httpguts.ValidHeaderFieldName(h.Name) {
				t.Errorf("%q is a name", h.Name)
			}
		}
		for _, line := range lines {
			if strings.ContainsAny(line, "\r\n\x00") || !httpguts.ValidHeaderFieldValue(line) {
				t.Errorf("%s: %q gives the line %q", row.Name, value, line)
			}
		}
		for _, to := range []string{got.RedirectTo("/x"), got.Auth.Ask("http", "h", "/x")} {
			if u, err := url.Parse(to); to != "" && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https") {
				t.Errorf("%s: %q leads to %q: %v", row.Name, value, to, err)
			}
		}
	})
}
