package main

import (
	"bufio"
	"bytes"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/share/redis/testserver"
)

// The test binary is shield if an environment variable says so: the tests below run the
// real program, with nothing built twice.
func TestMain(m *testing.M) {
	if os.Getenv("SHIELD_TEST_RUN_MAIN") != "" {
		main()
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // those that are parallel mostly wait
		panic(err)
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
	cmd.Env = append(os.Environ(), "SHIELD_TEST_RUN_MAIN=1", secretVariable+"=correct horse battery staple", passwordVariable+"=", "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return cmd
}

// ask runs a command that asks a running instance, in this process, and returns what it prints. The
// program itself asks in TestTutorial.
func ask(args ...string) string {
	root := &cobra.Command{Use: "shield", SilenceUsage: true}
	shapeRoot(root)
	var out bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	_ = root.Execute() // which prints the error
	return out.String()
}

// startProxy runs "shield proxy" with args until the test ends, and returns its
// address and that of its admin endpoint.
func startProxy(t *testing.T, args ...string) (address, admin string) {
	t.Helper()
	address, admin = testserver.FreeAddress(t), testserver.FreeAddress(t)
	await(t, command(t, append([]string{"proxy", "--from", address, "--admin", admin}, args...)...), up)
	return address, admin
}

// caddyfile returns "shield run" with a Caddyfile.
func caddyfile(t *testing.T, text string) *exec.Cmd {
	t.Helper()
	return command(t, "run", "--config", write(t, "Caddyfile", text), "--adapter", "caddyfile")
}

// write writes a file, in a folder of its own if its path names none, and returns its path.
func write(t *testing.T, path, text string) string {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(t.TempDir(), path)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// read returns what is in a file.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What the program logs when it is up.
const (
	up      = `"shield is up"` // of shield proxy
	serving = "serving initial configuration"
)

// await runs a command until the test ends. It returns when that has logged what is wanted.
func await(t *testing.T, cmd *exec.Cmd, want string) {
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
	said := make(chan string, 1)
	go func() {
		all := ""
		for s := bufio.NewScanner(logs); s.Scan(); {
			if all += s.Text() + "\n"; strings.Contains(s.Text(), want) {
				said <- ""
				want = "\n" // and read on
			}
		}
		select {
		case said <- all:
		default:
		}
	}()
	select {
	case all := <-said:
		if all != "" {
			t.Fatalf("nothing says %q in\n%s", want, all)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("nothing says %q within 30 s", want)
	}
}

func backend(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// Each way to get a command line wrong is named, with what is wanted. Values of flags are checked by the
// tests of the commands.
func TestCommandLineErrors(t *testing.T) {
	for args, want := range map[string]string{
		"proxy --to 127.0.0.1:1 --rate 5/s --burst x": `--burst is "x"; use `,
		"proxy --to 127.0.0.1:1 --rte 5/s":            "unknown flag: --rte; shield proxy --help lists the flags",
		"proxy --to 127.0.0.1:1 --rate":               "flag needs an argument: --rate; shield proxy --help lists the flags",
		"proxy extra":                                 `arguments are ["extra"]; use flags only`,
		"simulate --compare sheild":                   `"sheild" is neither a file nor a known word; use a Caddyfile, JSON, or one of`,
		"status --address 127.0.0.1:1":                "is shield running, and its admin endpoint at 127.0.0.1:1?",
		"set --for 1m shop capacity":                  `arguments are ["shop" "capacity"]; use a shield, what to set and its value, like shop capacity 300/s`,
		"run --confg Caddyfile":                       "unknown flag: --confg; shield run --help lists the flags",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			out, err := command(t, strings.Fields(args)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%v, want an error with %q:\n%s", err, want, out)
			}
		})
	}
}

// Every command of shield in the documentation is one, and so are its flags: both have manual pages. The
// program's own help, the pages and the completion have the commands of a running instance among the others.
func TestCommandsInDocs(t *testing.T) {
	t.Parallel()
	out, err := command(t, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n  status ") || strings.Contains(string(out), "\n  shield  ") ||
		strings.Contains(string(out), "\n  upgrade ") || strings.Contains(string(out), "-package ") || strings.Contains(string(out), "$ caddy") || strings.Count(string(out), "$ shield") != 6 {
		t.Errorf("%v:\n%s", err, out)
	}
	out, err = command(t, "__complete", "").Output()
	if err != nil || !bytes.Contains(out, []byte("\nstatus\t")) || bytes.Contains(out, []byte("\nshield\t")) {
		t.Errorf("completion: %v\n%s", err, out)
	}
	pages := t.TempDir()
	if out, err := command(t, "manpage", "--directory", pages).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if nested, _ := filepath.Glob(filepath.Join(pages, "shield-shield*")); nested != nil {
		t.Errorf("there are pages %q", nested)
	}
	docs, _ := filepath.Glob("../../docs/*/*.md")
	more, _ := filepath.Glob("../../docs/*.md")
	seen := map[string]bool{}
	for _, path := range slices.Concat(docs, more, []string{"../../README.md", "../../CONTRIBUTING.md"}) {
		for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(read(t, path), -1) {
			for line := range strings.Lines(block[1]) {
				line = regexp.MustCompile(`  #| [>|]`).Split(line, 2)[0]
				args := words(strings.TrimSpace(line))
				if len(args) < 2 || args[0] != "shield" || seen[line] {
					continue
				}
				seen[line] = true
				page, err := os.ReadFile(filepath.Join(pages, "shield-"+args[1]+".8"))
				if err != nil {
					t.Errorf("%s: %q: %v", path, line, err)
				}
				for _, arg := range args[2:] {
					flag, _, _ := strings.Cut(arg, "=")
					if strings.HasPrefix(flag, "--") && !strings.Contains(string(page), "\\fB"+flag+"\\fP") {
						t.Errorf("%s: %q: %s is no flag of shield %s", path, line, flag, args[1])
					}
				}
			}
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d commands found", len(seen))
	}
}

// Values of placeholders are judged where they are loaded, and not where a Caddyfile is adapted for another machine.
func TestErrorsInTheEnvironment(t *testing.T) {
	t.Parallel()
	const site = "http://127.0.0.1:0 {\n\tshield 5/s {\n\t\tretries {\n\t\t\ttickets on\n\t\t\tsecret {env.SHIELD_TEST_NONE}\n\t\t}\n\t}\n}\n"
	file := write(t, "Caddyfile", site)
	want := "retries: secret has an empty or unknown placeholder, {env.SHIELD_TEST_NONE}; use {env.NAME} or {file./path} with a value"
	for _, name := range []string{"run", "validate"} {
		if out, err := command(t, name, "--config", file).CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("shield %s: %v\n%swant %s", name, err, out, want)
		}
	}
	if out, err := command(t, "adapt", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("adapt: %v\n%s", err, out)
	}
}

// The README's first commands with curl print a rejection that begins as the README shows, but for less to wait on a slow machine.
func TestReadmeShowsARejection(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl on the path")
	}
	shown := regexp.MustCompile("(?m)^shield proxy --from (\\S+) --to (\\S+) (.*)\n```\n\n.*\n\n```sh\n(for i in (?s:.*?))\n```\n(?s:.*?)```text\n((?s).*?)```").FindStringSubmatch(read(t, "../../README.md"))
	if shown == nil {
		t.Fatal("the README does not show how a rejection is got")
	}
	left := regexp.MustCompile(`(Ms: )\d+|((?:After: |t=))[1-5]\b`)
	address, _ := startProxy(t, append([]string{"--to", backend(t)}, strings.Fields(shown[3])...)...)
	out, err := exec.Command("sh", "-c", strings.ReplaceAll(shown[4], shown[1], address)).Output()
	got := left.ReplaceAllString(strings.ReplaceAll(string(out), "\r", ""), "${1}${2}1")
	if want := left.ReplaceAllString(shown[5], "${1}${2}1"); err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("%s prints %v\n%s\nwant\n%s", shown[4], err, got, want)
	}
}

// Without files of certificates, as in the image, the program has those of Mozilla.
func TestRootsWithoutFiles(t *testing.T) {
	t.Parallel()
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

// statusOf sends a request, and returns the status of its response when that has ended; 0 if there is none.
func statusOf(r *http.Request) int {
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// metrics returns those of a running instance.
func metrics(t *testing.T, admin string) string {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Caddy pushes the metrics over OTLP, as docs/reference/metrics-logs-events.md says.
func TestMetricsOverOTLP(t *testing.T) {
	t.Parallel()
	pushed := make(chan struct{})
	var once sync.Once
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/v1/metrics" && bytes.Contains(body, []byte("caddy_shield_requests_total")) {
			once.Do(func() { close(pushed) })
		}
	}))
	defer collector.Close()
	cmd := caddyfile(t, fmt.Sprintf("{\nadmin off\nmetrics {\notlp\n}\n}\nhttp://%s {\nshield {\ncapacity 100/s\n}\nrespond ok\n}", testserver.FreeAddress(t)))
	cmd.Env = append(cmd.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_METRIC_EXPORT_INTERVAL=100")
	await(t, cmd, serving)
	select {
	case <-pushed:
	case <-time.After(20 * time.Second):
		t.Error("no metrics of shield within 20 s")
	}
}
