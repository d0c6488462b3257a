package convert

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
)

var update = flag.Bool("update", false, "write the golden files anew")

// load adapts and provisions a Caddyfile as Caddy does.
func load(t *testing.T, text string) {
	t.Helper()
	if err := caddy.Validate(adapted(t, text)); err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
}

func adapted(t *testing.T, text string) *caddy.Config {
	t.Helper()
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, w := range warnings {
		t.Error(w)
	}
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Fatal(err)
	}
	c.Admin = &caddy.AdminConfig{Disabled: true}
	return &c
}

// golden compares a result with a file beside its input, and loads it.
func golden(t *testing.T, name string, got Result) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got.Caddyfile), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got.Caddyfile {
		t.Errorf("%s differs; got:\n%s", path, got.Caddyfile)
	}
	load(t, got.Caddyfile)
}

// missing returns the notes of what is not converted, a line each.
func missing(r Result) string {
	var b strings.Builder
	for _, n := range r.Notes {
		if n.Kind == Missing {
			b.WriteString(strings.Join(n.At, ", ") + ": " + n.Text + "\n")
		}
	}
	return b.String()
}
