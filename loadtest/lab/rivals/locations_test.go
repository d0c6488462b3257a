package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield/internal/convert"
	"github.com/herdshield/shield/loadtest/lab/process"
)

// locations writes servers of nginx with random locations.
type locations struct {
	*rand.Rand
	backend string
	lines   []string
	paths   []string // of the server's locations
	vague   []string // locations with a regular expression that Go has not, and those in them
}

func (l *locations) line(format string, args ...any) int {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	return len(l.lines)
}

func pick(l *locations, all ...string) string { return all[l.IntN(len(all))] }

// block writes some locations. around is the path that those without a regular expression
// begin with.
func (l *locations) block(around string, depth int) {
	taken := map[string]bool{}
	for range 1 + l.IntN(5) {
		modifier := pick(l, "", "", "", "= ", "^~ ", "~ ", "~ ", "~* ")
		path := around + pick(l, "/a", "/ab", "/a/", "/a/b", "/a/b/", "/b/", "/b/c", "/", "/A", "/x.php", "/s t/", "/a%2Bb", "/b.", "/{c")
		if depth > 0 && l.IntN(3) > 0 {
			path = around + pick(l, "", "b", "/", "b/", "c.php")
		}
		if strings.HasPrefix(modifier, "~") {
			path = pick(l, `\.php$`, `^/a/`, `b`, `^/ab?/c`, `/[ab]/`, `B`, `^/(a|b)/.*\.php$`, `c$`, `^/a{1,2}/`, `[^/]+/b`, `/A`, `\.(php|html)$`)
		}
		if l.IntN(40) == 0 && depth == 0 {
			modifier, path = "~ ", pick(l, `/b(?!/c)`, `(?<=/a)b`, `^/(?>a+)b`)
		}
		if strings.Contains(path, "//") {
			continue // nginx merges slashes
		}
		same := path // exact and prefix may have the same path
		if modifier != "" && modifier != "^~ " {
			same = modifier + path
		}
		if taken[same] {
			continue
		}
		taken[same] = true
		l.paths = append(l.paths, path)
		at := l.line("location %s%q {", modifier, path)
		l.line("add_header X-Location nginx.conf:%d always;", at)
		vague := strings.Contains(path, "(?")
		if vague {
			l.vague = append(l.vague, fmt.Sprint("nginx.conf:", at))
		}
		if l.IntN(2) == 0 {
			l.line("limit_req zone=pages burst=9000 nodelay;")
		}
		if l.IntN(4) > 0 {
			l.line("proxy_pass http://%s;", l.backend)
		}
		if l.IntN(3) == 0 {
			l.line("%s", pick(l, "deny all;", "return 403;", "internal;", "auth_basic closed; auth_basic_user_file nothing;", "if ($http_x = '') { return 404; }", "limit_except POST { deny all; }"))
		}
		if depth < 2 && modifier != "= " && l.IntN(3) == 0 {
			if strings.HasPrefix(modifier, "~") {
				l.line("location ~ %s {", pick(l, `\.php$`, `b`, `/a`))
				if vague {
					l.vague = append(l.vague, fmt.Sprint("nginx.conf:", len(l.lines)))
				}
				l.line("add_header X-Location nginx.conf:%d always;", len(l.lines))
				l.line("}")
			} else {
				l.block(path, depth+1)
			}
		}
		l.line("}")
	}
}

// path returns a path near those of the server's locations.
func (l *locations) path() string {
	path := pick(l, append(l.paths, "/")...)
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, `\[{(`) {
		path = pick(l, "/a", "/b", "/ab", "/a/b", "/a/b/c", "/A", "/aa")
	}
	path = strings.NewReplacer(" ", "%20", "%", "%25", "+", "%2B").Replace(path)
	switch l.IntN(8) {
	case 0:
		path = strings.TrimSuffix(path, "/")
	case 1:
		path = strings.ToUpper(path)
	case 2:
		path = strings.Replace(path, "/", pick(l, "//", "/./", "/x/../", "/%2e/", "/x/%2E%2e/", "%2f"), 1)
	case 3:
		path += pick(l, "/.", "/..", "/%2e", "%0a", ".php%0A", "/%2e%2E")
	}
	path += pick(l, "", "", "/", "b", "/b", "/c", "/x.php", ".php", "?q=/b/x.php", "x/y.html")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path
}

// An answer is what a request got.
type answer struct {
	backend            bool
	location, redirect string
	status             int
}

// ask sends a request with this very path.
func ask(t *testing.T, to *bufio.ReadWriter, host, path string) answer {
	t.Helper()
	fmt.Fprintf(to, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host)
	if err := to.Flush(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(to.Reader, nil)
	if err != nil {
		t.Fatalf("%s%s: %v", host, path, err)
	}
	resp.Body.Close()
	_, redirect, _ := strings.Cut(resp.Header.Get("Location"), ".test")
	if at := strings.IndexByte(redirect, '/'); at >= 0 { // after the port
		redirect = redirect[at:]
	} else {
		redirect = resp.Header.Get("Location")
	}
	return answer{resp.Header.Get("X-Backend") != "", resp.Header.Get("X-Location"), redirect, resp.StatusCode}
}

// linesOf returns where the locations stand that a Caddyfile has names for, by host and name.
func linesOf(text string) map[string]string {
	lines, host, at := map[string]string{}, "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if comment, found := strings.CutPrefix(line, "# "); found {
			where, what, _ := strings.Cut(comment, ": ")
			if strings.HasPrefix(what, "location ") || what == "no location" {
				at = where
			}
			if name, found := strings.CutPrefix(what, "server "); found {
				host, _, _ = strings.Cut(name, ",")
			}
		}
		if name, found := strings.CutPrefix(line, "vars location "); found && lines[host+" "+name] == "" {
			lines[host+" "+name] = at // where it is set, and not where it is matched
		}
	}
	return lines
}

func dial(t *testing.T, address string) *bufio.ReadWriter {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
}

// The converted Caddyfile chooses the location that nginx chooses, and passes nothing on that
// nginx does not.
func TestConvertedNginxChoosesTheSameLocation(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 5 s, and no -short")
	}
	program := findNginx(t)
	folder, original, converted := t.TempDir(), freeAddress(t), freeAddress(t)
	backend, stop, err := process.Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Backend", "1") }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	l := &locations{Rand: rand.New(rand.NewPCG(1, 2)), backend: backend}
	l.lines = strings.Split(fmt.Sprintf(nginxOutside, folder), "\n")
	l.line("root /nothing;\nkeepalive_requests 1000000;\nlimit_req_zone $uri zone=pages:1m rate=9000r/s;")
	l.lines = strings.Split(strings.Join(l.lines, "\n"), "\n")
	paths, servers := map[string][]string{}, map[string]string{}
	for i := range 200 {
		host := fmt.Sprintf("c%d.test", i)
		l.paths = nil
		at := l.line("server {")
		l.line("listen %s;", original)
		l.line("server_name %s;", host)
		l.line("add_header X-Location nginx.conf:%d always;", at)
		l.block("", 0)
		l.line("}")
		servers[host] = fmt.Sprintf("from line %d:\n%s", at, strings.Join(l.lines[at-1:], "\n"))
		for range 30 {
			paths[host] = append(paths[host], l.path())
		}
	}
	l.line("}")
	path := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(path, []byte(strings.Join(l.lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := convert.Nginx(path)
	if err != nil {
		t.Fatal(err)
	}
	serveNginx(t, program, folder, path, original)
	text := "{\nadmin off\npersist_config off\n}\n" + got.Caddyfile
	_, from, _ := strings.Cut(original, ":")
	_, to, _ := strings.Cut(converted, ":")
	text = strings.ReplaceAll(strings.ReplaceAll(text, ":"+from, ":"+to), "\n\troute {\n", "\n\troute {\n\t\theader >X-Location {vars.location}\n")
	serveCaddyfile(t, text, converted)
	lines := linesOf(got.Caddyfile)
	a, b := dial(t, original), dial(t, converted)
	compared, named, passed, redirected, hidden := 0, 0, 0, 0, 0
	for i := range 200 {
		host := fmt.Sprintf("c%d.test", i)
		for _, path := range paths[host] {
			want, got := ask(t, a, host, path), ask(t, b, host, path)
			if got.location != "" {
				got.location = lines[host+" "+got.location]
			}
			if want.status == http.StatusBadRequest { // the path leaves the root
				a = dial(t, original)
				continue
			}
			if got.status == http.StatusBadRequest && strings.ContainsAny(path, ".%") { // control characters, and a dot at the end
				continue
			}
			compared++
			mine := got.status == http.StatusServiceUnavailable && !got.backend // all of the server is left to be written
			bad := got.backend && !want.backend || got.redirect != want.redirect && !mine
			if slices.Contains(l.vague, got.location) {
				bad = got.backend
			} else if got.location != "" && want.redirect == "" {
				named++
				bad = bad || got.location != want.location || got.backend != want.backend
			}
			if want.redirect != "" {
				redirected++
			}
			if want.backend && got.backend {
				passed++
			} else if !want.backend {
				hidden++
			}
			if bad {
				t.Fatalf("%s%s: nginx %+v, the shield %+v; the server is %s", host, path, want, got, servers[host])
			}
		}
	}
	if named < 3000 || passed < 1000 || redirected < 50 || hidden < 1000 {
		t.Error("too little was compared:")
	}
	t.Logf("%d requests: %d locations compared, %d passed on by both, %d redirects, %d hidden by nginx", compared, named, passed, redirected, hidden)
}
