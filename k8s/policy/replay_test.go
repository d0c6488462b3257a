package policy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
)

// The replay: real traffic to a real nginx, which is configured as ingress-nginx's
// template would from the same annotations; and then, at the moments at which
// nginx has seen them, the same requests to the limits of ParseNginx.
//
// nginx counts in milliseconds of one clock and logs milliseconds of another, so of
// each moment up to a millisecond is not known. A decision may differ only if it
// would have been the other one a millisecond earlier or later.

// replays are the sites: annotations, and what their clients do.
var replays = []struct {
	name        string
	annotations map[string]string
	clients     []client
}{
	{"rps", nginx("limit-rps", "5", "limit-burst-multiplier", "2"), []client{
		{"127.0.0.1", []step{{30, 0, 0}, {0, 0, 700}, {10, 0, 0}, {30, 50, 0}}}, {"127.0.0.2", []step{{14, 180, 0}}},
		{"127.0.0.3", []step{{12, 0, 0}, {20, 60, 0}, {0, 0, 500}, {8, 0, 0}}},
	}},
	{"rpm", nginx("limit-rpm", "120", "limit-burst-multiplier", "1"), []client{
		{"127.0.0.1", []step{{130, 0, 0}, {40, 60, 0}}}, {"127.0.0.4", []step{{60, 20, 0}, {80, 0, 0}, {0, 0, 900}, {5, 10, 0}}},
	}},
	{"uneven", nginx("limit-rpm", "100", "limit-burst-multiplier", "1"), []client{
		{"127.0.0.1", []step{{110, 0, 0}, {50, 50, 0}}},
	}},
	{"both", nginx("limit-rps", "10", "limit-rpm", "30", "limit-burst-multiplier", "1"), []client{
		{"127.0.0.1", []step{{15, 0, 0}, {40, 30, 0}, {0, 0, 600}, {15, 0, 0}, {10, 60, 0}}}, {"127.0.0.2", []step{{100, 25, 0}}},
	}},
	{"allowlist", nginx("limit-rps", "1", "limit-burst-multiplier", "1", "limit-allowlist", "127.0.0.2,127.1.0.0/16"), []client{
		{"127.0.0.1", []step{{20, 5, 0}}}, {"127.0.0.2", []step{{40, 0, 0}}}, {"127.1.2.3", []step{{20, 2, 0}}},
	}},
}

// A client sends requests from its address, step by step.
type client struct {
	address string
	steps   []step
}

// A step is so many requests, each about apart milliseconds after the one before
// (0: at once), and then a pause.
type step struct{ requests, apart, pause int }

func TestReplayAgainstNginx(t *testing.T) {
	server := startNginx(t, "http://127.0.0.1:9") // not used
	var clients sync.WaitGroup
	for _, site := range replays {
		for i, c := range site.clients {
			clients.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 7))
				h := from(c.address)
				defer h.CloseIdleConnections()
				for _, s := range c.steps {
					for range s.requests {
						if s.apart > 0 {
							time.Sleep(time.Duration((0.5 + r.Float64()) * float64(s.apart) * float64(time.Millisecond)))
						}
						if status, err := server.get(h, "/"+site.name+"/ok"); err != nil || status != 200 && status != 503 {
							t.Errorf("%s, %s: status %d, %v", site.name, c.address, status, err)
							return
						}
					}
					time.Sleep(time.Duration(s.pause) * time.Millisecond)
				}
			})
		}
	}
	clients.Wait()
	seen := server.stop(t)

	decisions, near, different := 0, 0, 0
	for _, site := range replays {
		p, found, err := ParseNginx(site.annotations, Ingress{})
		if !found || err != nil {
			t.Fatal(site.name, found, err)
		}
		s := newShadow(t, p)
		count := map[bool]int{}
		for _, r := range seen {
			if r.site != site.name {
				continue
			}
			count[r.admitted]++
			v := s.follow(r)
			if v.near {
				near++
			}
			if v.admits != r.admitted {
				different++
				if !v.near && !v.rounded {
					t.Errorf("%s: %s at %v: nginx admitted: %v, shield would: %v", r.site, r.client, r.at, r.admitted, v.admits)
				}
			}
			if v.guardDiffers {
				t.Errorf("%s: %s at %v: a bucket admits: %v, a whole Guard not so", r.site, r.client, r.at, v.admits)
			}
		}
		if count[true] == 0 || count[false] == 0 {
			t.Errorf("%s: %d admitted and %d refused; want some of both", site.name, count[true], count[false])
		}
		t.Logf("%-9s %3d admitted, %3d refused", site.name, count[true], count[false])
		decisions += count[true] + count[false]
	}
	t.Logf("%d decisions, %d of them within a millisecond of the other one, %d different", decisions, near, different)
	// By chance about one of a hundred is near: refused clients here come every 50 ms
	// or so, while a request becomes possible every 100 ms to 2 s.
	if decisions < 500 || near > decisions/50 || different > decisions/50 {
		t.Errorf("%d decisions, %d near, %d different; want at least 500, and at most a fiftieth of each", decisions, near, different)
	}
}

// A shadow decides as shield would on the requests to one site, and follows nginx where it decides otherwise.
type shadow struct {
	policy   Ingress
	limits   []limiter.Limit
	buckets  map[netip.Addr][]limiter.Bucket
	admitted map[netip.Addr]int
	guard    *shield.Guard
	lost     map[netip.Addr]bool // whose standing with the guard is not nginx's any more
}

func newShadow(t *testing.T, p Ingress) *shadow {
	s := &shadow{policy: p, buckets: map[netip.Addr][]limiter.Bucket{}, admitted: map[netip.Addr]int{}, lost: map[netip.Addr]bool{}}
	c := shield.Config{}
	for _, z := range p.Zones {
		limit := must.Get(limiter.New(z.Limit))(t)
		s.limits = append(s.limits, limit)
		c.Zones = append(c.Zones, shield.Zone{Name: z.Name, Limit: z.Limit})
	}
	s.guard = must.Get(shield.New(c, nil))(t)
	return s
}

// A verdict is what shield thinks of a request.
type verdict struct {
	admits       bool
	near         bool // the other way a millisecond earlier or later
	rounded      bool // the other way with what nginx may have lost by rounding down
	guardDiffers bool
}

func (s *shadow) follow(r request) (v verdict) {
	if s.policy.Allows(r.client) {
		return verdict{admits: true}
	}
	if s.buckets[r.client] == nil {
		s.buckets[r.client] = make([]limiter.Bucket, len(s.limits))
	}
	buckets := s.buckets[r.client]
	// As Guard.Admit does: all limits are looked at, then all are charged or none.
	take := func(at time.Duration, commit bool) bool {
		fits := true
		claims := make([]limiter.Claim, len(buckets))
		for i := range buckets {
			var wait time.Duration
			claims[i], wait = buckets[i].Claim(s.limits[i], at, 1)
			fits = fits && wait == 0
		}
		for i := range claims {
			if fits && commit {
				claims[i].Commit()
			}
			claims[i].Release()
		}
		return fits
	}
	v.admits = take(r.at, false)
	v.near = take(r.at-time.Millisecond, false) != take(r.at+time.Millisecond, false)
	// At each request that it charges nginx may lose a part of a thousandth of a
	// request, unless it earns whole ones per millisecond.
	var lost time.Duration
	for _, z := range s.policy.Zones {
		if rate := int(z.Limit.Rate); rate%1000 != 0 {
			lost += time.Duration(s.admitted[r.client]) * time.Second / time.Duration(rate)
		}
	}
	v.rounded = v.admits && !take(r.at-time.Millisecond-lost, false)

	if !s.lost[r.client] {
		key := limiter.KeyOfBytes(shield.AppendNetwork(nil, r.client, 32, s.policy.IPv6Prefix))
		d := s.guard.Admit(r.at, shield.Request{Keys: []limiter.Key{key, key}, Client: key})
		if d.Hold > 0 {
			d.Sent()
		}
		v.guardDiffers = d.Admit != v.admits
		s.lost[r.client] = d.Admit != r.admitted
	}
	if r.admitted {
		s.admitted[r.client]++
		if !take(r.at, true) {
			take(r.at+time.Millisecond, true)
		}
	}
	return v
}

// limit-connections counts what is in flight, which here is known: each request
// has reached the backend, or is refused, before anything else happens.
func TestConnectionsAgainstNginx(t *testing.T) {
	arrived := make(chan struct{}, 1)
	var mu sync.Mutex
	release := map[string]chan struct{}{} // guarded by mu; by request, until it may end
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		wait := release[r.URL.RawQuery]
		mu.Unlock()
		arrived <- struct{}{}
		<-wait
	}))
	defer backend.Close()
	let := func(id string) {
		mu.Lock()
		defer mu.Unlock()
		close(release[id])
		delete(release, id)
	}
	defer func() { // what a failure has left behind
		for id := range release {
			let(id)
		}
	}()
	server := startNginx(t, backend.URL)

	p, _, err := ParseNginx(connections, Ingress{})
	if err != nil {
		t.Fatal(err)
	}
	guard := must.Get(shield.New(shield.Config{PerClient: p.PerClient}, nil))(t)
	type flight struct {
		id       string
		status   chan int
		decision shield.Decision
	}
	flights, clients := map[string][]flight{}, map[string]*http.Client{}
	count := map[bool]int{}
	r := rand.New(rand.NewPCG(3, 4))
	end := func(f flight) {
		let(f.id)
		if status := <-f.status; status != 200 {
			t.Errorf("request %s: status %d; want 200", f.id, status)
		}
		f.decision.Done(time.Second, shield.Served)
	}
	for i := range 200 {
		address := []string{"127.0.0.1", "127.0.0.2", "127.1.2.3"}[r.IntN(3)]
		if clients[address] == nil {
			clients[address] = from(address)
			defer clients[address].CloseIdleConnections()
		}
		if in := flights[address]; len(in) > 0 && r.IntN(5) < 2 {
			j := r.IntN(len(in))
			end(in[j])
			flights[address] = append(in[:j:j], in[j+1:]...)
			continue
		}
		f := flight{id: strconv.Itoa(i), status: make(chan int, 1)}
		mu.Lock()
		release[f.id] = make(chan struct{})
		mu.Unlock()
		go func() {
			status, err := server.get(clients[address], "/connections/?"+f.id)
			if err != nil {
				t.Error(err)
			}
			f.status <- status
		}()
		admitted := false
		select {
		case <-arrived:
			admitted = true
		case status := <-f.status:
			if status != http.StatusServiceUnavailable || status != p.Status {
				t.Errorf("request %s: status %d; want 503", f.id, status)
			}
		}
		count[admitted]++
		shields := true
		if a := netip.MustParseAddr(address); !p.Allows(a) {
			f.decision = guard.Admit(time.Second, shield.Request{InFlightKey: limiter.KeyOf(address)})
			shields = f.decision.Admit
		}
		if shields != admitted {
			t.Fatalf("request %d from %s, with %d in flight: nginx admitted: %v, shield would: %v", i, address, len(flights[address]), admitted, shields)
		}
		if admitted {
			flights[address] = append(flights[address], f)
		}
	}
	for _, in := range flights {
		for _, f := range in {
			end(f)
		}
	}
	if count[true] < 20 || count[false] < 20 {
		t.Errorf("%d admitted and %d refused; want at least 20 of both", count[true], count[false])
	}
	t.Logf("%d admitted, %d refused", count[true], count[false])
}

// The annotations of the sites in front of a backend.
var (
	connections = nginx("limit-connections", "3", "limit-whitelist", "127.1.2.3/32")
	charged     = nginx("limit-connections", "1", "limit-rps", "1", "limit-burst-multiplier", "4")
)

// The one difference on purpose: nginx charges a request to the rates that it then
// refuses for limit-connections. With shield a refusal costs nothing.
func TestRefusalsCostNothing(t *testing.T) {
	arrived, release := make(chan struct{}, 2), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer backend.Close()
	end := sync.OnceFunc(func() { close(release) })
	defer end()
	server := startNginx(t, backend.URL)
	p, _, err := ParseNginx(charged, Ingress{})
	if err != nil {
		t.Fatal(err)
	}
	guard := must.Get(shield.New(shield.Config{PerClient: p.PerClient, Zones: []shield.Zone{{Name: "rps", Limit: p.Zones[0].Limit}}}, nil))(t)
	admit := func() shield.Decision {
		return guard.Admit(time.Second, shield.Request{Keys: []limiter.Key{1}, InFlightKey: 1})
	}

	h := from("127.0.0.1")
	defer h.CloseIdleConnections()
	first := make(chan int)
	go func() {
		status, _ := server.get(h, "/charged/")
		first <- status
	}()
	<-arrived
	d := admit()
	for range 6 { // five may come at once, one has
		if status, err := server.get(h, "/charged/"); status != 503 || err != nil {
			t.Errorf("nginx: a second request in flight got %d, %v; want 503", status, err)
		}
		if d := admit(); d.Admit || d.Reason != shield.PerClient {
			t.Errorf("shield: a second request in flight: %v for %v; want a refusal for %v", d.Admit, d.Reason, shield.PerClient)
		}
	}
	end()
	if status := <-first; status != 200 || !d.Admit {
		t.Errorf("the first: nginx %d, shield %v; want both to admit it", status, d.Admit)
	}
	d.Done(time.Second, shield.Served)
	if status, err := server.get(h, "/charged/"); status != 503 || err != nil {
		t.Errorf("nginx: the next got %d, %v; want 503, or the documentation of ParseNginx is wrong", status, err)
	}
	if d := admit(); !d.Admit {
		t.Errorf("shield: the next is refused for %v; want it admitted", d.Reason)
	}
}

// nginxServer is a running nginx.
type nginxServer struct {
	dir     string
	address string
	process *exec.Cmd
}

// A request is one that nginx has seen.
type request struct {
	at       time.Duration
	client   netip.Addr
	site     string
	admitted bool
}

// startNginx starts Debian's nginx with the sites of this file.
func startNginx(t *testing.T, backend string) *nginxServer {
	t.Helper()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		binary, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		if os.Getenv("CI_REQUIRE_NGINX") == "1" {
			t.Fatal("there is no nginx, and CI_REQUIRE_NGINX is 1; want the package nginx-light")
		}
		t.Skip("there is no nginx to compare with; install the package nginx-light (with CI_REQUIRE_NGINX=1 this is an error)")
	}
	s := &nginxServer{dir: t.TempDir(), address: fmt.Sprintf("127.0.0.1:%d", must.FreePorts(t, 1)[0])}

	var zones, locations strings.Builder
	for _, site := range replays {
		z, l := nginxSite(t, site.name, site.annotations)
		zones.WriteString(z)
		fmt.Fprintf(&locations, "location /%s/ { root %s; %s }\n", site.name, s.dir, l)
		must.Do(t, os.Mkdir(filepath.Join(s.dir, site.name), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(s.dir, site.name, "ok"), []byte("ok\n"), 0o644))
	}
	for name, annotations := range map[string]map[string]string{"connections": connections, "charged": charged} {
		z, l := nginxSite(t, name, annotations)
		zones.WriteString(z)
		fmt.Fprintf(&locations, "location /%s/ { proxy_pass %s; %s }\n", name, backend, l)
	}
	config := fmt.Sprintf(must.Read(t, "testdata/nginx.conf"), s.dir, zones.String(), s.address, locations.String())
	must.Do(t, os.WriteFile(filepath.Join(s.dir, "nginx.conf"), []byte(config), 0o644))
	s.process = exec.Command(binary, "-p", s.dir, "-c", filepath.Join(s.dir, "nginx.conf"))
	var output strings.Builder
	s.process.Stdout, s.process.Stderr = &output, &output
	must.Do(t, s.process.Start())
	t.Cleanup(func() {
		if s.process.ProcessState == nil {
			_ = s.process.Process.Kill()
			_ = s.process.Wait()
		}
	})
	for range 400 {
		c, err := net.Dial("tcp", s.address)
		if err == nil {
			c.Close()
			return s
		}
		time.Sleep(5 * time.Millisecond)
	}
	log, _ := os.ReadFile(filepath.Join(s.dir, "error.log"))
	t.Fatalf("nginx does not listen after 2 s: %s%s", output.String(), log)
	return nil
}

// nginxSite returns what ingress-nginx's template (rootfs/etc/nginx/template/nginx.tmpl)
// and its buildRateLimitZones and buildRateLimit make of annotations: for the http
// block, and for the location. It does not use ParseNginx.
func nginxSite(t *testing.T, id string, annotations map[string]string) (zones, location string) {
	number := func(name string, otherwise int) int {
		v, ok := annotations[NginxPrefix+name]
		if !ok {
			return otherwise
		}
		return must.Get(strconv.Atoi(v))(t)
	}
	rps, rpm, conn, multiplier := number("limit-rps", 0), number("limit-rpm", 0), number("limit-connections", 0), number("limit-burst-multiplier", 5)
	zones = fmt.Sprintf("geo $remote_addr $allowlist_%s {\n default 0;\n", id)
	for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
		for cidr := range strings.SplitSeq(annotations[NginxPrefix+name], ",") {
			if cidr != "" {
				zones += cidr + " 1;\n"
			}
		}
	}
	zones += fmt.Sprintf("}\nmap $allowlist_%[1]s $limit_%[1]s {\n 0 $binary_remote_addr;\n 1 \"\";\n}\n", id)
	if conn > 0 {
		zones += fmt.Sprintf("limit_conn_zone $limit_%[1]s zone=%[1]s_conn:5m;\n", id)
		location += fmt.Sprintf("limit_conn %s_conn %d;\n", id, conn)
	}
	if rps > 0 {
		zones += fmt.Sprintf("limit_req_zone $limit_%[1]s zone=%[1]s_rps:5m rate=%[2]dr/s;\n", id, rps)
		location += fmt.Sprintf("limit_req zone=%s_rps burst=%d nodelay;\n", id, rps*multiplier)
	}
	if rpm > 0 {
		zones += fmt.Sprintf("limit_req_zone $limit_%[1]s zone=%[1]s_rpm:5m rate=%[2]dr/m;\n", id, rpm)
		location += fmt.Sprintf("limit_req zone=%s_rpm burst=%d nodelay;\n", id, rpm*multiplier)
	}
	return zones, location
}

// from returns an HTTP client with a loopback address of its own.
func from(address string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
			return d.DialContext(ctx, network, to)
		},
		MaxIdleConnsPerHost: 16,
	}}
}

func (s *nginxServer) get(c *http.Client, path string) (status int, err error) {
	answer, err := c.Get("http://" + s.address + path)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// stop ends nginx and returns what it has seen, in its order.
func (s *nginxServer) stop(t *testing.T) (seen []request) {
	t.Helper()
	must.Do(t, s.process.Process.Signal(syscall.SIGQUIT))
	_ = s.process.Wait()
	log := must.Get(os.ReadFile(filepath.Join(s.dir, "access.log")))(t)
	var first time.Duration
	for line := range strings.Lines(string(log)) {
		field := strings.Fields(line)
		seconds, thousandths, _ := strings.Cut(field[0], ".")
		ms, err := strconv.ParseInt(seconds+thousandths, 10, 64)
		if err != nil {
			t.Fatalf("log: %q", line)
		}
		at := time.Duration(ms) * time.Millisecond
		if first == 0 {
			first = at - time.Second // a Guard's time is above 0
		}
		seen = append(seen, request{at: at - first, client: netip.MustParseAddr(field[1]), site: strings.Split(field[3], "/")[1], admitted: field[2] == "200"})
	}
	return seen
}
