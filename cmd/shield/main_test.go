package main

import (
	"bufio"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/configfile"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/redis/testserver"
)

// The test binary is shield if an environment variable says so: the tests below run the
// real program, with nothing built twice.
func TestMain(m *testing.M) {
	if os.Getenv("SHIELD_TEST_RUN_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command returns a shield command with its own home.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "SHIELD_TEST_RUN_MAIN=1", "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return cmd
}

// startProxy runs "shield proxy" with args until the test ends, and returns its
// address and that of its admin endpoint.
func startProxy(t *testing.T, args ...string) (address, admin string) {
	t.Helper()
	address, admin = testserver.FreeAddress(t), testserver.FreeAddress(t)
	awaitUp(t, command(t, append([]string{"proxy", "--from", address, "--admin", admin}, args...)...))
	return address, admin
}

// awaitUp runs "shield proxy" until the test ends. It returns when that is up.
func awaitUp(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	up := make(chan string, 1)
	go func() {
		all := ""
		for s := bufio.NewScanner(logs); s.Scan(); {
			if all += s.Text() + "\n"; strings.Contains(s.Text(), `"shield is up"`) {
				up <- ""
			}
		}
		select {
		case up <- all:
		default:
		}
	}()
	select {
	case all := <-up:
		if all != "" {
			t.Fatalf("shield proxy ended:\n%s", all)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("shield proxy did not come up")
	}
}

func backend(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// The sixth quick request is refused; status knows of it.
func TestProxyAndStatus(t *testing.T) {
	address, admin := startProxy(t, "--to", backend(t), "--rate", "5/m", "--burst", "5", "--capacity", "1000/s", "--concurrency", "10")
	get := func() *http.Response {
		t.Helper()
		resp, err := http.Get("http://" + address)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	for i := range 5 {
		if resp := get(); resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %s", i+1, resp.Status)
		}
	}
	resp := get()
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusTooManyRequests || err != nil || seconds < 5 || seconds > 12 {
		t.Fatalf("request 6: %s, Retry-After %q; want 429 and up to 12 s", resp.Status, resp.Header.Get("Retry-After"))
	}

	out, err := command(t, "status", "--address", admin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`proxy +enforce +1000/s burst 100 +0 of 10 +5 +1 quota +0`, `per_client +\{http.vars.client_ip\} +5/m burst 5 +1 of 200000 +5 +1 +0`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("status has no %q:\n%s", want, out)
		}
	}
	if want := `(?m)^NOW .*\nproxy +\d+\.\d/s +\d+\.\d/s +0`; !regexp.MustCompile(want).Match(out) {
		t.Errorf("status has no %q:\n%s", want, out)
	}
	out, err = command(t, "status", "--json", "--address", admin).Output()
	var status adminapi.Status
	if err != nil || json.Unmarshal(out, &status) != nil || len(status.Shields) != 1 {
		t.Errorf("status --json: %v\n%s", err, out)
	}
	out, err = command(t, "who", "--address", admin).CombinedOutput()
	if err != nil || !regexp.MustCompile(`proxy +127.0.0.1 +1 +\d\.\d +quota +go +GET / +\n`).Match(out) {
		t.Errorf("who: %v\n%s", err, out)
	}
	out, err = command(t, "who", "--json", "--shield", "proxy", "--address", admin).Output()
	var who adminapi.WhoStatus
	if err != nil || json.Unmarshal(out, &who) != nil || len(who.Shields) != 1 || len(who.Zones) != 1 {
		t.Errorf("who --json: %v\n%s", err, out)
	}
	if out, err = command(t, "who", "--clients", "0", "--address", admin).CombinedOutput(); err == nil || !bytes.Contains(out, []byte("--clients is 0; want 1 to 100")) {
		t.Errorf("who --clients 0: %v\n%s", err, out)
	}
	metrics, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Body.Close()
	if b, _ := io.ReadAll(metrics.Body); !bytes.Contains(b, []byte(`caddy_shield_requests_total{outcome="refused",reason="quota",shield="proxy"} 1`)) {
		t.Error("the refusal is not at /metrics")
	}
}

func TestCurlRetriesByItself(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("needs curl on the path")
	}
	t.Parallel()
	address, _ := startProxy(t, "--to", backend(t), "--rate", "1/s", "--burst", "1")
	start := time.Now()
	for range 2 {
		out, err := exec.Command(curl, "-sS", "--fail", "--retry", "3", "http://"+address).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), "hello") {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("both were served within %v; want one of them to wait", took)
	}
}

func TestCommandLineErrors(t *testing.T) {
	for args, want := range map[string]string{
		"proxy":                                       "--to is missing",
		"proxy --to 127.0.0.1:1":                      "the limit is missing",
		"proxy --to 127.0.0.1:1 --rate 0/s":           `--rate is "0/s"; want more than 0`,
		"proxy --to 127.0.0.1:1 --rate 5/s --burst 0": `--burst is "0"; want more`,
		"proxy --to 127.0.0.1:1 --rate 5/s --burst x": `--burst is "x"; want a whole number`,
		"proxy --to 127.0.0.1:1 --rte 5/s":            "--rte is no flag of shield proxy (did you mean --rate?); want one of shield proxy --help",
		"proxy --to 127.0.0.1:1 -r 5/s":               "-r is no flag of shield proxy",
		"proxy --to 127.0.0.1:1 --rate":               "--rate has no value; want rate limit of each client, like 5/s",
		"proxy --store foo --to 127.0.0.1:1":          "--store is no URL of redis:// or rediss://; want one like redis://127.0.0.1:6379",
		"proxy extra":                                 `arguments are ["extra"]; want flags only`,
		"demo --clients many":                         `--clients is "many"; want a whole number`,
		"loadtest http://127.0.0.1:1 --herds 3":       "--herds is no flag of shield loadtest (did you mean --herd?)",
		"loadtest http://127.0.0.1:1 --herd many":     `--herd is "many"; want a whole number`,
		"simulate --outages 3s":                       "--outages is no flag of shield simulate (did you mean --outage?)",
		"simulate --duration 60":                      `--duration is "60"; want a time with a unit, as 100ms, 5s or 2m`,
		"convert ngnix nginx.conf":                    `"ngnix" is no server that is known (did you mean nginx?); want nginx or caddy-ratelimit, and a file`,
		"convert nginx.conf":                          `arguments are ["nginx.conf"]; want nginx or caddy-ratelimit, and a file`,
		"convert":                                     "shield convert has no arguments; want nginx or caddy-ratelimit, and a file",
		"simulate --compare sheild":                   "sheild is neither a file nor a known word (did you mean shield?); want a Caddyfile, JSON, or one of",
		"block 192.0.2.7":                             `--for is ""; want how long it lasts, 1s to 24h, like 10m`,
		"block 192.0.2.7 --for 5":                     `--for is "5"; want how long it lasts`,
		"block 192.0.2.7 --for 48h":                   `--for is "48h"; want how long it lasts`,
		"mode --for 1m observ":                        `mode is "observ" (did you mean observe?); want observe or enforce`,
		"who --clients 0":                             "--clients is 0; want 1 to 100",
		"status --address 127.0.0.1:1":                "is shield running, and its admin endpoint at 127.0.0.1:1?",
		"status extra":                                `arguments are ["extra"]; want none`,
		"who --address 127.0.0.1:1":                   "is shield running, and its admin endpoint at 127.0.0.1:1?",
		"who extra":                                   `arguments are ["extra"]; want none`,
		"who --clients x":                             `--clients is "x"; want a whole number`,
		"explain":                                     "shield explain has no arguments; want one client, like 192.0.2.7",
		"forgive a b":                                 `arguments are ["a" "b"]; want one client`,
		"mode --for 1m":                               "shield mode has no arguments; want observe or enforce",
		"set --for 1m shop capacity":                  `arguments are ["shop" "capacity"]; want a shield, what to set and its value, like shop capacity 300/s`,
		"run --confg Caddyfile":                       "--confg is no flag of shield run (did you mean --config?)",
	} {
		out, err := command(t, append(strings.Fields(args), "--admin", "off")[:len(strings.Fields(args))]...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("shield %s: %v, want an error with %q:\n%s", args, err, want, out)
		}
	}
}

// Errors in JSON have the path of what is wrong, and not the names of all modules around it.
func TestErrorsInJSON(t *testing.T) {
	const config = "{\"apps\": {\"http\": {\"servers\": {\"srv0\": {\"listen\": [\"127.0.0.1:0\"], \"routes\": [{\"handle\": [\n" +
		"{\"handler\": \"shield\", \"capacity\": {\"rate\": 5,\n\"burst\": 0}}]}]}}}}}"
	file := filepath.Join(t.TempDir(), "shop.json")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "Error: capacity: burst is 0; want more, or leave it out for the default, at " + file + ":3, .apps.http.servers.srv0.routes[0].handle[0].capacity.burst\n"
	for _, name := range []string{"run", "validate", "reload"} {
		if out, err := command(t, name, "--config", file).CombinedOutput(); err == nil || string(out) != want {
			t.Errorf("shield %s: %v\n%swant\n%s", name, err, out, want)
		}
	}
	good := strings.Replace(config, `"burst": 0`, `"burst": 5`, 1)
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, "validate", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("a good config: %v\n%s", err, out)
	}
}

// Values of placeholders are known to a process that loads what it adapts, and not to others.
func TestErrorsInTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Caddyfile")
	const site = "http://127.0.0.1:0 {\n\tshield 5/s {\n\t\tretries {\n\t\t\ttickets on\n\t\t\tsecret {env.SHIELD_TEST_NONE}\n\t\t}\n\t}\n}\n"
	if err := os.WriteFile(file, []byte(site), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "parsing caddyfile tokens for 'shield': retries: secret has an empty or unknown placeholder, {env.SHIELD_TEST_NONE}; want {env.NAME} or {file./path} with a value, at " + file + ":5"
	for _, name := range []string{"run", "validate"} {
		if out, err := command(t, name, "--config", file).CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("shield %s: %v\n%swant %s", name, err, out, want)
		}
	}
	if out, err := command(t, "adapt", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("adapt: %v\n%s", err, out)
	}
}

func TestVersion(t *testing.T) {
	out, err := command(t, "version").CombinedOutput()
	if err != nil || !regexp.MustCompile(`^shield \S+ on Caddy v2\.`).Match(out) {
		t.Errorf("shield version: %v, %q", err, out)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"proxy", "--help"}, {"status", "--help"}, {"who", "--help"}, {"top", "--help"}, {"demo", "--help"}} {
		out, err := command(t, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "shield") {
			t.Errorf("shield %v: %v\n%s", args, err, out)
		}
		if args[0] == "--help" && (!strings.Contains(string(out), "\n  status ") || strings.Contains(string(out), "\n  shield  ")) {
			t.Errorf("the commands of a running instance are not those of the program:\n%s", out)
		}
		if args[0] == "--help" && (strings.Contains(string(out), "$ caddy") || strings.Count(string(out), "$ shield") != 6) {
			t.Errorf("the examples are not the six of shield:\n%s", out)
		}
		if args[0] == "proxy" {
			for _, flag := range []string{"--from", "--to", "--rate", "--burst", "--capacity", "--concurrency", "--observe", "$ shield proxy --from"} {
				if !strings.Contains(string(out), flag) {
					t.Errorf("the help of proxy does not mention %s", flag)
				}
			}
		}
	}
}

// Manual pages and completion have the commands of a running instance as those of the program.
func TestManualPagesAndCompletion(t *testing.T) {
	pages := t.TempDir()
	if out, err := command(t, "manpage", "--directory", pages).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	page, err := os.ReadFile(filepath.Join(pages, "shield-status.8"))
	if err != nil || !bytes.Contains(page, []byte("shield status [--address")) {
		t.Errorf("%v: %s", err, page)
	}
	if nested, _ := filepath.Glob(filepath.Join(pages, "shield-shield*")); nested != nil {
		t.Errorf("there are pages %q", nested)
	}
	out, err := command(t, "__complete", "").Output()
	if err != nil || !bytes.Contains(out, []byte("\nstatus\t")) || bytes.Contains(out, []byte("\nshield\t")) {
		t.Errorf("completion: %v\n%s", err, out)
	}
}

// kubernetesPages are about another module.
const kubernetesPages = "../../docs/kubernetes"

// The README's first command with curl prints the refusal that the README shows, every time.
func TestReadmeShowsARefusal(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl on the path")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?m)^shield proxy --from (\\S+) --to (\\S+) (.*)\n```(?s:.*?)```sh\n(for i in .*)\n```\n\n```text\n((?s).*?)```").FindStringSubmatch(string(readme))
	if shown == nil {
		t.Fatal("the README does not show how a refusal is got")
	}
	milliseconds := regexp.MustCompile(`Ms: \d+`)
	address, _ := startProxy(t, append([]string{"--to", backend(t)}, strings.Fields(shown[3])...)...)
	for range 3 {
		out, err := exec.Command("sh", "-c", strings.ReplaceAll(shown[4], shown[1], address)).Output()
		got := milliseconds.ReplaceAllString(strings.ReplaceAll(string(out), "\r", ""), "Ms: 1")
		if want := milliseconds.ReplaceAllString(shown[5], "Ms: 1"); err != nil || got != want {
			t.Errorf("%s prints %v\n%s\nwant\n%s", shown[4], err, got, want)
		}
		time.Sleep(1100 * time.Millisecond) // the quota is whole again
	}
}

// Every command in the documentation is run: here, by a test above, or by CI.
func TestCommandsInDocs(t *testing.T) {
	ranBy := map[string]string{
		"git clone https://github.com/herdshield/shield && cd shield":                 "a reader",
		"go run ./cmd/shield demo":                                                    "ci",
		"go -C loadtest/lab run ./seeds/draw ../../docs":                              "TestDocsAreUpToDate in loadtest/lab/seeds/draw",
		"go -C loadtest/lab run ./pictures ../../docs":                                "TestDocsAreUpToDate in loadtest/lab/pictures",
		"go install ./cmd/shield":                                                     "ci",
		"go test ./...":                                                               "ci",
		"go test -run '^$' -bench . -benchmem ./limiter ./loadshed ./pushback .":      "ci",
		"bash loadtest/lab/endtoend/run":                                              "ci",
		"bash loadtest/lab/realclients/run":                                           "ci",
		"bash .ci/run":                                                                "ci itself",
		"shield proxy --from 127.0.0.1:8080 --to 127.0.0.1:9000 --rate 5/s --burst 5": "TestProxyAndStatus",
		"shield status":                                                               "TestProxyAndStatus",
		"shield status --json":                                                        "TestProxyAndStatus",
		"shield status --watch":                                                       "TestStatusIsWatched in caddymodule/commands",
		"shield status --watch --json":                                                "TestStatusIsWatched in caddymodule/commands",
		"shield top":                                                                  "TestTopAsksOnce in caddymodule/commands",
		"shield top --shield shop":                                                    "TestTopAsksOnce in caddymodule/commands",
		"shield forgive 203.0.113.7":                                                  "TestOverrides",
		"shield block 203.0.113.7 --for 10m":                                          "TestOverrides",
		"shield set api capacity 300/s --for 30m":                                     "TestOverrides",
		"shield set api per_client rate 10/s --for 30m":                               "TestOverrides",
		"shield mode observe --for 1h":                                                "TestOverrides",
		"shield overrides":                                                            "TestOverrides",
		"shield overrides end 1":                                                      "TestOverrides",
		"caddy shield status":                                                         "TestCommandsOfThePlugin in caddymodule, and ci",
		"caddy shield block 203.0.113.7 --for 10m":                                    "TestCommandsOfThePlugin in caddymodule",
		"shield explain 203.0.113.7":                                                  "TestExplain",
		"shield who":                                                                  "TestProxyAndStatus",
		"shield who --shield shop --json":                                             "TestProxyAndStatus",
		"shield status --open":                                                        "TestPageAddress",
		"shield simulate":                                                             "TestLaboratoryPage",
		"shield convert caddy-ratelimit Caddyfile >Caddyfile.new":                     "TestConvert, and TestExamplesInDocs in internal/convert",
		"shield convert nginx /etc/nginx/nginx.conf >Caddyfile":                       "TestConvert, and TestExamplesInDocs in internal/convert",
		"for i in 1 2 3 4 5 6 7 8 9 10; do echo \"$(curl -si http://127.0.0.1:8080/)\" & done | grep -m1 -A7 ' 429 '": "TestReadmeShowsARefusal",

		// docs/install.md
		"packaging/images":                      "TestServices in loadtest/lab/compose, and TestImages in k8s/deploy",
		"docker load -i dist/images/shield.tar": "a reader: there is no container engine here",
		"docker run --rm -p 127.0.0.1:8080:8080 ghcr.io/herdshield/shield:v0.1.0 proxy --from :8080 --to backend.example.com:80 --rate 5/s": "TestServices in loadtest/lab/compose, without an engine",
		"docker compose -f packaging/compose/compose.yaml up":                                                                               "TestServices in loadtest/lab/compose, without an engine",
		"packaging/chart -u https://charts.example.com":                                                                                     "TestChartRepository in k8s/deploy",
		"helm install shield-ingress shield-ingress --repo https://charts.example.com --namespace shield-ingress --create-namespace":        "TestChartRepository in k8s/deploy, as helm template",
		"go tool -modfile=packaging/tools/go.mod goreleaser release --snapshot --clean":                                                     "packaging",
		"cd dist/release && sha256sum --check checksums.txt":                                                                                "packaging",
		"shield version": "packaging",
		"sudo apt install ./dist/release/shield_*_linux_amd64.deb": "a reader: packaging/run installs it with dpkg",
		"sudo systemctl enable --now shield":                       "a reader: packaging/run starts what the unit starts",
		"curl -i http://127.0.0.1:8080/":                           "packaging/run, without -i",
		"sudo systemctl reload shield":                             "a reader: packaging/run does what the unit does",
		"sudo systemctl edit shield":                               "a reader",
		"journalctl -u shield":                                     "a reader",
		"sudo apt remove shield":                                   "a reader: packaging/run removes it with dpkg",
		"xcaddy build --with github.com/herdshield/shield/caddymodule --replace github.com/herdshield/shield=.": "ci, in other words",
		`export GOPROXY="$(go env GOPROXY | sed 's/,direct$//')|off"`:                                           "ci",

		// With other addresses.
		"export SHIELD_SECRET=$(openssl rand -hex 16)":                                          "TestReplicasShareLimits",
		"shield proxy --from :8080 --to app:80 --capacity 500/s --store redis://127.0.0.1:6379": "TestReplicasShareLimits",

		// Some minutes each; CI runs small versions of their parts.
		"bash loadtest/lab/run":                                                           "a reader",
		"bash loadtest/lab/endtoend/frontdoor/run":                                        "a reader",
		"bash loadtest/lab/rivals/run":                                                    "a reader",
		"bash loadtest/lab/rivals/run -markdown":                                          "a reader",
		"go test ./loadtest/sim -run TestMillions -v -full":                               "a reader",
		"bash loadtest/lab/rivals/run -quick":                                             "a reader",
		"go -C loadtest/lab test ./replicas -full -v -timeout 30m":                        "a reader",
		"zcat -f access-*.log.gz access.log > all.log":                                    "a reader",
		"shield simulate --from-access-log access.log":                                    "TestSimulateFromAccessLog",
		"shield simulate --from-access-log access.log --compare suggested.caddyfile none": "TestSimulateFromAccessLog",

		// The module in k8s. CI's step for it runs all tests there.
		"cd k8s && testbed/build control tools":              "ci, in other words",
		"cd k8s && go test ./...":                            "ci, in other words",
		"cd k8s && go test ./deploy/...":                     "a part of the former",
		"cd k8s && SHIELD_K8S_REQUIRED=1 go test ./livetest": "a part of the former",
		"cd k8s && testbed/build node tools && nodetest/run": "a reader: it wants root and ten minutes",
	}
	ci, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	packaging, err := os.ReadFile("../../packaging/run") // which CI runs
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../loadtest/*/*.md", "../../loadtest/lab/*/*.md", "../../k8s/*.md", "../../k8s/*/*.md"} {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, found...)
	}
	var seen []string
	fence := regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fence.FindAllStringSubmatch(string(b), -1) {
			for line := range strings.Lines(block[1]) {
				line, _, _ = strings.Cut(line, "  #")
				line = strings.TrimSpace(line)
				if line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				seen = append(seen, line)
				if path == labPage || path == tutorial || strings.HasPrefix(path, kubernetesPages) { // TestLaboratoryPage, TestTutorial, and TestCommands in k8s, run all that they have, or name the test that does
					continue
				}
				switch ranBy[line] {
				case "":
					t.Errorf("%s: nothing runs %q", path, line)
				case "ci":
					if !strings.Contains(string(ci), strings.TrimPrefix(line, "export ")) {
						t.Errorf("%s: CI does not run %q", path, line)
					}
				case "packaging":
					if !strings.Contains(string(packaging), line) {
						t.Errorf("%s: packaging/run does not run %q", path, line)
					}
				}
			}
		}
	}
	for line := range ranBy {
		if !slices.Contains(seen, line) {
			t.Errorf("no page has %q any more", line)
		}
	}
}

// The program draws without libraries: pictures of other formats are the laboratory's.
func TestNoDrawingLibraries(t *testing.T) {
	build, ok := debug.ReadBuildInfo() // of this test, which is the program
	if !ok || len(build.Deps) < 20 {
		t.Fatalf("the build has no dependencies: %+v", build)
	}
	drawing := regexp.MustCompile(`gonum|go-fonts|freetype|fpdf|go-latex|sbinet|svgo|x/image`)
	for _, m := range build.Deps {
		if drawing.MatchString(m.Path) {
			t.Errorf("the program contains %s; want no drawing libraries: chart draws SVG, and loadtest/lab may use others", m.Path)
		}
	}
}

// Caddyfile, command line, simulator and demo have the same default bursts.
func TestDefaultBursts(t *testing.T) {
	config := func(text string) shield.Config {
		t.Helper()
		found, err := configfile.Read("Caddyfile", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return found[0].Config
	}
	proxied := func(p proxy) shield.Config {
		t.Helper()
		p.From, p.To, p.Admin = ":0", []string{"127.0.0.1:9"}, "off"
		text, err := p.caddyfile()
		if err != nil {
			t.Fatal(err)
		}
		return config(text)
	}
	for _, c := range []struct {
		name   string
		config shield.Config
		want   int
	}{
		{"capacity in a Caddyfile", config("shield {\n capacity 100/s\n}"), 10},
		{"capacity in JSON", config(`{"handler": "shield", "capacity": {"rate": 100}}`), 10},
		{"shield proxy --capacity", proxied(proxy{Capacity: "100/s"}), 10},
		{"shield simulate", simulatePlan(t).servers[1].config, 10},
		{"shield simulate --limit", simulatePlan(t, "--limit", "6000/m").servers[1].config, 10},
		{"shield demo", config(newPlan(375).parts()[2].directive), 10}, // 100/s
		{"zone in a Caddyfile", config("shield 100/m"), 100},
		{"zone in JSON", config(`{"handler": "shield", "zones": [{"rate": 100, "per": "1m"}]}`), 100},
		{"shield proxy --rate", proxied(proxy{Rate: "100/m"}), 100},
		{"a second's", config("shield 5/s"), 5},
	} {
		g, err := shield.New(c.config, nil)
		if err != nil {
			t.Fatal(err)
		}
		q := shield.Request{Keys: make([]limiter.Key, len(c.config.Zones))}
		for i := range q.Keys {
			q.Keys[i] = 7
		}
		admitted := 0
		for d := g.Admit(time.Hour, q); d.Admit; d = g.Admit(time.Hour, q) {
			admitted++
		}
		if admitted != c.want {
			t.Errorf("%s: %d are admitted at once, want %d", c.name, admitted, c.want)
		}
	}
}

// Without files of certificates, as in the image, the program has those of Mozilla.
func TestRootsWithoutFiles(t *testing.T) {
	const without = "SHIELD_TEST_NO_CERTIFICATES"
	if os.Getenv(without) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRootsWithoutFiles$", "-test.v")
		cmd.Env = append(os.Environ(), without+"=1", "SSL_CERT_FILE="+os.DevNull, "SSL_CERT_DIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestRootsWithoutFiles")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if roots, err := x509.SystemCertPool(); err != nil || roots.Equal(x509.NewCertPool()) {
		t.Errorf("there are no certificates: %v", err)
	}
}
