package caddymodule

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

var update = flag.Bool("update", false, "write what the tests compare: testdata, and the tables of metrics in docs/reference/metrics-logs-events.md")

// Each testdata/*.caddyfiletest is a Caddyfile, a line of dashes, and the JSON
// that it stands for, or in error_*, a part of the error that it causes.
func TestAdapt(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	const separator = "----------\n"
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source, want, _ := strings.Cut(string(b), separator)
			got, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(source), map[string]any{"filename": "Caddyfile"})
			if strings.HasPrefix(filepath.Base(file), "error_") {
				if want = strings.TrimSpace(want); want == "" || err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error = %v, want one with %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, got, "", "\t"); err != nil {
				t.Fatal(err)
			}
			pretty.WriteByte('\n')
			if *update {
				if err := os.WriteFile(file, []byte(source+separator+pretty.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if pretty.String() != want {
				t.Errorf("got:\n%s\nwant:\n%s", pretty.String(), want)
			}
		})
	}
}
