package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

// The tutorial works as it stands, word for word but for the ports: its commands run in their
// order, in a shell, with its files beside them. They print what it shows, but for numbers that
// are not the status of a response.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("needs ten seconds, and no -short")
	}
	t.Parallel() // it mostly waits
	page, err := os.ReadFile(tutorial)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	for _, port := range []string{"8080", "9000", "2019", "2020", "9090"} {
		_, ports[port], _ = strings.Cut(testserver.FreeAddress(t), ":")
	}
	text := regexp.MustCompile(`\b(8080|9000|2019|2020|9090)\b`).ReplaceAllStringFunc(string(page), func(port string) string { return ports[port] })
	admin := "127.0.0.1:" + ports["2019"]
	text = strings.NewReplacer( // which takes a third of the time; that curl retries by itself is seen in loadtest/lab/realclients
		"--herd 300", "--herd 60", "curl -sf --retry 3 ", "(shield forgive 127.0.0.1 --address "+admin+") >/dev/null; curl -sf ",
	).Replace(text)
	l := lesson{t: t, admin: admin, dir: t.TempDir()}
	l.prepare()

	ran, out := 0, ""
	for _, block := range regexp.MustCompile("(?ms)(?:`([\\w.]+)`:\n\n)?^```(\\w+)\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		file, language, code := block[1], block[2], block[3]
		switch language {
		case "caddyfile", "yaml":
			if file == "" {
				t.Fatalf("a file has no name:\n%s", code)
			}
			if file == "Caddyfile" {
				code = strings.Replace(code, "{\n", "{\n\tadmin "+l.admin+"\n", 1)
			}
			if err := os.WriteFile(filepath.Join(l.dir, "tutorial", file), []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
		case "sh":
			out = ""
			for line := range strings.Lines(code) {
				began := time.Now()
				out += l.run(strings.TrimSpace(line))
				t.Logf("%.1f s: %s", time.Since(began).Seconds(), line)
				ran++
			}
		case "text":
			l.shows(out, code)
		default:
			t.Errorf("a block is in %s; want sh, text, caddyfile or yaml", language)
		}
	}
	if ran < 20 {
		t.Errorf("only %d commands ran", ran)
	}
}

const tutorial = "../../docs/start/tutorial.md"

// lesson is the shell of a reader of the tutorial.
type lesson struct {
	t          *testing.T
	dir, admin string
	server     *exec.Cmd // the latest shield on port 8080
	prometheus bool      // is not there: the rest of its section is left out
}

// prepare makes a folder like that of the clone, with this test as the program.
func (l *lesson) prepare() {
	self, err := os.Executable()
	if err != nil {
		l.t.Fatal(err)
	}
	monitoring, err := filepath.Abs("../../monitoring")
	if err != nil {
		l.t.Fatal(err)
	}
	program := fmt.Sprintf("#!/bin/sh\nSHIELD_TEST_RUN_MAIN=1 exec %s \"$@\"\n", self)
	for _, err := range []error{
		os.Symlink(monitoring, filepath.Join(l.dir, "monitoring")),
		os.Mkdir(filepath.Join(l.dir, "tutorial"), 0o700),
		os.Mkdir(filepath.Join(l.dir, "bin"), 0o700),
		os.WriteFile(filepath.Join(l.dir, "bin", "shield"), []byte(program), 0o700),
	} {
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lesson) command(line string) *exec.Cmd {
	cmd := exec.CommandContext(l.t.Context(), "bash", "-ec", line)
	cmd.Dir = filepath.Join(l.dir, "tutorial")
	cmd.Env = append(os.Environ(), "HOME="+l.dir, "XDG_CONFIG_HOME="+l.dir, "XDG_DATA_HOME="+l.dir, "PATH="+filepath.Join(l.dir, "bin")+":"+os.Getenv("PATH"))
	return cmd
}

var (
	byOthers = regexp.MustCompile(`^(git clone|go install|mkdir tutorial|watch -n1 shield status$)`) // CI, prepare, and the reader
	servers  = regexp.MustCompile(`^(shield (respond|proxy|run)|prometheus) ?`)
	asks     = regexp.MustCompile(`^shield (status|who|explain|forgive|reload)\b`)
)

// run runs a line, and returns what it prints. Servers go on until the test ends, or until
// the next one on port 8080.
func (l *lesson) run(line string) string {
	l.t.Helper()
	if strings.HasPrefix(line, "prometheus ") {
		if _, err := exec.LookPath("prometheus"); err != nil {
			if os.Getenv("SHIELD_PROMETHEUS_REQUIRED") != "" {
				l.t.Fatal(err)
			}
			l.prometheus = true
		}
	}
	if byOthers.MatchString(line) || l.prometheus {
		return ""
	}
	switch {
	case strings.HasPrefix(line, "shield proxy"):
		line += " --admin " + l.admin
	case asks.MatchString(line):
		line += " --address " + l.admin
	}
	if server := servers.FindString(line); server != "" {
		l.serve(server, line)
		return ""
	}
	var out []byte
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(100 * time.Millisecond) { // a reader types slowly; servers need a moment
		var err error
		cmd := l.command(line)
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		if out, err = cmd.Output(); err == nil && (len(bytes.TrimSpace(out)) > 0 || !strings.HasPrefix(line, "promtool")) {
			break
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: %v\n%s%s", line, err, out, complaints.Bytes())
		}
	}
	return string(out)
}

func (l *lesson) serve(server, line string) {
	cmd := l.command("exec " + line)
	if server == "shield proxy " || server == "shield run" {
		if l.server != nil { // Ctrl-C, says the page
			_ = l.server.Process.Signal(os.Interrupt)
			_ = l.server.Wait()
		}
		l.server = cmd
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	if server == "shield proxy " || server == "shield run" {
		l.run("curl -sf http://" + l.admin + "/shield/ >/dev/null")
	}
	if _, at, found := strings.Cut(line, "respond --listen "); found {
		address, _, _ := strings.Cut(at, " ")
		l.run("curl -sf http://" + address + " >/dev/null") // it listens
	}
}

// shows checks that each line of want is in out, with any numbers but the statuses.
func (l *lesson) shows(out, want string) {
	l.t.Helper()
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		pattern := regexp.QuoteMeta(line)
		pattern = regexp.MustCompile(`\b\d+(\\\.\d+)?\b`).ReplaceAllStringFunc(pattern, func(n string) string {
			if n == "200" || n == "429" {
				return n
			}
			return `-?[\d.]+` // a time may have come
		})
		pattern = regexp.MustCompile(` +`).ReplaceAllString(pattern, `\s+`)
		if !l.prometheus && !regexp.MustCompile(pattern).MatchString(out) {
			l.t.Errorf("the page shows\n%s\nand this came out:\n%s", line, out)
		}
	}
}
