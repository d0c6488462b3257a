package policy

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

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
