// Package monitoring runs the alerts and the dashboard of folder monitoring against a real
// Prometheus, which scrapes a shield under load.
package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/share/redis/testserver"
)

const folder = "../../../monitoring"

// program finds one of Debian's package prometheus. Without it a test is skipped, or fails where
// SHIELD_PROMETHEUS_REQUIRED is set.
func program(t *testing.T, name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("SHIELD_PROMETHEUS_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

func TestRules(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "shield.rules.yml"}, {"test", "rules", "shield.rules.test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// site has every option that adds metrics. Of three requests at once it serves one, and another waits.
const site = `{
	admin %[1]s
	persist_config off
	auto_https off
	log {
		level ERROR
	}
	servers {
		listener_wrappers {
			shield
		}
	}
	shield {
		store redis %[3]s {
			secret monitoring-test-secret
		}
		state {
			file %[5]s
		}
	}
}
http://%[2]s {
	handle /adaptive {
		shield {
			name adaptive
			concurrency adaptive {
				initial 4
				max 8
			}
			queue 4 timeout 50ms
			class critical {
				match header X-Critical yes
			}
			class sheddable
			retries {
				tickets on
			}
			shared off
		}
		reverse_proxy %[4]s
	}
	handle {
		shield {
			name shared
			zone per_client {
				key {header.X-Key}
				rate 20/s
				burst 5
				settle header X-Cost
			}
			capacity 30/s burst 5
			concurrency 8
		}
		reverse_proxy %[4]s
	}
}
`

// Every query of the dashboard, of the docs and of the alerts finds something in a shield under load.
func TestQueries(t *testing.T) {
	prometheus := program(t, "prometheus")
	admin, server := serve(t)
	api := scrape(t, prometheus, admin)

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 24 {
		clients.Go(func() { request(ctx, server, i) })
	}
	defer clients.Wait()
	defer stop()

	queries := boardQueries(t)
	if len(queries) < 60 {
		t.Fatalf("%d queries; want more", len(queries))
	}
	documented := pageQueries(t)
	if len(documented) < 1 {
		t.Fatal("the docs have no query")
	}
	missing := append(queries, documented...)
	for deadline := time.Now().Add(2 * time.Minute); len(missing) > 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
		var still []string
		for _, q := range missing {
			if query(t, api, q) == 0 {
				still = append(still, q)
			}
		}
		missing = still
	}
	for _, q := range missing {
		t.Errorf("no series: %s", q)
	}

	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	must.JSON(t, api+"/api/v1/rules", &rules)
	var names []string
	for _, g := range rules.Data.Groups {
		for _, r := range g.Rules {
			if names = append(names, r.Name); r.Health != "ok" {
				t.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if len(names) < 8 {
		t.Errorf("Prometheus has the rules %q; want those of shield.rules.yml", names)
	}
}

// serve serves site before a backend that takes 30 ms for a request, and rejects some.
func serve(t *testing.T) (admin, server string) {
	var served int
	var mu sync.Mutex
	backend, stop, err := process.Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(30 * time.Millisecond) // a backend at work
		mu.Lock()
		defer mu.Unlock()
		if served++; served%50 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	must.Do(t, err)
	t.Cleanup(stop)
	store := testserver.Start(t, testserver.Programs(t)[0])
	admin, server = process.Free(t), process.Free(t)
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(fmt.Appendf(nil, site, admin, server, store.Addr, backend, filepath.Join(t.TempDir(), "state")), nil)
	if err == nil {
		err = caddy.Load(config, true)
	}
	must.Do(t, err)
	t.Cleanup(func() { _ = caddy.Stop() })
	return admin, server
}

// scrape starts a Prometheus that scrapes a shield each second, and returns its address.
func scrape(t *testing.T, program, admin string) (api string) {
	dir, address := t.TempDir(), process.Free(t)
	rules := must.Get(filepath.Abs(folder + "/shield.rules.yml"))(t)
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: shield
    static_configs: [{targets: [%q]}]
`, rules, admin)
	must.Do(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	stop := must.Get(process.Start(t.Context(), cmd, filepath.Join(dir, "log"), "tcp", address))(t)
	t.Cleanup(stop)
	api = "http://" + address
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		response := must.Get(http.Get(api + "/-/ready"))(t)
		if response.Body.Close(); response.StatusCode == http.StatusOK {
			return api
		}
	}
	t.Fatal("Prometheus listens, but is not ready")
	return ""
}

// agents are of several families.
var agents = []string{"curl/8.0", "Go-http-client/1.1", "python-requests/2.32"}

// request sends requests until ctx is done: of three clients one hammers, one waits a moment, and one
// comes when it is told to.
func request(ctx context.Context, server string, i int) {
	client := http.Client{Timeout: 5 * time.Second}
	path := []string{"/adaptive", "/"}[i%2]
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server+path, nil)
		if err != nil {
			return
		}
		r.Header.Set("User-Agent", agents[i%3])
		r.Header.Set("X-Key", fmt.Sprint("client-", i%5))
		if i%4 == 0 {
			r.Header.Set("X-Critical", "yes")
		}
		wait := time.Duration(i%3) * 20 * time.Millisecond
		if response, err := client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if seconds := response.Header.Get("Retry-After"); seconds != "" && i%3 == 2 {
				wait, _ = time.ParseDuration(seconds + "s")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// boardQueries returns the queries of the dashboard, as Grafana would send them, and their variables.
func boardQueries(t *testing.T) (queries []string) {
	b := must.Read(t, folder+"/shield.json")
	var board struct {
		Panels     []struct{ Targets []struct{ Expr string } }
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	must.Do(t, json.Unmarshal([]byte(b), &board))
	variables := strings.NewReplacer("$__rate_interval", "10s", "$shield", ".*", "$zone", ".*")
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			queries = append(queries, variables.Replace(target.Expr))
		}
	}
	for _, v := range board.Templating.List {
		if selector, label, ok := strings.Cut(strings.TrimPrefix(v.Definition, "label_values("), ", "); ok {
			queries = append(queries, fmt.Sprintf("count by (%s) (%s)", strings.TrimSuffix(label, ")"), selector))
		}
	}
	return queries
}

func pageQueries(t *testing.T) (queries []string) {
	pages := must.Get(filepath.Glob("../../../docs/*/*.md"))(t)
	for _, page := range pages {
		for _, block := range regexp.MustCompile("(?ms)^```promql\n(.*?)^```").FindAllStringSubmatch(must.Read(t, page), -1) {
			queries = append(queries, block[1])
		}
	}
	return queries
}

func query(t *testing.T, api, q string) (series int) {
	t.Helper()
	var found struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	must.JSON(t, api+"/api/v1/query?query="+url.QueryEscape(q), &found)
	for _, s := range found.Data.Result {
		if s.Value[1] != "NaN" {
			series++
		}
	}
	return series
}
