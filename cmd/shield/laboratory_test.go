package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var updatePage = flag.Bool("update", false, "write docs/reference/cli.md, and what docs/guides/simulate-and-load-test.md shows")

const labPage = "../../docs/guides/simulate-and-load-test.md"

// words splits a command as a shell does, with single quotes only.
func words(line string) (all []string) {
	for _, m := range regexp.MustCompile(`(?:[^\s']|'[^']*')+`).FindAllString(line, -1) {
		all = append(all, strings.ReplaceAll(m, "'", ""))
	}
	return all
}

// upToDate checks what is in a file of the docs, or writes it.
func upToDate(t *testing.T, path, now string) {
	t.Helper()
	if old, err := os.ReadFile(path); err == nil && string(old) == now {
		return
	}
	if !*updatePage {
		t.Errorf("%s is out of date; go test ./cmd/shield -run %s -update writes it", path, t.Name())
	} else if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
		t.Error(err)
	}
}

// Every command of the page runs, with the files of the page, and what it shows is
// what comes out.
func TestLaboratoryPage(t *testing.T) {
	t.Parallel()
	page, folder := read(t, labPage), t.TempDir()
	for _, m := range regexp.MustCompile("(?s)```caddyfile\n# (\\S+)\n(.*?)```").FindAllStringSubmatch(page, -1) {
		write(t, filepath.Join(folder, m[1]), m[2])
	}
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()

	outputs := map[string]string{}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSpace(line)
			args := words(strings.ReplaceAll(line, "http://127.0.0.1:8080", srv.URL))
			if len(args) < 2 || args[0] != "shield" {
				t.Errorf("a block of the page has %q; want commands of shield only", line)
				continue
			}
			if args[1] == "simulate" && !strings.Contains(page, "<!-- output of "+line+", by ") && !strings.Contains(line, "--edge") && !strings.Contains(line, "--outage") {
				args = append(args, "--duration", "2s", "--warmup", "1s") // nobody sees what it shows
			}
			var out, wrong bytes.Buffer
			cmd := command(t, args[1:]...)
			cmd.Dir, cmd.Stdout, cmd.Stderr = folder, &out, &wrong
			if err := cmd.Run(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, &wrong)
			}
			outputs[line] = strings.TrimSpace(out.String())
		}
	}
	if len(outputs) < 7 {
		t.Errorf("only %d commands found", len(outputs))
	}
	for _, file := range []string{"runs.json", "load.json"} {
		if info, err := os.Stat(filepath.Join(folder, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s is empty, or not there: %v", file, err)
		}
	}

	shown := regexp.MustCompile("(?s)<!-- output of ([^\n]*), by [^\n]*\n```text\n(.*?)```")
	filled := shown.ReplaceAllStringFunc(page, func(all string) string {
		command := shown.FindStringSubmatch(all)[1]
		head, _, _ := strings.Cut(all, "\n")
		if outputs[command] == "" {
			t.Errorf("the page shows what %q writes, and does not run it", command)
		}
		return head + "\n```text\n" + outputs[command] + "\n```"
	})
	upToDate(t, labPage, filled)
}

// The simulations of docs/guides/plan-from-your-log.md run, with a small log and the page's
// config.
func TestSimulationsOfCapacityPlanning(t *testing.T) {
	page := read(t, "../../docs/guides/plan-from-your-log.md")
	log := writeLog(t, 30)
	folder := filepath.Dir(log) // it is called access.log there, too
	m := regexp.MustCompile("(?s)## 3. Write a config\n\n```caddyfile\n(.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no config")
	}
	write(t, filepath.Join(folder, "Caddyfile"), m[1])
	t.Chdir(folder)
	n := 0
	for line := range strings.Lines(page) {
		args := words(strings.TrimSpace(line))
		if len(args) < 2 || args[0] != "shield" || args[1] != "simulate" {
			continue
		}
		n++
		if err := runSimulate(io.Discard, io.Discard, append(args[2:], "--duration", "2s")...); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if n == 0 {
		t.Error("the page has no simulation")
	}
}
