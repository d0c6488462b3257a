package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// siteOf returns the only Caddyfile of docs/guides/serve-something-cheaper.md that has a word, with other texts in place of some
// of it. Its reverse_proxy is another handler.
func siteOf(t *testing.T, word, proxy string, instead ...string) setup {
	t.Helper()
	caddyfile := ""
	for _, block := range regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```").FindAllStringSubmatch(documents(t)["docs/guides/serve-something-cheaper.md"], -1) {
		if strings.Contains(block[1], word) {
			caddyfile += block[1]
		}
	}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(strings.NewReplacer(append(instead, "example.com", ":8080")...).Replace(caddyfile)), nil)
	if err != nil {
		t.Fatal(err)
	}
	const real = `{"handler":"reverse_proxy","upstreams":[{"dial":"app:8080"}]}`
	if strings.Count(string(config), real) != 1 {
		t.Fatalf("not one proxy is in\n%s", config)
	}
	var c struct {
		Apps struct {
			HTTP struct {
				Servers map[string]struct{ Routes, Errors json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(config), real, proxy)), &c); err != nil {
		t.Fatal(err)
	}
	is := c.Apps.HTTP.Servers["srv0"]
	s := setup{routes: strings.Trim(string(is.Routes), "[]")}
	if is.Errors != nil {
		s.server = `"errors": ` + string(is.Errors) + `,`
	}
	return s
}

// copies returns a folder with a copy of the front page.
func copies(t *testing.T) string {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "index.html"), []byte("copy"), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// In an overload without end by visitors who do not come back, twice as many as the backend can serve, nearly all get the page or its
// copy: with the matcher the copy for most of the time, and as an error page all whom the backend has no room for, with a Retry-After. 5 s
// after its end there are pages again. No CDN keeps a copy.
func TestMostGetSomething(t *testing.T) {
	backend := newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		pass(200 * time.Millisecond)
		fmt.Fprint(w, "page")
		return nil
	})
	folder := copies(t)
	for _, c := range []struct {
		word                  string // in the site of the page
		page, copied, nothing float64
	}{
		{"shield_overloaded", .05, .8, .05},
		{"handle_errors", .45, .45, 0},
	} {
		var mu sync.Mutex
		got := map[string]float64{} // guarded by mu
		start(t, siteOf(t, c.word, backend, "/srv/copies", folder, "concurrency adaptive", "concurrency 10")).inVirtualTime(t, func(r *rig, _ func(func())) {
			var visitors sync.WaitGroup
			for i := range 4000 {
				visitors.Go(func() {
					a := r.from(fmt.Sprintf("198.51.%d.%d", i/250, i%250)).get("/")
					mu.Lock()
					defer mu.Unlock()
					if a.StatusCode != 200 && a.Header.Get("Retry-After") == "" || a.body != "page" && a.body != "copy" {
						a.body = "nothing"
					}
					if kept := a.Header.Get("Cache-Control") != "no-store"; a.body == "copy" && kept {
						a.body = "copy that a CDN keeps"
					}
					got[a.body] += 1. / 4000
				})
				pass(10 * time.Millisecond)
			}
			visitors.Wait()
			pass(6 * time.Second)
			if a := r.wantStatus(200, "/"); a.body != "page" {
				t.Errorf("%s: after the overload there is the %s", c.word, a.body)
			}
		})
		if got["page"] < c.page || got["copy"] < c.copied || got["nothing"] > c.nothing {
			t.Errorf("%s: %v; want at least %v of pages and %v of copies, and at most %v of nothing", c.word, got, c.page, c.copied, c.nothing)
		}
		_ = caddy.Stop()
	}
}

// The matcher stands where it likes: before the shield, behind it, and in a zone. Neither a reload nor an override ends an overload,
// and of several shields each has its own.
func TestOverloadedAnywhere(t *testing.T) {
	const options = "capacity 1/h\nretries {\nkey {header.X-Key}\n}\npushback {\ndither off\n}\n}\n"
	site := "{" + globalOptions + "}\n" + bound + `
	@busy {
		shield_overloaded a
		not path /b
	}
	handle @busy {
		respond copy
	}
	handle /b {
		shield {
			name b
			zone meanwhile {
				match shield_overloaded a
				rate 1/h
			}
			concurrency 9
		}
		respond b
	}
	handle {
		shield {
			name a
			` + options + `
		respond ok
	}
}`
	visits := 0
	ask := func(what string, paths ...string) {
		t.Helper()
		for _, asked := range paths {
			visits++
			path, want, _ := strings.Cut(asked, " ")
			resp := activeSite(t).get(path, "X-Key", fmt.Sprint(visits))
			if body, _ := io.ReadAll(resp.Body); !strings.HasPrefix(fmt.Sprint(resp.StatusCode, " ", string(body)), want) {
				t.Errorf("%s: %s is %d %.60q, want %q", what, path, resp.StatusCode, body, want)
			}
		}
	}
	s := serveSite(t, site)
	ask("in calm", "/b 200 b", "/b 200 b", "/a 200 ok", "/a 503")
	ask("while a is overloaded", "/a 200 copy", "/b 200 b", "/b 429")
	for _, is := range s.app.Status(true).Shields {
		if is.Overloaded != (is.Name == "a") {
			t.Errorf("%s, which has rejected %v: overloaded is %v", is.Name, is.Rejected, is.Overloaded)
		}
	}
	reload(t, strings.Replace(site, "respond copy", `respond "new copy"`, 1))
	ask("after a reload", "/a 200 new copy")
	demand(t, `{"kind": "set", "shield": "a", "setting": "capacity", "value": "2/h", "for": "1h"}`)
	ask("after an override", "/a 200 new copy")
	_ = caddy.Stop()

	serveSite(t, "{"+globalOptions+"}\n"+bound+"route {\nshield {\nmode observe\n"+options+"shield 1000/s\n@busy shield_overloaded\nrespond @busy copy\nrespond ok\n}\n}")
	ask("behind a shield that observes, the only one with a limit", "/ 200 ok", "/ 200 copy")
}

// A config is not loaded if a matcher's shield is not there, cannot be told from others, or is never overloaded.
func TestShieldsOfMatchers(t *testing.T) {
	shields := func(blocks ...string) (all string) {
		for i, block := range blocks {
			all += fmt.Sprintf("handle /%d {\nshield {\n%s\n}\n}\n", i, block)
		}
		return all
	}
	for _, c := range []struct{ matcher, shields, want string }{
		{"shield_overloaded", shields("name a\ncapacity 1/s"), ""},
		{"shield_overloaded", shields("name a\ncapacity 1/s", "name a\ncapacity 1/s", "zone z {\nrate 1/s\n}"), ""},
		{"shield_overloaded b", shields("name a\ncapacity 1/s", "name b\nconcurrency 5"), ""},
		{"shield_overloaded", shields("name a\ncapacity 1/s", "name b\nconcurrency 5"), `names the shield ""; use one with a capacity or a concurrency: ["a" "b"]`},
		{"shield_overloaded c", shields("name a\ncapacity 1/s"), `names the shield "c"; use one with a capacity or a concurrency: ["a"]`},
		{"shield_overloaded a", shields("name a\nzone z {\nrate 1/s\n}"), `names the shield "a"; use one with a capacity or a concurrency: []`},
		{"shield_overloaded", "", `names the shield ""; use`},
		{"shield_overloaded a b", shields("name a\ncapacity 1/s"), "wrong argument count"},
		{"{\nshield_overloaded a\nshield_overloaded b\n}", shields("name a\ncapacity 1/s", "name b\ncapacity 1/s"), "wrong argument count"},
	} {
		config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("{"+globalOptions+"}\n"+bound+"@busy "+c.matcher+"\nrespond @busy busy\n"+c.shields+"}"), nil)
		if err == nil {
			err = caddy.Load(config, true)
			_ = caddy.Stop()
		}
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of\n%serror is %v; want %q", c.matcher, c.shields, err, c.want)
		}
	}
	if n := poolKeys(); n != 0 {
		t.Errorf("%d states are left", n)
	}
}

// The backend can be told its load in a header of reverse_proxy, whatever a client sends in it. Handlers and error routes have it, too.
func TestLoad(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		concurrency 8
		zone z {
			match path /quota
			rate 1/h
		}
	}
	request_header Shield-Load {http.shield.load}
	respond "<{header.Shield-Load}> {http.shield.load}"
	handle_errors 429 {
		respond "{http.shield.load}"
	}
}`)
	for _, c := range []struct {
		path    string
		headers []string
		want    string
	}{
		{"/", nil, "<0.13> 0.13"},
		{"/", []string{"Shield-Load", "0"}, "<0.13> 0.13"},
		{"/quota", nil, "<0.13> 0.13"},
		{"/quota", nil, "0"},
	} {
		if body, _ := io.ReadAll(s.get(c.path, c.headers...).Body); string(body) != c.want {
			t.Errorf("%s %q: %q, want %q", c.path, c.headers, body, c.want)
		}
	}
	demand(t, `{"kind": "set", "shield": "shop", "setting": "concurrency", "value": "2", "for": "1h"}`)
	if body, _ := io.ReadAll(s.get("/").Body); string(body) != "<0.5> 0.5" {
		t.Errorf("%q with a limit of two; want half of it", body)
	}
}
