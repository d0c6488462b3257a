package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/herdshield/shield/internal/convert"
	"github.com/herdshield/shield/loadtest/lab/process"
)

// A replay sends the same requests to two servers.
type replay struct {
	at     time.Duration // after the first; 0: after the one before, whose rejections may be held back for 1 s
	path   string
	client string // its address
	host   string // what it asks; "": the address of the server
	agent  string // its User-Agent
	key    string // its X-Key
	n      int    // how many at once
}

// play sends the requests to a server, and returns how many of each step were admitted.
func play(t *testing.T, address string, steps []replay) []int {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	start, admitted := time.Now(), make([]int, len(steps))
	for i, step := range steps {
		time.Sleep(time.Until(start.Add(step.at)))
		if late := time.Since(start) - step.at; step.at > 0 && late > 500*time.Millisecond {
			t.Errorf("step %d is %v late: the machine is too busy", i, late)
		}
		var all sync.WaitGroup
		var ok atomic.Int32
		for range step.n {
			all.Go(func() {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+step.path, nil)
				r.Header.Set("X-Forwarded-For", step.client)
				r.Header.Set("User-Agent", step.agent)
				r.Host = step.host
				if step.key != "" {
					r.Header.Set("X-Key", step.key)
				}
				resp, err := transport.RoundTrip(r)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusOK:
					ok.Add(1)
				case http.StatusTooManyRequests:
				default:
					t.Errorf("%s%s answers %d; want 200 or 429", address, step.path, resp.StatusCode)
				}
			})
		}
		all.Wait()
		admitted[i] = int(ok.Load())
	}
	return admitted
}

// both plays the steps to two servers at the same time.
func both(t *testing.T, original, converted string, steps []replay) (a, b []int) {
	var wait sync.WaitGroup
	wait.Go(func() { a = play(t, original, steps) })
	wait.Go(func() { b = play(t, converted, steps) })
	wait.Wait()
	return a, b
}

// serveCaddyfile runs a Caddyfile in a Caddy with shield and caddy-ratelimit.
func serveCaddyfile(t *testing.T, text, address string) {
	t.Helper()
	folder := t.TempDir()
	path := filepath.Join(folder, "Caddyfile")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "run", "--config", path, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), caddyVar+"=1", "HOME="+folder, "XDG_CONFIG_HOME="+folder, "XDG_DATA_HOME="+folder)
	start(t, cmd, folder, address)
}

func start(t *testing.T, cmd *exec.Cmd, folder, address string) {
	t.Helper()
	stop, err := process.Start(t.Context(), cmd, filepath.Join(folder, "log"), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
}

// nginxOutside is what all configurations of nginx here begin with.
const nginxOutside = `daemon off;
pid %[1]s/nginx.pid;
error_log stderr crit;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path       %[1]s/proxy;
	fastcgi_temp_path     %[1]s/fastcgi;
	uwsgi_temp_path       %[1]s/uwsgi;
	scgi_temp_path        %[1]s/scgi;
`

func findNginx(t *testing.T) (program string) {
	t.Helper()
	program, err := find("nginx")
	if err != nil && os.Getenv("CI_REQUIRE_NGINX") == "1" {
		t.Fatal("there is no nginx, and CI_REQUIRE_NGINX is 1; want the package nginx-light")
	} else if err != nil {
		t.Skip("there is no nginx")
	}
	return program
}

// serveNginx runs a configuration in a folder of the test.
func serveNginx(t *testing.T, program, folder, path, address string) {
	t.Helper()
	cmd := exec.Command(program, "-e", "stderr", "-p", folder, "-c", path)
	if os.Geteuid() == 0 {
		if err := os.Chown(folder, unprivileged, unprivileged); err != nil {
			t.Fatal(err)
		}
		os.Chmod(filepath.Dir(folder), 0o755) // the test's own folder, of which it is a part
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	}
	start(t, cmd, folder, address)
}

// nginxAndShield runs a configuration that begins with nginxOutside, and what it is converted
// to. The configuration has the folder, the address to serve at and the backend in it.
func nginxAndShield(t *testing.T, config string, backend http.Handler) (original, converted, text string) {
	t.Helper()
	program := findNginx(t)
	folder := t.TempDir()
	original, converted = process.Free(t), process.Free(t)
	to, stop, err := process.Serve(t.Context(), backend)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	path := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(path, fmt.Appendf(nil, config, folder, original, to), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := convert.Nginx(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, note := range got.Notes {
		if note.Kind == convert.Missing && !strings.Contains(note.Text, "any number of labels") {
			t.Errorf("something is not converted:\n%s", got.Caddyfile)
		}
	}
	serveNginx(t, program, folder, path, original)
	text = strings.Replace(got.Caddyfile, "\n{\n", "\n{\n\tadmin off\n\tpersist_config off\n", 1)
	_, from, _ := strings.Cut(original, ":")
	_, port, _ := strings.Cut(converted, ":")
	served := strings.ReplaceAll(text, "respond 503", "reverse_proxy "+to) // which is ours to write
	serveCaddyfile(t, strings.ReplaceAll(served, ":"+from, ":"+port), converted)
	return original, converted, text
}

// nginxLimits has keys as many configurations do: from a network, a list of programs, a path, a
// header that may be absent, and limits that a location inherits or not. It has a server for each way in
// which nginx chooses one, and one that holds requests of the burst back, all or those after the second.
const nginxLimits = nginxOutside + `
	set_real_ip_from 127.0.0.0/8;
	real_ip_header X-Forwarded-For;
	real_ip_recursive on;

	geo $far {
		default 0;
		198.51.100.8/29 1;
		198.51.100.10 0;
	}
	map $far $far_key {
		0 "";
		1 $binary_remote_addr;
	}
	map $http_user_agent $robot {
		default "";
		~*bot $http_user_agent;
		~*crawler $http_user_agent;
		Wget tools;
	}
	map $uri $sign_key {
		default "";
		~^/sign(in|up) $binary_remote_addr;
	}
	map $http_x_key $api_key {
		"" $binary_remote_addr;
		free "";
		default $http_x_key;
	}
	limit_req_zone $far_key zone=far:1m rate=1r/m;
	limit_req_zone $robot zone=robot:1m rate=1r/m;
	limit_req_zone $sign_key zone=sign:1m rate=1r/m;
	limit_req_zone $api_key zone=api:1m rate=1r/m;
	limit_req_zone $binary_remote_addr zone=wide:1m rate=1r/m;
	limit_req_zone $binary_remote_addr zone=pages:1m rate=30r/m;
	limit_req_zone $binary_remote_addr zone=login:1m rate=30r/m;
	limit_req_zone everyone zone=search:1m rate=30r/m;
	limit_req_zone $server_name$binary_remote_addr zone=host:1m rate=1r/m;
	limit_req_zone $binary_remote_addr zone=all:1m rate=2r/s;
	limit_req_zone $binary_remote_addr zone=some:1m rate=2r/s;
	limit_req_status 429;
	limit_req zone=wide burst=5 nodelay;

	server {
		listen %[2]s;
		server_name keys.test;
		location / {
			proxy_pass http://%[3]s;
		}
		location /far {
			limit_req zone=far burst=1 nodelay;
			proxy_pass http://%[3]s;
		}
		location /robots {
			limit_req zone=robot burst=1 nodelay;
			limit_req zone=far burst=1 nodelay;
			proxy_pass http://%[3]s;
		}
		location ~ ^/sign {
			limit_req zone=sign burst=1 nodelay;
			proxy_pass http://%[3]s;
		}
		location ^~ /api/ {
			limit_req zone=api burst=1 nodelay;
			proxy_pass http://%[3]s;
		}
	}
	server {
		listen %[2]s;
		server_name pages.test;
		limit_req zone=pages burst=4 nodelay;
		location / {
			proxy_pass http://%[3]s;
		}
		location /login {
			limit_req zone=login;
			proxy_pass http://%[3]s;
		}
		location = /search {
			limit_req zone=search burst=1 nodelay;
			proxy_pass http://%[3]s;
		}
	}
	server {
		listen %[2]s;
		server_name delay.test;
		location / {
			limit_req zone=all burst=4;
			proxy_pass http://%[3]s;
		}
		location /some {
			limit_req zone=some burst=4 delay=2;
			proxy_pass http://%[3]s;
		}
	}
	server {
		listen %[2]s;
		server_name first.test www.first.test;
		limit_req zone=host burst=1 nodelay;
		location / {
			proxy_pass http://%[3]s;
		}
	}
	server {
		listen %[2]s;
		server_name .deep.test;
		limit_req zone=host burst=2 nodelay;
		location / {
			proxy_pass http://%[3]s;
		}
	}
	server {
		listen %[2]s default_server;
		server_name _;
		limit_req zone=host burst=3 nodelay;
		location / {
			proxy_pass http://%[3]s;
		}
	}
	server {
		listen %[2]s;
		server_name one.deep.test;
		limit_req zone=host burst=4 nodelay;
		location / {
			proxy_pass http://%[3]s;
		}
	}
}
`

// nginx and the shield that it was converted to admit the same requests: they tell clients apart in the
// same way, and choose the same server for a host. Of requests that nginx delays the shield admits as many,
// and sends them to the backend at once, as a comment says.
func TestConvertedNginxAdmitsTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 8 s, and no -short")
	}
	t.Parallel()
	var mu sync.Mutex
	arrived := map[string][]time.Time{} // by server and path
	original, converted, text := nginxAndShield(t, nginxLimits, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(r.Header.Get("X-Forwarded-For"), "203.0.113.") {
			from := r.Header.Get("Via") + r.URL.Path // Caddy sets Via
			arrived[from] = append(arrived[from], time.Now())
		}
	}))
	steps := []struct {
		host string
		replay
		want int // how many are admitted
	}{
		{"pages.test", replay{path: "/", client: "192.0.2.1", n: 12}, 5}, // the burst, and the one that is due
		{"delay.test", replay{path: "/", client: "203.0.113.1", n: 8}, 5},
		{"delay.test", replay{path: "/some", client: "203.0.113.1", n: 8}, 5},
		{"pages.test", replay{path: "/other", client: "192.0.2.2", n: 3}, 3},     // another client
		{"pages.test", replay{path: "/login/now", client: "192.0.2.1", n: 3}, 1}, // has a zone of its own, without a burst
		{"pages.test", replay{path: "/search", client: "192.0.2.3", n: 1}, 1},    // all clients together
		{"pages.test", replay{path: "/search", client: "192.0.2.4", n: 3}, 1},
		{"pages.test", replay{path: "/searches", client: "192.0.2.4", n: 3}, 3}, // the location is exact

		{"keys.test", replay{path: "/", client: "192.0.2.1", n: 8}, 6},        // inherited from http
		{"keys.test", replay{path: "/far", client: "192.0.2.1", n: 8}, 8},     // not inherited, and the key is empty
		{"keys.test", replay{path: "/far", client: "198.51.100.7", n: 4}, 4},  // beside the network
		{"keys.test", replay{path: "/far", client: "198.51.100.8", n: 4}, 2},  // its first
		{"keys.test", replay{path: "/far", client: "198.51.100.15", n: 4}, 2}, // its last
		{"keys.test", replay{path: "/far", client: "198.51.100.10", n: 4}, 4}, // its hole
		{"keys.test", replay{path: "/far", client: "198.51.100.16", n: 4}, 4}, // after it
		{"keys.test", replay{path: "/robots", client: "192.0.2.2", agent: "Googlebot", n: 4}, 2},
		{"keys.test", replay{path: "/robots", client: "192.0.2.3", agent: "Googlebot", n: 1}, 0}, // counts with that
		{"keys.test", replay{path: "/robots", client: "192.0.2.3", agent: "a CRAWLER", n: 4}, 2},
		{"keys.test", replay{path: "/robots", client: "192.0.2.3", agent: "wget", n: 4}, 2},
		{"keys.test", replay{path: "/robots", client: "192.0.2.3", agent: "curl", n: 4}, 4},
		{"keys.test", replay{path: "/robots", client: "198.51.100.9", agent: "a bot of its own", n: 1}, 1},
		{"keys.test", replay{path: "/robots", client: "198.51.100.9", agent: "another bot", n: 4}, 1}, // two limits
		{"keys.test", replay{path: "/signin", client: "192.0.2.4", n: 1}, 1},
		{"keys.test", replay{path: "//x/..//signup", client: "192.0.2.4", n: 4}, 1},
		{"keys.test", replay{path: "/sign", client: "192.0.2.4", n: 4}, 4},
		{"keys.test", replay{path: "/SIGNIN", client: "192.0.2.5", n: 4}, 4}, // is no such path
		{"keys.test", replay{path: "/api/", client: "192.0.2.6", n: 4}, 2},
		{"keys.test", replay{path: "/api/", client: "192.0.2.6", key: "free", n: 4}, 4},
		{"keys.test", replay{path: "/api/signin", client: "192.0.2.6", key: "mine", n: 4}, 2},
		{"keys.test", replay{path: "/api/signin", client: "192.0.2.7", key: "mine", n: 4}, 0},
		{"keys.test", replay{path: "/apis", client: "192.0.2.8", n: 8}, 6}, // not under the prefix

		{"first.test", replay{path: "/", client: "192.0.2.1", n: 8}, 2},
		{"deep.test", replay{path: "/", client: "192.0.2.1", n: 8}, 3},
		{"two.deep.test", replay{path: "/", client: "192.0.2.1", n: 8}, 0}, // counts with that
		{"other.test", replay{path: "/", client: "192.0.2.1", n: 8}, 4},
		{"127.0.0.1", replay{path: "/", client: "192.0.2.1", n: 8}, 0}, // counts with that
		{"one.deep.test", replay{path: "/", client: "192.0.2.1", n: 8}, 5},
		{"WWW.First.test", replay{path: "/", client: "192.0.2.1", n: 8}, 0}, // counts with the first

		{"delay.test", replay{at: 5 * time.Second, path: "/", client: "203.0.113.1", n: 8}, 5},
		{"pages.test", replay{at: 7 * time.Second, path: "/", client: "192.0.2.1", n: 8}, 3}, // three more are due, and no fourth
	}
	var replays []replay
	for _, step := range steps {
		step.replay.host = step.host
		replays = append(replays, step.replay)
	}
	a, b := both(t, original, converted, replays)
	for i, step := range steps {
		if a[i] != step.want || b[i] != step.want {
			t.Errorf("step %d, %+v: nginx admits %d, the shield %d; want %d", i, step.replay, a[i], b[i], step.want)
		}
	}
	for from, want := range map[string]time.Duration{"/": 2 * time.Second, "/some": time.Second, "1.1 Caddy/": 0, "1.1 Caddy/some": 0} {
		if took := arrived[from][4].Sub(arrived[from][0]); (took - want).Abs() > 400*time.Millisecond {
			t.Errorf("%s: five requests reach the backend within %v; want %v", from, took, want)
		}
	}
	if strings.Count(text, "sends them to the backend at the rate") != 2 {
		t.Errorf("no comment names the difference in\n%s", text)
	}
}

// nginxInFlight limits requests in flight, of a client and of all, alone and besides a rate.
const nginxInFlight = nginxOutside + `
	set_real_ip_from 127.0.0.0/8;
	real_ip_header X-Forwarded-For;
	limit_req_zone  $binary_remote_addr zone=rate:1m rate=1r/m;
	limit_conn_zone $binary_remote_addr zone=client:1m;
	limit_conn_zone $server_name zone=all:1m;
	limit_req_status 429;
	limit_conn_status 429;

	server {
		listen %[2]s;
		server_name shop.test;
		location / {
			limit_conn client 3;
			limit_conn all 5;
			proxy_pass http://%[3]s;
		}
		location = /free {
			proxy_pass http://%[3]s;
		}
		location /rate {
			limit_req zone=rate burst=5 nodelay;
			limit_conn client 3;
			proxy_pass http://%[3]s;
		}
	}
}
`

// nginx and the shield that it was converted to have the same number of requests in flight.
func TestConvertedNginxHasAsManyInFlight(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 5 s, and no -short")
	}
	t.Parallel()
	held := &holding{}
	original, converted, text := nginxAndShield(t, nginxInFlight, held)
	waves := []struct {
		path, client string
		n            int
		keep         bool          // those in flight stay there in the next wave
		wait         time.Duration // after them
	}{
		{"/", "192.0.2.1", 8, true, 0},                // the client's 3
		{"/", "192.0.2.2", 8, true, 0},                // the 2 that are left of all
		{"/free", "192.0.2.1", 8, true, 0},            // no limit
		{"/", "192.0.2.1", 2, false, 2 * time.Second}, // full; clients are told to wait 1 s
		{"/", "192.0.2.2", 8, false, 0},               // all permits are free again
		{"/rate", "192.0.2.3", 5, false, 0},           // what is not in flight costs of the rate
		{"/rate", "192.0.2.3", 5, false, 0},
	}
	admitted := map[string][]int{}
	for _, address := range []string{original, converted} {
		var all sync.WaitGroup
		for _, wave := range waves {
			before := held.count()
			var rejected atomic.Int32
			for range wave.n {
				all.Go(func() {
					r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+wave.path, nil)
					r.Host = "shop.test"
					r.Header.Set("X-Forwarded-For", wave.client)
					resp, err := http.DefaultTransport.RoundTrip(r)
					if err != nil {
						t.Error(err)
						return
					}
					resp.Body.Close()
					if resp.StatusCode == http.StatusTooManyRequests {
						rejected.Add(1)
					}
				})
			}
			for patience := time.Now().Add(5 * time.Second); held.count()-before+int(rejected.Load()) < wave.n; time.Sleep(time.Millisecond) {
				if time.Now().After(patience) {
					t.Fatalf("%v: %d of %d are in flight, and %d rejected; want all to be one of both", wave, held.count()-before, wave.n, rejected.Load())
				}
			}
			admitted[address] = append(admitted[address], held.count()-before)
			if !wave.keep {
				held.release()
				all.Wait()
				time.Sleep(wave.wait)
			}
		}
	}
	if want, a, b := []int{3, 2, 8, 0, 3, 3, 1}, admitted[original], admitted[converted]; !slices.Equal(a, b) || !slices.Equal(a, want) {
		t.Errorf("nginx admits %v, the shield %v; want %v", a, b, want)
	}
	if !strings.Contains(text, "`enforce off` in `retries`") {
		t.Errorf("no comment says what differs if clients return early in\n%s", text)
	}
}

// holding is a backend that answers when it is told to.
type holding struct {
	mu   sync.Mutex
	held []chan struct{}
}

func (h *holding) ServeHTTP(http.ResponseWriter, *http.Request) {
	released := make(chan struct{})
	h.mu.Lock()
	h.held = append(h.held, released)
	h.mu.Unlock()
	<-released
}

func (h *holding) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}

func (h *holding) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, released := range h.held {
		close(released)
	}
	h.held = nil
}

// caddy-ratelimit and the shield that it was converted to admit as many at once and in the
// long run. In between they differ as the conversion says.
func TestConvertedCaddyRateLimitAdmitsAsManyInTheLongRun(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 9 s, and no -short")
	}
	t.Parallel()
	original, converted := process.Free(t), process.Free(t)
	of := func(address string) string {
		return `{
	admin off
	persist_config off
	auto_https off
	servers {
		trusted_proxies static 127.0.0.0/8
		trusted_proxies_strict
	}
}
http://` + address + ` {
	rate_limit {
		zone pages {
			match not path /free
			key    {client_ip}
			events 3
			window 6s
		}
	}
	respond ok
}
`
	}
	got, err := convert.CaddyRateLimit("Caddyfile", []byte(of(converted)))
	if err != nil {
		t.Fatal(err)
	}
	if got.Missing() > 0 || !strings.Contains(got.Caddyfile, "after 3 at once, one more is admitted every 2s") {
		t.Errorf("the comments do not say how it differs:\n%s", got.Caddyfile)
	}
	serveCaddyfile(t, of(original), original)
	serveCaddyfile(t, got.Caddyfile, converted)
	a, b := both(t, original, converted, []replay{
		{path: "/", client: "192.0.2.1", n: 8},
		{path: "/", client: "192.0.2.2", n: 2},
		{path: "/free", client: "192.0.2.1", n: 8},
		{at: 5 * time.Second, path: "/", client: "192.0.2.1", n: 8}, // the window is not over
		{at: 9 * time.Second, path: "/", client: "192.0.2.1", n: 8},
	})
	if want := []int{3, 2, 8, 0, 3}; !slices.Equal(a, want) {
		t.Errorf("caddy-ratelimit admits %v; want %v", a, want)
	}
	if want := []int{3, 2, 8, 2, 2}; !slices.Equal(b, want) {
		t.Errorf("the shield admits %v; want %v", b, want)
	}
}
