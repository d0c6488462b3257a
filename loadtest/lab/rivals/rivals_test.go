package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

func TestMain(m *testing.M) {
	if os.Getenv(caddyVar) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// examples returns the two configs with the same limits in a section of docs/guides/migrate.md.
func examples(t *testing.T, section string) (before, after string) {
	t.Helper()
	m := regexp.MustCompile("(?s)\n## " + section + "\n\nBefore:\n\n```text\n(.*?)```\n\nAfter:\n\n```caddyfile\n(.*?)```\n").FindStringSubmatch(must.Read(t, "../../../docs/guides/migrate.md"))
	if m == nil {
		t.Fatalf("the page has no configs of %s before and after", section)
	}
	return m[1], m[2]
}

// A front is a program that serves a config of the page before a backend of its own.
type front struct {
	t       *testing.T
	address string
	release chan struct{} // closed: the backend answers requests for /held
}

// serve runs a program. In its config each odd one of the edits stands for the one before it.
func serve(t *testing.T, program, config string, edits ...string) front {
	t.Helper()
	f := front{t, process.Free(t), make(chan struct{})}
	backend, stop, err := process.Serve(t.Context(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			select {
			case <-f.release:
			case <-time.After(10 * time.Second):
			}
		}
	}))
	must.Do(t, err)
	t.Cleanup(stop)
	folder := t.TempDir()
	must.Do(t, os.Chmod(filepath.Dir(folder), 0o755)) // nginx has few rights
	if program == "caddy" {
		config = "{\nadmin off\npersist_config off\nservers {\ntrusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict\n}\n}\n" + config
	}
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(config, edits[i]) {
			t.Fatalf("%q is not in\n%s", edits[i], config)
		}
		config = strings.ReplaceAll(config, edits[i], strings.NewReplacer("FRONT", f.address, "BACKEND", backend, "FOLDER", folder).Replace(edits[i+1]))
	}
	stop = must.Get(startProgram(t.Context(), program, config, folder, f.address))(t)
	t.Cleanup(stop)
	return f
}

func (f front) get(path, client string) int {
	r, _ := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://"+f.address+path, nil)
	r.Header.Set("X-Forwarded-For", client)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		f.t.Error(err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// admits compares how many of the requests that a client sends are admitted. It has four in flight.
func (f front) admits(want, sent int, path, client string) {
	f.t.Helper()
	var all sync.WaitGroup
	statuses := make([]int, sent)
	for worker := range 4 {
		all.Go(func() {
			for i := worker; i < sent; i += 4 {
				statuses[i] = f.get(path, client)
			}
		})
	}
	all.Wait()
	got := map[int]int{}
	for _, status := range statuses {
		got[status]++
	}
	if got[http.StatusOK] != want || got[http.StatusTooManyRequests] != sent-want {
		f.t.Errorf("%s of %s: statuses are %v; want %d times 200, and otherwise 429", path, client, got, want)
	}
}

// shield admits at once what caddy-ratelimit admits, and more within the window, as the page says. In both
// there are three requests in 9 s, and not a hundred in a minute.
func TestMigrationFromCaddyRateLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 8 s, and no -short")
	}
	t.Parallel()
	before, after := examples(t, "caddy-ratelimit")
	for name, c := range map[string]struct {
		config   string
		limit    []string
		inWindow int // how many more are admitted after 7 s
	}{
		"caddy-ratelimit": {before, []string{"events 100", "events 3", "window 1m", "window 9s"}, 0},
		"shield":          {after, []string{"burst 100", "burst 3", "100/m", "20/m"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := serve(t, "caddy", c.config, append(c.limit, "example.com {", "http://FRONT {", "app:8080", "BACKEND")...)
			start := time.Now()
			f.admits(3, 8, "/api/x", "192.0.2.1")
			f.admits(2, 2, "/api/x", "192.0.2.2") // another client
			f.admits(8, 8, "/", "192.0.2.1")      // no request of the zone
			time.Sleep(time.Until(start.Add(7 * time.Second)))
			f.admits(c.inWindow, 8, "/api/x", "192.0.2.1")
		})
	}
}

// shield admits what nginx admits. In both the rate is a sixtieth of the page's, so that no request is due
// while others are sent.
func TestMigrationFromNginx(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 8 s, and no -short")
	}
	if _, err := find("nginx"); err != nil && os.Getenv("CI_REQUIRE_NGINX") != "1" {
		t.Skip("there is no nginx")
	}
	t.Parallel()
	before, after := examples(t, "nginx")
	for program, serveIt := range map[string]func(*testing.T) front{
		"nginx": func(t *testing.T) front {
			return serve(t, "nginx", before, "http {", `daemon off;
				pid FOLDER/nginx.pid;
				error_log stderr crit;
				events {}
				http {
					access_log off;
					client_body_temp_path FOLDER/body;
					proxy_temp_path       FOLDER/proxy;
					fastcgi_temp_path     FOLDER/fastcgi;
					uwsgi_temp_path       FOLDER/uwsgi;
					scgi_temp_path        FOLDER/scgi;
					set_real_ip_from 127.0.0.0/8;
					real_ip_header X-Forwarded-For;
				`, "listen 80", "listen FRONT", "127.0.0.1:9000", "BACKEND", "10r/s", "10r/m")
		},
		"shield": func(t *testing.T) front {
			return serve(t, "caddy", after, "http://example.com", "http://FRONT", "127.0.0.1:9000", "BACKEND", "10/s", "10/m")
		},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			f := serveIt(t)
			start := time.Now()
			f.admits(21, 30, "/api/x", "192.0.2.1") // the burst, and the request that is due
			f.admits(8, 8, "/api/x", "192.0.2.2")   // another client
			f.admits(30, 30, "/api/x", "10.1.2.3")  // an empty key
			f.admits(30, 30, "/", "192.0.2.1")      // no limit_req
			statuses := make(chan int)
			for range 15 {
				go func() { statuses <- f.get("/held", "192.0.2.3") }()
			}
			for i := range 15 {
				want := http.StatusOK
				if i < 5 { // while ten are held
					want = http.StatusTooManyRequests
				}
				if got := <-statuses; got != want {
					t.Errorf("status is %d of request %d to end; want %d", got, i, want)
				}
				if i == 4 {
					close(f.release)
				}
			}
			time.Sleep(time.Until(start.Add(7 * time.Second)))
			f.admits(1, 4, "/api/x", "192.0.2.1") // one more is due
		})
	}
}
