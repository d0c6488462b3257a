package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield/share/redis/testserver"
)

// What a flag stands for in Caddy's JSON. Limits, --store and --admin are seen at work elsewhere.
func TestProxyConfig(t *testing.T) {
	for _, c := range []struct {
		proxy
		want, not string
	}{
		{proxy{Rate: "5/s"}, `"listener_wrappers":[{"wrapper":"shield"}],`, `"mode"`}, // requests that come again are rejected at the door
		{proxy{Rate: "5/s", AccessLog: true}, `"logs":{}`, `"listener_wrappers"`},     // which would leave them out
		{proxy{Rate: "5/s", Observe: true}, `"mode":"observe"`, `"timeout"`},
		{proxy{Rate: "5/s", Burst: new(7)}, `"burst":7`, `"capacity"`},
		{proxy{Concurrency: "64", Timeout: "30s"}, `"timeout":30000000000`, `"zones"`},
		{proxy{Capacity: "5/s", Timeout: "off", Admin: ":2020"}, `"shield":{"page":":2020"}`, `"timeout"`},
	} {
		c.From, c.To = "127.0.0.1:8080", []string{"127.0.0.1:9000", "unix//run/app.sock"}
		c.Admin = cmp.Or(c.Admin, "off")
		config, err := c.config()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.want, `"listen":["127.0.0.1:8080"]`, `"upstreams":[{"dial":"127.0.0.1:9000"},{"dial":"unix//run/app.sock"}]`, `"protocols":["h1"]`} {
			if !strings.Contains(string(config), want) || strings.Contains(string(config), c.not) {
				t.Errorf("%+v: no %s, or a %s, in\n%s", c.proxy, want, c.not, config)
			}
		}
	}
}

// What --from means: the site's address and where that binds, the socket, and what a browser asks for.
func TestProxyFrom(t *testing.T) {
	for from, want := range map[string][4]string{
		":8080":                  {"http://:8080", "", ":8080", "http://localhost:8080/"},
		"8080":                   {"http://:8080", "", ":8080", "http://localhost:8080/"},
		"127.0.0.1:8080":         {"http://:8080", "127.0.0.1", "127.0.0.1:8080", "http://127.0.0.1:8080/"},
		"http://127.0.0.1:80":    {"http://:80", "127.0.0.1", "127.0.0.1:80", "http://127.0.0.1/"},
		"0.0.0.0:80":             {"http://:80", "0.0.0.0", "0.0.0.0:80", "http://localhost/"},
		"[::1]:8080":             {"http://:8080", "::1", "[::1]:8080", "http://[::1]:8080/"},
		"::1":                    {"http://", "::1", "[::1]:80", "http://[::1]/"},
		"localhost":              {"http://", "localhost", "localhost:80", "http://localhost/"},
		"example.com":            {"example.com", "", ":443", "https://example.com/"},
		"example.com:8443":       {"example.com:8443", "", ":8443", "https://example.com:8443/"},
		"http://example.com":     {"http://example.com", "", ":80", "http://example.com/"},
		"https://localhost:8443": {"https://localhost:8443", "", ":8443", "https://localhost:8443/"},
	} {
		a := proxy{From: from}.address()
		if got := [4]string{a.site, a.bind, a.socket, a.url}; got != want {
			t.Errorf("--from %s: %q, want %q", from, got, want)
		}
	}
}

func TestProxyErrors(t *testing.T) {
	good := proxy{From: ":8080", To: []string{"127.0.0.1:9000"}, Admin: "off", Rate: "5/s"}
	for _, c := range []struct {
		name   string
		change func(*proxy)
		want   string // "" means none
	}{
		{"good", func(*proxy) {}, ""},
		{"no backend", func(p *proxy) { p.To = nil }, "--to is missing"},
		{"no limit", func(p *proxy) { p.Rate = "" }, "no limit is set; use --rate, --capacity or --concurrency"},
		{"Unix socket", func(p *proxy) { p.From = "unix//run/x.sock" }, "a Unix socket needs a Caddyfile"},
		{"burst alone", func(p *proxy) { p.Rate, p.Burst, p.Capacity = "", new(5), "5/s" }, "--burst is 5 without --rate"},
		{"bad rate", func(p *proxy) { p.Rate = "5" }, `--rate: rate is "5"; use a number per s, m, h, day or month, like 50/s or 1M/day`},
		{"bad capacity", func(p *proxy) { p.Capacity = "many/s" }, `--capacity: capacity is "many/s"; use a number per s`},
		{"adaptive", func(p *proxy) { p.Rate, p.Concurrency = "", "adaptive" }, ""},
		{"bad concurrency", func(p *proxy) { p.Concurrency = "many" }, `--concurrency is "many"; use 1 to 1000000, or adaptive`},
		{"no concurrency", func(p *proxy) { p.Concurrency = "0" }, `--concurrency is "0"; use 1 to 1000000, or adaptive`},
		{"slo in one flag", func(p *proxy) { p.Concurrency = "slo 200ms" }, `--concurrency is "slo 200ms"; remove its spaces`},
		{"no timeout", func(p *proxy) { p.Timeout = "off" }, ""},
		{"bad timeout", func(p *proxy) { p.Timeout = "soon" }, `--timeout is "soon"; use a duration like 60s, 1ms to 24h, or off`},
		{"a timeout of 0", func(p *proxy) { p.Timeout = "0" }, `--timeout is "0"; use a duration like 60s, 1ms to 24h, or off`},
		{"no burst", func(p *proxy) { p.Burst = new(0) }, "--rate: burst is 0; use more"},
		{"a burst of a year", func(p *proxy) { p.Rate, p.Burst = "1/h", new(9000) }, "--rate: burst 9000 at a rate of 1 per 1h0m0s"},
		{"several", func(p *proxy) { p.Rate, p.Capacity = "0/s", "0/s" }, "--rate: rate is missing or 0; use more than 0, like 50/s\n--capacity: rate is missing or 0; use more"},
		{"no address", func(p *proxy) { p.From = "" }, `--from is ""; use an address to listen on, like :8080`},
		{"a service for a port", func(p *proxy) { p.From = "localhost:http" }, `--from is "localhost:http"; use`},
		{"a negative port", func(p *proxy) { p.From = ":-1" }, `--from is ":-1"; use`},
		{"a large port", func(p *proxy) { p.From = "99999" }, `--from is "99999"; use`},
		{"two ports", func(p *proxy) { p.From = ":80:90" }, `--from is ":80:90"; use`},
		{"no IP address", func(p *proxy) { p.From = "300.1.1.1:80" }, `--from is "300.1.1.1:80"; use`},
		{"an open bracket", func(p *proxy) { p.From = "[::1" }, `--from is "[::1"; use`},
		{"another scheme", func(p *proxy) { p.From = "ftp://a:1" }, `--from is "ftp://a:1"; use`},
		{"a path", func(p *proxy) { p.From = "example.com/api" }, `--from is "example.com/api"; use`},
		{"IPv6", func(p *proxy) { p.From = "[::1]:8080" }, ""},
		{"a port alone", func(p *proxy) { p.To = []string{"9000"} }, `--to is "9000"; use the backend's address, like 127.0.0.1:9000`},
		{"a large port of the backend", func(p *proxy) { p.To = []string{"127.0.0.1:99999"} }, `--to is "127.0.0.1:99999"; use`},
		{"two ports of the backend", func(p *proxy) { p.To = []string{"app:9000", "127.0.0.1:9:9"} }, `--to is "127.0.0.1:9:9"; use`},
		{"a path of the backend", func(p *proxy) { p.To = []string{"http://127.0.0.1:9/api"} }, `--to is "http://127.0.0.1:9/api"; use the backend's address, like 127.0.0.1:9000, app:80 or https://app.example, without a path`},
		{"another scheme of the backend", func(p *proxy) { p.To = []string{"ftp://a:9"} }, `--to is "ftp://a:9"; use`},
		{"backends", func(p *proxy) { p.To = []string{"app", "[::1]:9", "unix//run/a.sock", ":9000"} }, ""},
		{"HTTPS", func(p *proxy) { p.To = []string{"https://app.example"} }, ""},
		{"two schemes", func(p *proxy) { p.To = []string{"https://a", "h2c://b"} }, "--to: parsing upstream 'h2c://b'"},
		{"no admin port", func(p *proxy) { p.Admin = "localhost" }, `--admin is "localhost"; use a host and port, like localhost:2019, or off`},
		{"a wrong admin port", func(p *proxy) { p.Admin = ":99999" }, `--admin is ":99999"; use`},
		{"a socket for admin", func(p *proxy) { p.Admin = "unix//run/admin.sock" }, ""},
		{"a URL for admin", func(p *proxy) { p.Admin = "http://localhost:2019" }, `--admin is "http://localhost:2019"; use a host and port, like localhost:2019, or off`},
		{"itself", func(p *proxy) { p.To = []string{"127.0.0.1:8080"} }, `--to is "127.0.0.1:8080", where this proxy itself listens (--from :8080); use the backend's address`},
		{"itself by its name", func(p *proxy) { p.To = []string{"app:8080", "http://localhost:8080"} }, `--to is "http://localhost:8080", where this proxy itself listens`},
		{"itself at one address", func(p *proxy) { p.From, p.To = "127.0.0.2:80", []string{"127.0.0.2:80"} }, `--to is "127.0.0.2:80", where this proxy`},
		{"a neighbour", func(p *proxy) { p.From, p.To = "127.0.0.2:80", []string{"127.0.0.1:80"} }, ""},
		{"another machine's port", func(p *proxy) { p.To = []string{"192.0.2.1:8080", "app:8080"} }, ""},
		{"braces", func(p *proxy) { p.From = ":8080 {" }, `--from is ":8080 {"; remove its spaces`},
		{"quotes", func(p *proxy) { p.To = []string{"`x`"} }, "--to is"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := good
			c.change(&p)
			_, err := p.config()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
		})
	}
}

// With --store replicas share all limits. Neither the password nor the secret is in the config.
func TestProxyStore(t *testing.T) {
	p := proxy{From: ":8080", To: []string{"127.0.0.1:9000"}, Admin: "off", Capacity: "5/s", Store: "redis://me:horse@redis-1,redis-2:7000/?prefix=shop"}
	t.Setenv(passwordVariable, "")
	for secret, want := range map[string]string{
		"": "SHIELD_SECRET is not set; use the secret of all replicas", "horse": "SHIELD_SECRET has 5 bytes; use at least 16, such as the output of openssl rand -hex 16",
	} {
		t.Setenv(secretVariable, secret)
		if _, err := p.config(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the secret %q the error is %v", secret, err)
		}
	}
	t.Setenv(secretVariable, "correct horse battery staple")
	config, err := p.config()
	if os.Getenv(passwordVariable) != "horse" {
		t.Errorf("the password is %q", os.Getenv(passwordVariable))
	}
	const want = `"shield":{"store":{"type":"redis","address":["redis-1","redis-2:7000"],"username":"me","password":"{env.SHIELD_STORE_PASSWORD}","prefix":"shop","secret":"{env.SHIELD_SECRET}"}}`
	if err != nil || !strings.Contains(string(config), want) || strings.Contains(string(config), "horse") {
		t.Errorf("got:\n%s, %v\nwant:\n%s", config, err, want)
	}
	p.Store = "redis-1"
	if _, err := p.config(); err == nil || !strings.Contains(err.Error(), "--store isn't a redis:// or rediss:// URL") {
		t.Errorf("the error is %v", err)
	}
}

// The environment counts before what the program sets for itself: how much garbage there may be, and nine tenths of what memory there is.
func TestMemoryIsTuned(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"GOGC=": "go_gc_gogc_percent 400\n", "GOGC=150": "go_gc_gogc_percent 150\n", "GOMEMLIMIT=2GiB": "go_gc_gomemlimit_bytes 2.147483648e+09\n",
	} {
		admin := testserver.FreeAddress(t)
		cmd := command(t, "proxy", "--from", testserver.FreeAddress(t), "--admin", admin, "--to", "127.0.0.1:9", "--rate", "5/s")
		cmd.Env = append(cmd.Env, env)
		await(t, cmd, up)
		if shown := metrics(t, admin); !strings.Contains(shown, "\n"+want) || strings.Contains(shown, "go_gc_gomemlimit_bytes 9.223372036854776e+18\n") {
			t.Errorf("%s: no %s in the metrics, or no memory limit:\n%s", env, want, shown)
		}
	}
}

// Two processes at one address would each admit what the limits say.
func TestProxyRejectsASharedAddress(t *testing.T) {
	t.Parallel()
	to := backend(t)
	address, admin := startProxy(t, "--to", to, "--rate", "5/s")
	for _, c := range []struct{ from, admin, want string }{
		{address, testserver.FreeAddress(t), "Error: --from is " + address + ", where another process is listening, maybe another shield; use another address, stop that process, or share the address with --reuse-port\n"},
		{testserver.FreeAddress(t), admin, "Error: --admin is " + admin + ", where another process is listening"},
		{"http://" + address, "off", "Error: --from is 127.0.0.1:"},
	} {
		out, err := command(t, "proxy", "--from", c.from, "--admin", c.admin, "--to", to, "--rate", "5/s").CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), c.want) {
			t.Errorf("from %s, admin %s: %v, %s; want %s", c.from, c.admin, err, out, c.want)
		}
	}
	both := command(t, "proxy", "--from", address, "--admin", admin, "--to", to, "--rate", "5/s", "--reuse-port")
	await(t, both, up)
}

// Client and backend agree on an encoding without the proxy.
func TestProxyLeavesEncodingsAlone(t *testing.T) {
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
		}
		fmt.Fprintf(w, "%q", r.Header["Accept-Encoding"])
	}))
	t.Cleanup(backend.Close)
	address, _ := startProxy(t, "--to", strings.TrimPrefix(backend.URL, "http://"), "--rate", "100/s")
	for accepts, want := range map[string]string{"": "[]", "br": `["br"]`, "gzip": `["gzip"]`} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+address, nil)
		if accepts != "" {
			r.Header.Set("Accept-Encoding", accepts)
		}
		resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if encoded := resp.Header.Get("Content-Encoding") == "gzip"; err != nil || encoded != (accepts == "gzip") || string(body) != want || resp.ContentLength != int64(len(body)) {
			t.Errorf("Accept-Encoding %q: %s, %v, length %d, %v; want %s", accepts, body, resp.Header, resp.ContentLength, err, want)
		}
	}
}

// On a terminal a person reads three lines, and no log.
func TestProxyOnATerminal(t *testing.T) {
	t.Parallel()
	script, err := exec.LookPath("script") // of util-linux, which has a terminal for the program
	if err != nil {
		t.Skip("needs script on the path")
	}
	address, admin, to := testserver.FreeAddress(t), testserver.FreeAddress(t), backend(t)
	shielded := command(t)
	line := fmt.Sprintf("exec %s proxy --from %s --admin %s --to %s --rate 100/m --capacity 50/s --concurrency 8", shielded.Path, address, admin, to)
	cmd := exec.CommandContext(t.Context(), script, "-qefc", line, "/dev/null")
	cmd.Env = shielded.Env
	keys, _ := cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for s := bufio.NewScanner(out); len(lines) < 3 && s.Scan(); {
		lines = append(lines, s.Text())
	}
	want := []string{
		"shield limits each client to 100/m, all clients together to 50/s, requests in flight to 8.",
		"It listens on http://" + address + "/ in front of " + to + ".",
		"Try: curl -i http://" + address + "/, and shield status --address " + admin + " in another terminal. Press Ctrl-C to stop.",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	resp, err := http.Get("http://" + address)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v, %v", resp, err)
	}
	_, _ = io.WriteString(keys, "\x03")
	rest, _ := io.ReadAll(out)
	for line := range strings.Lines(strings.TrimPrefix(string(rest), "^C")) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "byeee") { // Caddy's farewell
			t.Errorf("then it says %s", line)
		}
	}
	_ = cmd.Wait()
}
