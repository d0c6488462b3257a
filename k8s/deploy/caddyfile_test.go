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
	"github.com/herdshield/shield/k8s/testbed/must"
)

// TestCaddyfiles loads the stand-alone shield's Caddyfiles, but for serving.
func TestCaddyfiles(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, kind := range []string{"deployment", "sidecar"} {
		path := filepath.Join("standalone", kind, "Caddyfile")
		b := must.Get(os.ReadFile(path))(t)
		config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(b, map[string]any{"filename": path})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: error %v, warnings %v", path, err, warnings)
			continue
		}
		var c caddy.Config
		must.Do(t, json.Unmarshal(config, &c))
		if err := caddy.Validate(&c); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
