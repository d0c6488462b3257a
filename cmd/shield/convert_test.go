package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConvert(t *testing.T) {
	folder := t.TempDir()
	nginx, caddy := filepath.Join(folder, "nginx.conf"), filepath.Join(folder, "Caddyfile")
	for file, text := range map[string]string{
		nginx: "http {\nlimit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;\nserver {\nlimit_req zone=a burst=4 nodelay;\nlimit_rate 1k;\n}\n}\n",
		caddy: ":80 {\nrate_limit {\nzone a {\nkey {client_ip}\nevents 5\nwindow 1s\n}\n}\n}\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ from, file, notes string }{
		{"nginx", nginx, "see 1 note under"},
		{"caddy-ratelimit", caddy, ""},
	} {
		var out, notes strings.Builder
		if err := convertFile(&out, &notes, c.from, c.file); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "rate 5/s\n\t\t\tburst 5\n") || !strings.Contains(notes.String(), c.notes) || c.notes == "" && notes.Len() > 0 {
			t.Errorf("%s: notes %q, and\n%s", c.from, notes.String(), out.String())
		}
	}
	for _, from := range []string{"nginx", "caddy-ratelimit"} {
		if err := convertFile(new(strings.Builder), new(strings.Builder), from, filepath.Join(folder, "gone")); err == nil || !strings.Contains(err.Error(), "want a file of "+from) {
			t.Errorf("%s of a file that is not there: %v", from, err)
		}
	}
}
