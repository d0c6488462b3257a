package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/herdshield/shield/internal/convert"
	"github.com/herdshield/shield/loadtest/lab/process"
)

// locations writes servers of nginx with random locations.
type locations struct {
	*rand.Rand
	lines []string
	paths []string // of the server's locations
}

func (l *locations) line(format string, args ...any) int {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	return len(l.lines)
}

func pick(l *locations, all ...string) string { return all[l.IntN(len(all))] }

// block writes some locations.
func (l *locations) block() {
	taken := map[string]bool{}
	for range 1 + l.IntN(5) {
		modifier := pick(l, "", "", "", "= ", "^~ ", "~ ", "~ ", "~* ")
		path := pick(l, "/a", "/ab", "/a/", "/a/b", "/a/b/", "/b/", "/b/c", "/", "/A", "/x.php", "/s t/", "/a%2Bb", "/b.", "/{c")
		if strings.HasPrefix(modifier, "~") {
			path = pick(l, `\.php$`, `^/a/`, `b`, `^/ab?/c`, `/[ab]/`, `B`, `^/(a|b)/.*\.php$`, `c$`, `^/a{1,2}/`, `[^/]+/b`, `/A`, `\.(php|html)$`)
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
		if l.IntN(2) == 0 {
			l.line("limit_req zone=pages burst=9000 nodelay;")
		}
		if l.IntN(3) == 0 {
			l.line("%s", pick(l, "deny all;", "return 403;", "internal;", "auth_basic closed; auth_basic_user_file nothing;", "if ($http_x = '') { return 404; }", "limit_except POST { deny all; }"))
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

// ask sends a request with this very path, and returns the location that has answered it.
func ask(t *testing.T, to *bufio.ReadWriter, host, path string) (location string, status int) {
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
	return resp.Header.Get("X-Location"), resp.StatusCode
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
		if name, found := strings.CutPrefix(line, "vars chosen-location "); found && lines[host+" "+name] == "" {
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

// The converted Caddyfile chooses the location that nginx chooses.
func TestConvertedNginxChoosesTheSameLocation(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 5 s, and no -short")
	}
	t.Parallel()
	program := findNginx(t)
	folder, original, converted := t.TempDir(), process.Free(t), process.Free(t)
	l := &locations{Rand: rand.New(rand.NewPCG(1, 2))}
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
		l.block()
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
	text = strings.ReplaceAll(strings.ReplaceAll(text, ":"+from, ":"+to), "\n\troute {\n", "\n\troute {\n\t\theader >X-Location {vars.chosen-location}\n")
	serveCaddyfile(t, text, converted)
	lines := linesOf(got.Caddyfile)
	a, b := dial(t, original), dial(t, converted)
	compared := 0
	for i := range 200 {
		host := fmt.Sprintf("c%d.test", i)
		if !strings.Contains(text, "//"+host+":") {
			continue // it is no site
		}
		for _, path := range paths[host] {
			want, status := ask(t, a, host, path)
			got, odd := ask(t, b, host, path)
			switch {
			case status == http.StatusBadRequest: // the path leaves the root
				a = dial(t, original)
				continue
			case odd == http.StatusBadRequest && strings.ContainsAny(path, ".%"): // control characters, and a dot at the end
				continue
			case got == "": // all of the server is limited alike
				continue
			}
			compared++
			if lines[host+" "+got] != want {
				t.Fatalf("%s%s: nginx chooses %s, the shield %s; the server is %s", host, path, want, lines[host+" "+got], servers[host])
			}
		}
	}
	if compared < 2000 {
		t.Error("too little was compared")
	}
	t.Logf("%d locations compared", compared)
}
