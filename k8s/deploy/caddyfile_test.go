package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
)

// TestCaddyfiles loads the stand-alone shield's Caddyfiles, but for serving.
func TestCaddyfiles(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, kind := range []string{"deployment", "sidecar"} {
		path := filepath.Join("standalone", kind, "Caddyfile")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(b, map[string]any{"filename": path})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: error %v, warnings %v", path, err, warnings)
			continue
		}
		var c caddy.Config
		if err := json.Unmarshal(config, &c); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&c); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
