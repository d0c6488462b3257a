package main

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/share/redis/testserver"
)

var program string

func TestMain(m *testing.M) { os.Exit(process.Main(m, &program)) }

// Every fault once: the page says what users get.
func TestFaults(t *testing.T) {
	_, err := exec.LookPath("redis-server")
	if can := exec.Command("unshare", "--mount", "true").Run(); (err != nil || can != nil || runtime.GOARCH != "amd64") && os.Getenv(testserver.Required) == "" {
		t.Skipf("it needs a redis-server (%v), Linux on amd64 and file systems of its own (%v)", err, can)
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, program, 0, ""); err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", &out)
}

func TestFaultsAreOnThePage(t *testing.T) {
	page := must.Read(t, "README.md")
	_, table, begins := strings.Cut(page, "<!-- soak, by go -C loadtest/lab run ./soak -time 1h -->\n"+header)
	table, _, ends := strings.Cut(table, "<!-- end of soak -->")
	if lines := strings.Split(strings.TrimSpace(table), "\n"); !begins || !ends || len(lines) != len(rows) {
		t.Fatalf("the page has no table of %d faults", len(rows))
	}
	for i, line := range strings.Split(strings.TrimSpace(table), "\n") {
		if want := rows[i].String(); !strings.HasPrefix(line, want+" ") {
			t.Errorf("the page has\n%s\nwant\n%s and what was measured", line, want)
		}
	}
}
